# SPDX-License-Identifier: Apache-2.0 OR MIT
"""States of programs in a file, each saved whole or not at all: `memlift.persist.save`, `load` and `Checkpoint`.

Flow    `_Packer` takes a state apart: a tree of plain values, and the memory of its arrays ─▶ each array is compared with the one that the
        last saved state has at the same path ─▶ pages that differ become new arrays of the pool ─▶ one transaction stores the tree, which
        names them, and removes what no kept state uses any more
Layout  the pool's dict "checkpoint": step → (FORM, tree, records, crcs). A tuple in a tree is a node: its first item says of what kind. A record is
        (path, bytes of a small array) or (path, length, pieces); pieces are three numbers each: object, first byte, bytes. Object n is the pool's
        array "checkpoint n"; crcs: object → (bytes, CRC-32C). The dict "checkpoint numbers": "next" object, "keep"
Order   objects are stored first, in transactions of their own; the tree that names them and the removal of older states are the last one. So a kill
        leaves the states before it or after it, and objects from "next" on belong to none: the following save removes them
Rule    what was read from the file is checked before it is used; PoolDamagedError says what is wrong
Not here how pages and transactions become durable: the pool
"""

import contextlib
import importlib
import math
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from memlift import _dtypes, _tensors
from memlift.errors import BadArgumentError, Error, GoneError, PoolDamagedError, UnsupportedTypeError, UnsupportedValueError

if TYPE_CHECKING:
    from memlift.persist import Pool

