"""Applications by name: the built-in ones, and `module:Class`."""

import importlib

from tara.application import KeyValueStore, StateMachine
from tara.protocol.errors import ConfigurationError

BUILT_IN: dict[str, type[StateMachine]] = {"key-value": KeyValueStore}
#: Built-in applications of the packages above this one, found by name when they are asked for.
NAMED = {"coordination": "tara.apps.coordination.service:CoordinationService"}


def application_of(name: str) -> type[StateMachine]:
    """The class that plays the application; a clear error if there is none."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    name = NAMED.get(name, name)
    if ":" not in name:
        raise ConfigurationError(f"app = {name}: must be one of {', '.join((*BUILT_IN, *NAMED))}, or module:Class")
    found = attribute_of("app", name)
    if not (isinstance(found, type) and issubclass(found, StateMachine)):
        raise ConfigurationError(f"app = {name}: is not a subclass of tara.application.StateMachine")
    return found


def attribute_of(setting: str, name: str) -> object:
    """What `module:attribute` stands for."""
    module, _, attribute = name.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{setting} = {name}: {error}") from error
    return found
