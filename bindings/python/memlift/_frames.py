# SPDX-License-Identifier: Apache-2.0 OR MIT
"""pandas' frames, series and indexes, column by column: the dtype, the index, the names and the attributes that were sent.

- **Flow** `reduce(value)` ─▶ kind and plain data; `MAKERS[kind](data)` ─▶ the value
- **Rule** only exact classes, and only dtypes whose every element arrives as it was; the rest is UnsupportedTypeError
- **Layout** docs/formats/values.md, "pandas"
"""

import datetime
import sys
from typing import Any

import numpy as np

from memlift import _arrow
from memlift._kind import Kind
from memlift.errors import UnsupportedTypeError

_MASKED = {
    "boolean": "BooleanArray",
    "Float32": "FloatingArray",
    "Float64": "FloatingArray",
} | {f"{sign}{bits}": "IntegerArray" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)}
_INDEXES = ("Index", "DatetimeIndex", "TimedeltaIndex", "CategoricalIndex", "PeriodIndex", "IntervalIndex")


def _refused(what: str, advice: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"cannot send {what}: {advice}, or pass allow_pickle=True")


def reduce(value: Any, allow_pickle: bool) -> tuple[str, Any]:
    """Returns kind and plain data. Raises UnsupportedTypeError; with `allow_pickle` also where a pickle is the better way."""
    pd = sys.modules["pandas"]
    cls = type(value)
    if cls is pd.DataFrame:
        columns = [_column(value.iloc[:, at], allow_pickle) for at in range(value.shape[1])]
        return "pandas.frame", (columns, _index(value.columns, allow_pickle), _index(value.index, allow_pickle), _about(value))
    if cls is pd.Series:
        return "pandas.series", (_column(value, allow_pickle), value.name, _index(value.index, allow_pickle), _about(value))
    if cls is pd.RangeIndex or cls.__name__ in _INDEXES and cls is getattr(pd, cls.__name__):
        return "pandas.index", _index(value, allow_pickle)
    raise _refused(f"an object of type {cls.__module__}.{cls.__qualname__}", "send a pandas DataFrame, Series or Index, or .to_numpy()")


def _about(value: Any) -> tuple[dict[Any, Any], bool]:
    return dict(value.attrs), value.flags.allows_duplicate_labels


def _index(index: Any, allow_pickle: bool) -> tuple[Any, ...]:
    cls = type(index)
    pd = sys.modules["pandas"]
    if cls is pd.RangeIndex:
        return "RangeIndex", (index.start, index.stop, index.step), index.name, None
    if isinstance(index, pd.MultiIndex):
        raise _refused("a pandas MultiIndex", "reset_index() first")
    if cls.__name__ not in _INDEXES or cls is not getattr(pd, cls.__name__):
        raise _refused(f"an index of type {cls.__module__}.{cls.__qualname__}", "reset_index() first")
    freq = getattr(index, "freq", None) if cls.__name__ in ("DatetimeIndex", "TimedeltaIndex") else None
    if freq is not None and pd.tseries.frequencies.to_offset(freq.freqstr) != freq:
        raise _refused(f"an index with the frequency {freq!r}", "set its freq to None")
    return cls.__name__, _column(index, allow_pickle), index.name, freq and freq.freqstr


def _column(values: Any, allow_pickle: bool) -> Any:
    """Returns plain data for the elements of a series or an index."""
    pd = sys.modules["pandas"]
    dtype, array = values.dtype, values.array
    if isinstance(dtype, np.dtype):
        if dtype.hasobject:
            if allow_pickle:
                raise _refused("a column of Python objects", "a pickle has them")
            return "object", list(values.to_numpy())
        return "numpy", values.to_numpy()
    if type(dtype) is pd.CategoricalDtype:
        return "category", np.asarray(array.codes), _index(dtype.categories, allow_pickle), dtype.ordered
    if type(dtype) is pd.StringDtype:
        return _text(array, dtype)
    if type(dtype) is pd.DatetimeTZDtype:
        return "zoned", array.tz_convert(None).to_numpy(), _zone(dtype.tz)
    if dtype.name in _MASKED and type(array) is getattr(pd.arrays, _MASKED[dtype.name]):
        filler = False if dtype.name == "boolean" else 0
        return "masked", dtype.name, array.to_numpy(dtype.numpy_dtype, na_value=filler), np.asarray(array.isna())
    if type(dtype) is pd.ArrowDtype:
        return "arrow", _stream(array, dtype)
    if type(dtype) is pd.PeriodDtype and pd.api.types.pandas_dtype(dtype.name) == dtype:
        return "periods", dtype.name, array.asi8
    if type(dtype) is pd.IntervalDtype:
        return "intervals", _index(array.left, allow_pickle), _index(array.right, allow_pickle), array.closed
    raise _refused(f"a pandas column of dtype {dtype}", "convert it with .astype()")


