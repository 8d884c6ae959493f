# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Dicts and arrays that survive a crash: kept in one file, changed in transactions, one fence each.

    from memlift import persist

    with persist.open("state.pool") as pool:
        d = pool.dict("settings")
        d["rate"] = 0.1                         # durable when this line is done
        with pool.transaction():                # all of it or nothing; an exception undoes it
            d["step"] = d.get("step", 0) + 1
            pool.put_array("weights", weights)
        w = pool.array("weights")               # read-only, no copy: numpy on top of the pool's memory
        with pool.edit("weights") as w:         # a copy; what differs at the end is kept
            w[3] = 0.5

    with persist.shelf("cache", expire=3600, size_limit="1G") as cache:      # one dict in a file: shelve, sqlitedict, diskcache
        cache["answer"] = {"any": "value that pickle takes"}

    with persist.open("state.pool", replicate="s3://bucket/state") as pool:   # a copy elsewhere, about a second behind
        ...
    persist.restore("s3://bucket/state", "state.pool")    # after the disk is gone; at="2026-11-30T05:12:33Z": as it was then

    persist.save("model.ckpt", model.state_dict())        # whole or not at all, and only what differs is written; see Checkpoint
    model.load_state_dict(persist.load("model.ckpt"))

Order   a change is durable when its statement, or the outermost `with pool.transaction()`, is done (durability="sync")
Threads one transaction at a time; others wait for it, without the GIL. A transaction belongs to its thread: do not `await` in it
Owner   an array's view stays valid and as it is for as long as somebody has it, whatever happens to the array or the pool
"""

import datetime
import math
import os
import warnings
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, Sequence, ValuesView
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from memlift import _native
from memlift._checkpoint import Checkpoint, Saved, pack
from memlift._shelf import Shelf, modes
from memlift._sizes import in_bytes
from memlift.errors import BadArgumentError, GoneError, NotReplicatedError, PoolDamagedError, UnsupportedTypeError

__all__ = [
    "Checkpoint",
    "Dict",
    "Guarantee",
    "History",
    "Pool",
    "Replica",
    "Restored",
    "Saved",
    "Shelf",
    "Stretch",
    "Writer",
    "history",
    "load",
    "open",
    "restore",
    "save",
    "shelf",
]

_MISSING: Any = object()


class Guarantee(NamedTuple):
    """What acknowledged transactions survive on this file."""

    survives_power_failure: bool
    """False: the death of the process only."""
    domain: str
    """Where stores become durable: "lines" (cache lines) or "pages" (fdatasync)."""
    by: str
    text: str

    def __str__(self) -> str:
        return self.text


class Replica(NamedTuple):
    """How far the replica of a pool is. Moments are in UTC."""

    url: str
    sequence: int
    """Transactions up to this one, by the pool's order, are in the replica."""
    committed: int
    """The last transaction that was committed."""
    complete_until: datetime.datetime | None
    """Everything that was committed before is in the replica; None: nothing was sent yet."""
    lag: float | None
    """Seconds since then: the replica lacks nothing that is older."""
    segments: int
    """Sent since the pool was opened."""
    sent_bytes: int
    trouble: str | None
    """Reason that nothing was sent lately, or that nothing will be; None: all is well."""
    ended: bool
    """True: nothing will be sent any more, because another process has the replica, or the pool's disk failed."""


class Restored(NamedTuple):
    """Result of `restore`."""

    time: datetime.datetime
    """The moment whose state the pool has, in UTC."""
    sequence: int
    """The last transaction in it; 0 where only the pool's writer knew it."""
    segments: int
    bytes: int
    """Bytes that were read."""


class Stretch(NamedTuple):
    """A time without a gap: a restore is possible to any moment in it."""

    start: datetime.datetime
    end: datetime.datetime
    snapshots: Sequence[datetime.datetime]


class Writer(NamedTuple):
    """A process that wrote a replica."""

    owner: str
    """File, process and host."""
    since: datetime.datetime


class History(NamedTuple):
    """Contents of a replica."""

    stretches: Sequence[Stretch]
    writers: Sequence[Writer]
    segments: int
    bytes: int
    missing: Sequence[int]
    """Numbers of segments that are missing between others, or cannot be read."""


_1970 = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def _utc(micros: int) -> datetime.datetime:
    return _1970 + micros * _MICROSECOND


