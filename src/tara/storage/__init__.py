"""What outlives a process: journals, checkpoints, and the log of what was decided."""