def _stream(array: Any, dtype: Any) -> Kind:
    try:
        import pyarrow as pa
    except ImportError:
        raise _refused(f"a pandas column of dtype {dtype}", "it needs pyarrow: pip install pyarrow") from None
    try:
        made = _arrow.reduce(pa.array(array))
    except (pa.ArrowException, UnicodeError) as error:
        raise _refused(f"a pandas column of dtype {dtype}", f"Arrow refuses it ({error}); convert it with .astype()") from error
    assert made is not None, "pyarrow.array() gives an array or a column"
    return Kind(*made)


def _text(array: Any, dtype: Any) -> Any:
    nan = dtype.na_value is not sys.modules["pandas"].NA
    if dtype.storage == "python":
        return "text", [None if missing else str(text) for text, missing in zip(array, array.isna(), strict=True)], dtype.storage, nan
    return "text", _stream(array, dtype), dtype.storage, nan


def _zone(zone: Any) -> tuple[Any, ...]:
    import zoneinfo

    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return "zone", zone.key
    if type(zone) is datetime.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return "offset", offset // datetime.timedelta(microseconds=1), *name
    raise _refused(f"times of the zone {zone!r}", "use zoneinfo's time zones: .dt.tz_convert(zoneinfo.ZoneInfo(name))")


def _make_zone(kind: Any, *rest: Any) -> Any:
    if kind == "zone":
        import zoneinfo

        return zoneinfo.ZoneInfo(*rest)
    if kind != "offset":
        raise ValueError("a time zone of another kind")
    offset, *name = rest
    made = datetime.timezone(datetime.timedelta(microseconds=offset), *name)
    return datetime.timezone.utc if made == datetime.timezone.utc and not name else made


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise UnsupportedTypeError("data of pandas came, but pandas is not installed here: pip install pandas") from None
    return pd


def _make_column(kind: Any, *rest: Any) -> Any:
    """Returns the array of a column."""
    pd = _pandas()
    if kind == "numpy":
        (array,) = rest
        if type(array) is not np.ndarray or array.ndim != 1:
            raise ValueError("a column that is no array")
        return array
    if kind == "object":
        (values,) = rest
        array = np.empty(len(values), object)
        for at, value in enumerate(values):
            array[at] = value
        return array
    if kind == "category":
        codes, categories, ordered = rest
        return pd.Categorical.from_codes(codes, dtype=pd.CategoricalDtype(_make_index(categories), ordered))
    if kind == "text":
        values, storage, nan = rest
        dtype = pd.StringDtype(storage, na_value=np.nan if nan else pd.NA)
        return pd.array(values, dtype=dtype) if type(values) is list else dtype.__from_arrow__(values)
    if kind == "zoned":
        times, zone = rest
        return pd.DatetimeIndex(times).tz_localize("UTC").tz_convert(_make_zone(*zone)).array
    if kind == "masked":
        name, data, mask = rest
        made = getattr(pd.arrays, _MASKED[name])(data, mask)
        if made.dtype.name != name:
            raise ValueError("a column of another dtype")
        return made
    if kind == "arrow":
        return pd.arrays.ArrowExtensionArray(*rest)
    if kind == "periods":
        name, numbers = rest
        dtype = pd.api.types.pandas_dtype(name)
        if type(dtype) is not pd.PeriodDtype:
            raise ValueError("a column of another dtype")
        return pd.arrays.PeriodArray(numbers, dtype=dtype)
    if kind == "intervals":
        left, right, closed = rest
        return pd.arrays.IntervalArray.from_arrays(_make_index(left), _make_index(right), closed=closed)
    raise ValueError("a column of another kind")


def _make_index(described: Any) -> Any:
    pd = _pandas()
    kind, data, name, freq = described
    if kind == "RangeIndex":
        return pd.RangeIndex(*data, name=name)
    if kind not in _INDEXES:
        raise ValueError("an index of another kind")
    array = _make_column(*data)
    made = pd.Index(array, dtype=array.dtype, name=name, copy=False)
    if freq is not None:
        made = getattr(pd, kind)(made, freq=freq, name=name)
    if type(made).__name__ != kind:
        raise ValueError("an index of another kind")
    return made


def _series(array: Any) -> Any:
    return _pandas().Series(array, dtype=array.dtype, copy=False)


def _finish(made: Any, about: Any) -> Any:
    attrs, duplicates = about
    made.attrs = attrs
    return made if duplicates else made.set_flags(allows_duplicate_labels=False)


def _make_frame(value: Any, _: bool) -> Any:
    pd = _pandas()
    columns, names, index, about = value
    names, index = _make_index(names), _make_index(index)
    arrays = [_make_column(*column) for column in columns]
    if len(names) != len(arrays) or any(len(array) != len(index) for array in arrays):
        raise ValueError("columns that do not fit their index")
    frame = pd.DataFrame({at: _series(array) for at, array in enumerate(arrays)}, copy=False) if arrays else pd.DataFrame(index=index)
    frame.columns, frame.index = names, index
    return _finish(frame, about)


def _make_series(value: Any, _: bool) -> Any:
    column, name, index, about = value
    series = _series(_make_column(*column))
    series.index, series.name = _make_index(index), name
    return _finish(series, about)


MAKERS = {"pandas.frame": _make_frame, "pandas.series": _make_series, "pandas.index": lambda value, _: _make_index(value)}
