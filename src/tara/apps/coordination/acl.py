"""Who may do what: access control lists, with the schemes world, auth, digest and ip. Pure functions."""

import base64
import functools
import hashlib
import ipaddress

from tara.apps.coordination.codes import ALL, Code, Refusal
from tara.apps.coordination.jute import Acl
from tara.apps.coordination.limits import ACL_ENTRIES_MAX, ACL_ID_CHARACTERS_MAX

#: (scheme, id) pairs that a connection has proved.
Ids = tuple[tuple[str, str], ...]

OPEN: Acl = ((ALL, "world", "anyone"),)
#: What `/zookeeper/config` has.
READ_ONLY: Acl = ((1, "world", "anyone"),)


def digest_id(credentials: bytes) -> str:
    """The id of `user:password`."""
    user = credentials.split(b":", 1)[0].decode(errors="replace")
    return f"{user}:{base64.b64encode(hashlib.sha1(credentials).digest()).decode()}"


def permits(acl: Acl, permission: int, ids: Ids) -> bool:
    """Whether somebody with these ids has one of the permissions."""
    if acl is OPEN or not acl:
        return True
    for permissions, scheme, id_ in acl:
        if not permissions & permission:
            continue
        if scheme == "world" and id_ == "anyone":
            return True
        for own_scheme, own_id in ids:
            if own_scheme == scheme and (_address_matches(own_id, id_) if scheme == "ip" else own_id == id_):
                return True
    return False


def resolve(acl: Acl, ids: Ids) -> Acl:
    """The list as it is stored: without repetition, `auth` replaced by the ids of the requester."""
    if acl == OPEN:
        return OPEN
    # Every access to the node goes through the list.
    if len(acl) > ACL_ENTRIES_MAX or any(len(id_) > ACL_ID_CHARACTERS_MAX for _, _, id_ in acl):
        raise Refusal(Code.INVALID_ACL)
    found: list[tuple[int, str, str]] = []
    for entry in dict.fromkeys(acl):
        permissions, scheme, id_ = entry
        if scheme == "auth":
            own = [(permissions, *own) for own in ids if own[0] != "ip"]
            if not own:
                raise Refusal(Code.INVALID_ACL)
            found += own
        elif _valid(scheme, id_):
            found.append(entry)
        else:
            raise Refusal(Code.INVALID_ACL)
    if not found:
        raise Refusal(Code.INVALID_ACL)
    return intern(tuple(found))


def masked(acl: Acl) -> Acl:
    """What somebody sees who may read but not administer: no password hashes."""
    return tuple((p, scheme, f"{id_.split(':')[0]}:x" if scheme == "digest" else id_) for p, scheme, id_ in acl)


@functools.lru_cache(maxsize=256)
def intern(acl: Acl) -> Acl:
    """Equal lists as one object: there are few different ones among many nodes."""
    return OPEN if acl == OPEN else acl


def _valid(scheme: str, id_: str) -> bool:
    match scheme:
        case "world":
            return id_ == "anyone"
        case "digest":
            return len(id_.rstrip(":").split(":")) == 2
        case "ip":
            return _network(id_) is not None
        case _:
            return False


@functools.lru_cache(maxsize=4096)
def _network(id_: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(id_, strict=False)
    except ValueError:
        return None


def _address_matches(address: str, id_: str) -> bool:
    network = _network(id_)
    own = _network(address)
    return network is not None and own is not None and own.network_address in network
