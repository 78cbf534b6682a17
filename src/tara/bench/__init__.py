"""Performance: loads on real clusters, and what the code costs."""
