# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Values that are more than plain data: how they are taken apart to be sent, and put together from what came.

Flow     reduce(value) ──▶ (kind, plain value) … the other process … restore(kind, plain value) ──▶ value
Rule     nothing that came may choose code to run: a dataclass is made only if this process has registered it, a pickle is read
         only where it was allowed on both sides
Not here plain data, arrays of plain types: the native part has them
"""

import dataclasses
import math
import pickle
import sys
from typing import Any, TypeVar

import numpy as np

from memlift.errors import Corrupt, UnsupportedType

_Class = TypeVar("_Class", bound=type)
_classes: dict[str, type] = {}
_CPU = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost: memory that this processor reads


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def register(cls: _Class) -> _Class:
    """Lets this process receive instances of a dataclass. Use it as a decorator where the class is defined:

        @memlift.register
        @dataclasses.dataclass
        class Batch:
            images: np.ndarray
            labels: np.ndarray

    Only the fields travel. The receiver makes an instance without calling `__init__` or `__post_init__`. Classes are told
    apart by module and name; in a script that spawns, `__main__` stands for `__mp_main__`.

    Raises TypeError for what is not a dataclass.
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"{cls!r} is not a dataclass: put @dataclasses.dataclass below @memlift.register")
    _classes[_name(cls).replace("__mp_main__:", "__main__:")] = cls
    return cls


def _unsupported(value: Any, advice: str) -> UnsupportedType:
    return UnsupportedType(f"cannot send an object of type {type(value).__name__}: {advice}")


