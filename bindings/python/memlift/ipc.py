# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Call another process with arrays: sync, async and pipelined, over memory that both map.

bytes in, bytes out; arrays in, arrays out; text, numbers, lists, dicts, dataclasses and frames of these likewise (what can be
sent: `memlift.Queue`). Arrays arrive as read-only views of shared memory, without a copy; the memory goes back to its pool when
the last view of it is gone.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from memlift import _native
from memlift._native import Client, Future, Pipeline, progress
from memlift.aio import AsyncClient

__all__ = ["AsyncClient", "Client", "Future", "Pipeline", "Server", "progress"]

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Server(_native.Server):
    """Runs operations by name for clients in other processes.

    address      a name (nothing on disk), or a path: text with a "/", or a `pathlib` path (a socket file)
    handlers     operations that take long and may run at once; short ones run one after the other. 0: all do
    allowed_uids users that may connect beside the server's own
    allowed_gids groups whose processes may (their effective group)
    trust        "view": handlers see a request where the client put it, and could still change it; "copy": copied before
    allow_pickle whether other objects are pickled, for clients of the same user that allow it, too
    wait         "auto" (spin as long as it pays, then sleep), "block" or "spin"
    """

    def __init__(self, address: str | os.PathLike[str], **options: Any) -> None:
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()

    def handler(self, name: str) -> Callable[[_Handler], _Handler]:
        """Decorator: the function below is the operation `name`."""

        def register(function: _Handler) -> _Handler:
            self.register(name, function)
            return function

        return register

    def start(self) -> None:
        """Serves from threads of its own; returns at once."""
        if self._threads:
            return
        for index in range(self.threads):
            thread = threading.Thread(target=self._serve, name=f"memlift-{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def serve_forever(self) -> None:
        """Serves until `stop` is called from another thread, or Ctrl-C."""
        self.start()
        try:
            self._stopped.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """Stops serving. Handlers that run finish; their clients see a hang-up."""
        super().stop()
        self._stopped.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()

    def _serve(self) -> None:
        try:
            self.serve()
        finally:
            self._stopped.set()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<memlift.ipc.Server at {self.address}>"
