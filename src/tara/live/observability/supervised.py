"""Threads whose end somebody notices.

A thread that ends by an exception leaves its process running without what it did, and nothing says so. In the driver
every thread is told whom to report its end to. A container's process is our own, so that all of its threads, whoever
started them, report to one place.
"""

import threading
from collections.abc import Callable

#: The thread's name, and what ended it; None: it returned, although it was to run on.
OnEnd = Callable[[str, BaseException | None], None]


def supervised(name: str, target: Callable[[], None], may_end: Callable[[], bool], on_end: OnEnd) -> Callable[[], None]:
    """What a thread runs so that its end is reported, unless it returns when it may."""

    def run() -> None:
        error: BaseException | None = None
        try:
            target()
        except BaseException as raised:
            error = raised
        if error is not None or not may_end():
            on_end(name, error)

    return run


def report_all_threads(on_end: OnEnd) -> None:
    """From now on every thread of this process that ends by an exception, whatever its kind, is reported."""

    def hook(arguments: threading.ExceptHookArgs) -> None:
        name = arguments.thread.name if arguments.thread is not None else "unknown"
        on_end(name, arguments.exc_value or arguments.exc_type())

    threading.excepthook = hook


def describe_end(name: str, error: BaseException | None) -> str:
    return f"the thread `{name}` ended: {'it returned' if error is None else repr(error)}"
