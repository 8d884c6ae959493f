# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Loads whole collections at once: from tables of Arrow, frames of pandas, CSV files, arrays, pairs.

Flow    anything with `__arrow_c_stream__` ─▶ the native reader, no copy; a path ─▶ the native CSV reader; arrays ─▶ as they lie;
        mappings and pairs ─▶ packed one by one
Order   all or nothing: an error, also one that `progress` raises, gives the memory back
"""

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from memlift import _native
from memlift.errors import BadArgumentError, BadInputError, UnsupportedValueError
from memlift.traverse._client import Client
from memlift.traverse._hash import HashMap, _key_name
from memlift.traverse._keys import Keys
from memlift.traverse._ordered import OrderedMap, _fixed
from memlift.traverse._values import Values, converted, is_mixed

__all__ = ["bulk_load", "load_hash", "load_ordered"]


def bulk_load(client: Client, source: Any, *, into: str = "ordered", **options: Any) -> Any:
    """A new collection of everything in `source`; into: "ordered" or "hash".

    source      a table or batches of Arrow, a frame of pandas or polars, the path of a CSV file, (keys, values) as two arrays, a
                mapping, or pairs
    key, value  of a table or a file: names of columns (or their numbers, of a file). Several values, by their names, become one
                record; without `value` all columns but the key's do. Numbers are kept with 8 bytes each
    key_type    of an ordered map: what its keys are, "u8", "i8", "f8", "S1" to "S8". Else floats are "f8", and whole numbers of which
                some are negative "i8"; of a file they are "u8". A hash map has int, "i8", float, bytes, str
    value_type  what values are, if it is not to be told by the source: bytes, str, a numpy dtype
    sorted      keys ascend strictly: then an ordered map is never all in memory here
    expected    of a hash map: for how many entries its chains are meant, if for more than there are
    scale       of a file: values are multiplied by it, and rounded to whole numbers. Without it whole numbers stay what they are, and
                if one has a fraction all are floats
    progress    called with the number of pairs written so far, some times; what it raises ends the load

    Of equal keys the last one counts (sorted: they are refused). Raises BadInputError, NodeFullError.
    """
    if into not in ("ordered", "hash"):
        raise BadArgumentError(f"into={into!r}: 'ordered' or 'hash'")
    return (OrderedMap if into == "ordered" else HashMap).load(client, source, **options)


def load_ordered(
    cls: type[OrderedMap],
    client: Client,
    source: Any,
    *,
    key: str | int = "key",
    value: Any = None,
    value_type: Any = None,
    key_type: Any = None,
    sorted: bool = False,
    scale: float | None = None,
    progress: Callable[[int], Any] | None = None,
) -> OrderedMap:
    """See `OrderedMap.load`."""
    given = None if value_type is None else _fixed(value_type)
    kind = "sorted" if sorted else "unsorted"
    source, keys, key = _with_numbers(source, key, value, key_type, given, scale)
    (cell, _), values, _ = _load(client, kind, source, key, value, given, scale, None, progress)
    made = _fixed(values.dtype if values.dtype is not None else values.name)
    return cls(client, _native.WalkOrdered.open(client._native, cell, made.bytes), made, keys)


def _with_numbers(
    source: Any, key: str | int, value: Any, key_type: Any, given: Values | None, scale: float | None
) -> tuple[Any, Keys, Any]:
    """The source with the numbers of its keys in their place, and what keys they are. Keys that are such numbers stay where they are."""
    keys = None if key_type is None else Keys(key_type)
    if isinstance(source, str | os.PathLike):
        if keys is None or keys.name == "u8":
            return source, Keys(), key
        return _csv_arrays(os.fspath(source), keys, key, "value" if value is None else value, given, scale), keys, key
    if hasattr(source, "__arrow_c_stream__") and not isinstance(key, int):
        return _table_with_numbers(source, keys, key)
    if isinstance(source, Mapping):
        source = list(source.items())
    if isinstance(source, tuple) and len(source) == 2 and all(hasattr(part, "__len__") for part in source):
        array = np.asarray(source[0])
        if keys is None and array.dtype.kind in "SUO" and not isinstance(source[0][0] if len(source[0]) else 0, int | float):
            return source, Keys(), key
        keys = keys or (Keys.of_pairs(array.tolist()) if array.dtype.kind == "O" else Keys.of_array(array))
        return (_packed(keys, array), source[1]), keys, key
    if isinstance(source, Iterable):
        pairs = list(source)
        try:
            keys = keys or Keys.of_pairs(pair[0] for pair in pairs)
        except (TypeError, IndexError, KeyError):
            # The reader of pairs says which one is none.
            keys = Keys()
        if keys.name != "u8":
            pairs = [(_packed_one(keys, row, pair[0]), pair[1]) for row, pair in enumerate(pairs)]
        return pairs, keys, key
    return source, keys or Keys(), key


def _packed(keys: Keys, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if keys.name == "u8" and array.dtype.kind not in "iuf":
        # The reader of pairs says what is wrong, and where.
        return array
    try:
        return keys.pack_array(array)
    except UnsupportedValueError:
        return np.array([_packed_one(keys, row, one) for row, one in enumerate(array.tolist())], np.uint64)


def _packed_one(keys: Keys, row: int, key: Any) -> int:
    try:
        return keys.pack(key)
    except UnsupportedValueError as error:
        raise BadInputError(f"row {row + 1}: {error}") from None


def _table_with_numbers(source: Any, keys: Keys | None, key: str) -> tuple[Any, Keys, str]:
    """Tables whose keys are floats, or said to be something else than numbers from 0, become arrays."""
    try:
        words = _arrow_type(source, key).lower()
    except KeyError:
        # The reader of tables says which columns there are.
        return source, keys or Keys(), key
    if keys is None:
        keys = Keys("f8") if words.startswith(("float", "double", "halffloat")) else Keys()
        if keys.name == "u8" and words.startswith("int") and hasattr(source, "__getitem__"):
            keys = Keys.of_array(np.asarray(source[key]))
    if keys.name == "u8":
        return source, keys, key
    column = source[key]
    array = np.asarray(column)
    if getattr(column, "null_count", 0) or (hasattr(column, "isna") and column.isna().any()):
        raise BadInputError("a row is null: fill or drop such rows first")
    numbers = _packed(keys, array)
    if hasattr(source, "set_column"):
        return source.set_column(source.column_names.index(key), key, [numbers]), keys, key
    if hasattr(source, "with_columns"):
        return source.with_columns(type(column)(key, numbers)), keys, key
    return source.assign(**{key: numbers}), keys, key


def _csv_arrays(
    path: str, keys: Keys, key: str | int, value: Any, given: Values | None, scale: float | None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Keys, as numbers, and values of a file whose keys are not numbers from 0."""
    of_key, of_value = _csv_columns(path, key, value)
    has_header = isinstance(key, str) or isinstance(value, str)
    as_float = given is not None and given.dtype == np.dtype("<f8")
    numbers: list[int] = []
    values: list[tuple[int, int | float]] = []
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(line for line in file if line.strip() and not line.startswith("#"))
        for row, parts in enumerate(rows):
            if row == 0 and has_header:
                continue
            try:
                text = parts[of_key].strip()
                one = text.encode() if keys.bytes else _csv_number(text)
                number = _csv_number(parts[of_value])
            except (ValueError, IndexError) as error:
                # Without names of columns, a first line that has no number for a key is a header.
                if row == 0 and not _is_number(parts[of_key] if of_key < len(parts) else ""):
                    continue
                raise BadInputError(f"{path}, row {row + 1}: {error}") from None
            if scale is not None:
                number = number * scale if as_float else round(number * scale)
            numbers.append(_packed_one(keys, row, one))
            values.append((row, number))
    as_float |= given is None and any(isinstance(number, float) for _, number in values)
    dtype = np.dtype("<f8" if as_float else "<i8")
    return np.array(numbers, np.uint64), np.array([_one_fitted(row, number, dtype) for row, number in values], dtype)


