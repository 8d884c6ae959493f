# SPDX-License-Identifier: Apache-2.0 OR MIT
"""OrderedMap: a dict in the order of its keys, a tree on memory nodes; ranges are read and added up there.

Order   as HashMap has it (_hash.py); a page of a range is of one moment
Owner   as HashMap has it
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import numpy as np

from memlift import _native
from memlift.errors import BadArgumentError, UnsupportedValueError, WrongStructureError
from memlift.traverse._client import Client, Program
from memlift.traverse._entries import _PAGE, RemoteMap, _elsewhere, _filled, _sized
from memlift.traverse._handles import Aggregate, Buckets, OrderedHandle, _dtype, _kind, _stamped, _where
from memlift.traverse._keys import LAST, Keys
from memlift.traverse._values import Values
from memlift.traverse._views import OrderedItems, OrderedKeys, OrderedValues

__all__ = ["OrderedMap"]


def _column(numbers: list[Any], kind: Any) -> np.ndarray[Any, Any]:
    """Numbers as an array of this kind; as Python's own numbers if some are beyond 64 bits."""
    try:
        return np.array(numbers, kind)
    except OverflowError:
        return np.array(numbers, object)


def _plain(values: np.ndarray[Any, Any]) -> Any:
    """Numbers as Python has them; records as they are."""
    return values.tolist() if values.dtype.kind in "iufbc" else values


def _fixed(value: Any) -> Values:
    values = Values(value)
    if not 1 <= values.bytes <= 240:
        raise BadArgumentError(f"value={value!r}: values of an ordered map have one length, 1 to 240 bytes ('i8', 'f8', 'V240')")
    return values


