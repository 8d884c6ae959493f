# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Arena`: arrays that one process writes once, and any number of processes read where they lie.

- **Flow** put: one copy into the arena's memory, which gives a `Ref` of a few bytes; `ref.get()` in any process: read-only views
- **Owner** the arena keeps a value until it is released or was taken `reads` times, and then until the last view of it is gone. Views
  of a process that ends, however it ends, are gone. Readers keep what they see when the arena's process ends
- **Not here** processes that both write the same array; memlift.Queue gives an array to one reader, which may write it
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from memlift import _native
from memlift._native import Ref
from memlift.errors import DeadlineExceededError

__all__ = ["Arena", "Ref", "Subscription"]


class Arena(_native.Arena):
    """Memory for values that this process writes and any number of processes read in place.

    name          a name or a socket's path by which readers find the arena, as for `memlift.ipc.Server`; one of its own, unless given
    bytes_max     bytes of memory that values may take; half of what is available, unless given. Memory is taken as values need it
    on_full       "wait": `put` waits until readers let go. "evict": the oldest values go that nobody views; their refs expire
    values_max    values that can be kept at once
    readers_max   processes and subscriptions that may read at once
    huge_pages    False: ordinary pages only; True: huge ones where the machine has them
    numa_node     node whose memory is preferred
    lock          values stay in memory (mlock), as RLIMIT_MEMLOCK allows
    allowed_uids  other users that may read; they need a socket's path as `name`
    allow_pickle  whether objects that are not plain data are pickled; readers then pass `allow_pickle=True`, too

    What can be put is what `memlift.Queue` takes. A fork's child reads as any other process does, and cannot put.
    """

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<memlift.Arena {self.address}>"

    def get(self, ref: Ref, *, timeout: float | None = 10.0, writable: bool = False, allow_pickle: bool = False) -> Any:
        """As `ref.get()`."""
        return ref.get(timeout=timeout, writable=writable, allow_pickle=allow_pickle)

    def subscribe(self, topic: str, *, every: int | None = None, writable: bool = False) -> "Subscription":
        """Follows a topic of this arena, in this process."""
        return Subscription(self.address, topic, every=every, writable=writable)


class Subscription(_native.Subscription):
    """Follows a topic of the arena at `address`, beginning with its latest value.

    every         None: `get` gives the latest value that was not given yet, and skips those before it. A number: each value is given,
                  and so many may wait here; the publisher then waits, or drops the oldest, as it was told
    timeout       seconds for reaching the arena
    writable      as in `Ref.get`: arrays may be written, and what is written stays this process's own
    allow_pickle  whether pickled objects are read

    `number` is that of the value that came last in its topic, from 1 on; `missed` the values that were skipped or dropped so far.
    """

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.get()

    async def aget(self, timeout: float | None = None) -> Any:
        """As `get`, without a thread: other tasks of the event loop run while this one waits. Cancelled, it has taken nothing."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        return self.get(timeout=0)
                    except DeadlineExceededError:
                        ready = loop.create_future()
                        loop.add_reader(self.fileno(), lambda ready=ready: ready.done() or ready.set_result(None))
                        try:
                            await ready
                        finally:
                            loop.remove_reader(self.fileno())
        except TimeoutError as error:
            raise error if isinstance(error, DeadlineExceededError) else DeadlineExceededError(f"no value within {timeout} s") from None