def _csv_number(text: str) -> int | float:
    """The number of a field; a whole number as one. Python's own readers also take 1_000 and other scripts' digits."""
    text = text.strip()
    if not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is no number")
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if math.isinf(number) and not text.lstrip("+-").lower().startswith("inf"):
        raise ValueError(f"{text!r} is beyond all floats")
    return number


def _is_number(text: str) -> bool:
    try:
        _csv_number(text)
    except ValueError:
        return False
    return True


def load_hash(
    cls: type[HashMap],
    client: Client,
    source: Any,
    *,
    key: str | int = "key",
    value: Any = None,
    value_type: Any = None,
    key_type: Any = None,
    expected: int | None = None,
    scale: float | None = None,
    progress: Callable[[int], Any] | None = None,
) -> HashMap:
    """See `HashMap.load`."""
    given = None if value_type is None else Values(value_type)
    log2 = None if expected is None else max(expected - 1, 0).bit_length()
    wanted = None if key_type is None else _key_name(key_type)
    numbers = None
    if wanted not in ("int", "bytes", "str"):
        source, numbers, key = _with_numbers(source, key, value, wanted, given, scale)
    (heads, log2), values, keys = _load(client, "hash", source, key, value, given, scale, log2, progress)
    name = wanted or (numbers.name if numbers is not None and numbers.name != "u8" else keys)
    return cls(client, _native.WalkHash.open(client._native, heads, log2), name, values)


