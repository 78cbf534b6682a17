"""Makes `format("tara")` known to PySpark, which looks for `DefaultSource` in top-level modules called `pyspark_…`."""

from tara.streaming.connector import TaraSource as DefaultSource

__all__ = ["DefaultSource"]
