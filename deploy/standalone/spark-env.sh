# For every worker, in $SPARK_CONF_DIR. Containers see these variables: see container_host and container_dir in tara.toml.
export SPARK_LOCAL_IP=10.0.0.11              # this server's address
export TARA_DISK=/var/lib/tara               # on this server's own disk
export PYSPARK_PYTHON=/opt/tara/bin/python   # a virtual environment with tara, pyspark and the application
# One token per worker: no two containers on one server.
SPARK_WORKER_OPTS="-Dspark.worker.resource.tara.amount=1"
SPARK_WORKER_OPTS="$SPARK_WORKER_OPTS -Dspark.worker.resource.tara.discoveryScript=/opt/tara/tara-token.sh"
export SPARK_WORKER_OPTS
