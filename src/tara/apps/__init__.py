"""Applications that come with Tara."""
