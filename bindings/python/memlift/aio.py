# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`AsyncClient`: memlift.ipc.Client for asyncio (and what runs on it: uvloop, anyio).

Flow     call ─▶ sent ─▶ answered already? then that is all ─▶ else a future; each time the client's descriptor is readable all
         answers are taken at once. The loop watches one descriptor for all clients
         server died under an idempotent call ─▶ one task opens another session for all such calls ─▶ each is made once more
Order    a server that sleeps is woken once for the calls of one round of the loop; one timer serves all calls; answers come in any order; a call that finds no room waits for an answer, first come, first served
Owner    one loop and its thread. A cancelled call's memory stays untouched until the server has answered: it may still be written
Not here threads: none, but for opening the session
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

from memlift import _native, _readers
from memlift._kind import END
from memlift._streams import AHEAD, CLOSE, CLOSING, FOREVER, NEXT, OPEN, numbers
from memlift._values import arguments
from memlift.errors import ClosedError, DeadlineExceededError, DrainingError, Error, PeerDiedError, ServerUnavailableError, UnknownOperationError

__all__ = ["AsyncClient"]

_NEVER = float("inf")
_SLICE, _SLICE_MAX = 0.2, 2.0
"""Seconds that one try to open a session takes: the first, and the longest. A cancelled wait goes on that long in its thread."""
_NOTHING = object()


