# SPDX-License-Identifier: Apache-2.0 OR MIT
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__version__: str

Data = Buffer | npt.ArrayLike | None
Answer = Any
"""bytes for bytes, a read-only numpy array for an array, None for None."""
Wait = Literal["auto", "block", "spin"]

class Client:
    def __new__(
        cls,
        address: str,
        *,
        timeout: float | None = None,
        pool_bytes: int | None = None,
        response_pool_bytes: int | None = None,
        pool_bytes_max: int | None = None,
        message_bytes_max: int | None = None,
        outstanding: int | None = None,
        wait: Wait | None = None,
    ) -> Self: ...
    def call(self, operation: str, data: Data = None, *, timeout: float | None = None) -> Answer: ...
    def call_async(self, operation: str, data: Data = None, *, timeout: float | None = None) -> Future: ...
    def pipeline(self, depth: int = 8) -> Pipeline: ...
    def loan(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> np.ndarray[Any, Any]: ...
    def stats(self) -> dict[str, int]: ...
    @property
    def address(self) -> str: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

class Future:
    @property
    def job(self) -> int: ...
    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> Answer: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...

class Pipeline:
    def submit(self, operation: str, data: Data = None, *, timeout: float | None = None) -> int: ...
    def next(self, timeout: float | None = None) -> tuple[int, Answer] | None: ...
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
        address: str,
        *,
        handlers: int | None = None,
        allowed_uids: Sequence[int] | None = None,
        sessions_max: int | None = None,
        outstanding: int | None = None,
        message_bytes_max: int | None = None,
        pool_bytes_max: int | None = None,
        wait: Wait | None = None,
    ) -> Self: ...
    def register(self, name: str, function: Callable[[Any], Any]) -> None: ...
    def serve(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def address(self) -> str: ...
    def stats(self) -> dict[str, int]: ...

class Slot(Buffer):
    def __len__(self) -> int: ...

Bytes = Buffer
"""Anything with a contiguous buffer: bytes, bytearray, memoryview, mmap, numpy arrays."""
Format = Literal["deflate", "zlib", "gzip", "lz4", "zstd"]
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
        """AES-GCM: key of 16 or 32 bytes, nonce of 12 (in a framed chain the last five are zero). Raises BadKey."""
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
    Raises BadChain.
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
    """One message of deflate, zlib or gzip in pieces. Raises OutOfOrder after `finish`."""

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
        """All of the plaintext. Raises WrongTag; then it was zeroed."""

def copy(op: Step | Chain | Sequence[Step], source: Bytes, target: Any = None, *, bytes_max: int = ...) -> Outcome:
    """Does `op` while it copies `source` to the start of `target`, or to new bytes.

    bytes_max  without a target: the largest result of unpacking that is accepted (1 GiB)

    Raises the errors of the steps: WrongTag, Corrupt, TargetTooSmall, Incompressible, Overlap, MessageTooLarge, BadChain,
    OutOfOrder (a nonce that was used), UnsupportedFormat; UnsupportedType for what is no contiguous buffer.
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
        size_max: int,
        lane_bytes: int,
        mechanism: str,
        domain: str,
        durability: str,
        prefault: bool,
    ) -> Self: ...
    @property
    def path(self) -> os.PathLike[str]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def in_transaction(self) -> bool: ...
    def begin(self, durability: str | None = None) -> None: ...
    def end(self, commit: bool) -> None: ...
    def dict(self, name: str, pickle: bool) -> PersistDict: ...
    def names(self) -> list[tuple[str, bool]]: ...
    def remove(self, name: str) -> bool: ...
    def put_array(self, name: str, data: Buffer, element: tuple[str, int], extents: Sequence[int]) -> None: ...
    def view(self, name: str) -> tuple[Buffer, str, list[int]] | None: ...
    def change_array(self, name: str, data: Buffer) -> None: ...
    def guarantee(self) -> tuple[bool, str, str, str]: ...
    def info(self) -> Mapping[str, Any]: ...
    def sync(self) -> None: ...
    def close(self) -> int: ...

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
