# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Call another process with arrays: sync, async and pipelined, over memory that both map.

bytes in, bytes out; arrays in, arrays out; text, numbers, lists, dicts, dataclasses and frames of these likewise (what can be
sent: `memlift.Queue`). A handler that is a generator streams its answers. Arrays arrive as read-only views of shared memory, without a copy; the memory goes back to its pool when
the last view of it is gone.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

from memlift import _native, _streams
from memlift._batches import Batches
from memlift._coroutines import AsyncSource, Loop, is_async_generator, is_coroutine
from memlift._ends import Ends
from memlift._native import Future, Pipeline, progress
from memlift._streams import Stream
from memlift.aio import AsyncClient

__all__ = ["AsyncClient", "Client", "Future", "Pipeline", "Server", "Stream", "progress"]

_LOOK = 0.2
"""Longest time, in seconds, between two looks for signals while a server drains."""

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Client(_native.Client):
    """A session with a server. Any number of threads may use it. Open it after a fork, not before.

    address     the server's: a name, or a path
    timeout     seconds that a call may take which says no other, and opening the session
    wait        seconds to wait for a server that is not there yet; or the wait policy by its name, as `policy`
    policy      how to wait for answers: "auto" (spin as long as it pays, then sleep), "block" or "spin"
    idempotent  calls that do not say otherwise may be made twice: see `call`
    allow_pickle whether other objects are pickled, for servers of the same user that allow it, too

    Raises ServerUnavailableError, which names the address, when there is no server, or none within `wait` seconds.
    """

    __slots__ = ()

    def stream(
        self, operation: str, *arguments: Any, timeout: float | None = None, ahead: int = _streams.AHEAD, **named: Any
    ) -> Stream:
        """Iterates over the answers of an operation whose handler is a generator.

            for token in client.stream("generate", prompt, length=100):
                ...

        timeout  seconds to wait for an item, from when it is asked for; then DeadlineExceededError. None: the client's
        ahead    items that the server may make before they are asked for. 0: each is made when it is

        An item arrives as an answer of `call` does. Iterating raises what `call` raises, and ends then; PeerDiedError when the server died.
        The generator is closed when the loop is left, by `close()` of the iterator, or when this process ends.
        """
        return Stream(self, operation, arguments, named, timeout, ahead)


class Server(_native.Server):
    """Runs operations by name for clients in other processes.

    address      a name (nothing on disk), or a path: text with a "/", or a `pathlib` path (a socket file)
    handlers     operations that take long and may run at once; short ones run one after the other. 0: all do
    coroutines   handlers that are `async def`, and may run at once
    allowed_uids users that may connect beside the server's own
    allowed_gids groups whose processes may (their effective group)
    trust        "view": handlers see a request where the client put it, and could still change it; "copy": copied before
    ready        whether it says from the beginning that it is ready for calls (`Client.ping`); else `ready()` says so
    shared       whether other servers of this user may be at the address, which say so, too: each client's session is with one of them. The
                 address is taken by `start`, not before
    allow_pickle whether other objects are pickled, for clients of the same user that allow it, too
    wait         "auto" (spin as long as it pays, then sleep), "block" or "spin"
    """

    def __new__(cls, address: str | os.PathLike[str], *, coroutines: int = 256, **options: Any) -> Self:
        """Binds the address."""
        if coroutines < 1:
            raise ValueError("coroutines must be 1 or more")
        return super().__new__(cls, address, **options)

    def __init__(self, address: str | os.PathLike[str], *, coroutines: int = 256, **options: Any) -> None:
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._ends = Ends()
        self._streams = _streams.Streams(self._ends)
        self._loop = Loop(self._ends, coroutines)
        self._batches: list[Batches] = []

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Sets the handler of an operation. It gets the arguments of the call and returns the answer; what it raises is the call's
        RemoteError. A generator function gives its items one by one, to `Client.stream`. Coroutine functions and async generator
        functions run on an event loop of the server, many at a time.

        Raises Error if the name is taken.
        """
        loop = self._loop  # not `self`: a handler that had the server would keep it from being freed
        if _streams.is_generator(function):
            self._streams.register(self, name, lambda _, over, /, *given, **named: _streams.Source(function(*given, **named), over))
        elif is_async_generator(function):
            loop.watch(self)
            self._streams.register(
                self, name, lambda session, over, /, *given, **named: AsyncSource(loop, session, function(*given, **named), over)
            )
        elif is_coroutine(function):
            loop.register(self, name, function)
        else:
            super().register(name, function)

    def handler(self, name: str) -> Callable[[_Handler], _Handler]:
        """Decorator: the function below is the operation `name`."""

        def register(function: _Handler) -> _Handler:
            self.register(name, function)
            return function

        return register

    def batched(
        self, name: str, *, max_batch: int = 32, max_delay: float = 0.002, one_by_one: bool = True
    ) -> Callable[[_Handler], _Handler]:
        """Decorator: the function below answers several calls of the operation `name` at once.

            @server.batched("embed", max_batch=32, max_delay=0.002)
            def embed(texts):
                return model.encode(texts)

        It gets a list of the calls' arguments, one of each, and returns a list, tuple or array with as many answers. An answer that is
        an exception fails its call alone. It may be `async def`. One batch runs at a time, on a thread of its own.

        max_batch   calls in one batch at most
        max_delay   seconds that a call waits for others
        one_by_one  if the function raises, it is called again with each argument alone, so that only those fail for which it raises again;
                    False: all calls of the batch fail

        Raises ValueError for limits that make no sense, Error if the name is taken.
        """

        def register(function: _Handler) -> _Handler:
            loop = self._loop
            if is_coroutine(function):
                loop.watch(self)
                batches = Batches(name, lambda inputs: loop.wait(lambda: function(inputs)), max_batch, max_delay, one_by_one)
            else:
                batches = Batches(name, function, max_batch, max_delay, one_by_one)
            self.register_deferred(name, batches.take)
            self._batches.append(batches)
            return function

        return register

    def start(self) -> None:
        """Serves from threads of its own; returns at once. With `shared`, raises AddressInUseError if whoever is at the address shares it with
        nobody, or does not answer for ten seconds.
        """
        if self._threads:
            return
        self.open()
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

    def stop(self, drain: float | None = None) -> bool:  # type: ignore[override]
        """Stops serving. Handlers that run finish; their clients see a hang-up.

        drain  seconds for an orderly end: the address is free at once for another server, calls that come are refused with DrainingError, and
               those that are open are answered, streams with all their items. Not for handlers of this server, whose own call is open

        Returns false if something was still open after that time. Raises ValueError for a time below zero.
        """
        drained = drain is None or self._drain(drain)
        super().stop()
        self._stopped.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()
        self._ends.stop()
        for batches in self._batches:
            batches.stop()
        self._loop.join()
        return drained

    def _drain(self, limit: float) -> bool:
        if not limit >= 0:
            raise ValueError("drain is a number of seconds, zero or more")
        until = time.monotonic() + limit
        self.begin_drain()
        while True:
            left = max(0.0, until - time.monotonic())
            drained = self.drained(min(left, _LOOK)) and self._streams.are_over()
            if drained or not left:
                return drained
            time.sleep(min(left, _LOOK / 20))

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
