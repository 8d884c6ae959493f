# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Codecs for numcodecs and Zarr: arrays packed by what they hold, and sealed.

    from memlift.codecs import Pages, Sealed, keys

    zarr.create_array(store, data=array, compressors=Pages())                         # Zarr v3
    zarr.create_array(store, data=array, zarr_format=2, compressors=Pages.numcodecs())  # Zarr v2, or numcodecs by itself

    keys["sensors"] = key                                                              # 16 or 32 bytes, never stored
    zarr.create_array(store, data=array, compressors=Sealed("sensors"))                # packed, then AES-GCM

- **Pages** each 4096 bytes by what they hold: integers and decimals as numbers, others by LZ or not at all; lossless for every type
- **Sealed** a nonce of 12 random bytes, a tag of 16, the packed bytes sealed. Chunks of one key: fewer than 2^32 (NIST SP 800-38D, 8.3)
- **Damage** of a packed chunk is memlift.CorruptStreamError where it is noticed; of a sealed chunk always memlift.WrongTagError, before anything is decoded
"""

from __future__ import annotations

import abc
import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numcodecs.abc
import numcodecs.registry
import numpy as np

from memlift import transform
from memlift.errors import BadChunkError, BadKeyError

if TYPE_CHECKING:
    from collections.abc import Mapping

keys: dict[str, bytes] = {}
"""Keys of Sealed by their names. A name is stored with the array, a key never."""

FORMATS = ("pages", "zstd", "lz4", "gzip")
"""Ways of packing; zstd and gzip are read by everybody's tools, too."""

_NONCE_BYTES, _TAG_BYTES = 12, 16
# The length of the array's bytes before a packed chunk: an unpacker is told how much room there must be.
_LENGTH_BYTES = 8
_CHUNK_BYTES_MAX = 1 << 40


def _bytes_of(buffer: Any) -> Any:
    """A contiguous view; arrays in Fortran's order and with gaps are copied once."""
    view = np.asarray(buffer) if not isinstance(buffer, (bytes, bytearray, memoryview)) else buffer
    if isinstance(view, np.ndarray):
        if view.dtype == object:
            raise TypeError("an array of objects has no bytes to pack: give it another dtype, or an object codec before this one")
        view = view.reshape(-1, order="A") if view.flags.forc else np.ascontiguousarray(view).reshape(-1)
        return view.view(np.uint8)
    return view


def _pack(buffer: Any, format: str, effort: str) -> bytes:
    source = _bytes_of(buffer)
    size = memoryview(source).nbytes
    packed = b"" if size == 0 else transform.pack(source, format, effort)
    return size.to_bytes(_LENGTH_BYTES, "little") + packed


def _unpack(packed: Any, format: str, out: Any = None) -> Any:
    view = memoryview(packed).cast("B")
    size = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if len(view) < _LENGTH_BYTES or size > _CHUNK_BYTES_MAX:
        raise BadChunkError(f"a chunk of {len(view)} bytes is none of memlift's: it does not begin with its length")
    if isinstance(out, np.ndarray) and not out.flags.forc:
        raise BadChunkError("out has gaps: give an array without")
    target = np.empty(size, np.uint8) if out is None else _bytes_of(out)
    if target.nbytes != size:
        raise BadChunkError(f"out has {target.nbytes} bytes, and the chunk holds {size}")
    if size:
        written = memoryview(transform.unpack(view[_LENGTH_BYTES:], format, out=target)).nbytes
        if written != size:
            raise BadChunkError(f"the chunk unpacks to {written} bytes, and says {size}")
    return target if out is None else out


