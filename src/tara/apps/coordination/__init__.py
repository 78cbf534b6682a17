"""A coordination service: ZooKeeper's data model, sessions, watches and wire protocol, replicated by Tara.

`service.py` is the state machine (with `tree.py`, the znodes), `gateway/` the front end that ZooKeeper clients connect
to, one per site, inside the site's container. `wire_client.py` is a client's session, `async_client.py` and
`async_recipes.py` a native client on top of it for asyncio, `client.py` the same for threads. I/O is done by the
gateway's listener and stream, and by the clients, only.
"""
