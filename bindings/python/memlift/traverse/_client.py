# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Clients of memory nodes: walks one at a time, many at a time, one after the other without waiting, and in an event loop.

Flow    `Client.walk`: sent, waited for ─▶ `Walked`; `walk_many`: all under way together; `pipeline`: `submit` … `for walked in`
        `AsyncClient`: `await walk(…)`; the loop watches one descriptor, whatever number of walks and nodes there is
Order   a walk that was cancelled or interrupted may have happened; what it changed stays changed
Threads a client is behind one lock, taken without the GIL; an AsyncClient belongs to its loop
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, Literal, Self

from memlift import _native, _readers
from memlift.errors import BadArgumentError, ClosedError, OtherLoopError, UnsupportedValueError
from memlift.traverse import _iterator
from memlift.traverse._values import raw

__all__ = ["AsyncClient", "Client", "Pipeline", "Program", "Walked"]

Program = _native.WalkProgram
"""A walk's program, verified: `Program(name, bytecode)`, `Program.assemble(name, text)`, `Program.from_object(name, elf)`,
`Program.shipped("hash_find")`."""

_OUTCOME: tuple[Literal["done", "missing", "applied", "differs"], ...] = ("done", "missing", "applied", "differs")


class Walked:
    """What a walk came back with."""

    __slots__ = ("_scratch", "_struct", "clock", "iterations", "outcome", "result", "value", "visits")

    outcome: Literal["done", "missing", "applied", "differs"]
    """How it ended: `applied` and `differs` for the changes that it asked for."""
    value: int
    """What was there before the change, or instead of what was expected."""
    result: Any
    """What it emitted: a buffer, without a copy; `bytes(…)` or `numpy.frombuffer(…)` it."""
    iterations: int
    """How often it went on to another node of its structure, over all memory nodes."""
    visits: int
    """1, and one more for each time that the client sent it on."""
    clock: int
    """The nodes' clock when it began, in seconds: entries of a `HashMap` that expire have one word of it behind their value."""

    def __init__(self, came: tuple[int, int, Any, Any, int, int, int], struct: Any) -> None:
        status, self.value, self._scratch, self.result, self.iterations, self.visits, self.clock = came
        self.outcome = _OUTCOME[status]
        self._struct = struct

    def __bool__(self) -> bool:
        return self.outcome in ("done", "applied")

    @property
    def scratch(self) -> bytes:
        """The scratchpad at its end, without the zeros behind its last byte."""
        return bytes(self._scratch)

    @property
    def state(self) -> SimpleNamespace:
        """The scratchpad's fields, if the program is a Python function."""
        if self._struct is None:
            raise BadArgumentError("only a program made by @iterator knows its scratchpad's fields: use .scratch")
        fields: SimpleNamespace = self._struct.unpack(self._scratch)
        return fields

    def __repr__(self) -> str:
        return f"<Walked {self.outcome}, {self.iterations} iterations, {len(self.result)} bytes emitted>"


def _wanted(program: Any, scratch: Any, fields: dict[str, Any]) -> tuple[Any, bytes, Any]:
    """Native program, scratchpad, struct."""
    if isinstance(program, _iterator.Iterator):
        if fields and scratch:
            raise BadArgumentError("give the scratchpad as bytes or by its fields, not both")
        return program.program, program.pack(**fields) if fields else bytes(scratch), program.scratch
    if fields:
        raise BadArgumentError("only a program made by @iterator has named fields: pack the scratchpad yourself")
    return program, bytes(scratch), None


def _nodes(nodes: Any) -> list[str]:
    if isinstance(nodes, str):
        return [nodes]
    if hasattr(nodes, "places"):
        return [nodes.places[0]]
    return [place for node in nodes for place in _nodes(node)]


def _connect(nodes: Any, map: str | os.PathLike[str] | None, options: dict[str, Any]) -> Any:
    places = [] if nodes is None else _nodes(nodes)
    if bool(places) == (map is not None):
        raise BadArgumentError("say where the nodes are (connect('127.0.0.1:7700'), connect('shm:words')), or map=…, one of them")
    return _native.WalkClient(places, map=None if map is None else os.fspath(map), **options)