def _load(
    client: Client,
    kind: str,
    source: Any,
    key: str | int,
    value: Any,
    given: Values | None,
    scale: float | None,
    log2: int | None,
    progress: Callable[[int], Any] | None,
) -> tuple[tuple[int, int], Values, str]:
    """Handle, what values are, what keys are."""
    native = client._native
    if isinstance(source, str | os.PathLike):
        columns = _csv_columns(source, key, "value" if value is None else value)
        return _of_csv(native, kind, os.fspath(source), columns, given, scale, log2, progress)
    if hasattr(source, "__arrow_c_stream__") and not isinstance(key, int):
        names = [value] if isinstance(value, str) else value
        try:
            return _of_arrow(native, kind, source, key, names, given, log2, progress)
        except OverflowError as error:
            raise BadInputError(f"a column has a number beyond 64 bits: {error}") from None
        except ImportError:
            # A frame of pandas asks pyarrow for its stream.
            return _of_frame(client, kind, source, key, names, given, log2, progress)
    if isinstance(source, Mapping):
        return _of_pairs(native, kind, source.items(), given, log2, progress)
    if isinstance(source, tuple) and len(source) == 2 and all(hasattr(part, "__len__") for part in source):
        return _of_arrays(native, kind, source[0], source[1], given, log2, progress)
    if isinstance(source, Iterable):
        return _of_pairs(native, kind, source, given, log2, progress)
    raise BadInputError(f"a {type(source).__name__} cannot be loaded: give a table, a frame, a path, (keys, values), or pairs")


def _of_csv(
    native: Any,
    kind: str,
    path: str,
    columns: tuple[int, int],
    given: Values | None,
    scale: float | None,
    log2: int | None,
    progress: Any,
) -> tuple[tuple[int, int], Values, str]:
    names = {np.dtype("<i8"): "i8", np.dtype("<f8"): "f8"}
    if given is not None and given.dtype not in names:
        raise BadArgumentError(f"value_type={given.name!r} of a file: 'i8' or 'f8'")
    as_float = given is not None and names[given.dtype] == "f8"
    try:
        handle = _native.walk_load_csv(native, kind, path, *columns, scale, as_float, log2, progress)
    except BadInputError as error:
        # A number with a fraction: then all are floats, unless whole numbers were asked for.
        if given is not None or as_float or "has a fraction" not in str(error):
            raise
        as_float = True
        handle = _native.walk_load_csv(native, kind, path, *columns, scale, as_float, log2, progress)
    return handle, Values("f8" if as_float else "i8"), "int"


