# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where a collection is, which other processes open it by, and the results of its sums.

Order   a handle is data alone: it can be pickled, sent and kept while the memory nodes live
"""

from typing import Any, NamedTuple

import numpy as np

from memlift.errors import GoneError
from memlift.traverse._values import Values

__all__ = ["Aggregate", "Buckets", "HashHandle", "Limits", "ListHandle", "OrderedHandle"]


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