def _micros(at: datetime.datetime | float | str | None) -> int | None:
    """The moment in microseconds since 1970."""
    if at is None:
        return None
    if isinstance(at, str):
        try:
            at = datetime.datetime.fromisoformat(at)
        except ValueError:
            raise BadArgumentError(f"at={at!r}: write a moment as 2026-11-30T05:12:33Z") from None
        at = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None:
            raise BadArgumentError("at: a datetime without a time zone could be any of several moments; give it one, datetime.UTC for example")
        micros = (at - _1970) // _MICROSECOND
    else:
        micros = round(at * 1e6) if math.isfinite(at) else -1
    if not 0 <= micros < 1 << 62:
        raise BadArgumentError(f"at={at!r}: this is no time after 1970")
    return micros


def restore(
    url: str | os.PathLike[str],
    path: str | os.PathLike[str],
    at: datetime.datetime | float | str | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
) -> Restored:
    """Makes the new file `path` of the replica at `url`: the pool as it was at a moment. Nothing is overwritten, and everything that is read is
    compared with its checksum: if anything is missing or damaged, there is no file.

    at        a datetime with a time zone, seconds since 1970, or text like "2026-11-30T05:12:33Z": the last state that is not later; None: the
              last one
    progress  called with the bytes that were read and those of all objects; what it raises ends the restore

    Raises FileExistsError, NoReplicaError, ReplicaStoreError, and ReplicaError, whose text has the last time that is possible.
    """
    time, sequence, segments, size = _native.restore_replica(os.fspath(url), os.fsdecode(path), _micros(at), progress)
    return Restored(_utc(time), sequence, segments, size)


def history(url: str | os.PathLike[str]) -> History:
    """The contents of the replica at `url`: to which times a restore is possible, and which processes wrote it. Checksums are not compared.

    Raises NoReplicaError, ReplicaStoreError.
    """
    found = _native.replica_history(os.fspath(url))
    stretches = [Stretch(_utc(start), _utc(end), [_utc(one) for one in snapshots]) for start, end, snapshots in found["stretches"]]
    writers = [Writer(owner, _utc(since)) for owner, since in found["writers"]]
    return History(stretches, writers, found["segments"], found["bytes"], found["missing"])


def open(
    path: str | os.PathLike[str],
    size: int | str = 256 << 10,
    mode: str = "c",
    *,
    durability: str = "sync",
    size_max: int | str | None = None,
    lane_bytes: int | str = 8 << 20,
    mechanism: str = "redo",
    domain: str = "auto",
    prefault: bool = False,
    memory: int | str | None = None,
    readers: bool | int | str = False,
    wait: float = 0,
    replicate: str | os.PathLike[str] | None = None,
    replica_interval: float = 1.0,
    replica_retain: float = 24 * 3600.0,
    replica_wait: float = 30.0,
) -> "Pool":
    """Opens a pool, recovers it if it was not closed, and creates it if there is none.

    size        bytes for objects at first, or text like "64M"; it grows up to `size_max` (None: 64 GiB, or an
                eighth of the addresses that the process may have: `ulimit -v`)
    mode        "c" create if missing, "w" there is one, "x" there is none, "r" read only. A pool that another process writes is read as it
                is now, if it was opened there with `readers`; `refresh` sees what was committed since
    durability  "sync": a transaction is durable when it is done. "group": the same, shared with others that end at the same
                time. "buffered": after the next sync, `pool.sync()` or `pool.close()`; a crash loses the last ones, never one in
                between. "replicated": as "group", and the replica has it, too; NotReplicatedError if it does not get it within
                `replica_wait`, and the change stays in the file
    lane_bytes  of the log. With undo, checkpoint and shadow it limits a transaction; new values and arrays of 16 KiB and more do not count
    mechanism   "redo", or another that this release has; of a new pool
    domain      "auto", or "lines" or "pages" to insist
    prefault    touch all memory now
    memory      that changed pages may take before they go back to the file; None: a quarter of what this process may have
    readers     other processes may read meanwhile, each as of when it opened the pool. For that, pages that change are kept as they were
                while somebody reads: in 64 MiB (True), or so many bytes, or text like "1G". A reader for whom that is too little gets
                SnapshotGoneError. Redo and checkpoint pools
    wait        seconds to wait for another process that has the pool open, until it closes it or ends: so several processes write in turn,
                each with `with persist.open(path, wait=10) as pool`. 0: PoolInUseError at once
    replicate   a copy is kept up to date there, in the background: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH (keys and settings
                come from the environment: AWS_…, GOOGLE_…, AZURE_…) or a folder, of this pool only. Whoever wrote it before gets
                FencedError. `pool.replica` says how far it is, `restore` makes a pool of it. Redo and checkpoint pools
    replica_interval  seconds after which a change is sent at the latest
    replica_retain    seconds for which every state stays; what is older is removed
    replica_wait      seconds that "replicated" changes and `close` wait for the replica at most

    Raises PoolInUseError, NotAPoolError, PoolDamagedError, BadArgumentError, ReplicaStoreError (the copy cannot be reached: nothing is opened without one that was
    asked for), and OSError (FileNotFoundError, FileExistsError, …).
    """
    replica = None if replicate is None else (os.fspath(replicate), replica_interval, replica_retain, replica_wait)
    return Pool(
        _native.PersistPool(
            os.fsdecode(path),
            mode=mode,
            size=in_bytes(size),
            size_max=None if size_max is None else in_bytes(size_max),
            lane_bytes=in_bytes(lane_bytes),
            mechanism=mechanism,
            domain=domain,
            durability=durability,
            prefault=prefault,
            memory=None if memory is None else in_bytes(memory),
            readers=64 << 20 if readers is True else in_bytes(readers or 0),
            wait=wait,
            replica=replica,
        )
    )


