"""The live runtime: containers of nodes as long-running processes that exchange tuples over sockets.

`container.py` is the loop that drives a site (`tara.host.site`), with the sockets, files and the clock of a process.
`metrics.py`, `reporting.py`, `watching.py` and `events.py` are for those who watch; `prometheus.py` serves it.
"""
