# SPDX-License-Identifier: Apache-2.0 OR MIT
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__version__: str

def _health(answer: bytes) -> dict[str, Any]: ...

Data = Any
"""What can be sent: see memlift.Queue."""
Answer = Any
"""bytes for bytes, a read-only numpy array for an array, None for None; other values as they were sent, arrays in them read-only."""
Wait = Literal["auto", "block", "spin"]
Device = Literal["auto", "inline", "worker", "dsa"]
CachePolicy = Literal["auto", "on", "off"]

class Client:
    def __new__(
        cls,
        address: str | os.PathLike[str],
        *,
        timeout: float | None = None,
        pool_bytes: int | None = None,
        response_pool_bytes: int | None = None,
        pool_bytes_max: int | None = None,
        message_bytes_max: int | None = None,
        outstanding: int | None = None,
        wait: float | Wait | None = None,
        policy: Wait | None = None,
        idempotent: bool = False,
        allow_pickle: bool = False,
        ended: Any = None,
    ) -> Self:
        """Opens a session with the server at `address`.

        timeout     seconds that a call may take which says no other, and opening the session
        wait        seconds to wait for a server that is not there yet; or the wait policy by its name, as `policy`
        policy      how to wait for answers: "auto", "block" or "spin"
        idempotent  calls that do not say otherwise may be made twice: see `call`
        ended       a threading.Event that ends the opening from another thread (ClosedError). Ctrl-C ends it in the main thread

        Raises ServerUnavailableError, which names the address, when there is no server, or none within `wait` seconds.
        """
    def call(
        self,
        operation: str,
        data: Data = None,
        *more: Data,
        timeout: float | None = None,
        out: Any = None,
        device: Device | None = None,
        cache: CachePolicy | None = None,
        defer: bool = True,
        crc: bool = False,
        pack: bool = False,
        idempotent: bool | None = None,
        **named: Data,
    ) -> Answer:
        """Calls an operation and waits for its answer, `timeout` seconds at most.

        The handler gets `data`, or all of `data`, `more` and `named` as they are given here. The names of the options below are taken.

        device  who copies the data into shared memory: "inline" (this thread), "worker" (engine threads, while this one sleeps),
                "dsa" (DeviceUnavailableError where `memlift doctor` finds no work queue), "auto" (as measured: see `explain`)
        cache   "on": copies of request and reply stay in the cache for their reader; "off": they go past it; "auto": on, in a
                pipeline off; for large data, then, as measured
        defer   sleep until shortly before the answer is expected, then look for it; False: look at once
        crc     CRC-32C of request and reply, compared where they arrive before anybody sees them; else CorruptMessageError
        pack    request and reply cross in packed pages where they become at least an eighth smaller: less shared memory, more
                processor time; what arrives is the receiver's own copy, read-only for a handler as ever

        idempotent  the call may run twice: if the server dies, the client waits for a server at the same address, for as long as
                    `timeout` leaves (without one: the client's `wait`), and calls once more. None: as the client says

        out  an array of the answer's type and shape, or a writable buffer for bytes, that the answer is copied into: given back as
             it is, or as the number of bytes. ValueError if it does not fit, TypeError if the answer is neither bytes nor array.

        Raises UnsupportedTypeError for what cannot be sent (nothing was), MessageTooLargeError, PayloadPoolFullError, OutOfMemoryError,
        DeadlineExceededError, UnknownOperationError, RemoteError with the handler's traceback, CorruptMessageError,
        DeviceUnavailableError, PeerDiedError, PeerFaultError, ClosedError.
        """
    def call_async(
        self,
        operation: str,
        data: Data = None,
        *more: Data,
        timeout: float | None = None,
        device: Device | None = None,
        cache: CachePolicy | None = None,
        defer: bool = True,
        crc: bool = False,
        pack: bool = False,
        **named: Data,
    ) -> Future: ...
    def pipeline(self, depth: int = 8, *, batch: int | None = None) -> Pipeline:
        """Up to `depth` calls unanswered, answers in any order. A server that sleeps is woken once for `batch` calls; None: for as
        many as gave the most answers per second."""
    def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """Asks the server how it is: {"state": "ready", "not ready" or "draining", "sessions", "busy_handlers", "queued"}.

        Raises what `call` raises: DeadlineExceededError if it does not answer within `timeout` seconds, PeerDiedError if it is gone.
        """
    def load(self) -> dict[str, int]:
        """How busy the server is, as it wrote last into shared memory: sessions, handlers, busy_handlers, queued."""
    def explain(
        self,
        operation: str,
        bytes: int,
        *,
        mode: Literal["sync", "async", "pipelined"] = "sync",
        device: Device | None = None,
        cache: CachePolicy | None = None,
    ) -> dict[str, Any]:
        """Why such calls are made as they are: device, cache and reason, the candidates with what they cost (nanoseconds per byte of
        request, copies and handler together), how many decisions were explorations, a pipeline's batch, when an answer is
        expected, and what the engine's cost model says of the copy alone."""
    def loan(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> np.ndarray[Any, Any]: ...
    def stats(self) -> dict[str, int]: ...
    @property
    def address(self) -> str: ...
    @property
    def timeout(self) -> float | None: ...
    def _needs_services(self, what: str) -> None:
        """Raises PeerTooOldError if the server's version has no several arguments, streams and pings."""
    def _pinned(self) -> Client:
        """A client of the session that calls use now, which no other session will replace."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

class Future:
    @property
    def job(self) -> int: ...
    def state(self, timeout: float | None = None) -> dict[str, Any]:
        """What has become of the call, as the server says: {"state": "queued", "ahead": n}, {"state": "taken", "done": d, "total": t}
        (what its handler told `memlift.ipc.progress`) or {"state": "answered"}."""
    def done(self) -> bool: ...
    def result(self, timeout: float | None = None, *, out: Any = None) -> Answer: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...

class Pipeline:
    def submit(
        self,
        operation: str,
        data: Data = None,
        *more: Data,
        timeout: float | None = None,
        device: Device | None = None,
        cache: CachePolicy | None = None,
        defer: bool = True,
        crc: bool = False,
        pack: bool = False,
        **named: Data,
    ) -> int: ...
    def flush(self) -> None:
        """Sees that the server notices all calls now, also those of a batch that is not full."""
    def next(self, timeout: float | None = None, *, out: Any = None) -> tuple[int, Answer] | None: ...
    def results(self) -> Iterator[tuple[int, Answer]]: ...
    def __iter__(self) -> Iterator[tuple[int, Answer]]: ...
    def __next__(self) -> tuple[int, Answer]: ...
    @property
    def outstanding(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

class Server:
    def __new__(
        cls,
        address: str | os.PathLike[str],
        *,
        handlers: int | None = None,
        allowed_uids: Sequence[int] | None = None,
        sessions_max: int | None = None,
        outstanding: int | None = None,
        message_bytes_max: int | None = None,
        pool_bytes_max: int | None = None,
        wait: Wait | None = None,
        allow_pickle: bool = False,
        allowed_gids: Sequence[int] = (),
        trust: Literal["view", "copy"] = "view",
        ready: bool = True,
        shared: bool = False,
    ) -> Self: ...
    def register(self, name: str, function: Callable[..., Any]) -> None: ...
    def register_deferred(
        self, name: str, function: Callable[[Any, Reply], None], *, long: bool = False, outlasts_drain: bool = False
    ) -> None:
        """Sets the handler of an operation that answers by the `Reply` that it gets as its second argument. long: a handler's thread runs
        it; else the thread that reads the messages does, and it must return at once. outlasts_drain: it is taken also while the server
        drains."""
    def ready(self, is_ready: bool = True) -> None:
        """Sets if the server says that it is ready for calls (`Client.ping`). It takes calls in any case."""
    def begin_drain(self) -> None:
        """Gives the address up and refuses new calls with DrainingError; those that run or wait are answered."""
    def drained(self, timeout: float) -> bool:
        """Waits until all calls are answered, for at most `timeout` seconds; returns False if some are not."""
    def watch_ends(self) -> None:
        """Notes from now on which sessions end, for `ended`."""
    def ended(self) -> list[int] | None:
        """Waits until sessions have ended and returns their numbers; None: the server was stopped."""
    def open(self) -> None:
        """Makes ready to serve, as the first `serve` does. A server that shares its address takes its place there."""
    def serve(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def address(self) -> str: ...
    def stats(self) -> dict[str, int]: ...

class Reply:
    """The answer to one call, to be given later. Dropped without one, it fails the call."""

    def send(self, value: Any) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def fail_unknown(self, known: str) -> None: ...
    @property
    def session(self) -> int: ...
    @property
    def over(self) -> bool: ...

class Failed:
    """In the place of an answer."""

    def take(self) -> BaseException:
        """The exception, once."""

class Session:
    """See memlift.ipc.AsyncClient."""

    def __new__(cls, client: Client) -> Self: ...
    def fileno(self) -> int: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def outstanding(self) -> int: ...
    def submit(
        self,
        operation: str,
        data: Data,
        timeout: float | None = None,
        out: Any = None,
        device: Device | None = None,
        cache: CachePolicy | None = None,
        crc: bool = False,
        pack: bool = False,
    ) -> tuple[int | None, list[tuple[int, Any]]]: ...
    def flush(self) -> None: ...
    def turn(self) -> list[tuple[int, Any]]: ...
    def abandon(self, id: int) -> None: ...

class Arena:
    """See memlift.Arena."""

    def __new__(
        cls,
        name: str | os.PathLike[str] | None = None,
        *,
        bytes_max: int | None = None,
        on_full: Literal["wait", "evict"] = "wait",
        values_max: int = 16384,
        readers_max: int = 1024,
        huge_pages: bool = True,
        numa_node: int | None = None,
        lock: bool = False,
        allowed_uids: Sequence[int] | None = None,
        allow_pickle: bool = False,
    ) -> Self: ...
    @property
    def address(self) -> str:
        """Name or path by which readers find the arena."""
    def put(self, value: Any, *, reads: int | None = None, timeout: float | None = None) -> Ref:
        """Copies a value into the arena, once; the `Ref` names it in any process.

        reads    times that it will be taken (`ref.get()`, in all processes together), after which the arena does not keep it; None: it
                 is kept until it is released
        timeout  seconds to wait for room; None: as long as it takes

        Raises ArenaFullError without room in time, MessageTooLargeError for what can never fit, OutOfMemoryError when the machine or the
        cgroup has too little left, UnsupportedTypeError for what is not data, ClosedError after `close`, ForkedError in a forked child.
        """
    def publish(self, topic: str, value: Any, *, slow: Literal["wait", "drop"] = "wait", timeout: float | None = None) -> Ref:
        """Copies a value into the arena as the latest of a topic, and gives it to those who follow. It is kept until the next one.

        slow     about subscribers to every value that have no room for one more. "wait": until they have, for `timeout` seconds; "drop": the
                 oldest value that waits there goes, and counts as missed

        Raises what `put` raises; ArenaFullError names the process that is behind.
        """
    def release(self, ref: Ref) -> None:
        """As `ref.release()`."""
    def trim(self) -> None:
        """Gives the memory back that no value needs. The arena does it by itself after a few seconds without a put."""
    def close(self) -> None:
        """Closes the arena: its values cannot be taken any more. Views that readers have stay valid, and keep their memory."""
    def stats(self) -> dict[str, int]:
        """values, readers, used_bytes, ending_bytes (of values that are kept only since a reader views them), memory_bytes, bytes_max,
        evicted (values so far)."""

class Ref:
    """Names a value in an arena. It pickles to about 70 bytes, and `bytes(ref)` and `Ref(data)` do the same without pickle.

    A ref is a name, not a hold: the arena keeps the value until it is released or was taken as often as `put` was told. Then, or when it was
    evicted, `get` raises ExpiredError, and never returns another value.
    """

    def __new__(cls, data: bytes) -> Self: ...
    def get(self, *, timeout: float | None = 10.0, writable: bool = False, allow_pickle: bool = False) -> Any:
        """Returns the value, in any process that may read the arena. Its arrays are read-only views of the arena's memory, which is not
        used again before they are gone.

        timeout       seconds for the first contact with the arena; later values take no system call
        writable      True: arrays may be written. Pages (4 KiB) that are written become this process's own, and nobody else sees what was
                      written, not even another `get` here. Each such value is mapped once more, which takes some microseconds
        allow_pickle  whether a pickled object is read: only from an arena that you trust

        Raises ExpiredError if the value is gone, ServerUnavailableError if the arena's process is and this one has not read from it before,
        ClosedError after the arena was closed.
        """
    def release(self, *, timeout: float | None = 10.0) -> None:
        """Nobody needs the value any more: it cannot be taken from now on, and its memory is free with the last view. Any process may call
        it, more than once."""
    @property
    def nbytes(self) -> int:
        """Bytes that the value takes in the arena."""
    @property
    def address(self) -> str:
        """The arena's address."""
    def __bytes__(self) -> bytes: ...
    def __hash__(self) -> int: ...

class Subscription:
    """See memlift.Subscription."""

    def __new__(
        cls,
        address: str | os.PathLike[str],
        topic: str,
        *,
        every: int | None = None,
        timeout: float | None = 10.0,
        writable: bool = False,
        allow_pickle: bool = False,
    ) -> Self: ...
    def get(self, *, timeout: float | None = None) -> Any:
        """Waits for the next value; DeadlineExceededError after `timeout` seconds, PeerDiedError when the arena has ended."""
    @property
    def number(self) -> int: ...
    @property
    def missed(self) -> int: ...
    def fileno(self) -> int:
        """A descriptor for select and event loops: readable when a value or the arena's end has come. With `every=None` it is readable only
        after a `get` that found nothing. Do not read it."""

class Queue:
    """See memlift.Queue."""

    def __new__(
        cls,
        maxsize: int = 0,
        *,
        bytes_max: int | None = None,
        allow_pickle: bool = False,
        ledger: str = "none",
        fds: tuple[int, int] | None = None,
    ) -> Self: ...
    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Copies `obj` into the queue. Without room for `timeout` seconds, or at all if not `block`: queue.Full.

        Raises UnsupportedTypeError for what is not data, MessageTooLargeError for what can never fit, OutOfMemoryError when the machine or the
        cgroup has too little left, ValueError when the queue is closed here.
        """
    def put_nowait(self, obj: Any) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None, *, out: Any = None) -> Any:
        """Takes the oldest item. Without one for `timeout` seconds, or at all if not `block`: queue.Empty.

        out  an array of the item's type and shape, or a writable buffer for bytes or an array, that it is copied into, so that
             the queue has its memory back at once: given back as it is, or as the number of bytes. What does not fit is the
             `item` of the ValueError or TypeError.

        Raises UnsupportedTypeError for a dataclass that is not registered here or a pickle that is not allowed, CorruptMessageError for
        bytes that are no value (that item is gone), PeerFaultError when the queue's books were spoilt, ValueError when it is closed here.
        """
    def get_nowait(self) -> Any: ...
    def put_call(self, number: int, mark: int, obj: Any, block: bool = True) -> None:
        """As `put`, for `get_call`."""
    def get_call(self) -> tuple[int, int, Any, BaseException | None]:
        """Waits for the next item of `put_call`: number, mark and value; or None and the exception that reading the value raised."""
    def settle_call(self) -> None:
        """The call that this process took last has been answered. For queues with the ledger "calls"."""
    def lost(self, identity: int) -> int | None:
        """Number of the call that a dead process had taken and not settled; told once."""
    def _identity(self) -> int:
        """This process, for `lost`."""
    def _task_done(self) -> bool: ...
    def _join(self) -> None: ...
    def qsize(self) -> int: ...
    def empty(self) -> bool:
        """Whether no item waits. Raises OSError if the queue was used and then closed here."""
    def full(self) -> bool: ...
    def close(self) -> None:
        """This process uses the queue no more. What it put stays; arrays that it got stay valid."""
    def stats(self) -> dict[str, int]:
        """items (waiting), writing, reading (items), memory_bytes, viewed_bytes, bytes_max (bytes)."""
    def fileno(self) -> int:
        """A descriptor that is readable while an item waits, for select, `multiprocessing.connection.wait` and event loops. Do not read it."""
    def _descriptors(self) -> tuple[int, int]: ...
    @property
    def _allow_pickle(self) -> bool: ...
    @property
    def _maxsize(self) -> int: ...

def progress(done: int, total: int) -> None:
    """Says in a handler how far it is, in a unit of its choice, for whoever asks (`Future.state`). RuntimeError outside of one."""

def _check(value: Any, allow_pickle: bool) -> None:
    """Raises what sending the value would raise; copies nothing."""

def _encode(value: Any, allow_pickle: bool = False) -> bytes: ...
def _decode(data: Buffer, allow_pickle: bool = False) -> Any: ...

class Slot(Buffer):
    def __len__(self) -> int: ...

Bytes = Buffer
"""Anything with a contiguous buffer: bytes, bytearray, memoryview, mmap, numpy arrays."""
Format = Literal["deflate", "zlib", "gzip", "lz4", "zstd", "pages"]
Effort = Literal["fast", "default", "small", "adaptive"]

class Step:
    """One thing to do on the way. A step that seals does so for one message: its nonce is used up then."""

    @staticmethod
    def copy() -> Step: ...
    @staticmethod
    def crc32c(seed: int = 0) -> Step:
        """CRC-32C of what passes; seed 0, or the value of the bytes before."""
    @staticmethod
    def seal(key: Bytes, nonce: Bytes, aad: Bytes | None = None) -> Step:
        """AES-GCM: key of 16 or 32 bytes, nonce of 12 (in a framed chain the last five are zero). Raises BadKeyError."""
    @staticmethod
    def open(key: Bytes, nonce: Bytes, tag: Bytes | None = None, aad: Bytes | None = None) -> Step:
        """The reverse; a framed chain needs no tag."""
    @staticmethod
    def pack(format: Format = "gzip", effort: Effort = "default") -> Step: ...
    @staticmethod
    def unpack(format: Format = "gzip") -> Step: ...

class Chain:
    """Steps that run block by block, so that memory is read once and written once.

    Without `block_bytes` the result is what the steps give one after the other: crc32c?, one of {copy, seal, open, pack,
    unpack, pack + seal, open + unpack}, crc32c?. With it (a multiple of 4096, up to 65536) the result has frames
    (docs/formats/transform.md): forward crc32c?, pack, seal? or crc32c?, seal; back open?, unpack, crc32c? or open, crc32c?.
    Raises BadChainError.
    """

    def __new__(cls, steps: Sequence[Step], block_bytes: int | None = None) -> Self: ...
    def bound(self, source_bytes: int) -> int | None:
        """Target bytes that always suffice; None for what unpacks."""

class Outcome:
    data: Any
    """bytes, or a memoryview of the target."""
    read: int
    """Bytes of the source that were read."""
    written: int
    """Bytes of the target that were written."""
    tag: bytes | None
    """Of sealing, 16 bytes, unless tags are in frames."""
    crc: int | None
    """CRC-32C of what was read (in frames: of the plain bytes)."""
    crc_after: int | None
    """CRC-32C behind the last step, if there is one in front, too."""
    store: Literal["temporal", "streaming", "isolated"]
    why: str
    contended: bool

class Packer:
    """One message of deflate, zlib or gzip in pieces. Raises OutOfOrderError after `finish`."""

    def __new__(cls, format: Literal["deflate", "zlib", "gzip"] = "gzip", effort: Effort = "default") -> Self: ...
    def push(self, data: Bytes) -> bytes:
        """What can be written already; may be empty."""
    def flush(self) -> bytes:
        """Enough for a reader to unpack everything up to here."""
    def finish(self) -> bytes:
        """The end of the message."""

class Sealer:
    """One message of AES-GCM in pieces of any size, in order."""

    def __new__(cls, key: Bytes, nonce: Bytes, aad: Bytes | None = None) -> Self: ...
    def push(self, data: Bytes, out: Any = None) -> Any:
        """The piece, sealed: as many bytes. `out` must be apart from `data`."""
    def finish(self) -> bytes:
        """The tag, 16 bytes."""

class Opener:
    """The reverse. Nothing of the plaintext can be seen before `finish` has found the tag right."""

    def __new__(cls, key: Bytes, nonce: Bytes, aad: Bytes | None = None) -> Self: ...
    def push(self, data: Bytes) -> None: ...
    def finish(self, tag: Bytes) -> bytes:
        """All of the plaintext. Raises WrongTagError; then it was zeroed."""

def copy(op: Step | Chain | Sequence[Step], source: Bytes, target: Any = None, *, bytes_max: int = ...) -> Outcome:
    """Does `op` while it copies `source` to the start of `target`, or to new bytes.

    bytes_max  without a target: the largest result of unpacking that is accepted (1 GiB)

    Raises the errors of the steps: WrongTagError, CorruptStreamError, TargetTooSmallError, IncompressibleError, OverlapError,
    MessageTooLargeError, BadChainError, OutOfOrderError (a nonce that was used), UnsupportedFormatError; UnsupportedTypeError for what is
    no contiguous buffer.
    """

def crc32c(data: Bytes, seed: int = 0) -> int:
    """CRC-32C of `data`; seed 0, or the value of the bytes before."""

def explain(
    operation: Literal["copy", "crc32c", "seal", "open", "pack", "unpack"], source_bytes: int
) -> dict[str, Any]:
    """Why messages of this kind and size are placed as they are; "text" says it in words."""

class PersistPool:
    """See memlift.persist.Pool."""

    def __new__(
        cls,
        path: str,
        *,
        mode: str,
        size: int,
        size_max: int | None,
        lane_bytes: int,
        mechanism: str,
        domain: str,
        durability: str,
        prefault: bool,
        memory: int | None,
        readers: int,
        wait: float,
        replica: tuple[str, float, float, float] | None,
    ) -> Self: ...
    @property
    def path(self) -> os.PathLike[str]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def beside(self) -> bool: ...
    @property
    def in_transaction(self) -> bool: ...
    def begin(self, durability: str | None = None) -> None: ...
    def end(self, commit: bool) -> None: ...
    def dict(self, name: str, pickle: bool) -> PersistDict: ...
    def names(self) -> list[tuple[str, bool]]: ...
    def remove(self, name: str) -> bool: ...
    def put_array(self, name: str, data: Buffer, element: tuple[str, int], extents: Sequence[int]) -> None: ...
    def view(self, name: str) -> tuple[Buffer, str, list[int]] | None: ...
    def array_crc(self, name: str) -> int | None: ...
    def change_array(self, name: str, data: Buffer) -> None: ...
    def guarantee(self) -> tuple[bool, str, str, str]: ...
    def info(self) -> Mapping[str, Any]: ...
    def sync(self) -> None: ...
    def refresh(self) -> None: ...
    def replica(self) -> Mapping[str, Any] | None: ...
    def wait_replica(self, patience: float) -> None: ...
    def compact(self) -> tuple[int, int, int, int]: ...
    def backup(self, target: str | os.PathLike[str], rate: int | None) -> tuple[int, int, int, float]: ...
    def close(self) -> tuple[int, str | None]: ...

def restore_replica(
    url: str, target: str | os.PathLike[str], at: int | None, progress: Callable[[int, int], object] | None
) -> tuple[int, int, int, int]:
    """See memlift.persist.restore."""

def replica_history(url: str) -> Mapping[str, Any]:
    """See memlift.persist.history."""

class PersistDict:
    """See memlift.persist.Dict."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...
    def get(self, key: object, missing: Any) -> Any: ...
    def contains(self, key: object) -> bool: ...
    def set(self, key: object, value: object) -> bool: ...
    def remove(self, key: object) -> bool: ...
    def clear(self) -> None: ...
    def last(self, missing: Any) -> Any: ...
    def batch(
        self, after: bytes | None, values: bool
    ) -> tuple[int, bytes | None, list[tuple[Any, Any]]] | None: ...

class Pinned(Buffer):
    """Memory of an array in a pool, while somebody looks at it."""

    def __len__(self) -> int: ...

class Block(Buffer):
    """Bytes that a walk brought; read-only."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

_Came = tuple[int, int, Block, Block, int, int, int]
_Entry = tuple[int | None, bytes | None, bytes]

class WalkProgram:
    """See memlift.traverse.Program. Raises BadProgramError."""

    def __new__(cls, name: str, bytecode: bytes, scratch_bytes: int = 1024) -> Self: ...
    @staticmethod
    def assemble(name: str, text: str, scratch_bytes: int = 1024) -> WalkProgram: ...
    @staticmethod
    def from_object(
        name: str, object: bytes, scratch_bytes: int = 1024, function: str | None = None
    ) -> WalkProgram: ...
    @staticmethod
    def shipped(name: str) -> WalkProgram: ...
    @property
    def name(self) -> str: ...
    @property
    def bytecode(self) -> bytes: ...
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def window(self) -> tuple[int, int]: ...
    @property
    def hash(self) -> bytes: ...
    @property
    def cost_ns(self) -> float: ...
    @property
    def writes(self) -> bool: ...
    def listing(self) -> str: ...

class WalkClient:
    """See memlift.traverse.Client."""

    def __new__(
        cls,
        nodes: Sequence[str],
        *,
        map: str | None = None,
        tenant: int = 0,
        key: bytes | None = None,
        window: int = 128,
        deadline: float = 10.0,
        iterations: int = ...,
        hops: int = 64,
        read: str = "leased",
        stale_ok: bool = False,
        bounce: bool = False,
    ) -> Self: ...
    def walk(self, program: WalkProgram, start: int, scratch: bytes) -> _Came: ...
    def walk_many(self, walks: Sequence[tuple[WalkProgram, int, bytes]]) -> list[_Came | BaseException]: ...
    def submit(self, program: WalkProgram, start: int, scratch: bytes, watched: bool) -> int: ...
    def has_room(self) -> bool: ...
    def result(self, ticket: int) -> _Came: ...
    def abandon(self, ticket: int) -> None: ...
    def fileno(self) -> int: ...
    def turn(self) -> tuple[list[tuple[int, _Came | BaseException]], bool, float | None]: ...
    def read(self, address: int, bytes: int) -> bytes: ...
    def write(self, address: int, data: bytes) -> None: ...
    def allocate(self, bytes: int, node: int | None = None) -> int: ...
    def free(self, address: int, bytes: int) -> None: ...
    def compare_swap(self, address: int, expected: int, fresh: int) -> tuple[bool, int]: ...
    def fetch_add(self, address: int, addend: int) -> int: ...
    def counts(self) -> dict[str, Any]: ...
    @property
    def nodes(self) -> list[str]: ...
    def close(self) -> None: ...

class WalkHash:
    """See memlift.traverse.HashMap."""

    @staticmethod
    def create(client: WalkClient, log2: int) -> WalkHash: ...
    @staticmethod
    def open(client: WalkClient, heads: int, log2: int) -> WalkHash: ...
    @property
    def handle(self) -> tuple[int, int]: ...
    def drop(self) -> None: ...
    def get(self, key: int | bytes) -> bytes | None: ...
    def get_many(self, keys: Sequence[int | bytes]) -> list[bytes | None]: ...
    def get_array(self, keys: Buffer, value_bytes: int) -> tuple[Block, Block]: ...
    def insert(self, key: int | bytes, value: bytes) -> bool: ...
    def insert_many(self, keys: Sequence[int | bytes], values: Sequence[bytes]) -> int: ...
    def insert_array(self, keys: Buffer, values: Buffer, value_bytes: int) -> int: ...
    def insert_new(self, key: int | bytes, value: bytes) -> bytes | None: ...
    def remove(self, key: int | bytes) -> bool: ...
    def take(self, key: int | bytes) -> bytes | None: ...
    def clear(self) -> None: ...
    def add(self, key: int, addend: int) -> int | None: ...
    def find_walk(self, key: int | bytes) -> tuple[int, bytes]: ...
    def batch(self, head: int) -> tuple[list[_Entry], int | None]: ...
    def count(self) -> int: ...

class WalkExpiring:
    """See memlift.traverse.HashMap."""

    @staticmethod
    def create(client: WalkClient, log2: int, ttl_s: int, entries_max: int, bytes_max: int) -> WalkExpiring: ...
    @staticmethod
    def open(client: WalkClient, heads: int, log2: int, terms: int) -> WalkExpiring: ...
    @property
    def handle(self) -> tuple[int, int]: ...
    @property
    def terms(self) -> int: ...
    @property
    def limits(self) -> tuple[int, int, int]: ...
    def drop(self) -> None: ...
    def get(self, key: int | bytes) -> bytes | None: ...
    def ttl(self, key: int | bytes) -> tuple[bool, int | None]: ...
    def get_many(self, keys: Sequence[int | bytes]) -> list[bytes | None]: ...
    def get_array(self, keys: Buffer, value_bytes: int) -> tuple[Block, Block]: ...
    def insert(self, key: int | bytes, value: bytes, ttl: int | None = None) -> bool: ...
    def insert_new(self, key: int | bytes, value: bytes, ttl: int | None = None) -> bytes | None: ...
    def insert_many(self, keys: Sequence[int | bytes], values: Sequence[bytes], ttl: int | None = None) -> int: ...
    def insert_array(self, keys: Buffer, values: Buffer, value_bytes: int, ttl: int | None = None) -> int: ...
    def remove(self, key: int | bytes) -> bool: ...
    def take(self, key: int | bytes) -> bytes | None: ...
    def clear(self) -> None: ...
    def add(self, key: int, addend: int) -> int | None: ...
    def find_walk(self, key: int | bytes) -> tuple[int, bytes]: ...
    def live(self, stored: bytes, since: int) -> bytes | None: ...
    def batch(self, head: int) -> tuple[list[_Entry], int | None]: ...
    def count(self) -> int: ...

class WalkOrdered:
    """See memlift.traverse.OrderedMap."""

    @staticmethod
    def create(client: WalkClient, value_bytes: int) -> WalkOrdered: ...
    @staticmethod
    def open(client: WalkClient, cell: int, value_bytes: int) -> WalkOrdered: ...
    @property
    def handle(self) -> tuple[int, int]: ...
    def drop(self) -> None: ...
    def get(self, key: int) -> bytes | None: ...
    def get_array(self, keys: Buffer) -> tuple[Block, Block]: ...
    def range(self, first: int, last: int, limit: int) -> Block: ...
    def last(self, first: int, last: int, limit: int) -> Block: ...
    def buckets(self, begins: Buffer, last: int) -> list[tuple[int, int, int, int]]: ...
    def aggregate(self, first: int, last: int) -> tuple[int, int, int, int]: ...
    def insert(self, key: int, value: bytes) -> bool: ...
    def insert_new(self, key: int, value: bytes) -> bool: ...
    def insert_array(self, keys: Buffer, values: Buffer) -> int: ...
    def remove(self, key: int) -> bool: ...
    def take(self, key: int) -> bytes | None: ...
    def clear(self) -> None: ...
    def find_walk(self, key: int) -> tuple[int, bytes, str]: ...
    def found(self, status: int, scratch: bytes) -> bytes | None: ...
    def range_walk(self, first: int, last: int, limit: int) -> tuple[int, bytes, str]: ...

class WalkList:
    """See memlift.traverse.List."""

    @staticmethod
    def create(client: WalkClient) -> WalkList: ...
    @staticmethod
    def open(client: WalkClient, head: int) -> WalkList: ...
    @property
    def head(self) -> int: ...
    def drop(self) -> None: ...
    def push(self, number: int, value: bytes, front: bool) -> None: ...
    def find(self, number: int) -> bytes | None: ...
    def remove(self, number: int) -> bool: ...
    def entries(self) -> list[_Entry]: ...
    def count(self) -> int: ...
    def sum(self) -> tuple[int, int, int, int]: ...

class WalkNode:
    """See memlift.traverse.Node."""

    def __new__(
        cls,
        memory: int,
        listen: Sequence[str],
        *,
        base: int | None = None,
        shards: int = 1,
        log: str | None = None,
        durable: bool = False,
        keys: Sequence[tuple[int, bytes]] | None = None,
        workspaces: int | None = None,
        prefault: bool = False,
        map: tuple[str, str] | None = None,
    ) -> Self: ...
    @property
    def places(self) -> list[str]: ...
    @property
    def range(self) -> tuple[int, int]: ...
    def stats(self) -> dict[str, int]: ...
    def programs(self) -> list[tuple[str, int]]: ...
    def stop(self) -> None: ...

_Progress = Callable[[int], Any] | None

def walk_load_arrow(
    client: WalkClient,
    kind: str,
    source: Any,
    key: str,
    values: Sequence[str] | None,
    log2: int | None,
    progress: _Progress,
) -> tuple[tuple[int, int], list[tuple[str, str, int]]]: ...
def walk_load_csv(
    client: WalkClient,
    kind: str,
    path: str,
    key: int,
    value: int,
    scale: float | None,
    as_float: bool,
    log2: int | None,
    progress: _Progress,
) -> tuple[int, int]: ...
def walk_load_arrays(
    client: WalkClient, kind: str, keys: Buffer, values: Buffer, value_bytes: int, log2: int | None, progress: _Progress
) -> tuple[int, int]: ...
def walk_load_pairs(
    client: WalkClient,
    kind: str,
    pairs: Sequence[tuple[int | bytes, bytes]],
    value_bytes: int,
    log2: int | None,
    progress: _Progress,
) -> tuple[int, int]: ...

class PinnedPages:
    """Pages of a job that stay in memory while a system call may use them."""

    def release(self) -> None: ...

def zmem_enter(name: str, total: int, min_uncompressed: int, on_overflow: str) -> None: ...
def zmem_handler() -> Any: ...
def zmem_numbers() -> dict[str, int] | None: ...
def zmem_pin(address: int, bytes: int, write: bool) -> PinnedPages: ...

class _Compress:
    def compress(self, data: Buffer, /) -> bytes: ...
    def flush(self, mode: int = 4, /) -> bytes: ...
    def copy(self) -> _Compress: ...

class _Decompress:
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: Buffer, /, max_length: int = 0) -> bytes: ...
    def flush(self, length: int = 16384, /) -> bytes: ...
    def copy(self) -> _Decompress: ...

class _ZlibDecompressor:
    def __init__(self, wbits: int = 15, zdict: Buffer | None = None) -> None: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: Buffer, max_length: int = -1) -> bytes: ...

class _Member:
    def __init__(self, wbits: int = -15) -> None: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def check(self) -> tuple[int, int]: ...
    def readinto(self, read: Callable[[int], Buffer], target: Buffer) -> int: ...
    def read(self, read: Callable[[int], Buffer], size: int) -> bytes: ...

def _zlib_load(path: str | os.PathLike[str]) -> None: ...
def _zlib_version() -> str: ...
def _zlib_compress(data: Buffer, level: int, wbits: int) -> bytes: ...
def _zlib_decompress(data: Buffer, wbits: int, bufsize: int) -> bytes: ...
def _zlib_compressobj(level: int, method: int, wbits: int, mem_level: int, strategy: int, zdict: Buffer | None) -> _Compress: ...
def _zlib_decompressobj(wbits: int, zdict: Buffer) -> _Decompress: ...
def _zlib_crc32(data: Buffer, value: int) -> int: ...
def _zlib_adler32(data: Buffer, value: int) -> int: ...