def shelf(
    path: str | os.PathLike[str],
    flag: str = "c",
    *,
    writeback: bool = False,
    expire: float | None = None,
    size_limit: int | str | None = None,
    durability: str = "sync",
    memory: int | str | None = None,
    wait: float = 0,
    replicate: str | os.PathLike[str] | None = None,
) -> Shelf:
    """A dict in a file of its own, where shelve, sqlitedict or diskcache would be.

    flag        as shelve's: "c" create if missing, "w" there is one, "r" read only, "n" begin with an empty one
    writeback   keep what was read in memory, and write it back at `sync` and `close`
    expire      seconds until a value is gone, unless `set` says otherwise; None: never
    size_limit  bytes of all pickled values, or text like "64M"; what was set longest ago makes room. None: none
    durability  "sync": each change is durable when it is done. "buffered": after the next `sync` or `close`, and within about
                50 ms by itself; a crash loses the last changes, never one in between
    memory      that changed pages may take; None: a quarter of what this process may have
    wait        seconds to wait for another process that has the file open, as `open`
    replicate   a copy is kept up to date there, as `open`

    Values are pickled: only for files that nobody else can write. Raises as `open`.
    """
    pool = open(path, mode=modes(flag), durability=durability, memory=memory, wait=wait, replicate=replicate)
    try:
        made = Shelf(pool, expire, None if size_limit is None else in_bytes(size_limit), writeback)
        if flag == "n":
            made.clear()
    except BaseException:
        pool.close()
        raise
    return made


def save(path: str | os.PathLike[str], state: Any, step: int | None = None, *, keep: int | None = None, wait: float = 0) -> Saved:
    """Stores a state of a program, such as a model's `state_dict()`, in a file: whole or not at all, and only what differs from the state that was
    saved there last. `Checkpoint` says what a state may have, and keeps the file open between saves.

    Raises UnsupportedValueError, which names the place; then there is no new file. Otherwise as `Checkpoint.save` and `open`.
    """
    packed = pack(state, step)
    with Checkpoint(path, keep=keep, wait=wait) as checkpoint:
        return checkpoint._store(packed, step)


def load(path: str | os.PathLike[str], step: int | None = None, *, copy: bool = True, wait: float = 0) -> Any:
    """The state of a step that `save` or a `Checkpoint` stored in a file; None: the one saved last.

    copy  False: numpy arrays that were last written whole are read-only views of the file; see `Checkpoint.load`

    Raises GoneError if there is no such state, PoolDamagedError if something does not have its checksum; otherwise as `open`.
    """
    with Checkpoint(path, "r", wait=wait) as checkpoint:
        return checkpoint.load(step, copy=copy)


