"""How frames travel: connections, plain and with TLS, and what stands on them. Knows nothing of the protocol."""
