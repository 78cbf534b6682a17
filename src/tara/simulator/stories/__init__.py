"""Faults of several steps: `story.py` says what a story is; each of the others tells one."""