_STATES = "checkpoint"
_NUMBERS = "checkpoint numbers"
_FORM = 1
_PAGE = 4096
"""Arrays are compared in units of so many bytes."""
_BLOCK = 1 << 20
"""Bytes that are compared at a time: the comparison takes an eighth of it."""
_BATCH = 64 << 20
"""Bytes of arrays that are stored in one transaction, or one larger array."""
_MEMORY = 256 << 20
"""Bytes of changed pages that the pool may have in memory: what was saved is not needed there any more."""
_SMALL = 1024
"""Arrays of up to so many bytes are stored in the tree's records."""
_DEPTH = 20
"""Containers in each other; a node takes up to three levels of a value of the pool, which has 64."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)


class Saved(NamedTuple):
    """What a call of `save` did."""

    step: int
    bytes: int
    """Bytes of all arrays of the state."""
    written: int
    """Bytes of arrays that were stored: those that differ from the state that was saved last, in whole pages."""


class Packed(NamedTuple):
    """A state that was taken apart."""

    tree: Any
    arrays: "list[tuple[str, np.ndarray[Any, Any]]]"
    """The memory of each array, in C order, and where in the state it was met first."""


def pack(state: Any, step: int | None) -> Packed:
    """Takes a state apart. Raises UnsupportedValueError for what cannot be saved as what it is, BadArgumentError for a step that is none."""
    if step is not None and not _is_number(step):
        raise BadArgumentError(f"step={step!r}: a whole number from 0 on, or None")
    packer = _Packer()
    return Packed(packer.pack(state, "state", 0), packer.arrays)


class Checkpoint:
    """States of a program in one file: `save` stores one whole or not at all, and writes only what differs from the last one.

        with persist.Checkpoint("run.ckpt", keep=3) as checkpoint:
            checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=100)
            state = checkpoint.load()

    A state consists of dicts (OrderedDict with its attributes, too), lists, tuples, sets and frozensets of numpy arrays and scalars, tensors of
    torch in host memory, None, bool, int, float, complex, str, bytes and bytearray. Everything comes back with the type that it had; other types
    raise UnsupportedValueError, which names the place. Nothing is pickled. Arrays come back in C order.

    path      the file; created if there is none
    mode      as of `open`: "c", "w", "x" or "r"
    keep      how many of the states saved last stay in the file; None: as many as before, 1 in a new file
    size_max  bytes that the file may grow to, or text like "200G"; None: 64 GiB, or an eighth of the addresses that the process may have
    readers   as of `open`: other processes may load while this one has the file open
    wait      seconds to wait for another process that has the file open

    Raises as `open`. Threads may share it.
    """

    __slots__ = ("_keep", "_lock", "_pool")

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "c",
        *,
        keep: int | None = None,
        size_max: int | str | None = None,
        readers: bool | int | str = False,
        wait: float = 0,
    ) -> None:
        from memlift import persist  # it imports this module

        if keep is not None and (type(keep) is not int or keep < 1):
            raise BadArgumentError(f"keep={keep!r}: a number of states, 1 or more, or None")
        self._pool: Pool = persist.open(path, mode=mode, size_max=size_max, readers=readers, wait=wait, memory=_MEMORY)
        self._keep = keep
        self._lock = threading.Lock()

    def save(self, state: Any, step: int | None = None) -> Saved:
        """Stores a state; when the call returns it is durable. If the process is killed meanwhile, or anything fails, the file has the states
        that it had before. The memory of the state must not change during the call.

        step  its number, from 0 on; a state with the same number is replaced. None: one more than that of the state saved last

        An array that is at the same place in the state as in the state saved last, and has as many bytes, is compared with that one, and only
        pages of 4096 bytes that differ are written; if more than half of them do, the whole array is. Entries that have the same memory, as
        tied weights do, are stored once. While it runs, the file has room for the states kept before and the new one.

        Raises UnsupportedValueError, PoolFullError, ReadOnlyError, OutOfOrderError within a transaction of the same pool.
        """
        packed = pack(state, step)
        with self._lock:
            return self._store(packed, step)

    def _store(self, packed: "Packed", step: int | None) -> Saved:
        pool = self._pool
        states, numbers = pool.dict(_STATES), pool.dict(_NUMBERS)
        kept = {number: _Stored.read(value, pool.path) for number, value in states.items()}
        if not all(map(_is_number, kept)):
            raise PoolDamagedError(f"{pool.path}: the dict {_STATES!r} has keys that are no steps")
        last = next(reversed(kept.values()), None)
        if step is None:
            step = next(reversed(kept), -1) + 1
        following, keep = numbers.get("next", 0), self._keep or numbers.get("keep", 1)
        if not (_is_number(following) and _is_number(keep) and keep and all(number < following for one in kept.values() for number in one.crcs)):
            raise PoolDamagedError(f"{pool.path}: the dict {_NUMBERS!r} has something else than numbers")
        following = self._remove_from(following)
        new = _Stored(packed.tree)
        batch = _Batch(pool, following, new.crcs)
        try:
            for path, array in packed.arrays:
                if array.nbytes <= _SMALL:
                    new.records.append((path, array.tobytes()))
                    continue
                flat = array.reshape(-1).view(np.uint8)
                pieces, stored = self._differing(path, flat, last, batch.following)
                new.records.append((path, array.nbytes, pieces))
                if stored is not None:
                    batch.add(stored)
            batch.store()
            others = [number for number in kept if number != step]
            older = max(0, len(others) - (keep - 1))
            used = new.objects() | {number for one in others[older:] for number in kept[one].crcs}
            unused = [number for number in {number for one in kept.values() for number in one.crcs} - used if self._is_whole(number)]
            with pool.transaction(durability="sync"):
                for number in new.objects() - new.crcs.keys() if last is not None else ():
                    new.crcs[number] = last.crcs[number]
                if step in kept:
                    del states[step]
                states[step] = new.value()
                for number in others[:older]:
                    del states[number]
                numbers["next"], numbers["keep"] = batch.following, keep
                for number in unused:
                    pool.remove(_name(number))
        except BaseException:
            # Read again: Ctrl-C may come when the last transaction is done.
            with contextlib.suppress(Error):
                self._remove_from(numbers.get("next", 0))
            raise
        return Saved(step, sum(array.nbytes for _, array in packed.arrays), batch.written)

    def _remove_from(self, first: int) -> int:
        """Removes objects that belong to no state: of a save that failed, or whose process was killed. Returns the first free number."""
        pool = self._pool
        numbers = (name.removeprefix(f"{_STATES} ") for name, kind in pool.names().items() if kind == "array" and name.startswith(f"{_STATES} "))
        left = [int(number) for number in numbers if number.isdecimal() and int(number) >= first]
        damaged = {number for number in left if not self._is_whole(number)}
        if damaged.issuperset(left):
            return max(damaged, default=first - 1) + 1
        with pool.transaction():
            for number in left:
                if number not in damaged:
                    pool.remove(_name(number))
        return max(damaged, default=first - 1) + 1

    def _is_whole(self, number: int) -> bool:
        """Returns false for an object in a damaged page, which cannot be freed: its memory is lost."""
        try:
            self._pool.array(_name(number))
        except (PoolDamagedError, GoneError):
            return False
        return True

    def _differing(
        self, path: str, flat: "np.ndarray[Any, Any]", last: "_Stored | None", number: int
    ) -> "tuple[list[int], np.ndarray[Any, Any] | None]":
        """The pieces of an array, and what has to be stored as object `number` for them; None: the last state has all of it."""
        whole = [number, 0, flat.nbytes], flat
        before = last.find(path, flat.nbytes) if last is not None else None
        if before is None or last is None:
            return whole
        try:
            runs = _changed(flat, before, lambda one: self._pool.array(_name(one)))
        except (PoolDamagedError, GoneError):
            return whole
        changed = sum(end - start for start, end in runs)
        if not changed:
            return before, None
        pieces, objects, at = _Pieces(), {number: changed}, 0
        merged = iter([*runs, (flat.nbytes, flat.nbytes)])
        start, end = next(merged)
        place = 0
        for one, first, size in _triples(before):
            done = 0
            while done < size:
                if place + done < start:
                    more = min(size - done, start - place - done)
                    pieces.add(one, first + done, more)
                    objects[one] = last.crcs[one][0]
                else:
                    more = min(size - done, end - place - done)
                    pieces.add(number, at, more)
                    at += more
                done += more
                if place + done >= end:
                    start, end = next(merged, (flat.nbytes, flat.nbytes))
            place += size
        # Old objects stay while a page of them is used: together they take at most twice the array.
        if changed * 2 > flat.nbytes or sum(objects.values()) > 2 * flat.nbytes:
            return whole
        return pieces.all, np.concatenate([flat[start:end] for start, end in runs])

    def load(self, step: int | None = None, *, copy: bool = True) -> Any:
        """The state of a step; None: the one saved last.

        copy  False: numpy arrays that were last written whole are read-only views of the file, which stays locked until they are gone; arrays
              of which some pages were written later, and tensors, are copies all the same

        Everything that is read is compared with its checksum first. Raises GoneError if there is no such state, PoolDamagedError.
        """
        with self._lock:
            stored = _Stored.read(self._state(step), self._pool.path)
            return _Reader(self._pool, stored, copy).state()

    def _state(self, step: int | None) -> Any:
        states = self._pool.dict(_STATES) if _STATES in self._pool else None
        if not states:  # None, or those of a file whose first save failed
            raise GoneError(f"{self._pool.path}: no state was saved in it")
        if step is None:
            step = states._native.last(None)
        value = states.get(step)
        if value is None:
            there = ", ".join(map(str, states)) or "none"
            raise GoneError(f"{self._pool.path}: it has no state of step {step}; those that it has: {there}")
        return value

    def steps(self) -> list[int]:
        """The numbers of the states in the file; the one saved last is the last."""
        return list(self._pool.dict(_STATES)) if _STATES in self._pool else []

    def refresh(self) -> None:
        """Sees what the process that writes the file has saved by now, as `Pool.refresh`."""
        self._pool.refresh()

    def close(self) -> None:
        """Closes the file. While there are views of its arrays it stays locked, and another process that opens it gets PoolInUseError."""
        self._pool._native.close()

    @property
    def path(self) -> str:
        return self._pool.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._pool.closed:
            return f"<memlift.persist.Checkpoint {self.path} (closed)>"
        return f"<memlift.persist.Checkpoint {self.path}, steps {self.steps()}>"


class _Batch:
    """Stores objects in transactions of a limited size each: a transaction's new arrays are in memory until it ends."""

    def __init__(self, pool: "Pool", following: int, crcs: dict[int, tuple[int, int]]) -> None:
        self.following = following
        self.written = 0
        self._pool = pool
        self._crcs = crcs
        self._waiting: list[tuple[int, np.ndarray[Any, Any]]] = []
        self._bytes = 0

    def add(self, data: "np.ndarray[Any, Any]") -> None:
        self._waiting.append((self.following, data))
        self.following += 1
        self._bytes += data.nbytes
        if self._bytes >= _BATCH:
            self.store()

    def store(self) -> None:
        # The transaction that names them makes them durable with itself.
        with self._pool.transaction(durability="buffered"):
            for number, data in self._waiting:
                self._pool.put_array(_name(number), data)
                # The checksum is of what was stored: another thread may have changed the array, which must not make the state unreadable.
                self._crcs[number] = (data.nbytes, self._pool._native.array_crc(_name(number)) or 0)
        self.written += self._bytes
        self._waiting, self._bytes = [], 0


