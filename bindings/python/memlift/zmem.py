# SPDX-License-Identifier: Apache-2.0 OR MIT
"""More memory than the budget, and never more than the budget: numpy's arrays, compressed while nobody looks at them.

    import memlift
    import numpy as np

    with memlift.zmem.job("4G"):                      # this process may take 4 GiB, everything included
        table = np.random.default_rng(1).integers(0, 1000, (1_000_000, 1000))      # 8 GB
        table.sum()

Arrays of 64 KiB and more that are made inside the `with` block lie in an arena; cold pages of it are compressed when the
total is used up, and unpacked where they are touched. An array keeps its place after the block. Programs that cannot be
changed run whole under `memlift run` instead.

System calls do not see pages that are away: they fail with EFAULT ("Bad address"), and never read zeros. Pin what they
are given:

    with memlift.zmem.pinned(table):
        table.tofile("table.bin")
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from memlift._native import zmem_enter, zmem_handler, zmem_numbers, zmem_pin
from memlift._sizes import in_bytes

__all__ = ["job", "numbers", "pinned"]

_SET_HANDLER = 304
"""The place of `PyDataMem_SetHandler` in numpy's table of C functions (NEP 49), from numpy 1.22 on."""


def _set_handler(handler: Any) -> Any:
    """Gives numpy an allocator (a capsule; None: its own) and returns the one before."""
    try:
        from numpy._core import _multiarray_umath as core
    except ImportError:
        from numpy.core import _multiarray_umath as core
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(pointer(core._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
    return function(handler)


@contextlib.contextmanager
def job(
    total: int | str, *, min_uncompressed: int | str = 0, on_overflow: str = "fail", name: str = "python"
) -> Iterator[None]:
    """Makes this process a job of `total` bytes of real memory, compressed pages included; numpy's large arrays are its arena
    inside the block.

    The process stays a job after the block: a process becomes one once, and a later block changes its total.

    total             bytes, or text: "4G", "512M"
    min_uncompressed  so much stays uncompressed, if there is so much
    on_overflow       what happens when the job does not fit though all of it is compressed: "fail" (exit code 75) or "pause"

    Raises MemoryError when the machine has not so much left, or its kernel cannot do it.
    """
    zmem_enter(name, in_bytes(total), in_bytes(min_uncompressed), on_overflow)
    before = _set_handler(zmem_handler())
    try:
        yield
    finally:
        _set_handler(before)


@contextlib.contextmanager
def pinned(array: Any, *, write: bool = True) -> Iterator[Any]:
    """Keeps an array's pages present inside the block, so that system calls (files, sockets) can use it.

    array  anything with a contiguous buffer
    write  whether it is written, too

    Raises MemoryError when the total has no room for all of it at once.
    """
    view = memoryview(array).cast("B") if not hasattr(array, "__array_interface__") else None
    if view is None:
        address, size = array.__array_interface__["data"][0], array.nbytes
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError("the array is not contiguous: pin the array that it is a part of")
    else:
        size = view.nbytes
        address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if size and not view.readonly else 0
        size = size if address else 0
    pins = zmem_pin(address, size, write)
    try:
        yield array
    finally:
        pins.release()


def numbers() -> dict[str, int] | None:
    """What the pager did and holds, in pages and bytes; None before the first job."""
    return zmem_numbers()
