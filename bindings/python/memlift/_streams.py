# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Streaming answers: a handler that is a generator gives its items one by one, each as the answer to one call of the client.

- **Flow** OPEN(number, operation, arguments) ─▶ the first item; NEXT(number, index) ─▶ that item, or END; CLOSE(number) ─▶ the generator
  is closed
- **Order** an item is made when the call that wants it has come, so a generator is never further ahead of its consumer than the
  consumer has calls unanswered. Calls for later items may overtake each other: each names its index
- **Owner** a stream belongs to the session that opened it, which numbers it; it ends with its items, by CLOSE, or with the session
- **Not here** the wire format: everything is ordinary calls of operations whose names begin with "memlift."
"""

import inspect
import itertools
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

from memlift import _native
from memlift._ends import Ends
from memlift._kind import END, Arguments
from memlift._values import arguments
from memlift.errors import Error, UnknownOperationError

OPEN, NEXT, CLOSE = "memlift.stream.open", "memlift.stream.next", "memlift.stream.close"
AHEAD = 2
"""Items that the server may make before they are asked for, unless the caller says another number."""
FOREVER = 1e9
"""Seconds. An item's time begins when its consumer waits for it, so the calls themselves have no limit."""
CLOSING = 5.0
"""Seconds within which the server has to begin with a CLOSE."""
_STREAMS_MAX = 256
"""Streams that one session may have open."""
_EARLY_MAX = 1024
"""Streams of a server whose CLOSE may overtake their OPEN."""

numbers = itertools.count(1)


def is_generator(function: Callable[..., Any]) -> bool:
    """Returns true for a generator function, also as a method, a partial or the `__call__` of an object."""
    return inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(getattr(function, "__call__", None))


class Source:
    """A generator that a client iterates over. `over` is called once, when it has ended."""

    def __init__(self, items: Generator[Any, None, None], over: Callable[[], None]) -> None:
        self._items, self._forget = items, over
        self._lock = threading.Lock()
        self._wanted: dict[int, _native.Reply] = {}
        self._at = 0
        self._running = self._over = self._finished = False

    def want(self, index: int, reply: "_native.Reply") -> None:
        """Makes what is wanted, on this thread unless another does so already."""
        if self._enter(index, reply):
            self._run()

    def close(self) -> None:
        """Ends the stream. The generator is closed on this thread, or on the one that runs it, when that comes back from it."""
        with self._lock:
            self._over = True
            finishes = self._may_finish()
        if finishes:
            self._finish()

    def _run(self) -> None:
        while True:
            wanted, finishes = self._take()
            if wanted is None:
                break
            try:
                wanted.send(next(self._items))
            except BaseException as error:
                self._end(error, wanted)
        if finishes:
            self._finish()

    def _finish(self) -> None:
        try:
            self._items.close()
        except BaseException:
            traceback.print_exc()  # nobody waits for it: as with a generator that Python itself closes
        self._drop()

    def _enter(self, index: int, reply: "_native.Reply") -> bool:
        """Notes that an item is wanted. Returns true if the caller is to run the generator."""
        with self._lock:
            self._wanted[index] = reply
            first, self._running = not self._running, True
            return first

    def _take(self) -> "tuple[_native.Reply | None, bool]":
        """Returns the reply that the next item is for; None: the caller runs the generator no longer. And true if it is to close it."""
        with self._lock:
            wanted = None if self._over else self._wanted.pop(self._at, None)
            if wanted is not None:
                self._at += 1
                return wanted, False
            self._running = False
            return None, self._may_finish()

    def _may_finish(self) -> bool:
        """Returns true once: to the thread that closes the generator, when the stream is over and no thread runs it."""
        if not self._over or self._running or self._finished:
            return False
        self._finished = True
        return True

    def _end(self, error: BaseException, reply: "_native.Reply") -> None:
        self._over = True
        if isinstance(error, (StopIteration, StopAsyncIteration)):
            reply.send(END)
        else:
            reply.fail(error)

    def _drop(self) -> None:
        self._wanted.clear()
        self._forget()