def _name(number: int) -> str:
    return f"{_STATES} {number}"


def _triples(pieces: list[int]) -> "zip[tuple[int, int, int]]":
    return zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)


def _changed(
    flat: "np.ndarray[Any, Any]", pieces: list[int], find: "Callable[[int], np.ndarray[Any, Any]]"
) -> list[tuple[int, int]]:
    """Runs of pages in which an array differs from what the pieces have: first byte and end, in order."""
    runs: list[tuple[int, int]] = []
    place = 0
    opened: dict[int, Any] = {}
    for number, first, size in _triples(pieces):
        if number not in opened:
            opened[number] = find(number)
        old = opened[number]
        if old.dtype != np.uint8 or old.ndim != 1 or old.nbytes < first + size:
            raise PoolDamagedError(f"the object {number} is shorter than the state says")
        for at in range(0, size, _BLOCK):
            length = min(_BLOCK, size - at)
            _differences(flat[place + at : place + at + length], old[first + at : first + at + length], place + at, runs)
        place += size
    return runs


def _differences(new: "np.ndarray[Any, Any]", old: "np.ndarray[Any, Any]", place: int, runs: list[tuple[int, int]]) -> None:
    """Adds the pages of two blocks that differ. A block begins at a multiple of a page."""
    pages = new.nbytes // _PAGE * _PAGE
    differ = (new[:pages].view(np.uint64) != old[:pages].view(np.uint64)).reshape(-1, _PAGE // 8).any(axis=1)
    found = [int(page) for page in np.flatnonzero(differ)]
    if pages < new.nbytes and not np.array_equal(new[pages:], old[pages:]):
        found.append(pages // _PAGE)
    for page in found:
        start, end = place + page * _PAGE, place + min((page + 1) * _PAGE, new.nbytes)
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))


