"""Fault drills on real clusters: kills, losses, bad networks, damaged files, hostile frames; and what came of it."""
