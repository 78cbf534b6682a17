"""Answers to requests that change nothing: ZooKeeper's request body in, its response body out."""

from collections.abc import Callable

from tara.apps.coordination import acl as acls
from tara.apps.coordination import codes
from tara.apps.coordination.acl import Ids
from tara.apps.coordination.codes import Code, Op, Refusal
from tara.apps.coordination.jute import (
    MULTI_HEADER,
    JuteError,
    Reader,
    pack_acl,
    pack_buffer,
    pack_int,
    pack_text,
    pack_texts,
)
from tara.apps.coordination.limits import MULTI_OPERATIONS_MAX, MULTI_READ_BYTES_MAX
from tara.apps.coordination.tree import Node, Tree


def readable(tree: Tree, path: str, ids: Ids) -> Node:
    node = tree.find(path)
    if not acls.permits(node.acl, codes.READ, ids):
        raise Refusal(Code.NO_AUTH)
    return node


def exists(tree: Tree, path: str, ids: Ids) -> bytes:
    if "\0" in path:
        raise Refusal(Code.BAD_ARGUMENTS)
    return tree.find(path).stat()


def get_data(tree: Tree, path: str, ids: Ids) -> bytes:
    node = readable(tree, path, ids)
    return pack_buffer(node.data) + node.stat()


def get_children(tree: Tree, path: str, ids: Ids) -> bytes:
    readable(tree, path, ids)
    return pack_texts(tree.children(path))


def get_children2(tree: Tree, path: str, ids: Ids) -> bytes:
    return pack_texts(tree.children(path)) + readable(tree, path, ids).stat()


def get_acl(tree: Tree, path: str, ids: Ids) -> bytes:
    node = tree.find(path)
    if not acls.permits(node.acl, codes.READ | codes.ADMIN, ids):
        raise Refusal(Code.NO_AUTH)
    shown = node.acl if acls.permits(node.acl, codes.ADMIN, ids) else acls.masked(node.acl)
    return pack_acl(shown) + node.stat()


def get_all_children_number(tree: Tree, path: str, ids: Ids) -> bytes:
    readable(tree, path, ids)
    return pack_int(sum(1 for _ in tree.descendants(path)))


#: Requests that consist of a path, and of a flag after it if they can leave a watch.
BY_PATH: dict[int, Callable[[Tree, str, Ids], bytes]] = {
    Op.EXISTS: exists,
    Op.GET_DATA: get_data,
    Op.GET_CHILDREN: get_children,
    Op.GET_CHILDREN2: get_children2,
    Op.GET_ACL: get_acl,
    Op.GET_ALL_CHILDREN_NUMBER: get_all_children_number,
}


def get_ephemerals(tree: Tree, prefix: str, session: int) -> bytes:
    return pack_texts([path for path in tree.ephemerals_of(session) if path.startswith(prefix)])


class TooLong(Refusal):
    """Of the whole request, not of one part."""


def multi_read(tree: Tree, reader: Reader, ids: Ids) -> bytes:
    """Several reads of one state; each has its own result or error."""
    parts: list[bytes] = []
    size = 0
    while True:
        op, done, _ = MULTI_HEADER.unpack(reader.take(MULTI_HEADER.size))
        if done:
            break
        if len(parts) >= 2 * MULTI_OPERATIONS_MAX:
            raise JuteError(f"a multi of more than {MULTI_OPERATIONS_MAX} operations")
        path, _ = reader.text(), reader.flag()
        try:
            if op not in (Op.GET_DATA, Op.GET_CHILDREN):
                raise Refusal(Code.UNIMPLEMENTED)
            body = BY_PATH[op](tree, path, ids)
            size += len(body)
            if size > MULTI_READ_BYTES_MAX:
                # Nobody could read it, and it would be as long as the request is, times a node.
                raise TooLong(Code.BAD_ARGUMENTS)
            parts += (MULTI_HEADER.pack(op, False, 0), body)
        except TooLong:
            raise
        except Refusal as refusal:
            parts += (MULTI_HEADER.pack(-1, False, refusal.code), pack_int(refusal.code))
    parts.append(MULTI_HEADER.pack(-1, True, -1))
    return b"".join(parts)


def who_am_i(ids: Ids) -> bytes:
    shown = [(scheme, id_.split(":")[0] if scheme == "digest" else id_) for scheme, id_ in ids]
    return b"".join((pack_int(len(shown)), *(pack_text(text) for pair in shown for text in pair)))