class _Closing:
    _native: Any

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends it. What is under way is given up, and may have happened."""
        self._native.close()


class Client(_Closing):
    """A client, made by `Client.connect`. Any number of threads may use it; their calls take turns."""

    def __init__(self, native: Any) -> None:
        self._native = native
        # Where it is connected to, for a copy in another process.
        self._where: tuple[tuple[str, ...], str | None, tuple[tuple[str, Any], ...]] | None = None

    @classmethod
    def connect(
        cls,
        nodes: Any = None,
        *,
        map: str | os.PathLike[str] | None = None,
        tenant: int = 0,
        key: bytes | None = None,
        window: int = 128,
        deadline: float = 10.0,
        iterations: int = 1 << 22,
        hops: int = 64,
        read: str = "leased",
        stale_ok: bool = False,
    ) -> Self:
        """Connects to nodes: 'HOST:PORT', 'shm:NAME', a `Node`, or several (which have a map: else changes do not cross).

        map         instead: a file (TOML), 'coordinator:HOST:PORT[?key=FILE]' or `etcd:https://HOST:PORT/PREFIX?OPTIONS`, as
                    the guide to clusters has it
        tenant, key on whose behalf, with the tenant's 32 bytes where nodes ask for one
        window      requests under way at a time, at most 512
        deadline    seconds that an answer is waited for, less than 30
        iterations  steps of one walk, over all nodes; hops: times that it is sent from node to node
        read        of nodes with a backup: "leased", which relies on clocks of even speed, or "confirmed" by the backup, which takes a
                    round trip more
        stale_ok    True: reads may be older than what was acknowledged, so a node's backup answers them if it can, also while nobody is
                    primary. Such a client changes nothing

        Raises ServerUnavailableError, DeadlineExceededError (nobody answered), BadArgumentError.
        """
        options = {
            "tenant": tenant, "key": key, "window": window, "deadline": deadline, "iterations": iterations, "hops": hops, "read": read,
            "stale_ok": stale_ok,
        }  # fmt: skip
        client = cls(_connect(nodes, map, options))
        places = () if nodes is None else tuple(_nodes(nodes))
        client._where = (places, None if map is None else os.fspath(map), tuple(options.items()))
        return client

    def __reduce__(self) -> Any:
        """Pickled, it is where it is connected to: unpickled, a process has one client per place, connected when it is first wanted."""
        if self._where is None:
            raise TypeError("this client was not made by Client.connect: connect where it is wanted")
        if dict(self._where[2])["key"] is not None:
            raise TypeError("a client with a key is not pickled, since the key would be: connect there, and open collections by their handles")
        return _same_client, self._where

    def close(self) -> None:
        """Ends it. What is under way is given up, and may have happened."""
        with _UNPICKLING:
            for key in [key for key, client in _UNPICKLED.items() if client is self]:
                del _UNPICKLED[key]
        super().close()

    def walk(self, program: Any, start: int, scratch: Any = b"", **fields: Any) -> Walked:
        """Walks from an address, with these bytes or fields in the scratchpad."""
        native, scratch, struct = _wanted(program, scratch, fields)
        return Walked(self._native.walk(native, start, scratch), struct)

    def walk_many(self, walks: Iterable[Sequence[Any]]) -> list[Walked]:
        """Walks of (program, start, scratch or dict of fields), all under way together; in their order. Raises the first error."""
        wanted, structs = [], []
        for program, start, *rest in walks:
            given = rest[0] if rest else b""
            fields = given if isinstance(given, dict) else {}
            native, scratch, struct = _wanted(program, b"" if fields else given, fields)
            wanted.append((native, start, scratch))
            structs.append(struct)
        came = self._native.walk_many(wanted)
        for one in came:
            if isinstance(one, BaseException):
                raise one
        return [Walked(one, struct) for one, struct in zip(came, structs, strict=True)]

    def pipeline(self) -> "Pipeline":
        """Walks that are sent without waiting for the one before."""
        return Pipeline(self)

    def read(self, address: int, count: int) -> bytes:
        """Bytes of a node's memory."""
        data: bytes = self._native.read(address, count)
        return data

    def write(self, address: int, data: Any) -> None:
        """Bytes that no walk reads yet."""
        self._native.write(address, raw(data, "what is written has a size in memory"))

    def allocate(self, count: int, *, node: int | None = None) -> int:
        """New memory: of the node whose turn it is, or of the one at that place. Raises NodeFullError."""
        address: int = self._native.allocate(count, node)
        return address

    def free(self, address: int, count: int) -> None:
        """Memory that nobody refers to any more, allocated with so many bytes."""
        self._native.free(address, count)

    def compare_swap(self, address: int, expected: int, new: int) -> tuple[bool, int]:
        """If the eight bytes are `expected` they become `new`, exactly once; whether they were, and what was there."""
        swapped: tuple[bool, int] = self._native.compare_swap(address, expected, new)
        return swapped

    def fetch_add(self, address: int, addend: int) -> int:
        """Adds to the eight bytes modulo 2^64, exactly once; what was there before."""
        if isinstance(addend, bool) or not isinstance(addend, int) or not -(1 << 63) <= addend < 1 << 64:
            raise UnsupportedValueError(f"{addend!r} cannot be added: whole numbers of 64 bits are")
        before: int = self._native.fetch_add(address, addend & (1 << 64) - 1)
        return before

    def stats(self) -> dict[str, Any]:
        """What the client has counted."""
        counts: dict[str, Any] = self._native.counts()
        return counts

    def __repr__(self) -> str:
        return f"<memlift.traverse.Client of {', '.join(self._native.nodes) or 'a map'}>"


