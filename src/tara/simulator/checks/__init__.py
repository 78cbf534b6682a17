"""What a run is judged by: `monitor.py` while it goes on, the others when it is over. What is broken
is a `Violation`."""
