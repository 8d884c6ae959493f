# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The clients of an event loop behind one descriptor, however many they are.

Flow     a client's descriptor ─▶ the epoll of its loop ─▶ the loop ─▶ `turn` of each client that has something
Order    a descriptor stays readable until its client's turn has taken everything: none is lost between two looks
Owner    the loop has the epoll, and by it the clients, until the last of them leaves; here are weak references only, so that a loop and
         clients that nobody closed go together
Not here what a turn does; threads: everything runs on the loop's
"""

import asyncio
import select
from collections.abc import Callable
from weakref import WeakKeyDictionary, ref


class _Readers:
    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.turns: dict[int, Callable[[], None]] = {}

    def ready(self) -> None:
        for fd, _ in self.epoll.poll(0):
            turn = self.turns.get(fd)
            if turn is not None:  # else the turn before closed this client
                turn()


_OF_LOOP: "WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_Readers]]" = WeakKeyDictionary()


def _readers(loop: asyncio.AbstractEventLoop) -> "_Readers | None":
    found = _OF_LOOP.get(loop)
    return found and found()


def join(loop: asyncio.AbstractEventLoop, fd: int, turn: Callable[[], None]) -> None:
    """Calls `turn` on the loop whenever the descriptor is readable. Raises OSError without descriptors left."""
    readers = _readers(loop)
    if readers is None:
        readers = _Readers()
        loop.add_reader(readers.epoll.fileno(), readers.ready)
        _OF_LOOP[loop] = ref(readers)
    readers.epoll.register(fd, select.EPOLLIN)
    readers.turns[fd] = turn


def leave(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    """Undoes `join`, before the descriptor is closed; also after the loop was."""
    readers = _readers(loop)
    if readers is None or readers.turns.pop(fd, None) is None:
        return
    readers.epoll.unregister(fd)
    if not readers.turns:
        del _OF_LOOP[loop]
        if not loop.is_closed():
            loop.remove_reader(readers.epoll.fileno())
        readers.epoll.close()
