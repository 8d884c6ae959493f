# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the collections on memory nodes have in common: how they are pickled and dropped, and the changes by key of the two maps.

Not here  where the entries lie, and what a key or a value is: _hash.py, _ordered.py, _list.py
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Self

import numpy as np

from memlift.errors import GoneError, UnsupportedValueError
from memlift.traverse._client import Client
from memlift.traverse._values import Values

__all__ = ["RemoteCollection", "RemoteMap"]

_PAGE = 1 << 16
_MISSING: Any = object()


def _sized(many: Iterable[Any]) -> Any:
    """An array or a list as it is; a list of what else can be iterated."""
    return many if isinstance(many, np.ndarray | list | tuple) else list(many)


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


class _Dropped:
    """In place of the native object of a collection that was dropped: its memory may have other data."""

    def __getattr__(self, name: str) -> Any:
        raise GoneError("this collection was dropped, and its memory may belong to others: make a new one")


class RemoteCollection:
    """Data on memory nodes that this object only names."""

    _client: Client
    _native: Any
    _values: Values
    _others: dict[int, Any]
    handle: Any

    def drop(self) -> None:
        """Gives all of its memory back to the nodes. Nobody may use it any more, here or elsewhere; walks under way still end.

        This object raises GoneError from then on. Objects of other clients and processes do not know of it.
        """
        self._native.drop()
        self._native = _Dropped()
        self._others.clear()

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        return type(self).open, (self._client, self.handle)  # type: ignore[attr-defined]


class RemoteMap(RemoteCollection, MutableMapping[Any, Any]):
    """The operations by key that are alike in every map."""

    _pack: Callable[[Any], Any]
    put_many: Callable[..., int]
    insert: Callable[..., bool]

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key."""
        value = self._native.get(self._pack(key))
        return default if value is None else self._values.unpack(value)

    def update(self, other: Any = (), /, **named: Any) -> None:
        """As `dict.update`, many keys at a time (`put_many`)."""
        if isinstance(other, Mapping):
            pairs: Iterable[tuple[Any, Any]] = other.items()
        elif hasattr(other, "keys"):
            pairs = ((key, other[key]) for key in other.keys())  # noqa: SIM118
        else:
            pairs = other
        pairs = itertools.chain(pairs, named.items())
        while batch := list(itertools.islice(pairs, _PAGE)):
            keys, values = zip(*batch, strict=True)
            self.put_many(list(keys), list(values))

    def __ior__(self, other: Any) -> Self:
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
