"""Measurements: what the code costs, on the real code."""