class _Transaction:
    __slots__ = ("_durability", "_pool")

    def __init__(self, pool: "Pool", durability: str | None) -> None:
        self._pool = pool
        self._durability = durability

    def __enter__(self) -> "Pool":
        self._pool._native.begin(self._durability)
        return self._pool

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool._native.end(kind is None)


class _Edit:
    __slots__ = ("_copy", "_name", "_pool")

    def __init__(self, pool: "Pool", name: str) -> None:
        self._pool = pool
        self._name = name

    def __enter__(self) -> np.ndarray[Any, Any]:
        self._pool._native.begin()
        try:
            self._copy = self._pool.array(self._name).copy()
        except BaseException:
            self._pool._native.end(False)
            raise
        return self._copy

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._copy.flags.writeable = False  # later changes would not be kept
        good = kind is None
        try:
            if good:
                good = False
                self._pool._native.change_array(self._name, self._copy)
                good = True
        finally:
            self._pool._native.end(good)


class Pool:
    """A file with dicts and arrays by name. Made by `open`; a context manager that closes it."""

    __slots__ = ("__weakref__", "_native")

    def __init__(self, native: _native.PersistPool) -> None:
        self._native = native

    def dict(self, name: str, *, pickle: bool = False) -> "Dict":
        """The dict of that name; made when there is none.

        pickle  also keep values of other kinds, by pickling them. Unpickling runs whatever code the file says: only for files
                that nobody else can write.
        """
        return Dict(self, self._native.dict(name, pickle))

    def transaction(self, *, durability: str | None = None) -> _Transaction:
        """`with pool.transaction():` all changes of the block happen together, or none if it raises.

        In another one it joins that: the outermost decides, and is rolled back if an inner one was.
        """
        return _Transaction(self, durability)

    def put_array(self, name: str, array: Any) -> None:
        """Keeps a copy of `array` under `name`, in place of what was there; views of that stay as they are."""
        if isinstance(array, np.ma.MaskedArray):
            raise UnsupportedTypeError("a masked array would lose its mask: put array.filled(value), or array.data and array.mask as two arrays")
        array = np.asarray(array, order="C")
        dtype = array.dtype
        if dtype.kind not in "biufc" or not dtype.isnative or dtype.itemsize > 16 or dtype.str[1:] in ("f16",):
            raise UnsupportedTypeError(f"an array of dtype {dtype} cannot be kept: numbers in this machine's byte order can")
        flat = array.reshape(-1).view(np.uint8)
        self._native.put_array(name, flat, (dtype.kind, dtype.itemsize), array.shape)

    def array(self, name: str, shape: Any = None, dtype: Any = None) -> np.ndarray[Any, Any]:
        """The array of that name: a read-only view of the pool's memory as it is now.

        It never changes: what is put in its place, or edited, later is seen by the next call. What the open transaction has
        changed itself is given as a copy.

        shape, dtype  if there is none, it is made, with zeros; if there is one, it must be so
        """
        found = self._native.view(name)
        if found is None:
            if shape is None:
                raise GoneError(f"there is no array {name!r} in the pool: put_array makes one, or give shape and dtype")
            with self.transaction():
                found = self._native.view(name)
                if found is None:
                    self.put_array(name, np.zeros(shape, dtype if dtype is not None else np.float64))
            found = self._native.view(name)
            if found is None:
                raise GoneError(f"the array {name!r} was removed while it was made")
        memory, kind, extents = found
        array: np.ndarray[Any, Any] = np.ndarray(tuple(extents), kind, memory)
        array.flags.writeable = False
        if dtype is not None and np.dtype(dtype) != array.dtype:
            raise BadArgumentError(f"the array {name!r} is of dtype {array.dtype}, not {np.dtype(dtype)}")
        if shape is not None and array.shape != (wanted := tuple(np.atleast_1d(shape).tolist()) if shape != () else ()):
            raise BadArgumentError(f"the array {name!r} has the shape {array.shape}, not {wanted}")
        return array

    def edit(self, name: str) -> _Edit:
        """`with pool.edit(name) as a:` a writable copy; what differs from the array at the end of the block is kept.

        It is a transaction: others wait, and an exception undoes everything. Behind the block the copy is read-only.
        """
        return _Edit(self, name)

    def names(self) -> Mapping[str, str]:
        """What is in the pool: name → "dict" or "array", in the order in which they were made."""
        return {name: "array" if is_array else "dict" for name, is_array in self._native.names()}

    def remove(self, name: str) -> None:
        """Takes a dict or an array out. Views of the array stay valid. Raises KeyError."""
        if not self._native.remove(name):
            raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    @property
    def guarantee(self) -> Guarantee:
        """What acknowledged transactions survive."""
        return Guarantee(*self._native.guarantee())

    def info(self) -> Mapping[str, Any]:
        """Sizes, mechanism, what opening it had to recover, and how often something was made durable since."""
        return self._native.info()

    @property
    def path(self) -> str:
        return os.fspath(self._native.path)

    @property
    def closed(self) -> bool:
        return self._native.closed

    def sync(self) -> None:
        """Makes everything durable that was committed, buffered transactions included."""
        self._native.sync()

    @property
    def replica(self) -> Replica | None:
        """How far the replica is; None without `replicate`, and when the pool is closed."""
        found = self._native.replica()
        if found is None:
            return None
        until = found["complete_until"]
        return Replica(**{**found, "complete_until": None if until is None else _utc(until)})

    def wait_replica(self, timeout: float = 30.0) -> None:
        """Waits until the replica has everything that was committed before. Raises NotReplicatedError with the reason, BadArgumentError without
        `replicate`."""
        self._native.wait_replica(timeout)

    def compact(self) -> Mapping[str, int]:
        """Moves the entries of dicts out of nearly empty parts of the file, and gives what is free back to the file system: the file keeps
        its length and gets holes. Other threads may use the pool meanwhile; buffered transactions become durable. Arrays stay where they
        are. Raises OutOfOrderError within a transaction.

        Returns what it did, in bytes but for the first: `moved` objects, `freed` bytes of the heap, `disk_bytes_before` and `disk_bytes`.
        """
        names = ("moved", "freed", "disk_bytes_before", "disk_bytes")
        return dict(zip(names, self._native.compact(), strict=True))

    def refresh(self) -> None:
        """Sees what the process that writes the pool has committed by now: everything that was done before this call. A pool that no other
        process writes is as new as it can be. Views of arrays that were taken before stay as they are.

        Raises SnapshotGoneError when nobody writes the pool any more (what was read before can still be read), ClosedError.
        """
        self._native.refresh()

    @property
    def beside(self) -> bool:
        """True if it is a snapshot of a pool that another process writes."""
        return self._native.beside

    def backup(self, target: str | os.PathLike[str], *, bytes_per_second: int | None = None) -> Mapping[str, float]:
        """Writes a copy of the pool to the new file `target` while other threads go on using it. The copy has everything that was committed
        before the call, is read back and compared, and is a pool like any other: open it, check it, or put it where the pool was. The
        commits of other threads wait only for the last pieces, and only when their log is full; with undo and shadow they wait for all.

        bytes_per_second: how fast it copies at most, but for these last pieces. None: as fast as the disk.

        Returns `bytes` in use, bytes `copied` (what changed meanwhile was copied again), `held_bytes` of them while the log waited, and
        `held_seconds`. Raises FileExistsError where there is a file, PoolDamagedError for a page that is damaged, OutOfOrderError within a transaction;
        then there is no copy.
        """
        names = ("bytes", "copied", "held_bytes", "held_seconds")
        return dict(zip(names, self._native.backup(target, bytes_per_second), strict=True))

    def close(self) -> None:
        """Makes everything durable and closes the file, when its replica has everything, too. Raises BufferError while there are views of
        its arrays: all is durable and the pool is closed then, but the file stays locked until the last view is gone. Raises
        NotReplicatedError when the replica lacks something after `replica_wait`: all is durable in the file and the pool is closed then."""
        views, lacks = self._native.close()
        if views:
            raise BufferError(_still_used(self.path))
        if lacks is not None:
            raise NotReplicatedError(lacks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        views, lacks = self._native.close()
        if views and kind is None:
            warnings.warn(_still_used(self.path), ResourceWarning, stacklevel=2)
        if lacks is not None:
            warnings.warn(f"{self.path}: {lacks}", RuntimeWarning, stacklevel=2)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"a pool is not copied or pickled: open {self.path} in the other process, or copy it with backup")

    def __repr__(self) -> str:
        return f"<memlift.persist.Pool {self.path}{' (closed)' if self.closed else ''}>"


