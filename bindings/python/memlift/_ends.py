# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Ends of a server's sessions, for what the server holds for a client between two of its calls.

- **Flow** the server notes an end ─▶ one thread tells all that asked (`tell`); None: the server has stopped
- **Order** the thread starts when something is first held, so a server without streams and coroutines has none
"""

import threading
import weakref
from collections.abc import Callable

from memlift import _native


class Ends:
    """Tells of sessions that have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: list[Callable[[list[int] | None], None]] = []
        self._thread: threading.Thread | None = None
        self._server: "weakref.ref[_native.Server] | None" = None

    def tell(self, server: "_native.Server", function: Callable[[list[int] | None], None]) -> None:
        """From now on calls `function` with the numbers of sessions that have ended."""
        # A handler that had the server would keep it from being freed when its program drops it.
        self._server = weakref.ref(server)
        self._told.append(function)
        server.watch_ends()

    def start(self) -> None:
        """Starts the thread, if it does not run."""
        with self._lock:
            server = self._server and self._server()
            if self._thread is None and server is not None:
                self._thread = threading.Thread(target=self._run, args=(server,), name="memlift-ends", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Waits until all were told that the server has stopped."""
        if self._thread is None:
            for function in self._told:
                function(None)
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, server: "_native.Server") -> None:
        ended: list[int] | None = []
        while ended is not None:
            ended = server.ended()
            for function in self._told:
                function(ended)