class OrderedMap(RemoteMap):
    """Keys in order (numbers, floats, short byte strings), and values of one length (up to 240 bytes): a B+tree.

    A range is one walk, and all as of one moment.
    """

    def __init__(self, client: Client, native: Any, values: Values, keys: Keys | None = None) -> None:
        self._client = client
        self._native = native
        # Asked now: a handle is good when its client is closed.
        self._memory = client._native.memory_of(native.handle[0])
        self._stamp = client._native.stamp_of(native.handle[0])
        self._values = values
        self._keys = keys or Keys()
        self._pack = self._keys.pack
        self._others: dict[int, Any] = {}
        record = 8 + -(-values.bytes // 8) * 8
        self._record = np.dtype(
            {"names": ["key", "value"], "formats": ["<u8", values.dtype], "offsets": [0, 8], "itemsize": record}
        )

    @classmethod
    def create(cls, client: Client, *, key: Any = "u8", value: Any = "i8") -> Self:
        """An empty map.

        key    "u8" (0 to 2^64-1), "i8", "f8", or byte strings "S1" to "S8"
        value  a numpy dtype; sums and their likes are computed at the nodes for "i8"
        """
        values, keys = _fixed(value), Keys(key)
        return cls(client, _native.WalkOrdered.create(client._native, values.bytes), values, keys)

    @classmethod
    def open(cls, client: Client, handle: OrderedHandle | Iterable[Any]) -> Self:
        """The map that a handle names."""
        cell, value, memory, key, stamp = OrderedHandle(*handle)
        client._native.check_memory(cell, memory)
        # JSON has made a list of it.
        stamp = tuple(stamp)
        client._native.check_stamp(cell, stamp)
        values = _fixed(_dtype(value))
        return _stamped(cls(client, _native.WalkOrdered.open(client._native, cell, values.bytes), values, Keys(key)), stamp)

    @classmethod
    def load(cls, client: Client, source: Any, **options: Any) -> Self:
        """A new map of everything in a source: see `bulk_load`."""
        from memlift.traverse._load import load_ordered

        return load_ordered(cls, client, source, **options)  # type: ignore[no-any-return]

    @property
    def handle(self) -> OrderedHandle:
        """Where it is."""
        return OrderedHandle(self._native.handle[0], _kind(self._values), self._memory, self._keys.name, self._stamp)

    def get_array(self, keys: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The values of an array of keys, and whether each was there (0 where not)."""
        return self._get_numbers(self._keys.pack_array(keys))

    def _get_numbers(self, numbers: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        values, found = self._native.get_array(numbers)
        assert self._values.dtype is not None
        return np.frombuffer(values, self._values.dtype), np.frombuffer(found, np.bool_)

    def get_many(self, keys: Iterable[Any], default: Any = None) -> list[Any]:
        """The values of many keys, all walks under way together."""
        values, found = self._get_numbers(np.array([self._keys.pack(key) for key in keys], np.uint64))
        plain = values.tolist() if values.dtype.kind in "iufbc" else list(values)
        return [value if there else default for value, there in zip(plain, found.tolist(), strict=True)]

    def range(
        self, first: Any = None, last: Any = None, limit: int = 1 << 62, *, reverse: bool = False
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Keys from `first` to `last`, both included, and their values, all as of one moment. Values, and keys of "u8", are views of the answer.

        limit    at most so many entries: the first ones, or with reverse the last ones
        reverse  from the last key to the first
        """
        if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0:
            raise BadArgumentError(f"limit={limit!r}: how many entries at most, 0 or more")
        if reverse:
            keys, values = self.last(int(limit), first, last)
            return keys[::-1], values[::-1]
        limit = min(int(limit), 1 << 62)
        numbers, values = self._range(self._first(first), self._last(last), limit)
        return self._keys.unpack_array(numbers), values

    def last(
        self, count: int = 1, first: Any = None, last: Any = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The last `count` keys of a range (both ends included), in order, and their values, all as of one moment."""
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise BadArgumentError(f"count={count!r}: how many keys from the end, 0 or more")
        block = self._native.last(self._first(first), self._last(last), min(int(count), LAST))
        records = np.frombuffer(block, self._record)
        return self._keys.unpack_array(records["key"]), records["value"]

    def __reversed__(self) -> Iterator[Any]:
        """Keys from the last to the first; pages of 65536, each as of one moment."""
        return (key for key, _ in self._pairs_reversed())

    def _pairs_reversed(self, first: Any = None, last: Any = None) -> Iterator[tuple[Any, Any]]:
        low, high = self._first(first), self._last(last)
        while low <= high:
            records = np.frombuffer(self._native.last(low, high, _PAGE), self._record)
            yield from zip(self._keys.unpack_array(records["key"][::-1]).tolist(), _plain(records["value"][::-1]), strict=True)
            if len(records) < _PAGE or records["key"][0] == 0:
                return
            high = int(records["key"][0]) - 1

    def buckets(self, first: Any, last: Any, width: Any) -> Buckets:
        """Count, sum, least and greatest value of each part of a range of keys that are numbers: the parts begin at `first` and are
        `width` wide, the last one ends at `last` (included). Computed at the nodes for values of "i8", each part as of one moment.

        For minutes of a series by seconds: `series.buckets(start, end, 60)`.
        """
        if self._keys.bytes:
            raise UnsupportedValueError("parts of equal width are of keys that are numbers")
        starts = self._keys.steps(first, last, width)
        begins, end = self._keys.pack_array(starts), self._keys.pack(last)
        ends = [*(begins[1:] - np.uint64(1)).tolist(), end]
        parts = zip(begins.tolist(), ends, strict=True)
        if self._values.dtype == np.dtype("<i8"):
            totals = self._native.buckets(begins, end)
            found = [self._unwrapped(Aggregate(*one), *part) for one, part in zip(totals, parts, strict=True)]
        else:
            unpack = self._keys.unpack
            found = [self.aggregate(unpack(one), unpack(other)) for one, other in parts]
        kind = np.dtype("f8") if self._values.dtype is not None and self._values.dtype.kind == "f" else np.dtype("i8")
        return Buckets(starts, *(_column([one[index] for one in found], np.int64 if index == 0 else kind) for index in range(4)))

    def _range(self, first: int, last: int, limit: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        records = np.frombuffer(self._native.range(first, last, limit), self._record)
        return records["key"], records["value"]

    def _first(self, key: Any) -> int:
        return 0 if key is None else self._keys.pack(key)

    def _last(self, key: Any) -> int:
        return LAST if key is None else self._keys.pack(key)

    def insert(self, key: Any, value: Any) -> bool:
        """Gives a key a value; true: it had none."""
        fresh: bool = self._native.insert(self._keys.pack(key), self._values.pack(value))
        return fresh

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Gives a key a value if it has none; the value that it has then. Of several clients that do this at once, one's value counts."""
        number, packed = self._keys.pack(key), self._values.pack(default)
        while True:
            if self._native.insert_new(number, packed):
                return self._values.unpack(packed)
            # Another client may have removed the key meanwhile.
            value = self._native.get(number)
            if value is not None:
                return self._values.unpack(value)

    def put_many(self, keys: Iterable[Any], values: Iterable[Any]) -> int:
        """Gives many keys values; says how many of them had none.

        keys, values  arrays (fastest: no object per key is made) or any iterables, as many of one as of the other

        The part of the tree that the keys lie in is made anew, so the closer they lie together, the faster it is. They change in their
        order, up to 16,384 at once, fewer while others change the map; of a key that comes twice the last value counts. After an error
        those that had changed stay changed: doing all of it again is right.
        """
        keys, values = _sized(keys), _sized(values)
        if len(keys) != len(values):
            raise BadArgumentError(f"{len(keys)} keys and {len(values)} values")
        numbers, packed = self._keys.pack_array(keys), self._values.pack_array(values)
        inserted: int = self._native.insert_array(numbers, packed.view(np.uint8))
        return inserted

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        """Removes the last entry, or the first. Of several clients that do this at once, each gets another one. KeyError: the map is empty."""
        while True:
            block = self._native.last(0, LAST, 1) if last else self._native.range(0, LAST, 1)
            records = np.frombuffer(block, self._record)
            if not len(records):
                raise KeyError("popitem(): the map is empty")
            value = self._native.take(int(records["key"][0]))
            if value is not None:
                return self._keys.unpack(int(records["key"][0])), self._values.unpack(value)

    def clear(self) -> None:
        """Removes all entries at one moment."""
        self._native.clear()

    def copy(self) -> Self:
        """A new map on the nodes with the same entries; pages of 65536, each as of one moment."""
        made = type(self).create(self._client, key=self._keys.name, value=_dtype(_kind(self._values)))
        return _filled(made, self)

    def aggregate(self, first: Any = None, last: Any = None) -> Aggregate:
        """Count, sum, least and greatest value of a range (both ends included).

        Of "i8" the nodes compute them, all as of one moment, unless their sum may be beyond 64 bits; of other numbers this process does,
        page by page, with sums of floats as math.fsum has them.
        """
        if self._values.dtype == np.dtype("<i8"):
            begin, end = self._first(first), self._last(last)
            return self._unwrapped(Aggregate(*self._native.aggregate(begin, end)), begin, end)
        if self._values.dtype is None or self._values.dtype.kind not in "biuf":
            raise UnsupportedValueError(f"values of {self._values.name} are no numbers, and cannot be added")
        return self._added_here(self._first(first), self._last(last))

    def _unwrapped(self, found: Aggregate, first: int, last: int) -> Aggregate:
        """What a node has computed in 64 bits, which wrap; of what may have wrapped, this process adds the values."""
        if found.count * max(abs(found.min), abs(found.max)) < 1 << 63:
            return found
        return self._added_here(first, last)

    def _added_here(self, first: int, last: int) -> Aggregate:
        pages = [values for _, values in self._pages(first, last)]
        if not pages:
            return Aggregate(0, 0, 0, 0)
        if self._values.dtype is not None and self._values.dtype.kind == "f":
            total: Any = math.fsum(value for page in pages for value in page.tolist())
        else:
            total = sum(sum(page.tolist()) for page in pages)
        least, greatest = min(page.min() for page in pages).item(), max(page.max() for page in pages).item()
        return Aggregate(sum(len(page) for page in pages), total, least, greatest)

    def sum(self, first: Any = None, last: Any = None) -> Any:
        """The sum of a range's values, however large."""
        return self.aggregate(first, last).sum

    def avg(self, first: Any = None, last: Any = None) -> float | None:
        """Their mean; None of nothing."""
        return self.aggregate(first, last).avg

    def min(self, first: Any = None, last: Any = None) -> Any:
        """The least; None of nothing."""
        found = self.aggregate(first, last)
        return found.min if found.count else None

    def max(self, first: Any = None, last: Any = None) -> Any:
        """The greatest; None of nothing."""
        found = self.aggregate(first, last)
        return found.max if found.count else None

    def count(self, first: Any = None, last: Any = None) -> int:
        """How many keys a range has."""
        if self._values.bytes == 8:
            counted: int = self._native.aggregate(self._first(first), self._last(last))[0]
            return counted
        return sum(len(keys) for keys, _ in self._pages(self._first(first), self._last(last)))

    def _pages(self, first: int, last: int) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        while True:
            keys, values = self._range(first, last, _PAGE)
            if len(keys):
                yield keys, values
            if len(keys) < _PAGE or int(keys[-1]) >= last:
                return
            first = int(keys[-1]) + 1

    def _pairs(self, first: Any = None, last: Any = None) -> Iterator[tuple[Any, Any]]:
        for numbers, values in self._pages(self._first(first), self._last(last)):
            yield from zip(self._keys.unpack_array(numbers).tolist(), _plain(values), strict=True)

    def _keys_of(self, first: Any = None, last: Any = None) -> Iterator[Any]:
        for numbers, _ in self._pages(self._first(first), self._last(last)):
            yield from self._keys.unpack_array(numbers).tolist()

    def _length(self, first: Any = None, last: Any = None) -> int:
        return self.count(first, last)

    def _covers(self, key: Any, first: Any = None, last: Any = None) -> bool:
        try:
            return self._first(first) <= self._keys.pack(key) <= self._last(last)
        except UnsupportedValueError:
            return False

    def items(self, first: Any = None, last: Any = None) -> OrderedItems:
        """A view of keys and values in order, of all of it or of a range; pages of 65536, each as of one moment."""
        return OrderedItems(self, first, last)

    def keys(self, first: Any = None, last: Any = None) -> OrderedKeys:
        """A view of the keys in order."""
        return OrderedKeys(self, first, last)

    def values(self, first: Any = None, last: Any = None) -> OrderedValues:
        """A view of the values in the order of their keys."""
        return OrderedValues(self, first, last)

    def __getitem__(self, key: Any) -> Any:
        """The value of a key, or of `map[first:behind]` keys and values as `range` gives them."""
        if isinstance(key, slice):
            if key.step is not None:
                raise BadArgumentError("a range of keys has no step")
            first, last = self._first(key.start), LAST if key.stop is None else self._keys.pack(key.stop) - 1
            numbers, values = self._range(first, last, 1 << 62) if first <= last else self._range(0, LAST, 0)
            return self._keys.unpack_array(numbers), values
        value = self._native.get(self._keys.pack(key))
        if value is None:
            raise KeyError(key)
        return self._values.unpack(value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        return f"<memlift.traverse.OrderedMap of {self._keys.name} to {self._values.name}, {_where(self)}>"

    def _find(self, key: Any) -> tuple[Any, int, bytes, Callable[..., Any]]:
        start, scratch, name = self._native.find_walk(self._keys.pack(key))

        def read(came: Any, default: Any) -> Any:
            value = self._native.found(came[0], bytes(came[2]))
            return default if value is None else self._values.unpack(value)

        return Program.shipped(name), start, bytes(scratch), read

    def _find_range(self, first: Any, last: Any, limit: int) -> tuple[Any, int, bytes, Callable[..., Any]]:
        low, high = self._first(first), self._last(last)
        if low > high or limit < 1:
            raise BadArgumentError(f"a range from {first} to {last}, {limit} at most: there is nothing in it")
        start, scratch, name = self._native.range_walk(low, high, limit)

        def read(came: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            if len(came[3]) % self._record.itemsize:
                raise WrongStructureError(f"at {self.handle.cell:#x} lies no ordered map of {self._values.name}")
            records = np.frombuffer(came[3], self._record)
            return self._keys.unpack_array(records["key"]), records["value"]

        return Program.shipped(name), start, bytes(scratch), read

    def _at(self, client: Client) -> Self:
        return _elsewhere(self, client)  # type: ignore[no-any-return]
