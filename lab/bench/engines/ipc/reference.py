# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The fixed reference routines of lab/bench/limits/reference.c, and the graphs of lab/bench/corpora/rmat.c, for everything that Python measures.

Flow     `libreference.so` beside this file (the memlift command unpacks one) or, without it, the C files
         compiled once with `cc` into the same folder
Order    ctypes releases the GIL during every routine
Owner    every function reads or writes memory of the caller; nothing is kept
"""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def _sources():
    sources = [HERE.parent.parent / "limits" / "reference.c", HERE.parent.parent / "corpora" / "rmat.c"]
    if all(source.exists() for source in sources):
        return sources
    raise RuntimeError(f"{sources[0]} or {sources[1]} is missing: run a whole checkout")


def _compile(target):
    """Compiles into a private name and renames, so that two starts at once do not read half a library."""
    handle, partial = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    command = [os.environ.get("CC", "cc"), "-O3", "-shared", "-fPIC", "-o", partial, *map(str, _sources())]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(partial, target)
    except FileNotFoundError as error:
        os.unlink(partial)
        raise RuntimeError("no C compiler for lab/bench/limits/reference.c and lab/bench/corpora/rmat.c: install cc (apt install gcc)") from error
    except subprocess.CalledProcessError as error:
        os.unlink(partial)
        raise RuntimeError(f"{' '.join(command)} failed:\n{error.stderr}") from error


def _load():
    library = HERE / "libreference.so"
    if not library.exists() or any(library.stat().st_mtime < source.stat().st_mtime for source in _sources()):
        _compile(library)
    lib = ctypes.CDLL(str(library))
    word, pointer, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("xor64", word, [pointer, size]),
        ("checksum", word, [pointer, size]),
        ("copy_nt", None, [pointer, pointer, size]),
        ("pattern", None, [pointer, size, word]),
    ):
        function = getattr(lib, "memlift_reference_" + name)
        function.restype, function.argtypes = result, arguments
    lib.memlift_corpora_rmat.restype = None
    lib.memlift_corpora_rmat.argtypes = [ctypes.POINTER(word), ctypes.c_uint32, word, pointer]
    return lib


_lib = _load()
_xor64 = _lib.memlift_reference_xor64


def address(array):
    """Address of the first byte of a contiguous array."""
    return array.__array_interface__["data"][0]


def xor64(payload):
    """Reads every byte of `payload` (bytes or a contiguous array): the exclusive or of all 64-bit words."""
    if type(payload) is bytes:
        return _xor64(payload, len(payload))
    if not isinstance(payload, np.ndarray):
        payload = np.frombuffer(payload, np.uint8)
    return _xor64(address(payload), payload.nbytes)


def checksum(array):
    """Reads every byte of a contiguous array: a sum that depends on their order."""
    return _lib.memlift_reference_checksum(address(array), array.nbytes)


def pattern(array, seed):
    """Writes every byte of `array`, differently for every seed."""
    _lib.memlift_reference_pattern(address(array), array.nbytes, seed)


def copy_nt(target, source):
    """Copies past the cache; both arrays contiguous and of one size."""
    if target.nbytes != source.nbytes:
        raise ValueError("copy_nt wants two arrays of one size")
    _lib.memlift_reference_copy_nt(address(target), address(source), source.nbytes)


def rmat(scale, count, seed=1):
    """`count` edges of an R-MAT graph of 2^scale vertices: an array of pairs."""
    edges = np.empty((count, 2), np.uint32)
    _lib.memlift_corpora_rmat(ctypes.byref(ctypes.c_uint64(seed)), scale, count, address(edges))
    return edges