_UNPICKLED: dict[Any, Client] = {}
_UNPICKLING = threading.Lock()


def _after_fork() -> None:
    """Another thread may have connected, with the lock, when this process was forked."""
    global _UNPICKLING
    _UNPICKLING = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _same_client(places: tuple[str, ...], map: str | None, options: tuple[tuple[str, Any], ...]) -> Client:
    """The client that this process has for unpickled ones with these arguments."""
    # A forked child cannot use its parent's.
    key = (os.getpid(), places, map, options)
    with _UNPICKLING:
        if key not in _UNPICKLED:
            _UNPICKLED[key] = Client.connect(list(places) or None, map=map, **dict(options))
        return _UNPICKLED[key]


class Pipeline:
    """Walks under way; iterating gives their answers in the order in which they were submitted."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tickets: deque[tuple[int, Any]] = deque()

    def submit(self, program: Any, start: int, scratch: Any = b"", **fields: Any) -> None:
        """Sends a walk. Waits only when as many are under way as the client's window allows."""
        native, scratch, struct = _wanted(program, scratch, fields)
        self._tickets.append((self._client._native.submit(native, start, scratch, False), struct))

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Walked]:
        return self

    def __next__(self) -> Walked:
        if not self._tickets:
            raise StopIteration
        ticket, struct = self._tickets.popleft()
        return Walked(self._client._native.result(ticket), struct)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ticket, _ in self._tickets:
            self._client._native.abandon(ticket)
        self._tickets.clear()