def _still_used(path: str) -> str:
    return (
        f"{path}: everything is durable and the pool is closed, but its file stays locked, because arrays or transactions of "
        "it are still in use: delete them, or copy arrays before closing"
    )


class _Keys(KeysView[Any]):
    _mapping: "Dict"

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._mapping)


class _Items(ItemsView[Any, Any]):
    _mapping: "Dict"

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping._walk(True)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return reversed(list(self))


class _Values(ValuesView[Any]):
    _mapping: "Dict"

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping._walk(True))

    def __reversed__(self) -> Iterator[Any]:
        return reversed(list(self))


class Dict(MutableMapping[Any, Any]):
    """A dict that survives a crash. Keys are str, bytes or int, NumPy's included; values None, bool, int, float, complex, str, bytes,
    bytearray, scalars of NumPy, and lists, tuples, sets, frozensets and dicts of these. What comes back has the type that was put in. It
    keeps the order of insertion.

    A value is a copy: `d["list"].append(1)` changes nothing in the pool; assign it again. Raises UnsupportedValueError for other kinds,
    TransactionTooLargeError for a change that does not fit into the log, PoolFullError.
    """

    __slots__ = ("_native", "_pool")

    def __init__(self, pool: Pool, native: _native.PersistDict) -> None:
        self._pool = pool
        self._native = native

    @property
    def name(self) -> str:
        return self._native.name

    def __getitem__(self, key: Any) -> Any:
        value = self._native.get(key, _MISSING)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or `default`. Raises PoolDamagedError if it lies in damaged memory."""
        return self._native.get(key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._native.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self._native.remove(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._native.contains(key)

    def __len__(self) -> int:
        return len(self._native)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._walk(False))

    def keys(self) -> KeysView[Any]:
        """Keys; iterated over in batches, while others may change the dict."""
        return _Keys(self)

    def items(self) -> ItemsView[Any, Any]:
        """Keys and values; iterated over in batches, while others may change the dict."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Values; iterated over in batches, while others may change the dict."""
        return _Values(self)

    def _walk(self, values: bool) -> Iterator[tuple[Any, Any]]:
        after: bytes | None = None
        version: int | None = None
        seen = 0
        while True:
            batch = self._native.batch(after, values)
            if batch is None or (version is not None and batch[0] != version):
                raise RuntimeError("dictionary changed size during iteration")
            version, after, pairs = batch
            if not pairs:
                return
            seen += len(pairs)
            if seen > len(self):
                raise PoolDamagedError(f"the dict {self.name!r} leads back to where it was: the pool is damaged")
            yield from pairs

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Takes a key out and gives its value, in one transaction."""
        with self._pool.transaction():
            value = self._native.get(key, _MISSING)
            if value is not _MISSING:
                self._native.remove(key)
                return value
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Any, Any]:
        """Takes out what was inserted last."""
        with self._pool.transaction():
            key = self._native.last(_MISSING)
            if key is not _MISSING:
                return key, self.pop(key)
        raise KeyError("popitem(): dictionary is empty")

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of a key; where there is none, `default`, which is stored first."""
        with self._pool.transaction():
            value = self._native.get(key, _MISSING)
            if value is _MISSING:
                self._native.set(key, default)
                return default
        return value

    def update(self, other: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), /, **more: Any) -> None:
        """All or nothing: one transaction."""
        with self._pool.transaction():
            super().update(other, **more)

    def clear(self) -> None:
        """Removes every key, all or none."""
        self._native.clear()

    def copy(self) -> dict[Any, Any]:
        """An ordinary dict with the same content."""
        return dict(self.items())

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> dict[Any, Any]:
        return self.copy()

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"the dict {self.name!r} of a pool is not pickled: pickle dict(d), or open {self._pool.path} in the other process")

    def __reversed__(self) -> Iterator[Any]:
        return reversed(list(self))

    def __or__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return self.copy() | dict(other)

    def __ror__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(other) | self.copy()

    def __ior__(self, other: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> "Dict":
        """All or nothing: one transaction."""
        self.update(other)
        return self

    def __repr__(self) -> str:
        if self._pool.closed:
            return f"<memlift.persist.Dict {self.name!r} (closed)>"
        return f"<memlift.persist.Dict {self.name!r}, {len(self)} keys>"
