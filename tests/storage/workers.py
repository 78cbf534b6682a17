"""Threads for stores and logs, as in a container."""

from tara.storage.log import DecidedLog
from tara.storage.store import ExecutorStore
from tara.storage.worker import Worker


def work_for(what: ExecutorStore | DecidedLog) -> Worker:
    worker = Worker("test", what.work)
    what.wake = worker.wake
    return worker