class Streams:
    """The streams of a server."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._lock = threading.Lock()
        self._makers: dict[str, Callable[..., Source]] = {}
        self._open: dict[int, dict[int, Source]] = {}
        self._early: deque[tuple[int, int]] = deque(maxlen=_EARLY_MAX)

    def register(self, server: "_native.Server", name: str, make: Callable[..., Source]) -> None:
        """Sets how the source of an operation is made: of the session's number, `over`, and the arguments of the call. Raises Error if
        the name is taken."""

        def one(_: Any, reply: "_native.Reply") -> None:
            raise TypeError(f"operation {name!r} gives items one by one: iterate over client.stream({name!r}, …)")

        server.register_deferred(name, one)
        with self._lock:
            first = not self._makers
            self._makers[name] = make
        if first:
            self._ends.tell(server, self._end)
            server.register_deferred(OPEN, self._opened, long=True)
            server.register_deferred(NEXT, self._wanted, long=True, outlasts_drain=True)
            server.register_deferred(CLOSE, self._closed, outlasts_drain=True)

    def are_over(self) -> bool:
        """Returns true if no stream is open."""
        with self._lock:
            return not any(self._open.values())

    def _opened(self, given: Any, reply: "_native.Reply") -> None:
        if type(given) is not Arguments or len(given.positional) < 2:
            raise TypeError("a stream is opened with its number, an operation and arguments")
        number, name, *positional = given.positional
        make = self._makers.get(name) if type(name) is str else None
        if type(number) is not int or make is None:
            reply.fail_unknown(", ".join(sorted(self._makers)) + " (that give items one by one; for others there is `call`)")
            return
        session = reply.session
        source = make(session, lambda: self._forget(session, number), *positional, **given.named)
        del given, positional
        with self._lock:
            of_session = self._open.setdefault(session, {})
            early = (session, number) in self._early
            full = len(of_session) >= _STREAMS_MAX or number in of_session
            if early:
                self._early.remove((session, number))
            elif not full:
                of_session[number] = source
        if early or full:
            source.close()
            raise RuntimeError(
                "its client has closed this stream already"
                if early
                else f"{len(of_session)} streams are open in this session, and {_STREAMS_MAX} is the limit: close some"
            )
        self._ends.start()
        if reply.over:
            source.close()  # its session may have ended before the stream was entered
            return
        source.want(0, reply)

    def _wanted(self, given: Any, reply: "_native.Reply") -> None:
        number, index = self._pair(given)
        with self._lock:
            source = self._open.get(reply.session, {}).get(number)
        if source is None:
            raise LookupError("there is no such stream in this session: it has ended")
        source.want(index, reply)

    def _closed(self, given: Any, reply: "_native.Reply") -> None:
        number, _ = self._pair(given)
        with self._lock:
            source = self._open.get(reply.session, {}).get(number)
            if source is None:
                self._early.append((reply.session, number))
        reply.send(None)
        if source is not None:
            # The generator's last lines may take long, and this thread reads the messages.
            threading.Thread(target=source.close, name="memlift-stream-end", daemon=True).start()

    def _forget(self, session: int, number: int) -> None:
        with self._lock:
            self._open.get(session, {}).pop(number, None)

    @staticmethod
    def _pair(given: Any) -> tuple[int, int]:
        if type(given) is not tuple or len(given) != 2 or any(type(part) is not int for part in given):
            raise TypeError("a stream is asked for by its number and an index")
        return given

    def _end(self, sessions: list[int] | None) -> None:
        """Closes the streams of sessions that have ended; None: all."""
        with self._lock:
            ended = list(self._open) if sessions is None else sessions
            sources = [source for session in ended for source in self._open.pop(session, {}).values()]
        for source in sources:
            source.close()


class Stream(Iterator[Any]):
    """Items of an operation that streams its answers, in order; see `Client.stream`.

    Leaving the loop early, `close()`, or leaving its `with` block ends the generator at the server.
    """

    def __init__(
        self, client: "_native.Client", operation: str, positional: tuple[Any, ...], named: dict[str, Any], timeout: float | None, ahead: int
    ) -> None:
        self._over = True
        if ahead < 0:
            raise ValueError("ahead must be 0 or more")
        # Another session has no such stream, so none may take this one's place.
        self._client = client._pinned()
        self._client._needs_services("streams its answers")
        self._timeout = client.timeout if timeout is None else timeout
        self._ahead, self._operation, self._number, self._index = ahead, operation, next(numbers), 1
        self._began = False
        given = arguments((self._number, operation, *positional), named)
        self._waiting = deque([self._client.call_async(OPEN, given, timeout=FOREVER)])
        self._over = False

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            if not self._waiting:
                self._want(1)
            item = self._waiting[0].result(self._timeout)
            self._waiting.popleft()
            if item is not END:
                self._want(self._ahead)
                return item
        except UnknownOperationError as error:
            self.close()
            raise UnknownOperationError(str(error).replace(OPEN, self._operation)) from None
        except BaseException:
            self.close()
            raise
        self._over = True
        self._waiting.clear()
        raise StopIteration

    def _want(self, count: int) -> None:
        while len(self._waiting) < count:
            self._waiting.append(self._client.call_async(NEXT, (self._number, self._index), timeout=FOREVER))
            self._index += 1

    def close(self) -> None:
        """Ends the generator at the server, unless it has ended. Items that it has made already are dropped."""
        if self._over:
            return
        self._over = True
        self._waiting.clear()
        with suppress(Error):
            self._client.call_async(CLOSE, (self._number, 0), timeout=CLOSING)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<memlift.ipc.Stream of {self._operation!r}, {'over' if self._over else 'open'}>"