def _bytes_of(array: Any) -> Any:
    """The memory of an array of any type, as one row of bytes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8) if flat.dtype.itemsize else np.empty(0, np.uint8)


def _record(array: Any) -> tuple[str, Any]:
    if array.dtype.hasobject:
        raise UnsupportedType(
            f"cannot send an array of dtype {array.dtype}: its elements are Python objects; convert it to an array of bool, "
            "integer, float or complex, or to a list"
        )
    shape = tuple(array.shape)
    return "record", (np.lib.format.dtype_to_descr(array.dtype), shape, _bytes_of(array))


def _on_device(value: Any) -> UnsupportedType:
    return _unsupported(value, "it lies in the memory of a GPU; copy it to the host first, with .cpu() or cupy.asnumpy()")


class _Stream:
    """A file that keeps what is written to it where it is: columns are copied once, to where the whole goes."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def write(self, data: Any) -> int:
        if type(data) is bytes and self.parts and type(self.parts[-1]) is bytes:
            self.parts[-1] += data
        else:
            self.parts.append(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _arrow(value: Any) -> tuple[str, Any]:
    import pyarrow as pa

    kind = "table"
    if isinstance(value, pa.Table):
        table = value
    elif isinstance(value, pa.RecordBatch):
        kind, table = "batch", pa.Table.from_batches([value])
    else:
        kind, table = "array" if isinstance(value, pa.Array) else "column", pa.table({"": value})
    stream = _Stream()
    with pa.ipc.new_stream(pa.PythonFile(stream, mode="w"), table.schema) as writer:
        writer.write_table(table)
    return f"arrow.{kind}", stream.parts


def _pandas(value: Any) -> tuple[str, Any]:
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        return "frame", _frame(value)
    if isinstance(value, pd.Series):
        return "series", _frame(value.to_frame("" if value.name is None else value.name)) | {"unnamed": value.name is None}
    raise _unsupported(value, "send a DataFrame, a Series or .to_numpy()")


def _frame(frame: Any) -> dict[str, Any]:
    import pandas as pd

    def column(values: Any) -> Any:
        if isinstance(values.dtype, np.dtype) and not values.dtype.hasobject:
            return values.to_numpy()
        try:
            import pyarrow as pa
        except ImportError:
            raise _unsupported(frame, "its columns of text or categories need pyarrow: pip install pyarrow") from None
        try:
            return _Kind(*_arrow(pa.array(values, from_pandas=True))), str(values.dtype)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise _unsupported(frame, f"a column of Python objects cannot be sent ({error})") from None

    index, names = frame.index, frame.columns
    if isinstance(index, pd.MultiIndex) or isinstance(names, pd.MultiIndex):
        raise _unsupported(frame, "reset_index() first: an index of several levels is not sent")
    ranged = type(index) is pd.RangeIndex
    return {
        "columns": (names.start, names.stop, names.step) if type(names) is pd.RangeIndex else list(names),
        "data": [column(frame.iloc[:, at]) for at in range(frame.shape[1])],
        "index": (index.start, index.stop, index.step) if ranged else column(index.to_series()),
        "index_name": index.name,
        "ranged": ranged,
    }


@dataclasses.dataclass
class _Kind:
    """Already taken apart."""

    kind: str
    value: Any


def reduce(value: Any, allow_pickle: bool) -> tuple[str, Any]:
    """What stands for `value`: a kind and plain data. An empty kind: the data is the value. Of Arrow: the buffers of a stream."""
    cls = type(value)
    if cls is _Kind:
        return value.kind, value.value
    if isinstance(value, np.generic):
        return ("record", _record(np.asarray(value))[1]) if value.dtype.kind in "VO" else ("scalar", value)
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise _unsupported(value, "send .data and .mask, or .filled()")
        if cls is np.ndarray:
            if value.dtype.kind in "mM":
                return "times", (value.dtype.str, tuple(value.shape), np.ascontiguousarray(value).reshape(-1).view("i8"))
            return _pickled(value) if value.dtype.hasobject and allow_pickle else _record(value)
        return "", np.asarray(value)
    if hasattr(value, "__cuda_array_interface__"):
        raise _on_device(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return "dataclass", (_name(cls).replace("__mp_main__:", "__main__:"), fields)
    library = cls.__module__.partition(".")[0]
    if library == "pandas":
        return _pandas(value)
    if library == "pyarrow":
        pa = sys.modules["pyarrow"]
        if isinstance(value, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
            return _arrow(value)
    if hasattr(value, "__dlpack_device__"):
        device = value.__dlpack_device__()[0]
        if device not in _CPU:
            raise _on_device(value)
        if hasattr(value, "detach"):
            value = value.detach()
        return "", np.from_dlpack(value)
    if hasattr(value, "__array__") and not isinstance(value, type):
        return "", np.asarray(value)
    if allow_pickle:
        return _pickled(value)
    raise _unsupported(
        value, "make it of numbers, text, bytes, lists, dicts, arrays or dataclasses of these, or pass allow_pickle=True"
    )


def restore(kind: str, value: Any, allow_pickle: bool) -> Any:
    """The value of a kind. Raises Corrupt for what `reduce` cannot have made."""
    try:
        make = _MAKERS[kind]
    except KeyError:
        raise Corrupt(f"the message is with a value of kind {kind!r}: nothing of it was used") from None
    try:
        return make(value, allow_pickle)
    except (Corrupt, UnsupportedType):
        raise
    except Exception as error:
        raise Corrupt(f"the message is with a broken {kind} ({type(error).__name__}: {error})") from error


def _pickled(value: Any) -> tuple[str, Any]:
    buffers: list[Any] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return "pickle", [data, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]]


def put_into(came: Any, out: Any) -> Any:
    """Copies what came into memory of the caller's: an array of its type and shape, or a buffer as long as its bytes or longer.

    Gives `out`, or the number of bytes. Raises ValueError when it does not fit, TypeError when it is neither bytes nor array.
    """
    if isinstance(came, (bytes, bytearray)):
        came = np.frombuffer(came, np.uint8)
    if not isinstance(came, np.ndarray):
        raise TypeError(f"what came is of type {type(came).__name__}: out takes bytes and arrays")
    if isinstance(out, np.ndarray):
        if out.shape != came.shape or out.dtype != came.dtype:
            raise ValueError(f"what came is {came.dtype}{list(came.shape)}, out is {out.dtype}{list(out.shape)}: make out like it")
        np.copyto(out, came)
        return out
    target = memoryview(out).cast("B")
    if len(target) < came.nbytes:
        raise ValueError(f"what came has {came.nbytes} bytes, out {len(target)}: make out longer")
    target[: came.nbytes] = came.reshape(-1).view(np.uint8)
    return came.nbytes


def _shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is not tuple or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise ValueError("a shape that is none")
    return shape


def _make_times(value: Any, _: bool) -> Any:
    name, shape, numbers = value
    if not (type(name) is str and name[1:2] in ("m", "M") and type(numbers) is np.ndarray):
        raise ValueError("not times")
    return numbers.view(np.dtype(name)).reshape(_shape(shape))


def _make_record(value: Any, _: bool) -> Any:
    descr, shape, data = value
    dtype = np.lib.format.descr_to_dtype(descr)
    if dtype.hasobject or dtype.kind == "O":
        raise ValueError("elements that are objects")
    if type(data) is not np.ndarray or data.dtype != np.uint8 or data.ndim != 1:
        raise ValueError("elements that are no bytes")
    if not dtype.itemsize:
        if math.prod(_shape(shape)) > 1 << 16:
            raise ValueError("more elements of no bytes than anybody needs")
        return np.empty(_shape(shape), dtype)
    return data.view(dtype).reshape(_shape(shape))


def _make_dataclass(value: Any, _: bool) -> Any:
    name, fields = value
    cls = _classes.get(name)
    if cls is None:
        raise UnsupportedType(
            f"a dataclass {name} came, which this process has not registered: import its module, and put @memlift.register "
            "above the class"
        )
    if type(fields) is not dict or set(fields) != {field.name for field in dataclasses.fields(cls)}:
        raise ValueError(f"fields that are not those of {name}")
    made = object.__new__(cls)
    for field, content in fields.items():
        object.__setattr__(made, field, content)
    return made


def _arrow_table(data: Any) -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise UnsupportedType("Arrow data came, but pyarrow is not installed here: pip install pyarrow") from None
    if type(data) is not np.ndarray:
        raise ValueError("no bytes")
    if not data.flags.writeable:
        # A peer's memory: what was checked could be changed afterwards, and Arrow follows offsets that it finds there.
        data = data.copy()
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    table.validate(full=True)
    return table


def _make_table(data: Any, _: bool) -> Any:
    return _arrow_table(data)


def _make_batch(data: Any, _: bool) -> Any:
    table = _arrow_table(data)
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    return table.combine_chunks().to_batches()[0] if batches else sys.modules["pyarrow"].RecordBatch.from_pylist([], table.schema)


def _make_column(data: Any, _: bool) -> Any:
    return _arrow_table(data).column(0)


def _make_array(data: Any, _: bool) -> Any:
    column = _arrow_table(data).column(0)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _make_frame(value: Any, _: bool) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise UnsupportedType("a DataFrame came, but pandas is not installed here: pip install pandas") from None

    def column(data: Any) -> Any:
        if isinstance(data, tuple):
            data, dtype = data
            return pd.Series(data.to_pandas()).astype(dtype)
        return pd.Series(data, copy=False)

    columns = [column(data) for data in value["data"]]
    names = value["columns"]
    names = pd.RangeIndex(*names) if type(names) is tuple else pd.Index(names)
    if len(names) != len(columns):
        raise ValueError("columns without names")
    if value["ranged"]:
        index = pd.RangeIndex(*value["index"], name=value["index_name"])
    else:
        index = pd.Index(column(value["index"]), name=value["index_name"])
    frame = pd.DataFrame(dict(enumerate(columns)), copy=False) if columns else pd.DataFrame(index=index)
    if columns and len(frame) != len(index):
        raise ValueError("an index of another length")
    frame.columns = names
    frame.index = index
    return frame


def _make_series(value: Any, allow: bool) -> Any:
    frame = _make_frame(value, allow)
    series = frame.iloc[:, 0]
    if value["unnamed"]:
        series.name = None
    return series


def _make_pickle(value: Any, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise UnsupportedType("a pickle came, which may run any code: pass allow_pickle=True here too if you trust its sender")
    data, buffers = value
    return pickle.loads(data, buffers=buffers)


_MAKERS = {
    "times": _make_times,
    "record": _make_record,
    "dataclass": _make_dataclass,
    "arrow.table": _make_table,
    "arrow.batch": _make_batch,
    "arrow.array": _make_array,
    "arrow.column": _make_column,
    "frame": _make_frame,
    "series": _make_series,
    "pickle": _make_pickle,
}
