"""Tara inside Structured Streaming: the protocol's nodes as one query, and `format("tara")` for a live cluster.

Import `StreamingReplication` for the first; `pyspark_tara` offers the second. Nothing here is imported by the rest of
Tara, so PySpark's streaming dependencies (pandas, pyarrow) are needed only by those who use it.
"""

from tara.streaming.config import StreamingConfig
from tara.streaming.replication import StreamingReplication, nodes, read_results, spark_settings

__all__ = ["StreamingConfig", "StreamingReplication", "nodes", "read_results", "spark_settings"]