class _Pieces:
    """Pieces of objects, those that follow each other made one."""

    def __init__(self) -> None:
        self.all: list[int] = []

    def add(self, number: int, first: int, size: int) -> None:
        all = self.all
        if all and all[-3] == number and all[-2] + all[-1] == first:
            all[-1] += size
        else:
            all += (number, first, size)


class _Stored:
    """A state as the file has it."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.records: list[tuple[Any, ...]] = []
        self.crcs: dict[int, tuple[int, int]] = {}
        self._places: dict[str, int] | None = None

    def value(self) -> tuple[Any, ...]:
        return _FORM, self.tree, self.records, self.crcs

    def objects(self) -> set[int]:
        return {number for record in self.records if len(record) == 3 for number in record[2][::3]}

    def find(self, path: str, length: int) -> list[int] | None:
        """The pieces of the array at a path, if it has so many bytes."""
        if self._places is None:
            self._places = {record[0]: at for at, record in enumerate(self.records)}
        record = self.records[self._places[path]] if path in self._places else ()
        if len(record) != 3 or record[1] != length:
            return None
        pieces: list[int] = record[2]
        return pieces

    @classmethod
    def read(cls, value: Any, path: str) -> "_Stored":
        """Reads what `value` gave. Raises PoolDamagedError for anything else."""
        if type(value) is tuple and value and type(value[0]) is int and value[0] > _FORM:
            raise BadArgumentError(f"{path}: a newer release of memlift saved this state: load it with that one")
        if not (type(value) is tuple and len(value) == 4 and value[0] == _FORM and type(value[2]) is list and type(value[3]) is dict):
            raise PoolDamagedError(f"{path}: the dict {_STATES!r} has something else than states")
        stored = cls(value[1])
        stored.records, stored.crcs = value[2], value[3]
        good = all(
            _is_number(number) and type(said) is tuple and len(said) == 2 and all(map(_is_number, said)) for number, said in stored.crcs.items()
        )
        if not good or not all(map(stored._is_record, stored.records)):
            raise PoolDamagedError(f"{path}: the records of a state make no sense")
        return stored

    def _is_record(self, record: Any) -> bool:
        if type(record) is not tuple or len(record) not in (2, 3) or type(record[0]) is not str:
            return False
        if len(record) == 2:
            return type(record[1]) is bytes
        _, length, pieces = record
        if not _is_number(length) or type(pieces) is not list or len(pieces) % 3 or not all(map(_is_number, pieces)):
            return False
        inside = all(number in self.crcs and first + size <= self.crcs[number][0] for number, first, size in _triples(pieces))
        # All but the last piece are whole pages: `_differences` relies on that.
        return inside and sum(pieces[2::3]) == length and all(size and size % _PAGE == 0 for size in pieces[2:-3:3])


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


class _Packer:
    """Takes a state apart: `arrays` gets the memory of each array once, with the path at which it was met first."""

    def __init__(self) -> None:
        self.arrays: list[tuple[str, np.ndarray[Any, Any]]] = []
        self._met: dict[tuple[Any, ...], int] = {}

    def pack(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return _text(value, path) if kind is str else value
        if depth > _DEPTH:
            raise UnsupportedValueError(f"{path[:200]}: more than {_DEPTH} containers in each other, or one that contains itself")
        if kind is dict:
            return {self._key(key, path): self.pack(one, f"{path}[{key!r}]", depth + 1) for key, one in value.items()}
        if kind is OrderedDict:
            pairs = [(self._key(key, path), self.pack(one, f"{path}[{key!r}]", depth + 1)) for key, one in value.items()]
            # torch's state_dict has its versions in an attribute.
            attributes = {name: self.pack(one, f"{path}.{name}", depth + 1) for name, one in vars(value).items()}
            return "ordered", [key for key, _ in pairs], [one for _, one in pairs], attributes
        if kind is list:
            return [self.pack(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(value)]
        if kind is tuple:
            return "tuple", [self.pack(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(value)]
        if kind is set or kind is frozenset:
            return "set" if kind is set else "frozenset", [self._key(one, path) for one in value]
        if kind is np.ndarray:
            return self._array(value, path)
        if isinstance(value, np.generic):
            if _is_scalar(value):
                return value
            raise _refused(value, path, "convert it with .item(), or save a numpy array of it")
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            return self._tensor(value, path)
        raise _refused(value, path, "make it of dicts, lists, tuples, sets, numpy arrays, tensors, numbers, text and bytes")

    def _key(self, key: Any, path: str) -> Any:
        """A key of a dict, or an element of a set: plain, or tuples and frozensets of what is."""
        kind = type(key)
        if kind in _PLAIN or isinstance(key, np.generic) and _is_scalar(key):
            return _text(key, f"a key in {path}") if kind is str else key
        if kind is tuple or kind is frozenset:
            return kind.__name__, *[self._key(one, path) for one in key]
        raise _refused(key, f"a key in {path}", "keys are numbers, text, bytes and tuples of these")

    def _array(self, array: "np.ndarray[Any, Any]", path: str) -> Any:
        try:
            described = _dtypes.describe(array.dtype)
        except UnsupportedTypeError:
            raise UnsupportedValueError(
                f"{path}: an array of dtype {array.dtype} cannot be saved: convert it with .astype() to numbers, text or records of these"
            ) from None
        return "array", self._memory(array, path), described, array.shape

    def _tensor(self, tensor: Any, path: str) -> Any:
        reduced = _tensors._reduce_torch(tensor)
        if reduced is None:
            device = getattr(getattr(tensor, "device", None), "type", "cpu")
            advice = "copy it to the host with .cpu()" if device != "cpu" else "save a plain tensor of it, such as .detach() gives, or what it is made of"
            raise _refused(tensor, path, advice)
        name, array, grad = reduced[1]
        return "torch", self._memory(array, path), _dtypes.describe(array.dtype), array.shape, name, grad

    def _memory(self, array: "np.ndarray[Any, Any]", path: str) -> int:
        """The index of an array's memory: entries that have the same memory have one index."""
        address = array.__array_interface__["data"][0]
        key = (address, array.nbytes, array.strides, array.shape) if array.nbytes else (path,)
        if key not in self._met:
            self._met[key] = len(self.arrays)
            self.arrays.append((path, np.asarray(array, order="C")))
        return self._met[key]


