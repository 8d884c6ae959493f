# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Values that travel without pickle: what comes out is what went in, and hostile bytes are refused.

Method  a queue within one process; random nested values; the bytes of a message changed at random places
"""

import dataclasses
import gc
import math
import random
import struct

import numpy as np
import pytest

import memlift
from memlift import _arrow

SEED = 20261122


@memlift.register
@dataclasses.dataclass
class Batch:
    images: np.ndarray
    labels: list
    scale: float = 1.0


@memlift.register
@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float


@dataclasses.dataclass
class Unregistered:
    x: int


@pytest.fixture(scope="module")
def there():
    """there(value): the value after a way through a queue."""
    queue = memlift.Queue()

    def there(value):
        queue.put(value)
        return queue.get()

    return there


def same(a, b):
    if isinstance(a, (np.ndarray, np.generic)):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and np.shape(a) == np.shape(b)
            and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b or a != a and b != b


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**200), 1.5, math.inf, math.nan, -0.0, 1 - 2j, "", "grüße 🐝", "\ud800", "/tmp/\udcff.txt",
        b"", b"x" * 5000, bytearray(b"abc"), [], (), {}, set(), frozenset(), [[[]]], {1, 2}, frozenset("ab"),
        {"a": [1, (2.0, None)], 3: {"b": b"c"}, (1, 2): "key"}, Point(1.0, 2.0), [Point(0.0, -1.0)] * 2,
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values(there, value):
    assert same(there(value), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3), np.arange(6, dtype=">i4"), np.array(3.5), np.zeros((0, 3)), np.zeros((3, 0), "f2"),
        np.array(["a", "bcd"]), np.array([b"a", b"bcd"]), np.array(["2026-01-01", "NaT"], "M8[D]"), np.array([1, 2], "m8[us]"),
        np.array(["2026-01-01T10"], "M8[25s]"), np.array([1, 2], np.longdouble), np.array([True, False]), np.array([1j], "c8"),
        np.array([(1, 2.0, b"x")], [("a", "i4"), ("b", "f8"), ("c", "S3")]), np.zeros(3, np.dtype("i1,f8", align=True)),
        np.zeros((2, 2), [("p", "f4", (3,)), ("q", [("r", "M8[s]")])]), np.array((1, 2), "i4,i4"), np.zeros(2, "V5"),
        np.zeros((1,) * 12), np.float32(2.5), np.int8(-3), np.datetime64("2026-11-22"), np.str_("x"), np.bool_(True),
        np.zeros((), "V3"), np.zeros(0, "M8[s]"),
    ],
    ids=lambda a: f"{a.dtype}-{a.shape}",
)  # fmt: skip
def test_arrays_of_every_type(there, array):
    assert same(there(array), array)
    assert same(there({"a": [array, array]})["a"][1], array)


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::-1], lambda a: a[:, ::3], np.asfortranarray])
def test_any_memory_layout(there, view):
    array = view(np.arange(77 * 13).reshape(77, 13))
    assert same(there(array), array)
    assert there(np.asfortranarray(np.ones((30, 40)))).flags.f_contiguous


class Computed:
    """Nothing but an array that its class makes."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(5.0)


class Measured(Computed):
    """An array and a unit."""

    def __init__(self):
        self.unit = "m"


def test_what_loses_only_its_class_warns_and_what_loses_more_is_refused(there):
    mapped = np.arange(5).view(np.memmap)
    for value, plain in ((memoryview(b"abc"), b"abc"), (memoryview(b"abcdef")[::2], b"ace"), (Computed(), np.arange(5.0)),
                         (mapped, np.arange(5)), (Tensor(np.arange(7.0)), np.arange(7.0))):  # fmt: skip
        with pytest.warns(DeprecationWarning, match="arrives as .*a later version of memlift refuses it") as warned:
            assert same(there(value), plain)
        assert warned[0].filename == __file__, "it is told where it was put"
    with pytest.raises(memlift.UnsupportedTypeError, match="Measured.*only its bare array"):
        there(Measured())


def test_dataclasses_are_made_only_where_they_are_registered(there):
    batch = Batch(np.arange(10), ["a"], 2.0)
    assert same(there(batch), batch)
    with pytest.raises(memlift.UnsupportedTypeError, match="has not registered.*@memlift.register"):
        there(Unregistered(1))
    with pytest.raises(TypeError, match="not a dataclass"):
        memlift.register(int)


class Elsewhere:
    """What a tensor on a GPU looks like from outside."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class CudaArray:
    __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (0, False), "version": 3}


class CudaTensor:
    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise AssertionError("nobody may ask for it")


class Tensor:
    """A tensor in host memory that knows only DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


