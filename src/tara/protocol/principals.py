"""Principals: who sends a command, and to whom a session belongs.

A front end stamps every command that it takes with the principal of whoever sent it; what a client wrote in that place
is overwritten. The replicated state remembers the principal that opened a session, and refuses the commands of all
others. So it does not matter that the ids of sessions are small numbers that anybody can guess.

A principal is a kind (one byte) and, where there are several of a kind, a digest of what proves it: the public key of
the connection, or a secret that only its owner can know. Keys and secrets themselves are nowhere in the replicated
state, in the log or in a backup.
"""

from hashlib import blake2b

#: A client that presented a secret; then the digest of the secret.
SECRET = b"s"
#: A client that proved that it has a key; then the digest of the public key.
KEY = b"k"
#: Somebody with a key of the cluster, or with the operator's secret; then the digest of it.
OPERATOR = b"o"
#: A container's own gateway; then the number of its site.
GATEWAY = b"g"
#: The service itself: a request source that lets the agreed time pass.
SYSTEM = b"t"

DIGEST_BYTES = 16
PRINCIPAL_BYTES_MAX = 1 + DIGEST_BYTES
#: A secret that somebody could guess protects nothing. Clients draw so many random bytes.
SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 64

KINDS = {SECRET: "secret", KEY: "key", OPERATOR: "operator", GATEWAY: "gateway", SYSTEM: "system"}


def digest_of_secret(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=DIGEST_BYTES, person=b"tara secret").digest()


def principal_of(secret: bytes, key: bytes = b"", member: bool = False, operator: bytes = b"") -> bytes:
    """Who sends on a connection. If the connection has proved a key, its digest decides, and whether the key is one of
    the cluster's own; the secret then counts for nothing. If not, the secret decides; `operator` is the digest of the
    operator's (empty: there is none). Empty: nobody, because the secret is too short or too long."""
    if key:
        return (OPERATOR if member else KEY) + key[:DIGEST_BYTES]
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        return b""
    digest = digest_of_secret(secret)
    return (OPERATOR if operator and digest == operator else SECRET) + digest


def gateway_of(site: int) -> bytes:
    return GATEWAY + site.to_bytes(2, "big")


def is_gateway(principal: bytes) -> bool:
    return principal[:1] == GATEWAY


def is_operator(principal: bytes) -> bool:
    return principal[:1] == OPERATOR


def describe(principal: bytes) -> str:
    """For listings: the kind and the beginning of the digest."""
    kind = KINDS.get(principal[:1], "nobody")
    rest = principal[1:]
    if kind == "gateway":
        return f"gateway {int.from_bytes(rest, 'big')}"
    return f"{kind} {rest[:4].hex()}" if rest else kind
