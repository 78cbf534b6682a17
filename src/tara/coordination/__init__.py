"""A coordination service: ZooKeeper's data model, sessions, watches and wire protocol, replicated by Tara.

`service.py` is the state machine (with `tree.py`, the znodes), `gateway.py` the front end that ZooKeeper clients
connect to, one per site, inside the site's container; `client.py` and `recipes.py` are a native client. Nothing but
the gateway and the client does I/O.
"""
