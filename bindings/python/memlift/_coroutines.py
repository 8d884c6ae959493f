# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Handlers that are coroutines or async generators: they run on one event loop of the server, many at a time.

- **Flow** a request arrives ─▶ a task on the loop ─▶ the handler ─▶ its answer
- **Order** at most so many run at once as the server says; the others wait, first come, first served
- **Owner** the loop has a thread of its own, from the first request until the server stops. A task is cancelled when its client is gone
- **Not here** progress of a handler (`memlift.ipc.progress`), which belongs to a thread
"""

import asyncio
import concurrent.futures
import inspect
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from memlift import _native
from memlift._ends import Ends
from memlift._kind import Arguments
from memlift._streams import Source

NOBODY = -1
"""In the place of a session's number: the task goes on whatever session ends."""
_CLOSING = 5.0
"""Seconds that tasks get to end when the server stops, before they are cancelled again."""


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Returns true for a coroutine function, also as a method, a partial or the `__call__` of an object."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Returns true for an async generator function, also as a method, a partial or the `__call__` of an object."""
    return inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(getattr(function, "__call__", None))


class Loop:
    """The event loop of a server's handlers."""

    def __init__(self, ends: Ends, most: int) -> None:
        self._ends = ends
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = self._told = False
        self._room = asyncio.Semaphore(most)
        self._tasks: dict[asyncio.Task[None], int] = {}

    def register(self, server: "_native.Server", name: str, function: Callable[..., Awaitable[Any]]) -> None:
        """Sets the coroutine function of an operation. Raises Error if the name is taken."""

        def begin(given: Any, reply: "_native.Reply") -> None:
            self.spawn(reply.session, lambda: self._answer(function, given, reply))

        self.watch(server)
        server.register_deferred(name, begin)

    def watch(self, server: "_native.Server") -> None:
        """Makes the loop notice when clients are gone, and when the server stops."""
        if not self._told:
            self._told = True
            self._ends.tell(server, self._end)

    def spawn(self, session: int, make: Callable[[], Awaitable[None]]) -> bool:
        """Runs a coroutine as a task of the session, from any thread. Returns false when the server has stopped."""
        self._ends.start()
        with self._lock:
            if self._stopped:
                return False
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="memlift-loop", daemon=True)
                self._thread.start()
            self._loop.call_soon_threadsafe(self._begin, session, make)
            return True

    def wait(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """Runs a coroutine on the loop and waits for what it gives, from another thread. Raises CancelledError when the server stops and
        it does not end within a while."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        async def run() -> None:
            try:
                done.set_result(await make())
            except BaseException as error:
                done.set_exception(error)
                if isinstance(error, asyncio.CancelledError):
                    raise

        if not self.spawn(NOBODY, run):
            raise concurrent.futures.CancelledError
        return done.result()

    def join(self) -> None:
        """Waits until the loop has ended, unless this is its thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    async def step(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits what `make` gives, when there is room."""
        async with self._room:
            return await make()

    async def _answer(self, function: Callable[..., Awaitable[Any]], given: Any, reply: "_native.Reply") -> None:
        async with self._room:
            try:
                answer = await (given.call(function) if type(given) is Arguments else function(given))
                del given
                reply.send(answer)
            except asyncio.CancelledError:
                if not reply.over:
                    raise
            except BaseException as error:
                if not reply.over:
                    reply.fail(error)

    def _begin(self, session: int, make: Callable[[], Any]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(make())
        self._tasks[task] = session
        task.add_done_callback(self._tasks.pop)

    def _end(self, sessions: list[int] | None) -> None:
        with self._lock:
            self._stopped |= sessions is None
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._cancel, sessions)

    def _cancel(self, sessions: list[int] | None) -> None:
        assert self._loop is not None
        for task, session in list(self._tasks.items()):
            if session != NOBODY and (sessions is None or session in sessions):
                task.cancel()
        if sessions is None:
            self._loop.stop()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for _ in range(2):
                # What a cancelled handler or a closed generator still has to do. One that will not end is left behind.
                if left := asyncio.all_tasks(loop):
                    _, late = loop.run_until_complete(asyncio.wait(left, timeout=_CLOSING))
                    for task in late:
                        task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()


class AsyncSource(Source):
    """An async generator that a client iterates over."""

    def __init__(self, loop: Loop, session: int, items: AsyncGenerator[Any, None], over: Callable[[], None]) -> None:
        super().__init__(items, over)  # type: ignore[arg-type]
        self._loop, self._session, self._async_items = loop, session, items

    def _run(self) -> None:
        self._loop.spawn(self._session, self._drive)

    async def _drive(self) -> None:
        while True:
            wanted, finishes = self._take()
            if wanted is None:
                break
            try:
                wanted.send(await self._loop.step(lambda: anext(self._async_items)))
            except asyncio.CancelledError:
                self._over = True  # its client is gone, or the server stops
            except BaseException as error:
                self._end(error, wanted)
        if finishes:
            await self._aclose()

    def _finish(self) -> None:
        self._loop.spawn(NOBODY, self._aclose)

    async def _aclose(self) -> None:
        try:
            await self._async_items.aclose()
        except BaseException:
            traceback.print_exc()  # nobody waits for it
        self._drop()
