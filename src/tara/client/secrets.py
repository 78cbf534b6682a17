"""Secrets in files: what shows, without keys, that a session (or the operator's right) belongs to whoever can read it.

A file is made once, with random bytes in hexadecimal and a checksum, for its owner's eyes only. Two
processes that make it at the same time end up with the same one.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from tara.protocol.errors import ConfigurationError
from tara.protocol.principals import SECRET_BYTES_MAX, SECRET_BYTES_MIN
from tara.storage.files import DamagedFile, pack_small, unpack_small

#: A longer file is no secret.
_FILE_BYTES_MAX = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def kept_secret(path: Path) -> bytes:
    """The secret in this file; if there is no file, a new one."""
    if not path.exists():
        _make(path)
    return read_secret(path)


def read_secret(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    if mode & _OTHERS:
        raise ConfigurationError(f"{path}: others can read or write this secret (mode {mode:04o}): chmod 600 it")
    try:
        secret = bytes.fromhex(unpack_small(data).decode("ascii"))
    except DamagedFile as error:
        raise ConfigurationError(
            f"{path}: {error}. Put a copy of it back. Without one, remove it, and the next start makes a new one; a "
            "session that the old one opened has to be closed first (`tara sessions close`)"
        ) from error
    except ValueError:
        secret = b""
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigurationError(f"{path}: is no secret: {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in hexadecimal")
    return secret


def _make(path: Path) -> None:
    """As a whole or not at all: the name appears when the contents are on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, pack_small(os.urandom(SECRET_BYTES_MIN).hex().encode()))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # Whoever was first has made it.
        with suppress(FileExistsError):
            os.link(temporary, path)
        os.unlink(temporary)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be made: {error.strerror}") from error
