"""How frames travel: connections, plain and with TLS, and what stands on them. That knows nothing of the protocol.

Beside it: `addresses.py` and `site_address.py`, and what a gateway for another wire protocol is (`gateway.py`).
"""
