"""The live runtime: containers of nodes as long-running processes that exchange tuples over sockets.

`container.py` is the loop that hosts nodes, `wire.py` the frames, `journal.py` and `store.py` what is kept on disk.
"""
