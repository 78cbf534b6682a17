"""What operators do with a cluster, or with what one has left: ask, back up, restore, recover, replay."""