@pytest.mark.parametrize("value", [CudaArray(), CudaTensor(), [CudaTensor()]], ids=["interface", "dlpack", "nested"])
def test_memory_of_a_gpu_is_refused_with_advice(there, value):
    with pytest.raises(memlift.UnsupportedTypeError, match=r"\.cpu\(\)"):
        there(value)


def test_dlpack(there):
    came = there(np.arange(2000.0))
    assert np.shares_memory(np.from_dlpack(came), came)
    assert came.__dlpack__(max_version=(1, 0)) is not None


def test_what_cannot_be_sent_says_what_to_do(there):
    for bad in (object(), lambda: 0, int, range(3), Elsewhere()):
        with pytest.raises(memlift.UnsupportedTypeError):
            there(bad)
    with pytest.raises(memlift.UnsupportedTypeError, match="Python objects"):
        there(np.array([object()]))
    with pytest.raises(memlift.UnsupportedTypeError, match="Python objects"):
        there(np.zeros(1, [("a", "O")]))
    endless = []
    endless.append(endless)
    with pytest.raises(memlift.UnsupportedTypeError, match="100 deep"):
        there(endless)
    assert there(1) == 1


def test_arrow_without_a_copy(there):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"n": list(range(1000)), "text": [None, "a"] * 500, "list": [[1], []] * 500})
    came = there(table)
    assert came.equals(table)
    # What is sent are the columns themselves, not a stream made of them.
    sent = {part.address for part in _arrow.reduce(table)[1] if isinstance(part, pa.Buffer)}
    assert sent == {buffer.address for column in table.columns for buffer in column.chunk(0).buffers() if buffer}
    for value in (table.to_batches()[0], table.column("n"), pa.array(["x", None]), pa.array([1.5, 2.5])):
        assert there(value).equals(value)
    empty = table.slice(0, 0)
    assert there({"t": empty})["t"].equals(empty)
    queue = memlift.Queue()
    queue.put(table)
    came = queue.get()
    assert queue.stats()["reading"] == 1, "it lies where it came"
    del came
    gc.collect()
    assert queue.stats()["reading"] == 0


def test_pandas(there):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.arange(1000.0), "b": pd.date_range("2026", periods=1000)}, index=range(5, 2005, 2))
    pd.testing.assert_frame_equal(there(frame), frame)
    np.testing.assert_array_equal(there(frame["a"]), frame["a"])
    pd.testing.assert_series_equal(there(frame["a"]), frame["a"])
    pd.testing.assert_series_equal(there(pd.Series([1, 2])), pd.Series([1, 2]))
    pd.testing.assert_frame_equal(there(pd.DataFrame()), pd.DataFrame())
    indexed = pd.DataFrame({"v": [1, 2]}, index=pd.Index([7, 9], name="key"))
    pd.testing.assert_frame_equal(there(indexed), indexed)
    pytest.importorskip("pyarrow")
    words = pd.DataFrame({"w": ["a", "b", "c"], "k": pd.Categorical(["x", "y", "x"])})
    pd.testing.assert_frame_equal(there(words), words)


DTYPES = ["?", "i1", "<u2", ">i4", "i8", "f2", "f4", "f8", "c16", "M8[ns]", "m8[D]", "S4", "U3", "i4,f8"]