def _seal(key_name: str, packed: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    sealed = transform.seal(_key(key_name), nonce, packed, aad=key_name.encode())
    return nonce + sealed.tag + sealed.data


def _open(key_name: str, chunk: Any) -> Any:
    view = memoryview(chunk).cast("B")
    if len(view) < _NONCE_BYTES + _TAG_BYTES:
        raise BadChunkError(f"a sealed chunk has at least {_NONCE_BYTES + _TAG_BYTES} bytes, this one {len(view)}")
    nonce, tag = bytes(view[:_NONCE_BYTES]), bytes(view[_NONCE_BYTES : _NONCE_BYTES + _TAG_BYTES])
    return transform.open(_key(key_name), nonce, tag, view[_NONCE_BYTES + _TAG_BYTES :], aad=key_name.encode())


def _key(name: str) -> bytes:
    try:
        return keys[name]
    except KeyError:
        raise BadKeyError(f"there is no key {name!r}: set memlift.codecs.keys[{name!r}] to its 16 or 32 bytes first") from None


def _check(format: str, effort: str) -> None:
    if format not in FORMATS:
        raise ValueError(f"format={format!r}: give one of {FORMATS}")
    if effort not in ("fast", "default", "small"):
        raise ValueError(f"effort={effort!r}: give 'fast', 'default' or 'small'")


class NumcodecsPages(numcodecs.abc.Codec):  # type: ignore[misc]
    """The codec of numcodecs, for Zarr v2 and everything else that uses numcodecs."""

    codec_id = "memlift.pages"

    def __init__(self, format: str = "pages", effort: str = "default") -> None:
        _check(format, effort)
        self.format, self.effort = format, effort

    def encode(self, buf: Any) -> bytes:
        return _pack(buf, self.format, self.effort)

    def decode(self, buf: Any, out: Any = None) -> Any:
        return _unpack(buf, self.format, out)


class NumcodecsSealed(numcodecs.abc.Codec):  # type: ignore[misc]
    """As NumcodecsPages, sealed under the key of a name."""

    codec_id = "memlift.sealed"

    def __init__(self, key: str, format: str = "pages", effort: str = "default") -> None:
        _check(format, effort)
        self.key, self.format, self.effort = key, format, effort

    def encode(self, buf: Any) -> bytes:
        return _seal(self.key, _pack(buf, self.format, self.effort))

    def decode(self, buf: Any, out: Any = None) -> Any:
        return _unpack(_open(self.key, buf), self.format, out)


numcodecs.registry.register_codec(NumcodecsPages)
numcodecs.registry.register_codec(NumcodecsSealed)

try:
    from zarr.abc.codec import BytesBytesCodec as _BytesBytesCodec
    from zarr.registry import register_codec as _register_codec
except ImportError:
    _BytesBytesCodec = None  # type: ignore[assignment,misc]

if _BytesBytesCodec is not None:

    class _Zarr(_BytesBytesCodec):
        """What both codecs of Zarr v3 have in common: chunks are packed and unpacked by worker threads."""

        is_fixed_size = False

        @abc.abstractmethod
        def _codec(self) -> Any:
            """The same codec of numcodecs, which does the work."""

        @classmethod
        def from_dict(cls, data: Mapping[str, Any]) -> Any:
            return cls(**data.get("configuration", {}))

        def to_dict(self) -> dict[str, Any]:
            codec = self._codec()
            return {"name": codec.codec_id, "configuration": {name: value for name, value in codec.get_config().items() if name != "id"}}

        async def _encode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            packed = await asyncio.to_thread(self._codec().encode, chunk_bytes.as_numpy_array())
            return chunk_spec.prototype.buffer.from_bytes(packed)

        async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            plain = await asyncio.to_thread(self._codec().decode, chunk_bytes.as_numpy_array())
            return chunk_spec.prototype.buffer.from_array_like(plain)

        def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
            raise NotImplementedError("the size of what is packed is known when it is packed")

    @dataclass(frozen=True)
    class Pages(_Zarr):
        """Zarr v3: chunks are packed. format: one of FORMATS; effort: "fast", "default" or "small"."""

        format: str = "pages"
        effort: str = "default"

        def _codec(self) -> NumcodecsPages:
            return NumcodecsPages(self.format, self.effort)

        @staticmethod
        def numcodecs(format: str = "pages", effort: str = "default") -> NumcodecsPages:
            """The same codec for numcodecs and Zarr v2."""
            return NumcodecsPages(format, effort)

    @dataclass(frozen=True)
    class Sealed(_Zarr):
        """Zarr v3: chunks are packed, then sealed under the key that `keys` has by this name."""

        key: str
        format: str = "pages"
        effort: str = "default"

        def _codec(self) -> NumcodecsSealed:
            return NumcodecsSealed(self.key, self.format, self.effort)

        @staticmethod
        def numcodecs(key: str, format: str = "pages", effort: str = "default") -> NumcodecsSealed:
            """The same codec for numcodecs and Zarr v2."""
            return NumcodecsSealed(key, format, effort)

    _register_codec("memlift.pages", Pages)
    _register_codec("memlift.sealed", Sealed)
