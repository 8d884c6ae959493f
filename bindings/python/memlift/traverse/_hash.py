# SPDX-License-Identifier: Apache-2.0 OR MIT
"""HashMap: a dict whose entries lie in hash chains on memory nodes; with limits, a cache.

Order   each change takes effect at one compare-and-swap, exactly once; a get sees a whole value. Any number of clients may change
        the same map
Owner   the nodes have the data. A pickled map is its handle and its client's address: other processes connect for themselves. Nothing
        is freed when an object here goes: `drop` does that
"""

import datetime
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import numpy as np

from memlift import _native
from memlift._sizes import in_bytes
from memlift.errors import BadArgumentError, UnsupportedValueError
from memlift.traverse._client import Client, Program
from memlift.traverse._entries import RemoteMap, _elsewhere, _filled, _sized
from memlift.traverse._handles import HashHandle, Limits, _dtype, _kind, _stamped, _where
from memlift.traverse._keys import LAST, Keys
from memlift.traverse._values import Values
from memlift.traverse._views import ItemsOf, KeysOf, ValuesOf

__all__ = ["HashMap"]

_TTL_MAX = 1 << 31


def _seconds(ttl: Any) -> int:
    """Whole seconds until an entry expires, rounded up; 0: never."""
    if isinstance(ttl, datetime.timedelta):
        ttl = ttl.total_seconds()
    if isinstance(ttl, bool) or not isinstance(ttl, int | float | np.integer | np.floating) or not ttl > 0:
        raise BadArgumentError(f"ttl={ttl!r}: seconds, more than 0, a timedelta, or math.inf for an entry that does not expire")
    if ttl == math.inf:
        return 0
    if ttl > _TTL_MAX:
        raise BadArgumentError(f"ttl={ttl!r}: at most {_TTL_MAX} seconds, or math.inf for an entry that does not expire")
    return math.ceil(ttl)


def _most(name: str, count: Any) -> int:
    if count is None:
        return 0
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= int(count) <= LAST >> 1:
        raise BadArgumentError(f"{name}={count!r}: 1 or more")
    return int(count)


def _key_name(key: Any) -> str:
    names = {int: "int", float: "f8", bytes: "bytes", str: "str"} | {name: name for name in ("int", "i8", "f8", "bytes", "str")}
    if key not in names:
        raise BadArgumentError(f"key={key!r}: int (0 to 2^64-1), 'i8', float, bytes or str")
    return names[key]