def _text(text: str, path: str) -> str:
    """The text itself, if the pool takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnsupportedValueError(f"{path}: {text!r} cannot be saved: it has half of a surrogate pair; encode it to bytes") from None
    return text


def _is_scalar(value: Any) -> bool:
    """Returns true for a scalar of numpy that the pool's dicts keep as what it is."""
    dtype = value.dtype
    return type(value) is dtype.type and type(value).__module__ == "numpy" and dtype.kind != "V" and _dtypes.plain(dtype) is not None


def _refused(value: Any, path: str, advice: str) -> UnsupportedValueError:
    cls = type(value)
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return UnsupportedValueError(f"{path}: an object of type {module}{cls.__qualname__} cannot be saved as what it is: {advice}")


class _Reader:
    """Puts a state together."""

    def __init__(self, pool: "Pool", stored: _Stored, copy: bool) -> None:
        self._pool = pool
        self._stored = stored
        self._copy = copy
        self._memory: dict[tuple[int, bool], np.ndarray[Any, Any]] = {}
        self._objects: dict[int, np.ndarray[Any, Any]] = {}

    def state(self) -> Any:
        try:
            return self._make(self._stored.tree)
        except (PoolDamagedError, UnsupportedTypeError):
            raise
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, what: str) -> PoolDamagedError:
        return PoolDamagedError(f"{self._pool.path}: a saved state makes no sense ({what}): load another step, or a backup")

    def _make(self, node: Any) -> Any:
        kind = type(node)
        if kind is dict:
            return {self._make_key(key): self._make(one) for key, one in node.items()}
        if kind is list:
            return [self._make(one) for one in node]
        if kind is not tuple:
            return node
        name, *rest = node
        if name == "tuple":
            return tuple(map(self._make, rest[0]))
        if name == "ordered":
            keys, values, attributes = rest
            made = OrderedDict(zip(map(self._make_key, keys), map(self._make, values), strict=True))
            for attribute, one in attributes.items():
                vars(made)[attribute] = self._make(one)
            return made
        if name in ("set", "frozenset"):
            return (set if name == "set" else frozenset)(map(self._make_key, rest[0]))
        if name == "array":
            index, described, shape = rest
            return self._shaped(index, described, shape, self._copy)
        if name == "torch":
            index, described, shape, dtype, grad = rest
            return self._tensor(self._shaped(index, described, shape, True), dtype, grad)
        raise self._damaged(f"a node of kind {name!r}")

    def _make_key(self, key: Any) -> Any:
        if type(key) is not tuple:
            return key
        return {"tuple": tuple, "frozenset": frozenset}[key[0]](map(self._make_key, key[1:]))

    def _shaped(self, index: Any, described: Any, shape: Any, copy: bool) -> "np.ndarray[Any, Any]":
        dtype = _dtypes.make(described)
        if dtype.hasobject or not _is_number(index) or _dtypes._shape(shape) is not shape:
            raise self._damaged("an array that is none")
        flat = self._flat(index, copy)
        if flat.nbytes != dtype.itemsize * math.prod(shape):
            raise self._damaged("an array of another size than its shape says")
        if not flat.nbytes:
            return np.empty(shape, dtype)
        made: np.ndarray[Any, Any] = flat.view(dtype).reshape(shape)
        return made

    def _flat(self, index: int, copy: bool) -> "np.ndarray[Any, Any]":
        """The memory of an array: each entry that has it gets the same."""
        if (index, copy) not in self._memory:
            record = self._stored.records[index]
            self._memory[index, copy] = self._small(record[1], copy) if len(record) == 2 else self._pieces(record[1], record[2], copy)
        return self._memory[index, copy]

    def _small(self, elements: bytes, copy: bool) -> "np.ndarray[Any, Any]":
        made = np.array(np.frombuffer(elements, np.uint8))
        made.flags.writeable = copy
        return made

    def _pieces(self, length: int, pieces: list[int], copy: bool) -> "np.ndarray[Any, Any]":
        if not copy and pieces[1:] == [0, length] and self._stored.crcs[pieces[0]][0] == length:
            return self._object(pieces[0])
        made = np.empty(length, np.uint8)
        place = 0
        for number, first, size in _triples(pieces):
            made[place : place + size] = self._object(number)[first : first + size]
            place += size
        made.flags.writeable = copy
        return made

    def _object(self, number: int) -> "np.ndarray[Any, Any]":
        """A view of an object, compared with its checksum."""
        if number not in self._objects:
            size, crc = self._stored.crcs[number]
            found = self._pool.array(_name(number))
            if found.dtype != np.uint8 or found.shape != (size,) or self._pool._native.array_crc(_name(number)) != crc:
                raise PoolDamagedError(
                    f"{self._pool.path}: {size} bytes of a saved state do not have their checksum: load another step, or a backup"
                )
            self._objects[number] = found
        return self._objects[number]

    def _tensor(self, array: "np.ndarray[Any, Any]", dtype: Any, grad: Any) -> Any:
        if "torch" not in sys.modules:
            try:
                importlib.import_module("torch")
            except ImportError:
                raise UnsupportedTypeError(f"{self._pool.path}: the state has tensors of torch, which is not installed here: pip install torch") from None
        return _tensors._make_torch((dtype, array, bool(grad)), False)