def _of_arrow(
    native: Any,
    kind: str,
    source: Any,
    key: str,
    names: list[str] | None,
    given: Values | None,
    log2: int | None,
    progress: Any,
) -> tuple[tuple[int, int], Values, str]:
    handle, contents = _native.walk_load_arrow(native, kind, source, key, names, log2, progress)
    if given is not None:
        if not _matches(given, contents):
            _drop(native, kind, handle, sum(content[2] for content in contents))
            columns = ", ".join(f"{name} of {letter}" for name, letter, _ in contents)
            raise BadInputError(f"value_type={given.name!r}, and the table has {columns}: cast the column, or leave value_type out")
        return handle, given, _arrow_keys(source, key)
    if len(contents) == 1:
        return handle, Values(_arrow_text(source, contents[0])), _arrow_keys(source, key)
    return handle, Values([(name, letter) for name, letter, _ in contents]), _arrow_keys(source, key)


def _matches(given: Values, contents: list[tuple[str, str, int]]) -> bool:
    """True if values of a table are of this type as they lie in memory."""
    if given.dtype is None:
        return len(contents) == 1 and contents[0][1] == "bytes"
    letters = [letter for _, letter, _ in contents]
    if letters == ["bytes"]:
        return False
    if len(letters) == 1 and letters[0].startswith("V"):
        return given.bytes == contents[0][2]
    names = given.dtype.names
    kinds = [given.dtype] if names is None else [given.dtype[name] for name in names]
    return kinds == [np.dtype(letter).newbyteorder("<") for letter in letters]


def _drop(native: Any, kind: str, handle: tuple[int, int], value_bytes: int) -> None:
    if kind == "hash":
        _native.WalkHash.open(native, *handle).drop()
    else:
        _native.WalkOrdered.open(native, handle[0], max(value_bytes, 1)).drop()


def _arrow_type(source: Any, name: str) -> str:
    """What a table says that a column is, in words."""
    schema = getattr(source, "schema", None)
    try:
        return str(schema.field(name).type)  # type: ignore[union-attr]
    except (AttributeError, KeyError, TypeError):
        column = source[name] if hasattr(source, "__getitem__") else None
        return str(getattr(column, "dtype", ""))


def _arrow_text(source: Any, content: tuple[str, str, int]) -> Any:
    name, letter, _ = content
    return "str" if letter == "bytes" and _is_text(_arrow_type(source, name)) else letter


def _is_text(words: str) -> bool:
    return words.lower() in ("string", "large_string", "str", "utf8", "object")


def _arrow_keys(source: Any, name: str) -> str:
    words = _arrow_type(source, name).lower()
    if _is_text(words):
        return "str"
    return "bytes" if "binary" in words else "int"


def _of_frame(
    client: Client,
    kind: str,
    frame: Any,
    key: str,
    names: list[str] | None,
    given: Values | None,
    log2: int | None,
    progress: Any,
) -> tuple[tuple[int, int], Values, str]:
    columns = list(frame.columns)
    wanted = [name for name in columns if name != key] if names is None else names
    absent = [name for name in [key, *wanted] if name not in columns]
    if absent or not wanted:
        raise BadInputError(f"there is no column {absent[0] if absent else 'for values'!r}: the table has {columns}")
    if frame[[key, *wanted]].isna().any().any():
        raise BadInputError("a row is null: fill or drop such rows first")
    parts = [frame[name].to_numpy() for name in wanted]
    if len(parts) == 1:
        values = parts[0]
    else:
        if any(part.dtype.kind not in "iuf" for part in parts):
            raise BadInputError("several columns become one record only if they are numbers")
        wide = [_widened(part) for part in parts]
        values = np.empty(len(frame), [(name, part.dtype) for name, part in zip(wanted, wide, strict=True)])
        for name, part in zip(wanted, wide, strict=True):
            values[name] = part
    return _of_arrays(client._native, kind, frame[key].to_numpy(), values, given, log2, progress)


