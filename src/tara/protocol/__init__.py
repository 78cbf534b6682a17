"""The paper's protocol as pure state machines.

Nothing in this package does I/O, reads a clock, draws a random number or knows Spark: a node takes tuples and the
time, and emits tuples (`node.py` has the contract). That is why the simulator and the runtimes can run exactly
this code. Read in this order: `tuples/` (what flows), `graph.py` (along which edges), `node.py` (how a node is
driven), then `nodes/`, one file per role.
"""
