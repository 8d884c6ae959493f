# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The type that arrives is the type that was sent, or sending is refused: never anything else.

Goal    through a queue, a call and an executor alike, by exact class: every dtype, layout and container, and what libraries make of them
Method  each value goes all ways, plain and inside containers; `identical` compares what pickle would keep, and more
"""

import array
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import itertools
import os
import pathlib
import pickle
import random
import threading
import typing
import zoneinfo

import numpy as np
import pytest

import memlift

# What arrives as something else, with a warning: test_values.py and test_calls.py.
pytestmark = pytest.mark.filterwarnings("error:.*a later version of memlift refuses it")
SEED = 20261126


def echo(value):
    return value


@pytest.fixture(scope="module", params=[False, True], ids=["data", "pickle"])
def allow_pickle(request):
    return request.param


@pytest.fixture(scope="module")
def ways(allow_pickle):
    """Functions that send a value, and give what arrives."""
    queue = memlift.Queue(allow_pickle=allow_pickle)

    def through_queue(value):
        queue.put(value)
        return queue.get(timeout=60)

    with (
        memlift.ipc.Server(f"exact-{os.getpid()}-{allow_pickle}", allow_pickle=allow_pickle) as server,
        memlift.Executor(1, allow_pickle=allow_pickle) as executor,
    ):
        server.register("echo", echo)
        server.start()
        with memlift.ipc.Client(server.address, timeout=60, allow_pickle=allow_pickle) as client:
            yield (
                through_queue,
                lambda value: client.call("echo", value),
                lambda value: executor.submit(echo, value).result(120),
            )


def same_dtype(a, b):
    if a != b or a.metadata != b.metadata or a.isalignedstruct != b.isalignedstruct or a.type is not b.type:
        return False
    if a.names is not None:
        return a.fields.keys() == b.fields.keys() and all(
            same_dtype(a.fields[key][0], b.fields[key][0]) and a.fields[key][1:] == b.fields[key][1:] for key in a.fields
        )
    if a.subdtype is not None:
        return a.shape == b.shape and same_dtype(a.base, b.base)
    return True


def same_array(a, b):
    if not same_dtype(a.dtype, b.dtype) or a.shape != b.shape:
        return False
    if a.dtype.names is not None:
        # What lies between fields belongs to nobody.
        return all(same_array(a[name], b[name]) for name in a.dtype.names)
    if a.dtype.hasobject:
        return all(map(identical, a.ravel().tolist(), b.ravel().tolist()))
    return significant(a) == significant(b)


def significant(array):
    """The bytes of an array but for those of no meaning: a long double of x87 has ten, of the sixteen that it takes."""
    if array.dtype.char not in "gG" or np.finfo(array.dtype).nmant != 63:
        return array.tobytes()
    bytes_ = np.frombuffer(array.astype(array.dtype.newbyteorder("="), copy=False).tobytes(), np.uint8)
    return bytes_.reshape(-1, np.dtype(np.longdouble).itemsize)[:, :10].tobytes()


def identical(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ma.MaskedArray):
        if a is np.ma.masked or b is np.ma.masked:
            return a is b
        return (
            same_array(np.asarray(a.data), np.asarray(b.data))
            and same_array(np.ma.getmaskarray(a), np.ma.getmaskarray(b))
            and (a.mask is np.ma.nomask) == (b.mask is np.ma.nomask)
            and same_array(np.asarray(a.fill_value), np.asarray(b.fill_value))
            and a.hardmask == b.hardmask
        )
    if isinstance(a, np.ndarray):
        return same_array(np.ndarray.view(a, np.ndarray), np.ndarray.view(b, np.ndarray)) and (
            not hasattr(a, "unit") or a.unit == b.unit
        )
    if isinstance(a, np.generic):
        return same_array(np.asarray(a), np.asarray(b))
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    if isinstance(a, complex):
        return np.complex128(a).tobytes() == np.complex128(b).tobytes()
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(identical, a, b)) and vars_of(a) == vars_of(b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a.items(), b.items(), strict=True)) and vars_of(a) == vars_of(b)
    if dataclasses.is_dataclass(a):
        return vars_of(a).keys() == vars_of(b).keys() and all(
            identical(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)
        )
    kind = type(a).__module__.partition(".")[0]
    if kind in ("pandas", "polars", "xarray", "pyarrow", "torch", "scipy"):
        return same_of_library(kind, a, b)
    return a == b and vars_of(a) == vars_of(b)


def vars_of(value):
    return getattr(value, "__dict__", {})


def same_of_library(kind, a, b):
    if kind == "pandas":
        import pandas as pd

        if isinstance(a, pd.DataFrame):
            return (
                same_of_library(kind, a.index, b.index)
                and same_of_library(kind, a.columns, b.columns)
                and all(same_of_library(kind, a.iloc[:, at], b.iloc[:, at]) for at in range(a.shape[1]))
                and (a.attrs, a.flags.allows_duplicate_labels) == (b.attrs, b.flags.allows_duplicate_labels)
            )
        if isinstance(a, (pd.Series, pd.Index)):
            if a.dtype != b.dtype or repr(a.dtype) != repr(b.dtype) or not identical(a.name, b.name):
                return False
            if getattr(a, "freq", None) != getattr(b, "freq", None) or isinstance(a.dtype, pd.DatetimeTZDtype) and (
                type(a.dtype.tz) is not type(b.dtype.tz)
            ):
                return False
            if isinstance(a, pd.Series) and not same_of_library(kind, a.index, b.index):
                return False
            if isinstance(a.dtype, np.dtype):
                return same_array(a.to_numpy(), b.to_numpy())
            return a.equals(b) and list(a.isna()) == list(b.isna())
        return a is b or a == b
    if kind == "scipy":
        return a.shape == b.shape and a.dtype == b.dtype and (a != b).nnz == 0
    if kind == "torch":
        import torch

        if not isinstance(a, torch.Tensor):
            return a == b
        return a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad and a.tolist() == b.tolist()
    return a.equals(b) and getattr(a, "schema", None) == getattr(b, "schema", None)


def check(ways, value, allow_pickle, expected=None):
    """Sends it all ways; `expected` says whether it arrives at all without a pickle."""
    for way in ways:
        for wrap, unwrap in ((lambda v: v, lambda v: v), (lambda v: {"a": [v, 1]}, lambda v: v["a"][0])):
            try:
                arrived = unwrap(way(wrap(value)))
            except memlift.UnsupportedTypeError as refused:
                assert str(refused).count("cannot send") == 1, "it names the type"
                assert not allow_pickle or not can_be_pickled(value), refused
                assert not expected
                continue
            except memlift.RemoteError as refused:
                raise AssertionError(f"it arrived, and could not be sent back: {refused}") from refused
            assert identical(value, arrived), (value, arrived)
            assert expected is not False or allow_pickle


def can_be_pickled(value):
    try:
        return identical(value, pickle.loads(pickle.dumps(value, 5)))
    except Exception:
        return False


PLAIN = ["?", *"bBhHiIlLqQefdgFDG", "S0", "S3", "U0", "U3", "V0", "V5", "M8", "m8", *(f"{k}8[{u}]" for k in "Mm" for u in
         ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25s", "7D"))]  # fmt: skip


def dtypes():
    for name in PLAIN:
        yield np.dtype(name)
        yield np.dtype(name).newbyteorder()
    yield from [
        np.dtype([("a", "i4"), ("b", ">f8"), ("c", "S3")]),
        np.dtype("i1,f8", align=True),
        np.dtype([("a", "i1"), ("b", "f8")], align=True),
        np.dtype({"names": ["A", "B"], "formats": ["u4", "u2"], "offsets": [0, 0]}),
        np.dtype({"names": ["a", "b"], "formats": ["u1", "f4"], "offsets": [7, 1], "itemsize": 20}),
        np.dtype({"names": ["a"], "formats": ["M8[25s]"], "titles": ["a title"], "offsets": [4], "itemsize": 16}),
        np.dtype([("p", "f4", (3,)), ("q", [("r", "m8[us]"), ("s", ">u2", (2, 2))])]),
        np.dtype([(("title", "x"), "U2")]),
        np.dtype([]),
        np.dtype({"names": [], "formats": [], "itemsize": 8}),
        np.dtype((np.record, [("a", "i4"), ("b", "f8")])),
        np.dtype([("n", np.dtype((np.record, [("a", "i4")])))]),
        np.dtype("f8", metadata={"unit": "m", "n": [1, 2]}),
        np.dtype([("a", np.dtype("i4", metadata={"k": "v"}))], metadata={"whole": True}),
        np.dtype([("grüße", "c16"), ("", "q"), ("f0", "g")]),
    ]


def make(draw, dtype, shape):
    count = int(np.prod(shape))
    if dtype.kind == "U":
        return np.full(shape, "aé🐝", dtype)
    raw = bytearray(draw.randbytes(count * dtype.itemsize))
    if dtype.itemsize == 0:
        return np.zeros(shape, dtype)
    if dtype.char in "gG":
        return np.frombuffer(draw.randbytes(count * 8), "i8").astype(dtype).reshape(shape)  # its elements have gaps, too
    if dtype.kind == "b" or dtype.names is not None:
        return np.frombuffer(bytes(b & 1 for b in raw), dtype).reshape(shape)
    return np.frombuffer(raw, dtype).reshape(shape)


LAYOUTS = {
    "whole": lambda a: a,
    "fortran": np.asfortranarray,
    "transposed": lambda a: a.T,
    "backwards": lambda a: a[::-1, ::-1],
    "gaps": lambda a: a[::2, 1::3],
    "column": lambda a: a[:, 2:3],
    "broadcast": lambda a: np.broadcast_to(a[0], (5, *a.shape[1:])),
    "inner": lambda a: a.transpose(1, 2, 0),
    "empty": lambda a: a[:0],
    "scalar": lambda a: a[0, 0, 0].reshape(()) if isinstance(a[0, 0, 0], np.ndarray) else np.array(a[0, 0, 0], a.dtype),
}


@pytest.mark.parametrize("dtype", dtypes(), ids=lambda dtype: str(dtype)[:60])
def test_every_dtype_in_every_layout(ways, allow_pickle, dtype):
    draw = random.Random(SEED)
    whole = make(draw, dtype, (4, 7, 3))
    for layout in LAYOUTS.values():
        check(ways, layout(whole), allow_pickle, expected=True)
    read_only = whole.copy()
    read_only.flags.writeable = False
    check(ways, read_only, allow_pickle, expected=True)
    item = whole[0, 0, 0]
    if isinstance(item, np.generic):
        check(ways, item, allow_pickle, expected=True)


def test_arrays_with_many_dimensions_and_gaps(ways, allow_pickle):
    for dimensions in (8, 9, 20, 60):
        array = np.arange(16).reshape(1, 2, *[1] * (dimensions - 4), 2, 4)[..., ::2]
        check(ways, array, allow_pickle, expected=True)
        check(ways, array.astype("S7"), allow_pickle, expected=True)


def test_the_bits_of_numbers(ways, allow_pickle):
    payload = np.frombuffer(b"\x01\x02\x03\x04\x05\x06\xf8\x7f", "f8")
    for value in (-0.0, float(payload[0]), complex(-0.0, float("nan")), payload, np.float64(-0.0), payload[0], np.float32("nan"),
                  2**63, -(2**63) - 1, 1 << 5000, True, np.True_, np.longlong(3), np.ulonglong(3), np.longdouble("0.1"),
                  np.datetime64("NaT"), np.datetime64("2026-11-26T01", "25s"), np.timedelta64(3), np.str_("x\0"), np.bytes_(b"x")):  # fmt: skip
        check(ways, value, allow_pickle, expected=True)


def test_text_of_every_kind(ways, allow_pickle):
    for value in ("", "\0", "\ud800", "a\udcff.txt", "\U0010ffff", "é" * 5000, b"", bytes(5000)):
        check(ways, value, allow_pickle, expected=True)
    draw = random.Random(SEED)
    for _ in range(100):
        check(ways[:1], "".join(chr(draw.randrange(0x110000)) for _ in range(draw.randrange(9))), allow_pickle, expected=True)


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.IntFlag):
    A = 1


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Many(list):
    pass


class Pair(tuple):
    pass


class Some(set):
    pass


class Map(dict):
    pass


class Point(typing.NamedTuple):
    x: int
    y: float


class Mode(enum.StrEnum):
    ON = "on"


class MyArray(np.ndarray):
    pass


class MyFloat(np.float64):
    pass


class MyMasked(np.ma.MaskedArray):
    pass


class Wrapped:
    def __init__(self, array, unit):
        self.array, self.unit = array, unit

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array)

    def __eq__(self, other):
        return np.array_equal(self.array, other.array) and self.unit == other.unit


REFUSED = [
    Color.RED, Level.LOW, Flags.A, Text("x"), Number(3), Real(1.5), Many([1]), Pair((1, 2)), Some({1}),
    Map(a=1), Point(1, 2.0), Mode.ON, collections.OrderedDict(a=1), collections.defaultdict(list, a=[1]), collections.Counter("aab"),
    collections.deque([1, 2], 3), decimal.Decimal("1.10"), fractions.Fraction(1, 3), datetime.date(2026, 1, 1),
    datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), datetime.timedelta(1), pathlib.PurePath("/a"), range(3),
    slice(1, 2), Ellipsis, int, np.dtype("f4"), np.arange(3).view(MyArray), MyFloat(2.5), np.ma.masked_array([1], [True]).view(MyMasked),
    np.char.array(["a"]), Wrapped(np.arange(3), "m"), np.array([1, "a", None], object), np.array(["a", "b"], np.dtypes.StringDType()),
    np.zeros(2, [("a", "O")]), [Number(3)], {Text("k"): 1}, {1: Number(2)}, (Many(),), np.random.default_rng(1).integers,
]  # fmt: skip


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: f"{type(value).__name__}-{value!r}"[:50])
def test_subclasses_and_other_classes_arrive_by_pickle_or_not_at_all(ways, allow_pickle, value):
    if can_be_pickled(value) or not allow_pickle:
        check(ways, value, allow_pickle, expected=False)


def test_arrays_of_numpys_own_classes(ways, allow_pickle):
    base = np.ma.masked_array([1.0, 2.0, 1e20], [0, 0, 1])
    hard = np.ma.masked_array(np.arange(6).reshape(2, 3), [[0, 1, 0], [1, 1, 1]], fill_value=-1, hard_mask=True)
    records = np.ma.masked_array([(1, 2.0), (3, 4.0)], [(0, 1), (1, 0)], dtype=[("a", "i4"), ("b", "f8")])
    for value in (base, hard, hard[:, ::2], records, np.ma.masked_array([1, 2]), np.ma.masked, np.ma.masked_array(3, True),
                  np.ma.masked_array(["2026", "NaT"], [0, 1], "M8[D]"), np.matrix([[1, 2], [3, 4]]), np.matrix([[1.5]]).T,
                  np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.rec.array([(1,)], dtype=[("a", ">M8[s]")])):  # fmt: skip
        check(ways, value, allow_pickle, expected=True)
    assert ways[1](base).mean() == base.mean() == 1.5


@memlift.register
@dataclasses.dataclass
class Whole:
    a: object
    b: object = None
    c: int = dataclasses.field(default=3, repr=False)


@memlift.register
@dataclasses.dataclass(slots=True)
class Tight:
    a: object


@memlift.register
@dataclasses.dataclass
class Dictionary(dict):
    a: int = 1


@memlift.register
@dataclasses.dataclass
class Again:
    """Registered once more by a test, as when a cell of a notebook runs again."""

    a: int


class More(Whole):
    """No dataclass of its own."""


@memlift.register
@dataclasses.dataclass
class Below(Tight):
    """Has a `__dict__` beside the slots."""

    d: int = 5


def test_dataclasses(ways, allow_pickle):
    for value in (Whole(1, [np.arange(3)]), Tight(Whole(None)), Below(1), Whole(np.matrix([[1]]))):
        check(ways, value, allow_pickle, expected=True)
    more, known = Whole(1), More(1)
    more.extra = 5
    below = Below(1)
    below.extra = 5
    for value in (more, below, Dictionary(2)):
        check(ways, value, allow_pickle, expected=False)
    if allow_pickle:
        check(ways, known, allow_pickle)
    before = Again
    again = dataclasses.make_dataclass("Again", ["a"], namespace={"__module__": __name__})
    globals()["Again"] = memlift.register(again)
    check(ways[:1], again(1), allow_pickle, expected=True)
    if not allow_pickle:
        with pytest.raises(memlift.UnsupportedTypeError, match="another class of this name"):
            ways[0](before(1))
    unset = Whole(1)
    del unset.b, unset.__dict__["a"]
    check(ways[:1], unset, False) if not allow_pickle else None


def test_the_error_of_a_part_names_what_holds_it(ways, allow_pickle):
    if not allow_pickle:
        for value in (Whole(object()), [Whole(1, {"in": Tight(Tight(object()))})]):
            with pytest.raises(memlift.UnsupportedTypeError, match=r"type [\w.]*Whole: a part of it is refused: an object of type object: make"):
                ways[0](value)


def test_what_is_nested_too_deep_or_in_itself_arrives_by_pickle_or_not_at_all(ways, allow_pickle):
    deep = [np.arange(3)]
    for _ in range(300):
        deep = [deep]
    check(ways, deep, allow_pickle, expected=False)
    if allow_pickle:
        ring = [1]
        ring.append(ring)
        arrived = ways[0](ring)
        assert arrived[1] is arrived and arrived[0] == 1


def test_objects_that_repeat_arrive_by_pickle_or_not_at_all(ways, allow_pickle):
    """Each is written as often as it appears: 2^40 times here."""
    value = ["x" * 1_000_000]
    for _ in range(40):
        value = [value, value]
    for way in ways:
        if allow_pickle:
            arrived = way(value)
            assert arrived[0] is arrived[1]
        else:
            with pytest.raises(memlift.UnsupportedTypeError, match="so many small values"):
                way(value)


def test_refs_of_an_arena(ways, allow_pickle):
    with memlift.Arena(bytes_max=1 << 20) as arena:
        ref = arena.put(np.arange(5))
        check(ways, ref, allow_pickle, expected=True)
        assert ways[1]([ref])[0].get()[4] == 4


def test_text_that_is_too_long_is_named(allow_pickle):
    if not allow_pickle:
        with pytest.raises(memlift.UnsupportedTypeError, match="of type str of 269484032 bytes"):
            memlift._native._check("x" * (257 << 20), False)


class Raw(bytes):
    pass


class Raws(bytearray):
    pass


class Numbers(array.array):
    pass


def test_buffers_that_have_more_than_bytes(ways, allow_pickle):
    """Their bare bytes would arrive, of another shape or without the attributes."""
    for value in (Raw(b"abc"), Raws(b"abc"), Numbers("d", [1, 2])):
        value.unit = "m"
        check(ways, value, allow_pickle, expected=False)
    for value in (memoryview(array.array("d", [1, 2])), memoryview(np.zeros((2, 3), "u1")), memoryview(b"abcd").cast("I")):
        for way in ways:
            with pytest.raises(memlift.UnsupportedTypeError, match="memoryview with"):
                way([value])
    for way in ways:
        with pytest.raises(memlift.UnsupportedTypeError, match="PickleBuffer"):
            way([pickle.PickleBuffer(b"abc")])
        for value in (memoryview(np.zeros((2, 3), "u1")), memoryview(np.zeros((2, 3), "i1")), memoryview(np.ones(3, "?"))):
            with pytest.raises(memlift.UnsupportedTypeError, match="memoryview with"):
                way(value)


class Needy(Exception):
    """Pickle takes it apart, and cannot put it together."""

    def __init__(self, a, b):
        super().__init__(f"{a} {b}")


def test_pickles_that_make_no_object_say_why(allow_pickle):
    if not allow_pickle:
        return
    queue = memlift.Queue(allow_pickle=True)
    for value in (Needy(1, 2), [Needy(1, 2)]):
        queue.put(value)
        with pytest.raises(memlift.UnsupportedTypeError, match=r"Needy.__init__\(\) missing.*give the class a __reduce__"):
            queue.get(timeout=60)
    for broken in (b"", b"\x80\x05.", b"nonsense"):
        queue.put(memlift._values._Kind("pickle", [broken, []]))
        with pytest.raises(memlift.CorruptMessageError, match="broken pickle"):
            queue.get(timeout=60)


def test_arrays_inside_of_pickles_are_copied_once(allow_pickle):
    if not allow_pickle:
        return
    queue = memlift.Queue(allow_pickle=True)
    sent = Wrapped(np.arange(1_000_000.0), "m")
    queue.put(sent)
    arrived = queue.get(timeout=60)
    assert arrived == sent and arrived.array.flags.writeable and not arrived.array.flags.owndata
    assert queue.stats()["reading"] == 1, "the array lies where it came"


def test_random_values(ways, allow_pickle):
    draw = random.Random(SEED)
    every = list(dtypes())

    def value(depth=0):
        kind = draw.randrange(12)
        if kind < 3:
            array = make(draw, draw.choice(every), (4, 7, 3))
            return draw.choice(list(LAYOUTS.values()))(array)
        if kind < 6 or depth > 4:
            return copy.deepcopy(draw.choice([None, 1, -0.0, "x", b"y", 2**70, np.int8(1), 1j, "\udcff", True]))
        if kind == 6:
            return copy.deepcopy(draw.choice(REFUSED))
        inner = [value(depth + 1) for _ in range(draw.randrange(4))]
        return [list, tuple, lambda v: dict(enumerate(v)), lambda v: Whole(v), lambda v: Many(v)][kind - 7](inner)

    for _ in range(60):
        sent = value()
        if allow_pickle and not can_be_pickled(sent):
            continue
        check(ways, sent, allow_pickle)


def test_ml_dtypes(ways, allow_pickle):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    names = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4", "int2", "float4_e2m1fn")
    for scalar in [getattr(ml_dtypes, name) for name in names if hasattr(ml_dtypes, name)]:
        whole = np.arange(84).reshape(4, 7, 3).astype(scalar)
        for layout in LAYOUTS.values():
            check(ways, layout(whole), allow_pickle, expected=True)
        check(ways, whole[0, 0, 1], allow_pickle, expected=True)
        check(ways, np.zeros(3, [("a", scalar), ("b", "f4")]), allow_pickle, expected=True)


def frames(pd):
    utc, berlin = datetime.timezone.utc, zoneinfo.ZoneInfo("Europe/Berlin")
    times = pd.to_datetime(["2024-01-01", None, "2024-07-01"])
    columns = {
        "int": [1, 2, 3], "small": np.array([1, 2, 3], "i1"), "swapped": np.array([1, 2, 3], ">i4"), "half": np.array([1, 2, 3], "f2"),
        "complex": [1j, 2, 3], "bool": [True, False, True], "text": ["a", None, "\0"], "objects": pd.Series([2**53 + 1, None, "x"], dtype=object),
        "big": pd.Series([2**70, 1, 2], dtype=object), "lists": pd.Series([[1], {"x": 1}, {"y": 2}], dtype=object),
        "arrays": pd.Series([np.arange(3), np.arange(2), None], dtype=object), "python": pd.array(["a", None, "b"], "string[python]"),
        "arrow": pd.array(["a", None, "b"], "string[pyarrow]"), "nan": pd.array(["a", None, "b"], pd.StringDtype("python", na_value=np.nan)),
        "masked": pd.array([1, None, 3], "UInt16"), "floats": pd.array([1, None, -0.0], "Float32"), "bools": pd.array([True, None, False], "boolean"),
        "times": times, "seconds": times.as_unit("s"), "utc": times.tz_localize(utc), "berlin": times.tz_localize(berlin).as_unit("ms"),
        "zone": times.tz_localize(datetime.timezone(datetime.timedelta(hours=2))), "spans": times - times[0],
        "kinds": pd.Categorical(["x", "y", None], categories=["y", "z", "x"], ordered=True), "numbers": pd.Categorical([3, 1, 3]),
        "moments": pd.Categorical(times.tz_localize(utc)), "months": pd.PeriodIndex(["2024-01", None, "2024-03"], freq="M"),
        "ranges": pd.arrays.IntervalArray.from_breaks([0, 1, 2, 3], closed="left"),
        "decimals": pd.array([decimal.Decimal("1.10"), None, decimal.Decimal("2")], pd.ArrowDtype(pytest.importorskip("pyarrow").decimal128(5, 2))),
        "nested": pd.array([[1], None, []], pd.ArrowDtype(pytest.importorskip("pyarrow").list_(pytest.importorskip("pyarrow").int8()))),
    }  # fmt: skip
    whole = pd.DataFrame(columns)
    yield whole
    yield from (whole[name] for name in columns)
    yield pd.DataFrame()
    yield pd.DataFrame(index=[1, 2], columns=["a"])[[]]
    yield pd.DataFrame(np.zeros((3, 4), order="F")[::2])
    yield pd.DataFrame([[1, 2.0]], columns=["same", "same"])
    yield pd.DataFrame({"v": [1, 2, 3]}, index=pd.date_range("2024", periods=3, freq="D", tz=berlin, name="day"))
    yield pd.DataFrame({"v": [1, 2]}, index=pd.Index([7.5, 9], name=("a", 1)), columns=pd.Index(["v"], name="names"))
    yield pd.DataFrame([[1, 2]], columns=pd.Index(["a", 1], dtype=object))
    yield pd.DataFrame([[1, 2]], columns=pd.date_range("2024", periods=2, freq="MS"))
    yield pd.DataFrame({"v": [1, 2]}, index=pd.CategoricalIndex(["a", "b"], name="c"))
    yield pd.DataFrame({"v": [1, 2]}, index=pd.interval_range(0, 2))
    yield pd.DataFrame({"v": [1, 2]}, index=pd.timedelta_range("1h", periods=2, freq="h"))
    yield pd.DataFrame({"v": [1, 2]}, index=range(5, 9, 2)).set_flags(allows_duplicate_labels=False)
    described = pd.DataFrame({"v": [1, 2]})
    described.attrs = {"source": ["x", 1]}
    yield described
    named = pd.Series([1, 2], name=("x", 2), index=["a", "b"])
    named.attrs["k"] = 1
    yield named
    yield pd.Series([], dtype="f4", name=None)
    yield from (pd.RangeIndex(3, name="r"), pd.Index(["a", None]), pd.Index([1, 2], dtype="u2"), times, pd.Index([True, False]))


def test_pandas(ways, allow_pickle):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for value in frames(pd):
        # A column of objects that are no data of ours: by pickle.
        check(ways, value, allow_pickle, expected=True)

    class Measured(pd.DataFrame):
        _metadata = ["unit"]

    for value in (
        pd.DataFrame({"t": pd.Series([pd.Timestamp("2024", tz="UTC"), pd.Timestamp("2024", tz="Europe/Berlin")], dtype=object)}),
        pd.DataFrame({"v": [1, 2]}, index=pd.MultiIndex.from_tuples([(1, "a"), (2, "b")])), pd.Series(pd.arrays.SparseArray([0, 1])),
        pd.Timestamp("2024", tz="Europe/Berlin"), pd.NaT, pd.NA, pd.Timedelta("1h"), pd.Interval(0, 1), pd.Period("2024"),
        pd.array([1, None]), pd.Categorical(["a"]),
    ):  # fmt: skip
        if not isinstance(value, (pd.api.extensions.ExtensionArray,)):
            check(ways, value, allow_pickle, expected=False)
    if not allow_pickle:
        with pytest.raises(memlift.UnsupportedTypeError, match="Measured"):
            ways[0](Measured({"a": [1]}))


def test_pyarrow(ways, allow_pickle):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"n": [1, None], "t": ["a", "b"], "d": pa.array(["x", "x"]).dictionary_encode(), "l": [[1], []], "s": [{"a": 1}, None]})
    table = table.replace_schema_metadata({"k": "v"})
    for value in (table, table.to_batches()[0], table.column("n"), table.slice(1), pa.table({}), pa.array([], pa.int8()), pa.chunked_array([], pa.int8()),
                  pa.array([1.5, None]), pa.array(["a"]).dictionary_encode(), pa.concat_tables([table, table]), table.slice(0, 0).to_batches()[0]
                  if table.slice(0, 0).to_batches() else table.to_batches()[0].slice(0, 0)):  # fmt: skip
        check(ways, value, allow_pickle, expected=True)
    for value in (pa.scalar(1), pa.int8(), table.schema):
        check(ways, value, allow_pickle, expected=False)


def test_polars(ways, allow_pickle):
    pl = pytest.importorskip("polars")
    for value in (pl.DataFrame({"a": [1.0, None], "b": ["x", "y"]}), pl.Series("a", [1.0, 2.0])):
        check(ways, value, allow_pickle, expected=False)


def test_xarray(ways, allow_pickle):
    xr = pytest.importorskip("xarray")
    array = xr.DataArray([[1.0, 2.0]], dims=("a", "b"), coords={"b": [10, 20]}, attrs={"unit": "m"})
    for value in (array, array.variable, xr.Dataset({"x": array})):
        for way in ways:
            try:
                arrived = way(value)
            except memlift.UnsupportedTypeError:
                assert not allow_pickle
            else:
                assert type(arrived) is type(value) and value.identical(arrived) and allow_pickle


def test_astropy(ways, allow_pickle):
    units = pytest.importorskip("astropy.units")
    for value in (np.arange(3.0) * units.m, 3 * units.s, units.Quantity([1, 2], "km", dtype="f4")):
        check(ways, value, allow_pickle, expected=False)


def test_scipy(ways, allow_pickle):
    sparse = pytest.importorskip("scipy.sparse")
    for value in (sparse.csr_array([[0, 1], [2, 0]]), sparse.coo_matrix([[0, 1.5]])):
        check(ways, value, allow_pickle, expected=False)


def test_torch(ways, allow_pickle):
    torch = pytest.importorskip("torch")
    base = torch.arange(84).reshape(4, 7, 3)
    for dtype in (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.complex64):
        whole = base.to(dtype)
        for value in (whole, whole.T if whole.ndim == 2 else whole.transpose(0, 2), whole[::2, 1:], whole[:0], whole[0, 0, 0]):
            check(ways, value, allow_pickle, expected=True)
    check(ways, torch.ones(3, requires_grad=True), allow_pickle, expected=True)
    check(ways, torch.ones(3).to(torch.float8_e4m3fn), allow_pickle)

    class Measured(torch.Tensor):
        pass

    graph = torch.ones(3, requires_grad=True) * 2
    refused = [graph, torch.ones(3).to_sparse(), torch.nn.Parameter(torch.ones(3)), torch.complex(torch.ones(2), torch.ones(2)).conj(),
               torch.ones(2).as_subclass(Measured)]  # fmt: skip
    if not allow_pickle:
        for value, way in itertools.product(refused, ways):
            with pytest.raises(memlift.UnsupportedTypeError, match="Tensor|Parameter|Measured"):
                way(value)


def test_what_can_be_sent_by_nothing_is_refused_everywhere(ways, allow_pickle):
    class Stubborn:
        def __reduce__(self):
            raise ZeroDivisionError("never")

        def __repr__(self):
            raise ZeroDivisionError("never")

    for value in (threading.Lock(), (n for n in range(3)), lambda: 0, open(os.devnull), Stubborn()):
        for way in ways:
            with pytest.raises(memlift.UnsupportedTypeError, match="cannot send an object of type"):
                way(value)
    for way in ways:
        assert way(1) == 1
