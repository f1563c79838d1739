"""The process of which Spark forks its Python workers, with all that the tasks of an operator load.

Spark's own daemon loads next to nothing, so that each worker spends a second or two of its first task with imports.
Nothing here may start a thread of Python or a pool of a library: a fork would not have them, and would wait for them. The
threads that pyarrow, NumPy, SciPy and polars start when they are imported are their allocators' and OpenBLAS', which look
after forks themselves, and one of polars that waits until queries spill.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket

from pyspark import daemon

from forebay.spark.worker import startup


def load() -> None:
    """Load what workers need, so that they share its memory."""
    # polars takes its number of threads when it is imported. Spark gives this variable the number of cores of a task.
    cores = os.environ.get("OMP_NUM_THREADS", "")  # a user may have set it to something else
    os.environ.setdefault("POLARS_MAX_THREADS", cores if cores.isdecimal() else "1")
    importlib.import_module("pyspark.worker")
    startup.load_all()
    import numpy as np

    parent = os.getpid()

    def draw_anew() -> None:
        """Have a worker draw numbers of its own, as if it had imported NumPy; but not what a worker forks."""
        if os.getppid() == parent:
            np.random.seed()

    os.register_at_fork(after_in_child=draw_anew)
    gc.collect()
    gc.freeze()


def serve(sock: socket.socket, authenticated: bool) -> int:
    """Run tasks until Spark closes the connection, as it does when a worker has been idle for a minute; 0 to go on.

    Spark's own function then fails to say that it ended, which only Unix sockets tell, and a traceback is printed.
    """
    try:
        return _serve(sock, authenticated)
    except BrokenPipeError:
        return 1


_serve = daemon.worker


if __name__ == "__main__":
    load()
    daemon.worker = serve
    daemon.manager()
