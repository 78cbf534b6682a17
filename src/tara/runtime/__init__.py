"""The live runtime: containers of nodes as long-running processes that exchange tuples over sockets.

`container.py` is the loop that hosts nodes, `wire.py` the frames, `journal.py` and `store.py` what is kept on disk.
`metrics.py`, `reporting.py`, `watching.py` and `events.py` are for those who watch; `prometheus.py` serves it.
"""
