# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The standard library's `zlib` over memlift's libz: the same names, arguments, results and exceptions, in less time.

    from memlift import zlib                  # in place of: import zlib

    packed = zlib.compress(data)
    assert zlib.decompress(packed) == data

    memlift.zlib.patch()                      # for a whole process: modules that use zlib by name use this one from now on

- **Output** of compression differs from the standard library's in its bytes and is read by any zlib
- **Errors** `zlib.error` is the standard library's class, so `except` clauses go on working
- **Threads** the GIL is released for inputs from 16 KiB on
"""

from __future__ import annotations

import sys as _sys
import zlib as _standard
from typing import TYPE_CHECKING as _TYPE_CHECKING
from zlib import (
    DEF_BUF_SIZE,
    DEF_MEM_LEVEL,
    DEFLATED,
    MAX_WBITS,
    Z_BEST_COMPRESSION,
    Z_BEST_SPEED,
    Z_BLOCK,
    Z_DEFAULT_COMPRESSION,
    Z_DEFAULT_STRATEGY,
    Z_FILTERED,
    Z_FINISH,
    Z_FIXED,
    Z_FULL_FLUSH,
    Z_HUFFMAN_ONLY,
    Z_NO_COMPRESSION,
    Z_NO_FLUSH,
    Z_PARTIAL_FLUSH,
    Z_RLE,
    Z_SYNC_FLUSH,
    Z_TREES,
    ZLIB_VERSION,
    error,
)

from memlift import _native
from memlift._libraries import libraries as _libraries
from memlift._native import _Member, _ZlibDecompressor  # noqa: F401: memlift.gzip uses them

if _TYPE_CHECKING:
    from typing_extensions import Buffer

_path = _libraries().get("libz")
if _path is None:
    raise ImportError(
        "libmemlift_z.so is not here: the wheel of memlift carries it; in a checkout: cargo build --release -p memlift-zlib; "
        "or name its folder in MEMLIFT_DROPINS"
    )
_native._zlib_load(_path)

ZLIB_RUNTIME_VERSION: str = _native._zlib_version()
"""The version of zlib that memlift's libz stands in for."""


def compress(data: Buffer, /, level: int = Z_DEFAULT_COMPRESSION, wbits: int = MAX_WBITS) -> bytes:
    """Returns a bytes object with the compressed bytes of `data`, as `zlib.compress`.

    level: 0 to 9, or -1 for 6. wbits: 9 to 15 zlib, 25 to 31 gzip, -9 to -15 raw.
    """
    return _native._zlib_compress(data, level, wbits)


def decompress(data: Buffer, /, wbits: int = MAX_WBITS, bufsize: int = DEF_BUF_SIZE) -> bytes:
    """Returns a bytes object with the decompressed bytes of `data`, as `zlib.decompress`.

    wbits: as for compress; 40 to 47 takes zlib and gzip. bufsize: first size of the result, in bytes.
    """
    return _native._zlib_decompress(data, wbits, bufsize)


def compressobj(
    level: int = Z_DEFAULT_COMPRESSION,
    method: int = DEFLATED,
    wbits: int = MAX_WBITS,
    memLevel: int = DEF_MEM_LEVEL,  # noqa: N803
    strategy: int = Z_DEFAULT_STRATEGY,
    zdict: Buffer | None = None,
) -> _native._Compress:
    """Returns an object that compresses data in pieces, as `zlib.compressobj`: `compress`, `flush` and `copy`."""
    return _native._zlib_compressobj(level, method, wbits, memLevel, strategy, zdict)


def decompressobj(wbits: int = MAX_WBITS, zdict: Buffer = b"") -> _native._Decompress:
    """Returns an object that decompresses data in pieces, as `zlib.decompressobj`: `decompress`, `flush`, `copy`, `eof`, `unused_data`."""
    return _native._zlib_decompressobj(wbits, zdict)


def crc32(data: Buffer, value: int = 0, /) -> int:
    """Returns the CRC-32 of `data`, going on from `value`, as `zlib.crc32`."""
    return _native._zlib_crc32(data, value)


def adler32(data: Buffer, value: int = 1, /) -> int:
    """Returns the Adler-32 of `data`, going on from `value`, as `zlib.adler32`."""
    return _native._zlib_adler32(data, value)


__version__: str = getattr(_standard, "__version__", "1.0")

_swapped: list[tuple[dict[str, object], str, object, object]] = []
"""What `patch` has replaced: names of a module, a name among them, what it named and names now."""


def patch() -> None:
    """Makes this process use memlift's zlib where it names the standard library's: `import zlib` from now on, and modules that are loaded.

    Not reached: objects that exist already, functions kept in other places than a module's globals, and code in C that calls libz
    itself (`memlift dropin enable` is for that). `unpatch` takes it back. A second call does nothing.
    """
    ours = _sys.modules[__name__]
    functions = ("compress", "decompress", "compressobj", "decompressobj", "crc32", "adler32", "_ZlibDecompressor")
    swapped = {id(getattr(_standard, name)): getattr(ours, name) for name in functions if hasattr(_standard, name)}
    swapped[id(_standard)] = ours
    for name, module in list(_sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if module is _standard or name.startswith("memlift.") or not isinstance(names, dict):
            continue
        for key, value in list(names.items()):
            if id(value) in swapped:
                _swapped.append((names, key, value, swapped[id(value)]))
                names[key] = swapped[id(value)]
    _sys.modules["zlib"] = ours


def unpatch() -> None:
    """Takes back what `patch` did. Modules that were loaded in between keep what they have imported."""
    while _swapped:
        names, key, before, now = _swapped.pop()
        if names.get(key) is now:
            names[key] = before
    _sys.modules["zlib"] = _standard


__all__ = [
    "DEFLATED",
    "DEF_BUF_SIZE",
    "DEF_MEM_LEVEL",
    "MAX_WBITS",
    "ZLIB_RUNTIME_VERSION",
    "ZLIB_VERSION",
    "Z_BEST_COMPRESSION",
    "Z_BEST_SPEED",
    "Z_BLOCK",
    "Z_DEFAULT_COMPRESSION",
    "Z_DEFAULT_STRATEGY",
    "Z_FILTERED",
    "Z_FINISH",
    "Z_FIXED",
    "Z_FULL_FLUSH",
    "Z_HUFFMAN_ONLY",
    "Z_NO_COMPRESSION",
    "Z_NO_FLUSH",
    "Z_PARTIAL_FLUSH",
    "Z_RLE",
    "Z_SYNC_FLUSH",
    "Z_TREES",
    "_ZlibDecompressor",
    "adler32",
    "compress",
    "compressobj",
    "crc32",
    "decompress",
    "decompressobj",
    "error",
    "patch",
    "unpatch",
]
