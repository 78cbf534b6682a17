"""One file per node of the paper. `factory.py` makes any of them."""
