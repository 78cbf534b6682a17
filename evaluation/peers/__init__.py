"""The systems that a reader would pick instead, started, loaded and stopped by us, on the same machine in the same run.

Each peer is three servers on loopback. Their load is a closed loop like ours (`tara.bench.load`): so many
clients, each writes a value to a key of its own and sends the next write when the last is answered. etcd and ZooKeeper
are spoken to in their own wire protocols, over a few connections that the clients share, by one program
(`closed_loop`): a client library of theirs would cost more of the machine than it leaves to the servers.
"""