class AsyncClient:
    """A session with a server, for one event loop.

        async with AsyncClient("doubler") as client:
            y = await client.call("double", x)
            async for index, y in client.stream("double", arrays):
                ...

    Takes the options of `memlift.ipc.Client`. The session opens with `async with`, or with `await connect()`.
    """

    def __init__(
        self, address: str | os.PathLike[str], *, wait: "float | str | None" = None, idempotent: bool = False, **options: Any
    ) -> None:
        if isinstance(wait, str):
            options.setdefault("policy", wait)
            wait = None
        if wait is not None and not wait >= 0:
            raise ValueError(f"wait={wait}: give seconds, zero or more, or the name of a wait policy")
        self._address, self._options = address, options
        self._server_wait, self._idempotent = wait, idempotent
        self._opening: asyncio.Task[None] | None = None
        self._slice = _SLICE
        self._client: _native.Client | None = None
        self._session: _native.Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        # Future, when it is too late (loop time), and the limit that says so.
        self._waiting: dict[int, tuple[asyncio.Future[Any], float, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._limit: float | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._flushing = False
        self._late_posts: set[asyncio.Task[None]] = set()

    async def connect(self) -> "AsyncClient":
        """Opens the session. Raises ServerUnavailableError, OutOfMemoryError."""
        if self._session is not None:
            return self
        loop = asyncio.get_running_loop()
        until = None if self._server_wait is None else loop.time() + self._server_wait
        while True:
            left = None if until is None else max(0.0, until - loop.time())
            slice = self._slice
            try:
                client = await self._open(None if left is None else min(left, slice))
                break
            except ServerUnavailableError:
                if left is None or left <= slice:
                    raise
        self._install(loop, client)
        return self

    async def _open(self, wait: float | None) -> "_native.Client":
        """Opens a session within `wait` seconds; None: at once."""
        options = self._options if wait is None else {**self._options, "wait": wait}
        self._slice = min(self._slice * 2, _SLICE_MAX)
        loop = asyncio.get_running_loop()
        ended = threading.Event()
        try:
            return await loop.run_in_executor(None, lambda: _native.Client(self._address, **options, ended=ended))
        except asyncio.CancelledError:
            # Nobody wants the session any more: its thread must not wait for a server that may be stopped.
            ended.set()
            raise

    def _install(self, loop: asyncio.AbstractEventLoop, client: "_native.Client") -> None:
        self._slice = _SLICE
        self._client, self._session = client, _native.Session(client)
        self._loop, self._fd, self._limit = loop, self._session.fileno(), self._session.timeout
        _readers.join(loop, self._fd, self._turn)

    async def _again(self, gone: "_native.Session", limit: float | None, error: Error) -> None:
        """Waits until another session has taken the place of `gone`, within the call's limit in seconds, else as long as `wait` says."""
        loop = asyncio.get_running_loop()
        wait = (self._server_wait or 0.0) if limit is None else limit
        until = loop.time() + wait
        while self._session is gone:
            if self._opening is None:
                self._opening = loop.create_task(self._replace(gone))
            opening = self._opening
            await asyncio.wait({opening}, timeout=max(_SLICE / 10, until - loop.time()))
            late = loop.time() >= until
            if opening.done() and not opening.cancelled() and (failed := opening.exception()) is not None:
                if late or not isinstance(failed, ServerUnavailableError):
                    raise type(failed)(*failed.args) from error
            elif late and self._session is gone:
                raise ServerUnavailableError(f"no server at {self._address} within {wait} s: start it, or raise the timeout") from error

    async def _replace(self, gone: "_native.Session") -> None:
        try:
            client = await self._open(self._slice)
            while self._waiting and self._session is gone and self._fd >= 0:
                await asyncio.sleep(_SLICE / 20)  # a server that drains answers what is open
            if self._session is gone:
                self._over(ClosedError("this session was replaced by a newer one"))
                self._install(asyncio.get_running_loop(), client)
            else:
                client.close()
        finally:
            self._opening = None

    def close(self) -> None:
        """Ends the session: calls under way raise ClosedError. Arrays that came from it stay valid."""
        if self._client is not None:
            self._client.close()
            self._over(ClosedError("this client is closed: open a new one"))
            self._client = self._session = None

    async def __aenter__(self) -> "AsyncClient":
        return await self.connect()

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def _begin(self) -> tuple[asyncio.AbstractEventLoop, "_native.Session"]:
        loop = asyncio.get_running_loop()
        if self._session is None:
            raise ClosedError("this client is not open: use `async with`, or await connect()")
        if loop is not self._loop:
            raise RuntimeError("this client belongs to another event loop: open one in each")
        return loop, self._session

    def _needs_services(self, what: str) -> None:
        self._begin()
        if self._client is not None:
            self._client._needs_services(what)

    async def call(
        self,
        operation: str,
        data: Any = _NOTHING,
        *more: Any,
        timeout: float | None = None,
        out: Any = None,
        device: "_native.Device | None" = None,
        cache: "_native.CachePolicy | None" = None,
        defer: bool = True,
        crc: bool = False,
        pack: bool = False,
        idempotent: bool | None = None,
        **named: Any,
    ) -> Any:
        """Calls an operation. The data may be changed as soon as this first waits or returns; that it was sent is not told apart
        from an answer.

        timeout  seconds; then DeadlineExceededError. All else is as in `Client.call`; defer changes nothing, as a loop does not poll. A call
                 that is cancelled may have filled its `out`
        Raises what `Client.call` raises. Cancelled, it leaves the server to finish and lets the answer go.
        """
        loop, session = self._begin()
        if more or named:
            self._needs_services("takes several arguments")
            data = arguments(more if data is _NOTHING else (data, *more), named)
        elif data is _NOTHING:
            data = None
        left = limit = self._limit if timeout is None else timeout
        until = _NEVER if limit is None else loop.time() + limit
        try:
            while True:
                number, answered = session.submit(operation, data, left, out, device, cache, crc, pack)
                if not self._flushing:
                    self._flushing = True
                    loop.call_soon(self._flush)
                if answered:
                    answer = self._settle(answered, number)
                    if answer is not _NOTHING:
                        return _value(answer)
                if number is not None:
                    break
                await self._wait_for_room(loop, until, limit)
                left = None if limit is None else max(0.0, until - loop.time())
            future: asyncio.Future[Any] = loop.create_future()
            self._waiting[number] = (future, until, limit or 0.0)
            if until < self._timer_at:
                self._set_timer(loop, until)
            try:
                answer = await future
            finally:
                del future  # the traceback of its exception refers to this frame
                if self._waiting.pop(number, None) is not None:
                    session.abandon(number)
            return _value(answer)
        except (PeerDiedError, DrainingError) as error:
            if not (self._idempotent if idempotent is None else idempotent):
                raise
            await self._again(session, None if limit is None else max(0.0, until - loop.time()), error)
        left = None if limit is None else max(0.0, until - loop.time())
        return await self.call(
            operation, data, timeout=left, out=out, device=device, cache=cache, defer=defer, crc=crc, pack=pack, idempotent=False
        )

    def stream(
        self, operation: str, items: "Iterable[Any] | AsyncIterable[Any]", *, depth: int = 8, timeout: float | None = None
    ) -> AsyncIterator[tuple[int, Any]]:
        """Calls an operation with each of `items`, at most `depth` at once; gives (index, answer) as answers come.

        `items` may be an async iterable. The first call that fails ends it: the others are cancelled and its error is raised.
        """
        if depth < 1:
            raise ValueError("depth must be 1 or more")
        return self._stream(operation, items, depth, timeout)

    async def _stream(self, operation: str, items: Any, depth: int, timeout: float | None) -> AsyncIterator[tuple[int, Any]]:
        source = _iterate(items)
        running: dict[asyncio.Task[Any], int] = {}
        index, more = 0, True
        try:
            while True:
                while more and len(running) < depth:
                    try:
                        item = await anext(source)
                    except StopAsyncIteration:
                        more = False
                        break
                    running[asyncio.ensure_future(self.call(operation, item, timeout=timeout))] = index
                    index += 1
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=running.__getitem__):
                    at = running.pop(task)
                    yield at, task.result()
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)

    def iterate(
        self, operation: str, *positional: Any, timeout: float | None = None, ahead: int = AHEAD, **named: Any
    ) -> AsyncGenerator[Any, None]:
        """Iterates over the answers of an operation whose handler is a generator, as `Client.stream` does.

            async for token in client.iterate("generate", prompt, length=100):
                ...

        `stream` is something else here: it makes one call for each of many inputs.
        """
        if ahead < 0:
            raise ValueError("ahead must be 0 or more")
        return self._iterate(operation, arguments((next(numbers), operation, *positional), named), timeout, ahead)

    async def _iterate(self, operation: str, given: Any, timeout: float | None, ahead: int) -> AsyncGenerator[Any, None]:
        _, session = self._begin()
        self._needs_services("streams its answers")
        limit = self._limit if timeout is None else timeout
        number, index, is_open = given.value[0][0], 1, True
        waiting = deque([asyncio.ensure_future(self.call(OPEN, given, timeout=FOREVER, idempotent=False))])

        def want(count: int) -> None:
            nonlocal index
            if self._session is not session:
                raise PeerDiedError(f"the session in which {operation!r} gave its items has ended: iterate again")
            while len(waiting) < count:
                waiting.append(asyncio.ensure_future(self.call(NEXT, (number, index), timeout=FOREVER, idempotent=False)))
                index += 1

        try:
            while True:
                if not waiting:
                    want(1)
                await asyncio.wait({waiting[0]}, timeout=limit)
                if not waiting[0].done():
                    raise DeadlineExceededError(f"no item of {operation!r} within {limit} s: the server may still be working on it")
                try:
                    item = waiting.popleft().result()
                except UnknownOperationError as error:
                    raise UnknownOperationError(str(error).replace(OPEN, operation)) from None
                if item is END:
                    is_open = False
                    return
                want(ahead)
                yield item
                del item
        finally:
            for task in waiting:
                if not task.cancel() and not task.cancelled():
                    task.exception()  # looked at, so that the loop does not report it
            if is_open:
                self._post(session, CLOSE, (number, 0))

    def _post(self, session: "_native.Session", operation: str, data: Any) -> None:
        """Sends a call whose answer nobody wants, if there is room for it within a while and the session goes on."""
        if session is not self._session or self._loop is None:
            return
        try:
            number, answered = session.submit(operation, data, CLOSING)
        except Error:
            return
        self._loop.call_soon(self._flush)
        if self._settle(answered, number) is not _NOTHING:
            return
        if number is not None:
            session.abandon(number)
            return
        late = self._loop.create_task(self._call_quietly(operation, data))
        self._late_posts.add(late)
        late.add_done_callback(self._late_posts.discard)

    async def _call_quietly(self, operation: str, data: Any) -> None:
        with suppress(Error):
            await self.call(operation, data, timeout=CLOSING, idempotent=False)

    async def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """As `Client.ping`."""
        self._needs_services("says if it is ready")
        return _native._health(await self.call("memlift.ping", timeout=timeout, idempotent=False))

    def stats(self) -> dict[str, int]:
        """As `Client.stats`."""
        if self._client is None:
            raise ClosedError("this client is not open: use `async with`, or await connect()")
        return self._client.stats()

    async def _wait_for_room(self, loop: asyncio.AbstractEventLoop, until: float, limit: float | None) -> None:
        room: asyncio.Future[None] = loop.create_future()
        self._room.append(room)
        timer = None if limit is None else loop.call_at(until, _expire, room, limit)
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled():
                self._wake_one()  # the room was this call's; the next one has it
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if room in self._room:
                self._room.remove(room)
            del room  # as in `call`

    def _wake_one(self) -> None:
        while self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                return

    def _settle(self, answered: list[tuple[int, Any]], own: int | None) -> Any:
        """Gives answers to those who wait for them; the one of `own` is returned."""
        found = _NOTHING
        for number, answer in answered:
            if number == own:
                found = answer
            else:
                waiting = self._waiting.pop(number, None)
                if waiting is not None and not waiting[0].done():
                    waiting[0].set_result(answer)
            if self._room:
                self._wake_one()
        return found

    def _turn(self) -> None:
        if self._session is None:
            return
        try:
            self._settle(self._session.turn(), None)
            if self._room and not self._session.outstanding:
                self._wake_one()
        except Error as error:
            self._over(error)

    def _flush(self) -> None:
        self._flushing = False
        if self._session is not None:
            self._session.flush()

    def _set_timer(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_at(until, self._late, loop), until

    def _late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the calls whose time is over. There are never many under way, so all are looked at."""
        now, following = max(loop.time(), self._timer_at), _NEVER
        self._timer, self._timer_at = None, _NEVER
        for future, until, limit in self._waiting.values():
            if until > now:
                following = min(following, until)
            elif not future.done():
                future.set_exception(DeadlineExceededError(f"no answer within {limit} s: the server may still be working on it"))
        if following < _NEVER:
            self._set_timer(loop, following)

    def _over(self, error: BaseException) -> None:
        if self._loop is not None and self._fd >= 0:
            _readers.leave(self._loop, self._fd)
            self._fd = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, _NEVER
        waiting, self._waiting = self._waiting, {}
        for future in [*(future for future, _, _ in waiting.values()), *self._room]:
            if not future.done():
                future.set_exception(type(error)(*error.args))
        self._room.clear()

    def __repr__(self) -> str:
        state = "closed" if self._session is None else f"{self._session.outstanding} calls under way"
        return f"<memlift.ipc.AsyncClient of {self._address}, {state}>"


def _value(answer: Any) -> Any:
    if type(answer) is _native.Failed:
        raise answer.take()
    return answer


def _expire(room: "asyncio.Future[None]", limit: float) -> None:
    if not room.done():
        room.set_exception(DeadlineExceededError(f"no room for the call within {limit} s: too many are unanswered"))


async def _iterate(items: Any) -> AsyncIterator[Any]:
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
