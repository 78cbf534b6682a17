"""The process from which Spark forks a host's Python workers: PySpark's own, with a container's modules loaded before.

So the containers of a host are there sooner, and one that Spark starts again has nothing to load. What is loaded here
is code only; no thread, socket or file of Tara's exists before the fork.
"""

from importlib import import_module

#: What a container needs whatever its application is.
PRELOADED = ("tara.live.hosting",)


def main() -> None:
    from pyspark.daemon import manager

    for name in PRELOADED:
        import_module(name)
    manager()


if __name__ == "__main__":
    main()