class AsyncClient:
    """A client for coroutines of one event loop: `async with AsyncClient.connect(…) as client: await client.walk(…)`."""

    def __init__(self, nodes: Any, map: Any, options: dict[str, Any]) -> None:
        self._options = (nodes, map, options)
        self._connected: Any = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._room: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._fd = -1
        self._changes: Client | None = None
        self._changing: asyncio.Lock | None = None

    @classmethod
    def connect(cls, nodes: Any = None, **options: Any) -> Self:
        """As `Client.connect`. It connects when `async with` begins, beside the loop; without that, at its first use, which then holds the loop
        up for some round trips."""
        map = options.pop("map", None)
        return cls(nodes, map, options)

    @property
    def _native(self) -> Any:
        if self._connected is None:
            self._refuse_closed()
            self._connected = _connect(*self._options)
        return self._connected

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClosedError("the client was closed: connect again")

    async def __aenter__(self) -> Self:
        if self._connected is None:
            self._refuse_closed()
            nodes, map, options = self._options
            ended = threading.Event()
            try:
                self._connected = await asyncio.to_thread(_connect, nodes, map, {**options, "ended": ended})
            except asyncio.CancelledError:
                # The thread must not wait for nodes that may never answer.
                ended.set()
                raise
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _begin(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._fd = self._native.fileno()
            _readers.join(loop, self._fd, self._turn)
            self._loop = loop
        elif self._loop is not loop:
            raise OtherLoopError("this client belongs to another event loop: connect one for each")
        return loop

    def _turn(self) -> None:
        """Takes what has come, and says when to look again."""
        self._soon = False
        loop = self._loop
        if loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            ended, again, due = self._native.turn()
        except BaseException as error:
            _readers.leave(loop, self._fd)
            waiting, self._waiting = self._waiting, {}
            for future in [*waiting.values(), *self._room]:
                if not future.done():
                    future.set_exception(error)
            self._room.clear()
            if not isinstance(error, Exception):
                raise
            return
        for ticket, answer in ended:
            future = self._waiting.pop(ticket, None)
            if future is not None and not future.done():
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        # One for each that ended; who finds the room taken waits again, behind the others.
        places = len(ended) or int(bool(self._room) and self._native.has_room())
        while self._room and places > 0:
            free = self._room.popleft()
            if not free.done():
                free.set_result(None)
                places -= 1
        if again:
            self._come_soon(loop)
        elif due is not None:
            self._timer = loop.call_later(due, self._turn)

    def _come_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._soon:
            self._soon = True
            loop.call_soon(self._turn)

    async def walk(self, program: Any, start: int, scratch: Any = b"", **fields: Any) -> Walked:
        """Walks from an address. Cancelled, its answer is dropped; what it asked to change may be changed all the same."""
        native, scratch, struct = _wanted(program, scratch, fields)
        return Walked(await self._walk(native, start, scratch), struct)

    async def _walk(self, native: Any, start: int, scratch: bytes) -> Any:
        loop = self._begin()
        while not self._native.has_room():
            free = loop.create_future()
            self._room.append(free)
            try:
                await free
            except asyncio.CancelledError:
                # The place may have been given to this coroutine: the next one gets it.
                self._come_soon(loop)
                raise
        ticket = self._native.submit(native, start, scratch, True)
        future = self._waiting[ticket] = loop.create_future()
        # Not at once: what other coroutines submit in this turn of the loop leaves in the same batch.
        self._come_soon(loop)
        try:
            return await future
        finally:
            # Done already, unless this coroutine was cancelled.
            if self._waiting.pop(ticket, None) is not None:
                self._native.abandon(ticket)
            if self._room:
                self._come_soon(loop)

    async def walk_many(self, walks: Iterable[Sequence[Any]]) -> list[Walked]:
        """Walks of (program, start, scratch or dict of fields), all under way together; in their order."""

        async def one(program: Any, start: int, given: Any = b"") -> Walked:
            if isinstance(given, dict):
                return await self.walk(program, start, **given)
            return await self.walk(program, start, given)

        return list(await asyncio.gather(*(one(*walk) for walk in walks)))

    async def get(self, collection: Any, key: Any, default: Any = None) -> Any:
        """The value of a key of a HashMap or an OrderedMap, whichever client that was opened with."""
        native, start, scratch, read = collection._find(key)
        return read(await self._walk(native, start, scratch), default)

    async def get_many(self, collection: Any, keys: Iterable[Any], default: Any = None) -> list[Any]:
        """The values of many keys, all walks under way together."""
        return list(await asyncio.gather(*(self.get(collection, key, default) for key in keys)))

    async def range(self, collection: Any, first: Any = None, last: Any = None, limit: int = 1 << 62) -> Any:
        """Keys and values of an OrderedMap's range, as arrays."""
        native, start, scratch, read = collection._find_range(first, last, limit)
        return read(await self._walk(native, start, scratch))

    async def change(self, collection: Any, method: str, *arguments: Any) -> Any:
        """A method that changes a collection (`insert`, `delete`, `add`, `append` …), in a thread, by a connection of its own:
        changes are several round trips each, and take turns. Cancelled, it is made to its end all the same."""
        self._begin()
        if self._changing is None:
            self._changing = asyncio.Lock()
        async with self._changing:
            if self._changes is None:
                nodes, map, options = self._options
                self._changes = await asyncio.to_thread(lambda: Client(_connect(nodes, map, options)))
            changed = getattr(collection._at(self._changes), method)
            return await asyncio.shield(asyncio.to_thread(changed, *arguments))

    async def aclose(self) -> None:
        """Ends it. Whoever still waits gets ClosedError."""
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is not None:
            _readers.leave(loop, self._fd)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for future in [*waiting.values(), *self._room]:
            if not future.done():
                future.set_exception(ClosedError("the client was closed while this walk was under way: it may have happened"))
        self._room.clear()
        if self._connected is not None:
            self._connected.close()
        if self._changes is not None:
            self._changes.close()
