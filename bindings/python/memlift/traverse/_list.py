# SPDX-License-Identifier: Apache-2.0 OR MIT
"""List: numbers in the order in which they were put in, a chain on memory nodes.

Order   as HashMap has it (_hash.py)
Owner   as HashMap has it
"""

from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np

from memlift import _native
from memlift.errors import UnsupportedValueError
from memlift.traverse._client import Client
from memlift.traverse._entries import RemoteCollection, _elsewhere
from memlift.traverse._handles import Aggregate, ListHandle, _dtype, _kind, _stamped, _where
from memlift.traverse._keys import LAST
from memlift.traverse._values import Values

__all__ = ["List"]


def _number(key: Any) -> int:
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        raise UnsupportedValueError(f"{key!r} is no key of this map: its keys are numbers from 0 to 2^64-1")
    number = int(key)
    if not 0 <= number <= LAST:
        raise UnsupportedValueError(f"key {number}: keys are numbers from 0 to 2^64-1")
    return number


class List(RemoteCollection):
    """Numbers, each with a value, in the order in which they were put in."""

    def __init__(self, client: Client, native: Any, values: Values) -> None:
        self._client = client
        self._native = native
        # Asked now: a handle is good when its client is closed.
        self._memory = client._native.memory_of(native.head)
        self._stamp = client._native.stamp_of(native.head)
        self._values = values
        self._others: dict[int, Any] = {}

    @classmethod
    def create(cls, client: Client, *, value: Any = bytes) -> Self:
        """An empty list."""
        return cls(client, _native.WalkList.create(client._native), Values(value))

    @classmethod
    def open(cls, client: Client, handle: ListHandle | Iterable[Any]) -> Self:
        """The list that a handle names."""
        head, value, memory, stamp = ListHandle(*handle)
        client._native.check_memory(head, memory)
        # JSON has made a list of it.
        stamp = tuple(stamp)
        client._native.check_stamp(head, stamp)
        return _stamped(cls(client, _native.WalkList.open(client._native, head), Values(_dtype(value))), stamp)

    @property
    def handle(self) -> ListHandle:
        """Where it is."""
        return ListHandle(self._native.head, _kind(self._values), self._memory, self._stamp)

    def _pack(self, value: Any) -> Any:
        return b"" if value is None else self._values.pack(value)

    def append(self, number: int, value: Any = None) -> None:
        """Puts a number at the end."""
        self._native.push(_number(number), self._pack(value), False)

    def prepend(self, number: int, value: Any = None) -> None:
        """Puts a number at the start."""
        self._native.push(_number(number), self._pack(value), True)

    def find(self, number: int, default: Any = None) -> Any:
        """The value of the first entry with that number."""
        value = self._native.find(_number(number))
        if value is None:
            return default
        return self._values.unpack(value) if value else None

    def delete(self, number: int) -> bool:
        """Removes the first entry with that number; false: there is none."""
        removed: bool = self._native.remove(_number(number))
        return removed

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for number, _, value in self._native.entries():
            yield number, self._values.unpack(value) if value else None

    def __len__(self) -> int:
        count: int = self._native.count()
        return count

    def aggregate(self) -> Aggregate:
        """Count, sum, least and greatest of the numbers, computed at the nodes unless they or their sum may be beyond 63 bits."""
        found = Aggregate(*self._native.sum())
        if found.min >= 0 and found.count * found.max < 1 << 63:
            return found
        numbers = [number for number, _, _ in self._native.entries()]
        return Aggregate(len(numbers), sum(numbers), min(numbers, default=0), max(numbers, default=0))

    def sum(self) -> int:
        """The sum of the numbers."""
        return self.aggregate().sum

    def __repr__(self) -> str:
        return f"<memlift.traverse.List of {self._values.name}, {_where(self)}>"

    def _at(self, client: Client) -> Self:
        return _elsewhere(self, client)  # type: ignore[no-any-return]
