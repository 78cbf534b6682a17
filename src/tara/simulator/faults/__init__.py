"""What goes wrong in a run: `nemesis.py` makes the faults of a plan happen."""
