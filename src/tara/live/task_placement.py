"""Where Spark is to run a container: on the server that has its journal, as long as that one is there.

Spark places a task by the locations that its data prefers. A container that comes back where its journal is goes on
with what it promised; anywhere else it is one of the f that may be without their journals. After a restart of the
driver that matters: all containers are placed anew, and more than f on the wrong servers would stop the service for
good.
"""

import pickle
import socket
import time
from collections.abc import Collection
from typing import Any

#: How long a new driver waits for the executors of servers with journals. A server that does not come in this time is
#: taken for lost, and its container starts elsewhere, without its journal.
EXECUTORS_TIMEOUT_S = 60.0
_LOOK_S = 0.2


def element_at(context: Any, element: object, hosts: Collection[str]) -> Any:
    """An RDD of one partition with this element, which Spark evaluates on one of these hosts if it can."""
    anywhere = context.parallelize([element], 1)
    if not hosts:
        return anywhere
    from pyspark.core.rdd import RDD
    from pyspark.serializers import CPickleSerializer

    # Python's `parallelize` cannot say where; Scala's `makeRDD` can. Elements are bytes that Python unpickles.
    jvm = context._jvm
    pair = jvm.scala.Tuple2(pickle.dumps(element), jvm.PythonUtils.toSeq(list(hosts)))
    located = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq([pair]), anywhere._jrdd.classTag())
    return RDD(located.toJavaRDD(), context, CPickleSerializer())


def executor_hosts(context: Any) -> set[str]:
    """The hosts of the executors that Spark has now, as Spark calls them. The driver is none."""
    blocks = context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(",").split(",")
    hosts = [block.rpartition(":")[0] for block in blocks if block]
    driver = context._conf.get("spark.driver.host")
    if driver in hosts:
        hosts.remove(driver)
    return set(hosts)


def hosts_at(context: Any, server: str) -> list[str]:
    """The hosts, as Spark calls them, that have this address."""
    return sorted(host for host in executor_hosts(context) if server in _addresses(host))


def _addresses(host: str) -> set[str]:
    try:
        return {host, *(str(entry[4][0]) for entry in socket.getaddrinfo(host, None))}
    except OSError:
        return {host}


def await_executors(context: Any, servers: Collection[str], timeout_s: float = EXECUTORS_TIMEOUT_S) -> list[str]:
    """Wait until there are executors on all these servers; returns those that did not come."""
    end_s = time.monotonic() + timeout_s
    while True:
        missing = [server for server in servers if not hosts_at(context, server)]
        if not missing or time.monotonic() > end_s:
            return missing
        time.sleep(_LOOK_S)
