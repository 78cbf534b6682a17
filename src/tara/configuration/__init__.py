"""What a cluster is: its settings, which nodes share a container, and the identity that its directory keeps."""
