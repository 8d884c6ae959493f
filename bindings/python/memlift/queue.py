# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Queue`: multiprocessing.Queue, with arrays that are copied once and never pickled.

Flow     put: arrays are copied into memory that all processes of the queue map; get: the getter has them there, in place
Owner    no process hosts the queue: no broker, no thread, no file. It lives in an anonymous memfd as long as one process has it.
         The maker's death changes nothing for the others; what a killed process was putting or looking at is given back
Not here peers that are not children of the same program: memlift.ipc has clients and servers for those
"""

import multiprocessing.context
import os
import types
from multiprocessing.reduction import DupFd
from typing import Any

from memlift import _native

__all__ = ["Queue"]


def _attach(descriptor: Any, allow_pickle: bool) -> "Queue":
    fd = descriptor.detach()
    try:
        # A pickle runs code: only from the same user.
        allow_pickle = allow_pickle and os.fstat(fd).st_uid == os.geteuid()
        return _native.Queue.__new__(Queue, allow_pickle=allow_pickle, fd=fd)
    finally:
        os.close(fd)


class Queue(_native.Queue):
    """A queue between processes, shaped like multiprocessing.Queue.

    maxsize       items that may wait; 0 or less: as many as there is memory for
    bytes_max     bytes of memory that the queue may take; then `put` waits as if it were full. Half of what is available, unless
                  given. Memory is taken as items need it
    allow_pickle  whether objects that are not plain data are pickled. Both ends have the same setting, since the queue carries it

    Pass it to a process as an argument of `Process`, `Pool(initargs=…)` or `memlift.Executor(initargs=…)`, with any start
    method; it cannot be pickled otherwise. Any number of processes and threads may put and get.

    What can be put: None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, numpy arrays and
    scalars of every type without objects, masked arrays, dataclasses (see `memlift.register`), torch tensors in host memory, Arrow
    tables, batches and columns, pandas frames, series and indexes; nested. What is taken has the type that was put: for other classes,
    subclasses too, `put` raises UnsupportedType, unless pickles are allowed. `put` returns when the data has been copied: it may be changed at
    once, and nothing is lost if this process ends.

    Arrays that come out are writable, this process's alone, and lie in the queue's memory, which they keep until they are gone.
    While such arrays take more than half of `bytes_max`, new ones are copied out instead.
    """

    def __new__(cls, maxsize: int = 0, *, bytes_max: int | None = None, allow_pickle: bool = False, ctx: Any = None) -> "Queue":
        return super().__new__(cls, maxsize, bytes_max=bytes_max, allow_pickle=allow_pickle)

    __class_getitem__ = classmethod(types.GenericAlias)

    def __reduce__(self) -> Any:
        multiprocessing.context.assert_spawning(self)
        return _attach, (DupFd(self.fileno()), self._allow_pickle)

    def join_thread(self) -> None:
        """Does nothing: there is no thread, and everything put is there already."""

    def cancel_join_thread(self) -> None:
        """Does nothing: see `join_thread`."""

    def __repr__(self) -> str:
        return f"<memlift.Queue, {self.qsize()} items>"
