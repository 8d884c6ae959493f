# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Copy that seals, opens, packs, unpacks or checks on the way: one read and one write of memory.

    from memlift import transform

    sealed, tag = transform.seal(key, nonce, data)                 # AES-128/256-GCM by the key's length
    data = transform.open(key, nonce, tag, sealed)                 # memlift.WrongTagError, never wrong bytes
    packed = transform.pack(array, "gzip")                         # any contiguous buffer, without a copy
    transform.unpack(packed, "gzip", out=array)                    # into memory that is there

Sources are anything with a contiguous buffer: bytes, bytearray, memoryview, mmap, numpy arrays of any type and shape. Results
are new `bytes`; with `out` (a bytearray, an array, ...) they are written to its start, and a memoryview of what was written
comes back. Sizes are bytes. From 16 KiB on the GIL is released: do not change the buffers from another thread meanwhile.
"""

from typing import Any, NamedTuple

from memlift._native import Chain, Opener, Outcome, Packer, Sealer, Step, copy, crc32c, explain

__all__ = [
    "Chain",
    "Opener",
    "Outcome",
    "Packer",
    "Sealed",
    "Sealer",
    "Step",
    "copy",
    "crc32c",
    "explain",
    "open",
    "pack",
    "seal",
    "unpack",
]


class Sealed(NamedTuple):
    """What sealing gives."""

    data: Any
    """As many bytes as were sealed: `bytes`, or a memoryview of `out`."""
    tag: bytes
    """16 bytes, to be kept with the data."""


def seal(key: Any, nonce: Any, data: Any, aad: Any = b"", out: Any = None) -> Sealed:
    """Encrypts `data` with AES-GCM and authenticates it and `aad`.

    key    16 bytes (AES-128) or 32 (AES-256)
    nonce  12 bytes. A nonce seals one message under one key, ever: twice gives both messages away.
    out    at least as many bytes as `data`; may be `data` itself

    Raises BadKeyError, TargetTooSmallError, OverlapError, MessageTooLargeError (2^36 - 32 bytes).
    """
    outcome = copy(Step.seal(key, nonce, aad), data, out)
    return Sealed(outcome.data, outcome.tag)


def open(key: Any, nonce: Any, tag: Any, data: Any, aad: Any = b"", out: Any = None) -> Any:
    """Decrypts what `seal` gave.

    Raises WrongTagError if anything differs from what was sealed; then `out` holds zeros where it held anything of the result.
    """
    return copy(Step.open(key, nonce, tag, aad), data, out).data


def pack(data: Any, format: str = "gzip", effort: str = "default", out: Any = None) -> Any:
    """Compresses one whole message.

    format  "deflate" (no wrapper), "zlib", "gzip", "lz4" (one block), "zstd" (one frame), "pages" (memlift's own,
            each 4096 bytes by what they hold: numbers as numbers)
    effort  "fast", "default" or "small": for deflate, zlib and gzip of web pages of up to 16 KiB about 1.28, 1.09 and 1 times
            the size of zlib's level 6; "adaptive" is "default", but "fast" while the caches are contended

    Raises TargetTooSmallError or IncompressibleError if `out` has no room. Without `out` there always is.
    """
    return copy(Step.pack(format, effort), data, out).data


def unpack(data: Any, format: str = "gzip", out: Any = None, *, bytes_max: int = 1 << 30) -> Any:
    """Decompresses the one stream at the start of `data`; bytes behind its end are ignored (`copy` tells how many were read).

    bytes_max  without `out`: the largest result that is accepted, because a small stream can become a very large one

    Raises CorruptStreamError, or TargetTooSmallError if the result does not fit into `out` or `bytes_max`.
    """
    return copy(Step.unpack(format), data, out, bytes_max=bytes_max).data
