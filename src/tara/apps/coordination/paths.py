"""Paths of znodes."""

import re

from tara.apps.coordination.limits import PATH_CHARACTERS_MAX

#: What ZooKeeper refuses, as a Java string would show it: characters beyond the basic plane are surrogates there.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def parent_of(path: str) -> str:
    """The path without its last name; the root for a node directly below it."""
    return path[: path.rfind("/")] or "/"


def name_of(path: str) -> str:
    return path[path.rfind("/") + 1 :]


def child_of(path: str, name: str) -> str:
    return f"/{name}" if path == "/" else f"{path}/{name}"


def is_valid(path: str) -> bool:
    if path == "/":
        return True
    if not path.startswith("/") or path.endswith("/") or "//" in path or len(path) > PATH_CHARACTERS_MAX:
        return False
    if "/." in path and any(name in (".", "..") for name in path.split("/")):
        return False
    return _FORBIDDEN.search(path) is None


def ancestors(path: str) -> list[str]:
    """The path itself, its parent, and so on up to the root."""
    found = [path]
    while path != "/":
        path = parent_of(path)
        found.append(path)
    return found
