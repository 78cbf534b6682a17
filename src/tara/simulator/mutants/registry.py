"""Mutants: versions of the code with one rule taken away. Where they are kept, and how they are made."""

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from msgspec import Struct

from tara.protocol.errors import ConfigurationError

Patch = Callable[[], contextlib.AbstractContextManager[object]]

#: Where mutants are, and of which part of the code; those of an application are beside it.
MODULES = {
    "tara.simulator.mutants.protocol": "protocol",
    "tara.simulator.mutants.host": "host",
    "tara.simulator.mutants.client": "client",
    "tara.simulator.mutants.storage": "storage",
    "tara.apps.coordination.mutants": "coordination service",
}


class Mutant(Struct, frozen=True):
    name: str
    #: The part of the code that has the rule.
    area: str
    #: The amendment or rule that is taken away. A label, if there is one, is that of `docs/protocol.md`.
    undoes: str
    patch: Patch
    partitions: int = 1
    #: `disk` if it takes journals, or crashes beyond f, to notice.
    durability: str = "both"
    #: It takes a run of this kind to notice (`tara.simulator.plan.KINDS`); empty: any will do.
    kind: str = ""
    #: The application that has the rule.
    app: str = "key-value"
    #: It takes this fault to notice, and one container per `site` or per `node`; empty: any will do.
    fault: str = ""
    packing: str = ""


_known: list[Mutant] = []


def mutant(
    undoes: str,
    partitions: int = 1,
    durability: str = "both",
    kind: str = "",
    app: str = "key-value",
    fault: str = "",
    packing: str = "",
) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Register a generator function that patches, yields and undoes."""

    def register(body: Callable[[], Iterator[None]]) -> None:
        patch = contextlib.contextmanager(body)
        area = MODULES[body.__module__]
        _known.append(Mutant(body.__name__, area, undoes, patch, partitions, durability, kind, app, fault, packing))

    return register


def replace(owner: Any, name: str, value: Any) -> contextlib.AbstractContextManager[object]:
    """What is called otherwise than what it replaces would only ever fail."""
    original = inspect.getattr_static(owner, name)
    if inspect.isfunction(original) and inspect.isfunction(value):
        inspect.signature(value).bind(*inspect.signature(original).parameters)
    return mock.patch.object(owner, name, value)


def nothing(*arguments: Any) -> None:
    """What a missing mechanism does."""


def mutants() -> list[Mutant]:
    for module in MODULES:
        importlib.import_module(module)
    names = [one.name for one in _known]
    assert len(names) == len(set(names)), "two mutants of one name"
    return _known


def mutant_of(name: str) -> Mutant:
    """The mutant of this name; a clear error if there is none."""
    for one in mutants():
        if one.name == name:
            return one
    raise ConfigurationError(f"mutant = {name}: must be one of {', '.join(sorted(one.name for one in mutants()))}")


def applied(name: str | None) -> contextlib.AbstractContextManager[object]:
    """The code with that rule taken away; with None, as it is."""
    return contextlib.nullcontext() if name is None else mutant_of(name).patch()
