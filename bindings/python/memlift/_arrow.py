# SPDX-License-Identifier: Apache-2.0 OR MIT
"""pyarrow's tables, batches, arrays and columns: an Arrow IPC stream whose buffers are copied once.

- **Flow** `reduce(value)` ─▶ kind and the parts of a stream … `MAKERS[kind](bytes)` ─▶ the value, validated in full
- **Rule** a type that the receiver does not know is refused there, never replaced by its storage
"""

import sys
from typing import Any

import numpy as np

from memlift.errors import UnsupportedTypeError


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


def reduce(value: Any) -> tuple[str, Any] | None:
    """Returns kind and the parts of a stream; None for what is neither table nor batch, array nor column. Raises UnsupportedTypeError for
    types that a stream does not have."""
    pa = sys.modules["pyarrow"]
    cls = type(value)
    if cls is pa.Table:
        kind, table = "table", value
    elif cls is pa.RecordBatch:
        kind, table = "batch", pa.Table.from_batches([value])
    elif cls is pa.ChunkedArray or isinstance(value, pa.Array) and (cls.__module__ == "pyarrow.lib" or isinstance(value, pa.ExtensionArray)):
        kind, table = "column" if cls is pa.ChunkedArray else "array", pa.table({"": value})
    else:
        return None
    if not table.num_columns and table.num_rows:
        raise UnsupportedTypeError(f"cannot send a pyarrow.{cls.__name__} of {table.num_rows} rows without columns: send their number")
    stream = _Stream()
    try:
        with pa.ipc.new_stream(pa.PythonFile(stream, mode="w"), table.schema) as writer:
            writer.write_table(table)
    except pa.ArrowException as error:
        raise UnsupportedTypeError(f"cannot send a pyarrow.{cls.__name__} of type {table.schema.types}: {error}") from error
    return f"arrow.{kind}", stream.parts


def _unknown(field: Any) -> str | None:
    """Returns the name of an extension type that this process does not know, inside a field."""
    if field.metadata and b"ARROW:extension:name" in field.metadata:
        return str(field.metadata[b"ARROW:extension:name"], "utf-8", "replace")
    found = (_unknown(field.type.field(at)) for at in range(field.type.num_fields))
    return next((name for name in found if name is not None), None)


def _table(data: Any) -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise UnsupportedTypeError("Arrow data came, but pyarrow is not installed here: pip install pyarrow") from None
    if type(data) is not np.ndarray:
        raise ValueError("no bytes")
    if not data.flags.writeable:
        # A peer's memory: it could be changed after the check, and Arrow follows offsets that it finds there.
        data = data.copy()
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    table.validate(full=True)
    for field in table.schema:
        name = _unknown(field)
        if name is not None:
            raise UnsupportedTypeError(
                f"Arrow data of the extension type {name} came, which this process does not know: pyarrow.register_extension_type() it"
            )
    return table


def _batch(data: Any) -> Any:
    table = _table(data)
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    if batches:
        return table.combine_chunks().to_batches()[0]
    return sys.modules["pyarrow"].RecordBatch.from_pylist([], table.schema)


def _array(data: Any) -> Any:
    column = _table(data).column(0)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


MAKERS = {
    "arrow.table": lambda data, _: _table(data),
    "arrow.batch": lambda data, _: _batch(data),
    "arrow.array": lambda data, _: _array(data),
    "arrow.column": lambda data, _: _table(data).column(0),
}