def _widened(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers of 8 bytes."""
    wide = {"i": "<i8", "u": "<u8", "b": "<u8", "f": "<f8"}.get(values.dtype.kind)
    return values if wide is None or values.dtype.names else values.astype(wide, copy=False)


def _of_arrays(
    native: Any, kind: str, keys: Any, values: Any, given: Values | None, log2: int | None, progress: Any
) -> tuple[tuple[int, int], Values, str]:
    if len(keys) != len(values):
        raise BadInputError(f"{len(keys)} keys and {len(values)} values")
    # Of a list of whole numbers and floats, numpy makes floats, and not all of them are the numbers given.
    mixed = not isinstance(values, np.ndarray) and isinstance(values, list | tuple) and is_mixed(values, np.asarray(values))
    if mixed and given is None:
        given = Values("f8")
    if mixed and given is not None and given.dtype is not None:
        values = [_one_fitted(row, value, given.dtype) for row, value in enumerate(values)]
    keys, values = np.asarray(keys), np.asarray(values)
    if keys.dtype.kind not in "iu" or values.dtype.kind in "OUS" or values.ndim != 1:
        return _of_pairs(native, kind, zip(keys.tolist(), values.tolist(), strict=True), given, log2, progress)
    packed = Values(_widened(values).dtype) if given is None else given
    if packed.dtype is None:
        raise BadInputError(f"values are numbers, and not {packed.name}")
    laid = np.ascontiguousarray(_fitted(values, packed), packed.dtype)
    raw = laid.view(np.uint8) if len(laid) else np.empty(0, np.uint8)
    handle = _native.walk_load_arrays(native, kind, Keys().pack_array(keys), raw, packed.bytes, log2, progress)
    return handle, packed, "int"


def _fitted(values: np.ndarray[Any, Any], packed: Values) -> np.ndarray[Any, Any]:
    assert packed.dtype is not None
    try:
        return converted(values, packed.dtype)
    except UnsupportedValueError:
        # The first one says it better than the whole array.
        for row, value in enumerate(values):
            _one_fitted(row, value, packed.dtype)
        raise


def _one_fitted(row: int, value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        return converted(value, dtype)
    except UnsupportedValueError as error:
        raise BadInputError(f"row {row + 1}: {error}") from None


def _of_pairs(
    native: Any, kind: str, pairs: Iterable[Any], given: Values | None, log2: int | None, progress: Any
) -> tuple[tuple[int, int], Values, str]:
    packed, kinds = [], set()
    values = given
    for row, pair in enumerate(pairs):
        try:
            key, value = pair
        except (TypeError, ValueError):
            raise BadInputError(f"pair {row + 1}: {pair!r} is no key and value") from None
        if values is None:
            values = Values(_guess(value))
        kinds.add("str" if isinstance(key, str) else "int" if isinstance(key, int | np.integer) else "bytes")
        key = key.encode() if isinstance(key, str) else int(key) if isinstance(key, np.integer) else key
        packed.append((key, values.pack(value)))
    if len(kinds) > 1:
        raise BadInputError(f"keys of several kinds ({', '.join(sorted(kinds))}): a map's keys are of one")
    values = values or Values(bytes if kind == "hash" else "i8")
    if kind != "hash" and values.bytes == 0:
        raise BadInputError("an ordered map's values have one length: give numbers, or bytes of one length with value_type='V…'")
    handle = _native.walk_load_pairs(native, kind, packed, values.bytes, log2, progress)
    return handle, values, kinds.pop() if kinds else "int"


def _guess(value: Any) -> Any:
    """What values are, by the first of them."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return str if isinstance(value, str) else bytes
    if isinstance(value, bool | int | np.integer):
        return "i8"
    if isinstance(value, float | np.floating):
        return "f8"
    return np.asarray(value).dtype


def _csv_columns(path: str | os.PathLike[str], key: str | int, value: Any) -> tuple[int, int]:
    """The numbers of the columns, whose names stand in the first line."""
    if isinstance(key, int) and isinstance(value, int):
        return key, value
    with open(path, newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(line for line in file if line.strip() and not line.startswith("#")), [])
    names = [name.strip() for name in header]
    places = []
    for column in (key, value):
        if isinstance(column, int):
            places.append(column)
        elif column in names:
            places.append(names.index(column))
        else:
            raise BadInputError(f"{os.fspath(path)}: there is no column {column!r}: the first line has {', '.join(names)}")
    return places[0], places[1]
