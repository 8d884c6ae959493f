# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One dict in one file, in the place of shelve, sqlitedict and diskcache: `memlift.persist.shelf`.

Layout  the pool's dict "shelf": key → (pickled value, when it expires in seconds since 1970, or 0). Its dict "shelf sizes": "bytes" → bytes of all
        pickled values. A key that is set again moves to the end, so iteration begins with what was set longest ago
Order   each change is a transaction, sizes and evictions with it
"""

import builtins
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from memlift.errors import BadArgumentError

if TYPE_CHECKING:
    from memlift.persist import Pool, _Transaction

_MISSING: Any = object()
_ENTRIES = "shelf"
_SIZES = "shelf sizes"


class Shelf(MutableMapping[Any, Any]):
    """A dict that survives a crash, in a file of its own. Made by `memlift.persist.shelf`; a context manager that closes it.

    Keys are str, bytes or int; values whatever pickle takes. A value is a copy: with `writeback=True`, as with shelve, what was read is
    written back by `sync` and `close`.
    """

    __slots__ = ("_cache", "_entries", "_expire_s", "_pool", "_size_limit", "_sizes")

    def __init__(self, pool: "Pool", expire: float | None, size_limit: int | None, writeback: bool) -> None:
        self._pool = pool
        self._entries = pool.dict(_ENTRIES)
        self._sizes = pool.dict(_SIZES)
        self._expire_s = expire
        self._size_limit = size_limit
        self._cache: builtins.dict[Any, Any] | None = {} if writeback else None

    def _entry(self, key: Any) -> bytes | None:
        """The pickled value of a key that has not expired."""
        entry = self._entries.get(key)
        if entry is None or _is_past(entry[1]):
            return None
        found: bytes = entry[0]
        return found

    def __getitem__(self, key: Any) -> Any:
        if self._cache is not None and key in self._cache and self._entry(key) is not None:
            return self._cache[key]
        found = self._entry(key)
        if found is None:
            raise KeyError(key)
        value = pickle.loads(found)
        if self._cache is not None:
            self._cache[key] = value
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def set(self, key: Any, value: Any, expire: float | None = None) -> None:
        """Keeps a value. Where the shelf has a size limit, what was set longest ago makes room for it.

        expire  seconds until it is gone; None: the shelf's own, or never. Raises BadArgumentError for a value larger than the limit.
        """
        self._put(key, value, expire)
        if self._cache is not None:
            self._cache[key] = value

    def _put(self, key: Any, value: Any, expire: float | None) -> None:
        expire = self._expire_s if expire is None else expire
        until = 0.0 if expire is None else time.time() + expire
        packed = pickle.dumps(value, protocol=5)
        limit = self._size_limit
        if limit is not None and len(packed) > limit:
            raise BadArgumentError(f"a value of {len(packed)} bytes is larger than the size limit of {limit}")
        with self._pool.transaction():
            total = self.volume() - self._take(key) + len(packed)
            self._entries[key] = (packed, until)
            while limit is not None and total > limit and (freed := self._evict(key, total - limit)):
                total -= freed
            self._sizes["bytes"] = total

    def add(self, key: Any, value: Any, expire: float | None = None) -> bool:
        """Keeps a value if there is none of that key. False: there is one."""
        with self._pool.transaction():
            if self._entry(key) is not None:
                return False
            self.set(key, value, expire)
            return True

    def touch(self, key: Any, expire: float | None = None) -> bool:
        """Gives a key other seconds until it is gone; None: it stays. False: there is no such key."""
        with self._pool.transaction():
            found = self._entry(key)
            if found is None:
                return False
            self._entries[key] = (found, 0.0 if expire is None else time.time() + expire)
            return True

    def _take(self, key: Any) -> int:
        """Takes an entry out, within a transaction; the bytes that it had."""
        entry = self._entries.pop(key, None)
        return 0 if entry is None else len(entry[0])

    def _evict(self, but: Any, enough: int) -> int:
        """Takes out what was set longest ago, within a transaction, until so many bytes are free or a batch is through."""
        freed = 0
        batch = self._entries._native.batch(None, False)
        for key, _ in batch[2] if batch is not None else ():
            if freed >= enough:
                break
            if key != but:
                freed += self._take(key)
                if self._cache is not None:
                    self._cache.pop(key, None)
        return freed

    def __delitem__(self, key: Any) -> None:
        with self._pool.transaction():
            found = self._entry(key)
            self._sizes["bytes"] = self.volume() - self._take(key)
        if self._cache is not None:
            self._cache.pop(key, None)
        if found is None:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._entry(key) is not None

    def __len__(self) -> int:
        """Those that have expired and are still stored count; `expire` removes them."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, entry in self._entries.items() if not _is_past(entry[1]))

    def expire(self) -> int:
        """Removes what has expired; how many that was. Nobody sees it any more before that, but it takes room."""
        past = [key for key, entry in self._entries.items() if _is_past(entry[1])]
        for first in range(0, len(past), 1000):
            with self._pool.transaction():
                freed = sum(self._take(key) for key in past[first : first + 1000])
                self._sizes["bytes"] = self.volume() - freed
        return len(past)

    def volume(self) -> int:
        """Bytes of all pickled values, which the size limit is for. The file is somewhat larger."""
        found: int = self._sizes.get("bytes", 0)
        return found

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Takes a key out and gives its value, in one transaction."""
        with self._pool.transaction():
            if key in self:
                value = self[key]
                del self[key]
                return value
        if default is _MISSING:
            raise KeyError(key)
        return default

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of a key; where there is none, `default`, which is stored first."""
        with self._pool.transaction():
            if key not in self:
                self[key] = default
            return self[key]

    def update(self, other: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), /, **more: Any) -> None:
        """All or nothing: one transaction."""
        with self._pool.transaction():
            super().update(other, **more)

    def clear(self) -> None:
        """Removes every key, all or none."""
        with self._pool.transaction():
            self._entries.clear()
            self._sizes["bytes"] = 0
        if self._cache is not None:
            self._cache.clear()

    def transaction(self) -> "_Transaction":
        """`with shelf.transaction():` all changes of the block happen together, or none if it raises."""
        return self._pool.transaction()

    def sync(self) -> None:
        """Writes back what was read (`writeback=True`), and makes everything durable."""
        if self._cache:
            with self._pool.transaction():
                for key, value in self._cache.items():
                    entry = self._entries.get(key)
                    if entry is not None and entry[0] != pickle.dumps(value, protocol=5):
                        self._put(key, value, entry[1] - time.time() if entry[1] else None)
            self._cache.clear()
        self._pool.sync()

    commit = sync
    """As sqlitedict has it. Without `writeback` and with `durability="sync"` there is nothing to do."""

    def close(self) -> None:
        """Writes back, makes everything durable and closes the file. A second time it does nothing."""
        if not self._pool.closed:
            self.sync()
            self._pool.close()

    @property
    def path(self) -> str:
        return self._pool.path

    @property
    def closed(self) -> bool:
        return self._pool.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<memlift.persist.Shelf {self.path} (closed)>"
        return f"<memlift.persist.Shelf {self.path}, {len(self)} keys>"


def _is_past(until: float) -> bool:
    return bool(until) and until <= time.time()


def modes(flag: str) -> str:
    """The mode of `persist.open` for a flag of shelve: "r", "w", "c", or "n" for one that is emptied."""
    if flag not in ("r", "w", "c", "n"):
        raise BadArgumentError(f'flag={flag!r}: "r" reads, "w" changes what is there, "c" creates, "n" begins anew')
    return {"n": "c"}.get(flag, flag)
