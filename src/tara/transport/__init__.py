"""What carries frames and files between processes, and decides who may connect."""
