# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Dict-like collections whose data lies on memory nodes: HashMap, OrderedMap, List.

    scores = HashMap.create(client, expected=1_000_000, value="f8")
    scores[17] = 0.5
    values, found = scores.get_array(keys)           # one walk per key, all under way together

Order   each change takes effect at one compare-and-swap, exactly once; a get sees a whole value. Any number of clients may change
        the same collection
Owner   the nodes have the data. `handle` says where: send it, `open` it anywhere. A pickled collection is its handle and its client's
        address: other processes connect for themselves. Nothing is freed when an object here goes: `drop` does that
"""

import datetime
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, Self

import numpy as np

from memlift import _native
from memlift._sizes import in_bytes
from memlift.errors import BadArgumentError, GoneError, UnsupportedValueError, WrongStructureError
from memlift.traverse._client import Client, Program
from memlift.traverse._keys import LAST, Keys
from memlift.traverse._values import Values
from memlift.traverse._views import ItemsOf, KeysOf, OrderedItems, OrderedKeys, OrderedValues, ValuesOf

__all__ = ["Aggregate", "Buckets", "HashHandle", "HashMap", "Limits", "List", "ListHandle", "OrderedHandle", "OrderedMap"]

_PAGE = 1 << 16


class HashHandle(NamedTuple):
    """Where a hash map is, and what is in it; memory: which memory the address is of, 0 if that is not to be checked; terms: where it is
    written when entries expire, 0 if they do not; stamp: what the node had acknowledged when the map was made, which a node that was started
    with an older copy of its log does not know."""

    heads: int
    log2: int
    key: str
    value: Any
    memory: int = 0
    terms: int = 0
    stamp: tuple[int, int] = (0, 0)


class Limits(NamedTuple):
    """When the entries of a hash map expire, and how large it may be; None: not limited."""

    ttl: int | None
    """Seconds until an entry expires whose `insert` does not say."""
    max_entries: int | None
    max_bytes: int | None


class OrderedHandle(NamedTuple):
    """Where an ordered map is, and what is in it; memory and stamp as `HashHandle` has them."""

    cell: int
    value: Any
    memory: int = 0
    key: str = "u8"
    stamp: tuple[int, int] = (0, 0)


class ListHandle(NamedTuple):
    """Where a list is, and what is in it; memory and stamp as `HashHandle` has them."""

    head: int
    value: Any
    memory: int = 0
    stamp: tuple[int, int] = (0, 0)


class Aggregate(NamedTuple):
    """What is left of many numbers; least and greatest are 0 of none."""

    count: int
    sum: Any
    min: Any
    max: Any

    @property
    def avg(self) -> float | None:
        """The mean; None of nothing."""
        return self.sum / self.count if self.count else None


class Buckets(NamedTuple):
    """Aggregates of the parts of a range: where each begins, and what is in it; arrays of one length. least and greatest are 0 of none."""

    start: np.ndarray[Any, Any]
    count: np.ndarray[Any, Any]
    sum: np.ndarray[Any, Any]
    min: np.ndarray[Any, Any]
    max: np.ndarray[Any, Any]

    @property
    def avg(self) -> np.ndarray[Any, Any]:
        """The means; nan of nothing."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.sum / self.count


def _column(numbers: list[Any], kind: Any) -> np.ndarray[Any, Any]:
    """Numbers as an array of this kind; as Python's own numbers if some are beyond 64 bits."""
    try:
        return np.array(numbers, kind)
    except OverflowError:
        return np.array(numbers, object)


class _Dropped:
    """In place of the native object of a collection that was dropped: its memory may have other data."""

    def __getattr__(self, name: str) -> Any:
        raise GoneError("this collection was dropped, and its memory may belong to others: make a new one")


def _where(collection: Any) -> str:
    """Where a collection is, for people to read."""
    try:
        return f"at {collection.handle[0]:#x}"
    except GoneError:
        return "dropped"


def _stamped(opened: Any, stamp: tuple[int, int]) -> Any:
    """The collection, whose handles go on to have the stamp with which it was opened."""
    if stamp[0]:
        opened._stamp = stamp
    return opened


def _kind(values: Values) -> Any:
    """A value's kind for a handle: picklable, and readable."""
    if values.dtype is None:
        return values.name
    return values.dtype.descr if values.dtype.names else values.dtype.str


def _dtype(kind: Any) -> Any:
    """The reverse; JSON makes lists of tuples."""
    if isinstance(kind, list):
        return [tuple(field) for field in kind]
    return kind


def _number(key: Any) -> int:
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        raise UnsupportedValueError(f"{key!r} is no key of this map: its keys are numbers from 0 to 2^64-1")
    number = int(key)
    if not 0 <= number <= LAST:
        raise UnsupportedValueError(f"key {number}: keys are numbers from 0 to 2^64-1")
    return number


def _sized(many: Iterable[Any]) -> Any:
    """An array or a list as it is; a list of what else can be iterated."""
    return many if isinstance(many, np.ndarray | list | tuple) else list(many)


_MISSING: Any = object()
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


