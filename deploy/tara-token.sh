#!/bin/sh
# Tells Spark that this executor or worker has one token: room for one container.
echo '{"name": "tara", "addresses": ["0"]}'