def random_value(draw, depth=0):
    kind = draw.randrange(14 if depth < 5 else 9)
    if kind < 2:
        return draw.choice([None, True, False, 0, -7, 2**40, -(2**90), 0.25, 1j])
    if kind < 4:
        return "".join(draw.choice("abcäöü🐝\0") for _ in range(draw.randrange(20)))
    if kind == 4:
        return draw.randbytes(draw.choice([0, 3, 100, 4095, 4096, 9000]))
    if kind < 9:
        shape = tuple(draw.randrange(4) for _ in range(draw.randrange(4)))
        dtype = np.dtype(draw.choice(DTYPES))
        if dtype.kind in "U?":
            return np.zeros(shape, dtype)
        return np.frombuffer(draw.randbytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    values = [random_value(draw, depth + 1) for _ in range(draw.randrange(5))]
    if kind < 11:
        return values
    if kind == 11:
        return tuple(values)
    if kind == 12:
        return Batch(np.arange(draw.randrange(50)), values)
    return {draw.randrange(1000): value for value in values}


def test_random_values_come_back(there):
    draw = random.Random(SEED)
    for round in range(400):
        value = random_value(draw)
        assert same(there(value), value), (SEED, round, value)


def message(value):
    """The bytes that a value becomes, and a function that reads bytes."""
    return memlift._native._encode(value)


def read(data):
    return memlift._native._decode(data)


def test_messages_that_were_changed_are_refused_or_are_other_values():
    draw = random.Random(SEED)
    refused = 0
    for round in range(300):
        data = bytearray(message(random_value(draw)))
        for _ in range(draw.choice([1, 1, 2, 8])):
            change = draw.randrange(4)
            if change == 0 and len(data) > 1:
                del data[draw.randrange(len(data)) :]
            elif change == 1:
                data += draw.randbytes(3)
            elif data:
                at = draw.randrange(min(len(data), draw.choice([16, 64, 10_000])))
                data[at] = draw.choice([0, 1, 15, 17, 127, 128, 255, draw.randrange(256)])
        try:
            read(bytes(data))
        except (memlift.CorruptMessageError, memlift.UnsupportedTypeError):
            refused += 1
    assert refused > 100


def wrapped(description, pieces=b""):
    head = b"mlv\x01" + struct.pack("<I", len(description)) + description
    return head + bytes(-len(head) % 64) + pieces if pieces else head


def array(name, shape, at, size, order=0):
    return bytes([15, len(name)]) + name + bytes([order, len(shape)]) + struct.pack(f"<{len(shape)}QQQ", *shape, at, size)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"mlv", b"mlv\x02\0\0\0\0", b"mlv\x01\xff\xff\xff\xff", wrapped(b""), wrapped(b"\x63"), wrapped(b"\0\0"),
        wrapped(b"\x0a\xff\xff\xff\xff"), wrapped(b"\x0c\xff\xff\xff\xff\0"), wrapped(b"\x07\2\0\0\0\xff\xff"),
        wrapped((b"\x0a\1\0\0\0" * 200) + b"\0"), wrapped(b"\x0d\1\0\0\0\x0a\0\0\0\0"), wrapped(b"\x0c\1\0\0\0\x0a\0\0\0\0\0"),
        wrapped(array(b"<f8", (2,), 0, 16), bytes(8)), wrapped(array(b"<f8", (3,), 0, 16), bytes(16)),
        wrapped(array(b"<f8", (2,), 2**64 - 64, 16), bytes(64)), wrapped(array(b"<f8", (2**61,), 0, 0)),
        wrapped(array(b"<f8", (2**40, 2**40, 0), 0, 0)), wrapped(array(b"|O8", (1,), 0, 8), bytes(8)),
        wrapped(array(b"<f8,O", (1,), 0, 8), bytes(8)), wrapped(array(b"<f8", (2,), 8, 16), bytes(64)),
        wrapped(array(b"<f8", (2,), 0, 16, order=7), bytes(16)), wrapped(array(b"<f9", (2,), 0, 18), bytes(18)),
        wrapped(array(b"<U0", (2**30,), 0, 0)), wrapped(array(b"|u1", (1,) * 70, 0, 1), bytes(64)),
        wrapped(b"\x11\4evil\0"), wrapped(b"\x11\5array\0"), wrapped(b"\x14\1\0\0\0\xff"), wrapped(b"\x13\3<f8\4\0\0\0\0\0\0\0"),
        wrapped(b"\x11\6pickle\x0a\0\0\0\0"), wrapped(b"\x11\6masked\x0b\0\0\0\0"),
    ],
    ids=repr,
)  # fmt: skip
def test_hostile_messages_are_refused(data):
    with pytest.raises((memlift.CorruptMessageError, memlift.UnsupportedTypeError)):
        read(data)


def test_dtypes_that_would_reach_outside_are_not_made():
    def fields(formats, offsets, itemsize, names="ab"):
        names = tuple(names[: len(formats)])
        return ("fields", names, list(formats), tuple(offsets), (None,) * len(formats), itemsize, False, False)

    double = np.zeros(1, "V8")
    for described, elements in (
        ("|O", double), ("O", double), (fields(["|O"], [0], 8), double), (fields(["<f8"], [1], 8), double),
        (fields(["<f8"], [-8], 8), double), (fields(["<f8", "<f8"], [0, 0], 4), np.zeros(1, "V4")), (("sub", "|O", (1,)), double),
        ("<f8", np.zeros(1, "V4")), ("<f8", np.zeros(1, "u8")), ("<f8", (3,)), ("|V0", (2**30,)), (("metadata", "|O", {}), double),
        (("ml_dtypes", "finfo"), double), (("ml_dtypes", "os"), double), (("char", "O", "="), double), ((), double),
        (fields(["<f8"], [0], 2**40), double), (fields(["<f8", "<f4"], [0, 4], 8, names="aa"), double),
    ):  # fmt: skip
        for kind in ("array", "array.item"):
            hostile = message(memlift._values._Kind(kind, (described, elements)))
            with pytest.raises((memlift.CorruptMessageError, memlift.UnsupportedTypeError)):
                read(hostile)