def _update(collection: Any, other: Any, named: dict[str, Any]) -> None:
    if isinstance(other, Mapping):
        pairs: Iterable[tuple[Any, Any]] = other.items()
    elif hasattr(other, "keys"):
        pairs = ((key, other[key]) for key in other.keys())  # noqa: SIM118
    else:
        pairs = other
    pairs = itertools.chain(pairs, named.items())
    while batch := list(itertools.islice(pairs, _PAGE)):
        keys, values = zip(*batch, strict=True)
        collection.put_many(list(keys), list(values))


class HashMap(MutableMapping[Any, Any]):
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

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key."""
        value = self._native.get(self._pack(key))
        return default if value is None else self._values.unpack(value)

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

    def update(self, other: Any = (), /, **named: Any) -> None:
        """As `dict.update`, many keys at a time (`put_many`)."""
        _update(self, other, named)

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self

    def delete(self, key: Any) -> bool:
        """Removes a key; false: it was not there."""
        removed: bool = self._native.remove(self._pack(key))
        return removed

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Removes a key; the value that it had. Of several clients that do this at once, one gets the value."""
        value = self._native.take(self._pack(key))
        if value is not None:
            return self._values.unpack(value)
        if default is _MISSING:
            raise KeyError(key)
        return default

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

    def __setitem__(self, key: Any, value: Any) -> None:
        self.insert(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        try:
            return self._native.get(self._pack(key)) is not None
        except UnsupportedValueError:
            return False

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

    def drop(self) -> None:
        """Gives all of its memory back to the nodes. Nobody may use it any more, here or elsewhere; walks under way still end.

        This object raises GoneError from then on. Objects of other clients and processes do not know of it.
        """
        self._native.drop()
        self._native = _Dropped()
        self._others.clear()

    def __bool__(self) -> bool:
        return True

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

    def __reduce__(self) -> Any:
        return type(self).open, (self._client, self.handle)

    def _at(self, client: Client) -> Self:
        return _elsewhere(self, client)


def _key_name(key: Any) -> str:
    names = {int: "int", float: "f8", bytes: "bytes", str: "str"} | {name: name for name in ("int", "i8", "f8", "bytes", "str")}
    if key not in names:
        raise BadArgumentError(f"key={key!r}: int (0 to 2^64-1), 'i8', float, bytes or str")
    return names[key]


def _filled(made: Any, source: Any) -> Any:
    """A new collection with the entries of another one; if that fails, its memory is given back."""
    try:
        made.update(source)
    except BaseException:
        made.drop()
        raise
    return made


def _elsewhere(collection: Any, client: Client) -> Any:
    """The same collection through another client."""
    others = collection._others
    if id(client) not in others:
        others[id(client)] = type(collection).open(client, collection.handle)
    return others[id(client)]


class OrderedMap(MutableMapping[Any, Any]):
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

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key."""
        value = self._native.get(self._keys.pack(key))
        return default if value is None else self._values.unpack(value)

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

    def update(self, other: Any = (), /, **named: Any) -> None:
        """As `dict.update`, many keys at a time (`put_many`)."""
        _update(self, other, named)

    def delete(self, key: Any) -> bool:
        """Removes a key; false: it was not there."""
        removed: bool = self._native.remove(self._keys.pack(key))
        return removed

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Removes a key; the value that it had. Of several clients that do this at once, one gets the value."""
        value = self._native.take(self._keys.pack(key))
        if value is not None:
            return self._values.unpack(value)
        if default is _MISSING:
            raise KeyError(key)
        return default

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

    def __setitem__(self, key: Any, value: Any) -> None:
        self.insert(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        try:
            return self._native.get(self._keys.pack(key)) is not None
        except UnsupportedValueError:
            return False

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return self.count()

    def drop(self) -> None:
        """Gives all of its memory back to the nodes. Nobody may use it any more, here or elsewhere; walks under way still end.

        This object raises GoneError from then on. Objects of other clients and processes do not know of it.
        """
        self._native.drop()
        self._native = _Dropped()
        self._others.clear()

    def __bool__(self) -> bool:
        return True

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

    def __reduce__(self) -> Any:
        return type(self).open, (self._client, self.handle)

    def _at(self, client: Client) -> Self:
        return _elsewhere(self, client)  # type: ignore[no-any-return]


def _plain(values: np.ndarray[Any, Any]) -> Any:
    """Numbers as Python has them; records as they are."""
    return values.tolist() if values.dtype.kind in "iufbc" else values


def _fixed(value: Any) -> Values:
    values = Values(value)
    if not 1 <= values.bytes <= 240:
        raise BadArgumentError(f"value={value!r}: values of an ordered map have one length, 1 to 240 bytes ('i8', 'f8', 'V240')")
    return values


class List:
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

    def drop(self) -> None:
        """Gives all of its memory back to the nodes. Nobody may use it any more, here or elsewhere; walks under way still end.

        This object raises GoneError from then on. Objects of other clients and processes do not know of it.
        """
        self._native.drop()
        self._native = _Dropped()
        self._others.clear()

    def __bool__(self) -> bool:
        return True

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

    def __reduce__(self) -> Any:
        return type(self).open, (self._client, self.handle)

    def _at(self, client: Client) -> Self:
        return _elsewhere(self, client)  # type: ignore[no-any-return]
