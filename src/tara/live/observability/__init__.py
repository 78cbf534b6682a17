"""What a cluster tells of itself: metrics, events, and the page that Prometheus reads."""
