"""What a host of nodes decides about clients and peers, without I/O: orders, bounds and policies.

Standard library and msgspec only, as in `tara.protocol`: the live runtime and the simulator drive the same `Site`.
"""
