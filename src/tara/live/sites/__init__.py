"""Clusters whose sites each have a driver of their own."""
