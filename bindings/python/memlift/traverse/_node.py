# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A memory node in this process, for tests, notebooks, and programs that keep data of their own.

    with Node(memory="64M") as node, Client.connect(node) as client:
        ...

Its threads never take the GIL. As a service of its own: `memlift node`. There is no replication: what is not in its log is gone
when it ends.
"""

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from memlift import _native
from memlift._sizes import in_bytes
from memlift.errors import BadArgumentError

__all__ = ["Node"]


class Node:
    """A node that serves until `stop`, or the end of its `with`.

    memory     bytes, or '64M', '8G'
    listen     'HOST:PORT' (port 0: a free one), 'shm:NAME', or several
    shards     threads for each place
    log        file of applied writes: the next node with it has the data; durable=True: on the disk before an answer leaves
    keys       tenant → 32 bytes: who may talk to it; needed to listen beyond 127.0.0.1
    map, name  a map of several nodes (TOML, as `memlift node --map` has it), and which of them this is: walks and changes go on
               from node to node
    base       first address, if there is no map
    prefault   touch all memory at the start
    """

    def __init__(
        self,
        memory: int | str = "64M",
        listen: str | Iterable[str] = "127.0.0.1:0",
        *,
        shards: int = 1,
        log: str | os.PathLike[str] | None = None,
        durable: bool = False,
        keys: Mapping[int, bytes] | None = None,
        base: int | None = None,
        workspaces: int | None = None,
        prefault: bool = False,
        map: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        if (map is None) != (name is None):
            raise BadArgumentError("map and name belong together: which of the map's nodes this is")
        wrong = [key for key in (keys or {}).values() if len(key) != 32]
        if wrong:
            raise BadArgumentError(f"a key of {len(wrong[0])} bytes: it has 32 (secrets.token_bytes(32))")
        self._native = _native.WalkNode(
            in_bytes(memory),
            [listen] if isinstance(listen, str) else list(listen),
            base=base,
            shards=shards,
            log=None if log is None else os.fspath(log),
            durable=durable,
            keys=None if keys is None else list(keys.items()),
            workspaces=workspaces,
            prefault=prefault,
            map=None if map is None else (os.fspath(map), name),
        )

    @property
    def places(self) -> list[str]:
        """Where clients come; `Client.connect(node)` takes the first."""
        places: list[str] = self._native.places
        return places

    @property
    def range(self) -> tuple[int, int]:
        """First address, and how many."""
        span: tuple[int, int] = self._native.range
        return span

    def stats(self) -> dict[str, int]:
        """What it has counted, and its memory in bytes: live (given out), retired (unlinked, free after about 30 s), free, waste (the
        empty ends of what tenants have), and the largest free piece."""
        stats: dict[str, int] = self._native.stats()
        return stats

    def programs(self) -> list[tuple[str, int]]:
        """Name and tenant of the programs that it holds."""
        programs: list[tuple[str, int]] = self._native.programs()
        return programs

    def stop(self) -> None:
        """Ends it. Raises NodeFailedError if one of its threads had failed."""
        self._native.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<memlift.traverse.Node on {', '.join(self.places)}>"

    def __reduce__(self) -> Any:
        raise BadArgumentError("a node belongs to its process: send others its places")
