"""The Spark sessions that Tara makes: every one is made here, so that none of them listens where nobody asked it to.

What listens, and what says where (Spark 4.3):

- the driver's RPC and its block manager: `spark.driver.bindAddress`. Where Spark is local nobody else connects to them,
  so they stay on loopback, whatever address the cluster itself has;
- the UI: the variable `SPARK_LOCAL_IP` in the environment of the JVM, and nothing else; without it, all addresses. It
  has no login, so its kill links are always off;
- the gateway to Python, the server of accumulators and the daemon that forks Python workers: loopback, with a secret.

With keys, whoever connects to Spark's RPC must know a secret, and what is said is encrypted. Where Spark is local, on
YARN and on Kubernetes, Spark makes that secret by itself. A standalone master and its workers need to have it before,
from an operator; it never comes from here, where it would show in the command line of the JVM.

A session that somebody else made is never used, and never changed.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tara.net.addresses import WILDCARDS
from tara.protocol.errors import TaraError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

JAVA_MINIMUM = 17
LOOPBACK = "127.0.0.1"
_SECRET = "spark.authenticate.secret"
#: Of the JVM's environment: what the UI binds, and what its address is said to be.
_UI_BINDS = "SPARK_LOCAL_IP"
_UI_IS_CALLED = "SPARK_PUBLIC_DNS"
#: For a JVM that is to be there soon, and has little to do then: no time is spent on the best machine code.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Of every session.
_SAFE = {
    "spark.ui.killEnabled": "false",
    "spark.log.level": "OFF",
    "spark.ui.showConsoleProgress": "false",
}
_AUTHENTICATED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
#: Where master and workers have no part in it, and cannot be set to anything else.
_STRICT = {
    "spark.network.crypto.saslFallback": "false",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
}


class SparkError(TaraError):
    """Spark could not be started, or did not start the containers."""


def check_java() -> None:
    """Spark needs Java; say so before it fails in a thousand lines."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = f"Spark needs Java {JAVA_MINIMUM} or newer: install it (Debian: openjdk-17-jre-headless) or set JAVA_HOME"
    if java is None or not Path(java).exists():
        raise SparkError(f"no Java found. {hint}")
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    words = text.split('"')
    major = words[1].split(".")[0] if len(words) > 1 else ""
    if not major.isdigit() or int(major) < JAVA_MINIMUM:
        raise SparkError(f"{java} is version {major or 'unknown'}. {hint}")


def is_local(master: str) -> bool:
    """Whether Spark runs in the driver's process and its children alone."""
    return master.startswith("local") and not master.startswith("local-cluster")


def open_session(name: str, master: str, settings: Mapping[str, str]) -> "SparkSession":
    """A new session for queries."""
    from pyspark.sql import SparkSession

    open_context(name, master, settings)
    return SparkSession.builder.getOrCreate()


def open_context(
    name: str,
    master: str,
    settings: Mapping[str, str],
    driver_host: str | None = None,
    ui_host: str = LOOPBACK,
    keyed: bool = False,
    launched: Callable[[], None] = lambda: None,
) -> "SparkContext":
    """What a session stands on: enough for jobs, and there in half of the time, because nothing of Spark SQL is loaded.
    `driver_host` is the address at which executors on other hosts find the driver; None: as Spark's own configuration
    says. Where Spark is local it does not matter. `launched` is told when the JVM is there."""
    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None:
        raise SparkError("there is a Spark session in this process already, and it is not Tara's: stop it first")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    host = LOOPBACK if is_local(master) else driver_host
    ui = ui_host if host is not None else None
    wanted = {**settings, **safe_settings(master, host, keyed), "spark.master": master, "spark.app.name": name}
    try:
        jvm = _launch(wanted, ui)
        launched()
        if not _is_bound(jvm, ui):
            # This JVM is of somebody else's making (`spark-submit`, or a session before): its UI would be everywhere.
            wanted["spark.ui.enabled"] = "false"
        if keyed and master.startswith("spark:") and not jvm.SparkConf().contains(_SECRET):
            raise SparkError(
                f"with keys, Spark's own connections need a secret, too: set {_SECRET} in the spark-defaults.conf of "
                f"{master}, of its workers and of this driver (docs/operations.md, What listens where)"
            )
        return SparkContext(conf=SparkConf().setAll(list(wanted.items())))
    except SparkError:
        raise
    except Exception as error:
        raise SparkError(f"Spark does not start with master {master}: {_reason(error)}") from error


def safe_settings(master: str, host: str | None, keyed: bool) -> dict[str, str]:
    """What a session must have so that strangers do no harm. `host` is what the driver binds, if we are to say so."""
    found = dict(_SAFE)
    if host is not None:
        found |= {"spark.driver.host": host, "spark.driver.bindAddress": host}
    if is_local(master):
        # It costs nothing here: Spark makes the secret, and nobody connects.
        found |= _AUTHENTICATED | _STRICT
        # Containers are to see what the operator has set, and not what we set for the JVM.
        if os.environ.get(_UI_BINDS):
            found[f"spark.executorEnv.{_UI_BINDS}"] = os.environ[_UI_BINDS]
    elif keyed:
        found |= _AUTHENTICATED if master.startswith("spark:") else _AUTHENTICATED | _STRICT
    if keyed:
        found["spark.io.encryption.enabled"] = "true"
    return found


def _launch(settings: Mapping[str, str], ui_host: str | None) -> Any:
    """The JVM of this process, which is started if there is none."""
    from pyspark import SparkConf, SparkContext

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    changes = {"SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", QUICK_JVM)}
    if ui_host is not None:
        changes |= {_UI_BINDS: ui_host, _UI_IS_CALLED: ui_host}
    with _environment(changes):
        SparkContext._ensure_initialized(conf=conf)
    return SparkContext._jvm


def _is_bound(jvm: Any, ui_host: str | None) -> bool:
    """Whether the UI will be at this address; None: at any that an operator has chosen."""
    binds = jvm.System.getenv(_UI_BINDS)
    return bool(binds and binds not in WILDCARDS) if ui_host is None else binds == ui_host


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Of processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _reason(error: Exception) -> str:
    """The line that tells what Java did not like, if it was Java."""
    lines = [line.removeprefix(": ") for line in str(error).splitlines() if line.startswith(": ")]
    return lines[0] if lines else str(error)
