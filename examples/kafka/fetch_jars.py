"""Fetches from Maven Central what it takes to try Tara with Kafka on one machine: a broker, and Spark's connector.

    python fetch_jars.py DIRECTORY

Afterwards the jars are in DIRECTORY/broker and DIRECTORY/connector. `jars.txt` says which, with their checksums: what
is there already and has the right one stays, and anything else is refused. (For a cluster of your own you need the
connector only: `spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:…` of Spark's own version.)
"""

import hashlib
import sys
import urllib.error
import urllib.request
from pathlib import Path

CENTRAL = "https://repo1.maven.org/maven2"
LIST = Path(__file__).with_name("jars.txt")
TIMEOUT_S = 60.0


class FetchError(Exception):
    """A jar cannot be had, or is not what it should be."""


def fetch_all(directory: Path) -> None:
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            place, coordinates, checksum = line.split()
            _fetch(directory / place, coordinates, checksum)


def _fetch(directory: Path, coordinates: str, checksum: str) -> None:
    group, artifact, version = coordinates.split(":")
    path = directory / f"{artifact}-{version}.jar"
    if path.exists() and _checksum(path.read_bytes()) == checksum:
        return
    url = f"{CENTRAL}/{group.replace('.', '/')}/{artifact}/{version}/{path.name}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            data = answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise FetchError(f"{url}: {error}") from error
    if _checksum(data) != checksum:
        raise FetchError(f"{url}: has SHA-256 {_checksum(data)}, and not {checksum}")
    directory.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.rename(path)


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        fetch_all(Path(sys.argv[1]))
    except FetchError as error:
        sys.exit(str(error))