class HashMap(RemoteMap):
    """Keys of one kind (int, "i8", float; bytes, str of up to 128 bytes) and values of one kind, in 2^n chains.

    Made with ttl=, max_entries= or max_bytes=, it is a cache: entries expire by the nodes' clock, and where the map is larger than it may
    be, those that were not used for longest are evicted.
    """

    def __init__(self, client: Client, native: Any, key: str, values: Values) -> None:
        self._client = client
        self._native = native
        # Asked now: a handle is good when its client is closed.
        self._memory = client._native.memory_of(native.handle[0])
        self._stamp = client._native.stamp_of(native.handle[0])
        self._key = key
        self._numbers = None if key in ("bytes", "str") else Keys(key)
        self._values = values
        self._others: dict[int, Any] = {}
        self._expires = isinstance(native, _native.WalkExpiring)
        # Chains before this one were empty when `popitem` last saw them.
        self._popped = 0

    @classmethod
    def create(
        cls,
        client: Client,
        *,
        expected: int = 1024,
        key: Any = int,
        value: Any = bytes,
        ttl: Any = None,
        max_entries: int | None = None,
        max_bytes: int | str | None = None,
    ) -> Self:
        """An empty map for about so many entries: it does not grow, its chains do.

        key          int (0 to 2^64-1), "i8", float, bytes, str
        value        bytes, str, or a numpy dtype: "i8", "f8", [("a", "u4"), ("b", "f4")]
        ttl          seconds (or a timedelta) until an entry expires whose `insert` does not say; math.inf: it does not, others may
        max_entries  most entries; max_bytes: most memory of the entries, in bytes or as '64M'. A put that makes the map larger evicts
                     entries that were not used for longest, of samples of about 16

        An entry lives for its seconds, and up to two more, by the nodes' clock. Without any of the last three, nothing expires and nothing
        is ever evicted.
        """
        values = Values(value)
        if isinstance(expected, bool) or not isinstance(expected, int | np.integer):
            raise BadArgumentError(f"expected={expected!r}: about how many entries, a whole number")
        log2 = max(int(expected) - 1, 0).bit_length()
        if ttl is None and max_entries is None and max_bytes is None:
            return cls(client, _native.WalkHash.create(client._native, log2), _key_name(key), values)
        limits = (
            0 if ttl is None else _seconds(ttl),
            _most("max_entries", max_entries),
            _most("max_bytes", None if max_bytes is None else in_bytes(max_bytes)),
        )
        return cls(client, _native.WalkExpiring.create(client._native, log2, *limits), _key_name(key), values)

    @classmethod
    def open(cls, client: Client, handle: HashHandle | Iterable[Any]) -> Self:
        """The map that a handle names. NoSuchAddressError: its memory is gone, with all that was in it."""
        heads, log2, key, value, memory, terms, stamp = HashHandle(*handle)
        client._native.check_memory(heads, memory)
        # JSON has made a list of it.
        stamp = tuple(stamp)
        client._native.check_stamp(heads, stamp)
        if terms:
            native: Any = _native.WalkExpiring.open(client._native, heads, log2, terms)
        else:
            native = _native.WalkHash.open(client._native, heads, log2)
        return _stamped(cls(client, native, key, Values(_dtype(value))), stamp)

    @classmethod
    def load(cls, client: Client, source: Any, **options: Any) -> Self:
        """A new map of everything in a source: see `bulk_load`."""
        from memlift.traverse._load import load_hash

        return load_hash(cls, client, source, **options)  # type: ignore[no-any-return]

    @property
    def handle(self) -> HashHandle:
        """Where it is."""
        heads, log2 = self._native.handle
        terms = self._native.terms if self._expires else 0
        return HashHandle(heads, log2, self._key, _kind(self._values), self._memory, terms, self._stamp)

    @property
    def limits(self) -> Limits | None:
        """What it was made with, if entries expire or are evicted."""
        if not self._expires:
            return None
        ttl, entries, bytes = self._native.limits
        return Limits(ttl or None, entries or None, bytes or None)

    def _ttl(self, ttl: Any) -> tuple[()] | tuple[int]:
        """What a put of the native map takes behind its value."""
        if ttl is None:
            return ()
        if not self._expires:
            raise BadArgumentError("nothing expires in this map: create it with ttl=, for example ttl=math.inf")
        return (_seconds(ttl),)

    def _pack(self, key: Any) -> Any:
        if self._numbers is not None:
            return self._numbers.pack(key)
        if self._key == "str":
            if not isinstance(key, str):
                raise UnsupportedValueError(f"{key!r} is no key of this map: its keys are str")
            return key.encode()
        if not isinstance(key, bytes | bytearray | memoryview):
            raise UnsupportedValueError(f"{key!r} is no key of this map: its keys are bytes")
        return bytes(key)

    def _unpack(self, number: int | None, data: bytes | None) -> Any:
        if data is None:
            return number if number is None or self._numbers is None else self._numbers.unpack(number)
        return data.decode() if self._key == "str" else data

    def get_many(self, keys: Iterable[Any], default: Any = None) -> list[Any]:
        """The values of many keys, all walks under way together."""
        found = self._native.get_many([self._pack(key) for key in keys])
        return [default if value is None else self._values.unpack(value) for value in found]

    def get_array(self, keys: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The values of an array of numbers, and whether each was there (0 where not): no object per key is made."""
        if self._values.dtype is None or self._numbers is None:
            raise UnsupportedValueError("get_array is for keys that are numbers and values of one length (value='f8'): use get_many")
        values, found = self._native.get_array(self._numbers.pack_array(keys), self._values.bytes)
        return np.frombuffer(values, self._values.dtype), np.frombuffer(found, np.bool_)

    def insert(self, key: Any, value: Any, ttl: Any = None) -> bool:
        """Gives a key a value; true: it had none. One compare-and-swap, whoever else writes.

        ttl  seconds until it expires, instead of the map's; math.inf: it does not
        """
        fresh: bool = self._native.insert(self._pack(key), self._values.pack(value), *self._ttl(ttl))
        return fresh

    def setdefault(self, key: Any, default: Any = None, ttl: Any = None) -> Any:
        """Gives a key a value if it has none; the value that it has then. Of several clients that do this at once, one's value counts."""
        packed = self._values.pack(default)
        kept = self._native.insert_new(self._pack(key), packed, *self._ttl(ttl))
        return self._values.unpack(packed if kept is None else kept)

    def put_many(self, keys: Iterable[Any], values: Iterable[Any], ttl: Any = None) -> int:
        """Gives many keys values, with all requests under way together; says how many of them had none.

        keys, values  arrays (fastest: no object per key is made) or any iterables, as many of one as of the other
        ttl           as `insert` has it

        Each key changes at once and exactly once, in any order; of a key that comes twice the last value counts. After an error those
        that had changed stay changed: doing all of it again is right.
        """
        keys, values = _sized(keys), _sized(values)
        if len(keys) != len(values):
            raise BadArgumentError(f"{len(keys)} keys and {len(values)} values")
        after = self._ttl(ttl)
        if self._values.dtype is not None and self._numbers is not None:
            numbers, packed = self._numbers.pack_array(keys), self._values.pack_array(values)
            inserted: int = self._native.insert_array(numbers, packed.view(np.uint8), self._values.bytes, *after)
            return inserted
        inserted = self._native.insert_many([self._pack(key) for key in keys], [self._values.pack(value) for value in values], *after)
        return inserted

    def ttl(self, key: Any) -> int | None:
        """Seconds that an entry has left; None: it does not expire. KeyError: there is none. This does not count as a use of it."""
        if not self._expires:
            self[key]
            return None
        found, left = self._native.ttl(self._pack(key))
        if not found:
            raise KeyError(key)
        seconds: int | None = left
        return seconds

    def popitem(self) -> tuple[Any, Any]:
        """Removes any entry. Of several clients that do this at once, each gets another one. KeyError: the map is empty."""
        for start in (self._popped, 0):
            head: int | None = start
            while head is not None:
                self._popped = head
                found, head = self._native.batch(head)
                for number, data, _ in found:
                    value = self._native.take(number if data is None else data)
                    if value is not None:
                        return self._unpack(number, data), self._values.unpack(value)
            if start == 0:
                break
        raise KeyError("popitem(): the map is empty")

    def clear(self) -> None:
        """Removes all entries, 256 chains at a time; an entry that others put meanwhile may stay."""
        self._native.clear()

    def copy(self) -> Self:
        """A new map on the nodes with the same entries, each as it is when it is read. Not of a map whose entries expire: say
        what the new one's are to do, and `update` it."""
        if self._expires:
            raise BadArgumentError("a copy would give its entries new times to live: create a map with the ttl that they are to have, and update() it")
        made = type(self).create(self._client, expected=1 << self._native.handle[1], key=self._key, value=_dtype(_kind(self._values)))
        return _filled(made, self)

    def add(self, key: Any, addend: int) -> int | None:
        """Adds to a value of 8 bytes at its node, and says what it was; None: there is none. Values must be whole numbers.

        UnsupportedValueError: the sum does not fit into the value's type; the value is unchanged.
        """
        if self._values.dtype is None or self._values.dtype.kind not in "iu" or self._values.bytes != 8:
            raise UnsupportedValueError("only values that are whole numbers of 8 bytes are added to: value='i8'")
        if isinstance(addend, bool) or not isinstance(addend, int | np.integer) or not -(1 << 63) <= int(addend) <= LAST:
            raise UnsupportedValueError(f"{addend!r} cannot be added: whole numbers of 64 bits are")
        if self._numbers is None:
            raise UnsupportedValueError("only values of a map whose keys are numbers are added to")
        if self._values.dtype.kind == "i" and int(addend) >= 1 << 63:
            raise UnsupportedValueError(f"{addend!r} cannot be added to signed numbers of 64 bits")
        old = self._native.add(self._numbers.pack(key), int(addend), self._values.dtype.kind == "i")
        return None if old is None else int(np.uint64(old).astype(self._values.dtype))

    def __getitem__(self, key: Any) -> Any:
        value = self._native.get(self._pack(key))
        if value is None:
            raise KeyError(key)
        return self._values.unpack(value)

    def _pairs(self, first: None = None, last: None = None) -> Iterator[tuple[Any, Any]]:
        return ((key, self._values.unpack(value)) for key, value in self._entries())

    def _keys_of(self, first: None = None, last: None = None) -> Iterator[Any]:
        return (key for key, _ in self._entries())

    def _length(self, first: None = None, last: None = None) -> int:
        return len(self)

    def _covers(self, key: Any, first: None = None, last: None = None) -> bool:
        return key in self

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        head: int | None = 0
        while head is not None:
            found, head = self._native.batch(head)
            for number, data, value in found:
                yield self._unpack(number, data), value

    def __iter__(self) -> Iterator[Any]:
        return self._keys_of()

    def keys(self) -> KeysOf:
        """A view of the keys; each that is there all the time is seen once."""
        return KeysOf(self)

    def items(self) -> ItemsOf:
        """A view of keys and values; each that is there all the time is seen once."""
        return ItemsOf(self)

    def values(self) -> ValuesOf:
        """A view of the values."""
        return ValuesOf(self)

    def __len__(self) -> int:
        """Counts them: a walk over all chains."""
        count: int = self._native.count()
        return count

    def __repr__(self) -> str:
        return f"<memlift.traverse.HashMap of {self._key} to {self._values.name}, {_where(self)}>"

    def _find(self, key: Any) -> tuple[Any, int, bytes, Callable[..., Any]]:
        """The walk that finds a key, for who makes it elsewhere."""
        packed = self._pack(key)
        start, scratch = self._native.find_walk(packed)
        program = Program.shipped("hash_get" if isinstance(packed, int) else "hash_get_bytes")

        def read(came: Any, default: Any) -> Any:
            if came[0] != 0:
                return default
            value = self._native.live(bytes(came[3]), came[6]) if self._expires else bytes(came[3])
            return default if value is None else self._values.unpack(value)

        return program, start, bytes(scratch), read

    def _at(self, client: Client) -> Self:
        return _elsewhere(self, client)
