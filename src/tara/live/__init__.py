"""The live runtime: containers of nodes as long-running processes that exchange tuples over sockets.

`container.py` is the loop that drives a site (`tara.host.site`), with the sockets, files and the clock of a process.
`spark.py` and `hosting.py` have Spark start and restart containers, `registry.py` knows who runs where, `sites/` is for
clusters with a driver per site. `reporting.py`, `node_events.py` and `observability/` are for those who watch.
"""
