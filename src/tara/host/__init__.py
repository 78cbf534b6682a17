"""What a host of nodes decides about clients and peers, without I/O: orders, bounds and policies.

Standard library and msgspec only, as in `tara.protocol`. The live runtime and the simulator drive the same `Site`; what
has no frames (the streaming runtime, the protocol's benchmark, tests) drives the `BareSite` that it is made of.
"""
