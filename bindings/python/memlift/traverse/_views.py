# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Views of collections, as `dict` has them: keys, values and items that are read when they are iterated, some at a time.

Order   each entry that is there all the time is seen once; an entry that comes or goes meanwhile is seen or not
Cost    `len` of a view, and therefore `list` of one, is a walk over everything; `in` is one lookup for keys and items, and an iteration for
        values
"""

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

__all__ = ["ItemsOf", "KeysOf", "OrderedItems", "OrderedKeys", "OrderedValues", "ValuesOf"]


class _Range:
    """The part of a collection that a view shows: between two keys, both included, or all of it."""

    _mapping: Any

    def __init__(self, collection: Any, first: Any = None, last: Any = None) -> None:
        self._mapping = collection
        self._range = (first, last)

    def __len__(self) -> int:
        count: int = self._mapping._length(*self._range)
        return count

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        pairs: Iterator[tuple[Any, Any]] = self._mapping._pairs(*self._range)
        return pairs

    def _backwards(self) -> Iterator[tuple[Any, Any]]:
        pairs: Iterator[tuple[Any, Any]] = self._mapping._pairs_reversed(*self._range)
        return pairs


class ItemsOf(_Range, ItemsView[Any, Any]):
    """Keys and values."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs()

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2 or not self._mapping._covers(item[0], *self._range):
            return False
        missing = object()
        value = self._mapping.get(item[0], missing)
        return value is not missing and bool(value == item[1])


class KeysOf(_Range, KeysView[Any]):
    """Keys."""

    def __iter__(self) -> Iterator[Any]:
        keys: Iterator[Any] = self._mapping._keys_of(*self._range)
        return keys

    def __contains__(self, key: object) -> bool:
        return self._mapping._covers(key, *self._range) and key in self._mapping


class ValuesOf(_Range, ValuesView[Any]):
    """Values."""

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._pairs())

    def __contains__(self, wanted: object) -> bool:
        return any(value is wanted or bool(value == wanted) for value in self)


class OrderedItems(ItemsOf):
    """Keys and values in the order of keys."""

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return self._backwards()


class OrderedKeys(KeysOf):
    """Keys in order."""

    def __reversed__(self) -> Iterator[Any]:
        return (key for key, _ in self._backwards())


class OrderedValues(ValuesOf):
    """Values in the order of their keys."""

    def __reversed__(self) -> Iterator[Any]:
        return (value for _, value in self._backwards())
