# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Numbers are kept as they are, or refused; memory comes back; a damaged log is refused."""

import datetime
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memlift import traverse
from memlift.errors import BadArgumentError, BadInputError, GoneError, NodeFailedError, UnsupportedValueError


@pytest.fixture
def client() -> Iterator[traverse.Client]:
    with traverse.Node(memory="16M") as node, traverse.Client.connect(node) as client:
        yield client


REFUSED: list[tuple[Any, Any]] = [
    ("i8", 12.75),
    ("i8", -0.9),
    ("i8", math.nan),
    ("i8", 1 << 63),
    ("i8", np.uint64(1 << 63)),
    ("i8", "12"),
    ("u8", -1),
    ("u8", np.int64(-1)),
    ("u1", np.int64(300)),
    ("i4", 2.0**31),
    ("f8", (1 << 53) + 1),
    ("f8", 1j),
    ("f4", 1e300),
    ("f4", (1 << 24) + 1),
    ("?", 2),
    ("S3", b"four"),
    ("U3", "four"),
    ("V4", b"longer"),
    ("V4", b"two"),
    ("S4", b"ab\0"),
    ([("a", "i4"), ("b", "f8")], (1.5, 2.5)),
    ([("a", "i4"), ("b", "f8")], (1,)),
]
KEPT: list[tuple[Any, Any]] = [
    ("i8", 12.0),
    ("i8", -(1 << 63)),
    ("u8", (1 << 64) - 1),
    ("f8", 12.75),
    ("f8", 1 << 53),
    ("f8", math.inf),
    ("f4", 0.5),
    ("?", True),
    ("i2", np.uint8(200)),
    ("S4", b"abc"),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED)
def test_what_does_not_fit_is_refused(client: traverse.Client, kind: Any, value: Any) -> None:
    for made in (traverse.HashMap.create(client, value=kind), traverse.OrderedMap.create(client, value=kind)):
        with pytest.raises(UnsupportedValueError):
            made[1] = value
        assert made.get(1) is None


@pytest.mark.parametrize(("kind", "value"), KEPT)
def test_what_fits_is_kept(client: traverse.Client, kind: Any, value: Any) -> None:
    for made in (traverse.HashMap.create(client, value=kind), traverse.OrderedMap.create(client, value=kind)):
        made[1] = value
        assert made[1] == value


def test_records_are_kept_field_by_field(client: traverse.Client) -> None:
    made = traverse.OrderedMap.create(client, value=[("a", "i4"), ("b", "f8")])
    made[1] = (7, 2.5)
    made[2] = np.array((8, 3.5), [("a", "i4"), ("b", "f8")])[()]
    assert [tuple(value) for value in made.values()] == [(7, 2.5), (8, 3.5)]
    with pytest.raises(UnsupportedValueError):
        made[3] = np.array((1 << 40, 3.5), [("a", "i8"), ("b", "f8")])[()]


def test_a_file_keeps_fractions(client: traverse.Client, tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("time,price,count\n1,100.49,1\n2,100.51,2\n3,0.25,9007199254740993\n")
    loaded = traverse.OrderedMap.load(client, path, key="time", value="price")
    assert loaded.range()[1].tolist() == [100.49, 100.51, 0.25]
    assert traverse.HashMap.load(client, path, key="time", value="price")[2] == 100.51
    whole = traverse.OrderedMap.load(client, path, key="time", value="count")
    assert whole.range()[1].tolist() == [1, 2, 9007199254740993] and whole.sum() == 9007199254740996
    scaled = traverse.OrderedMap.load(client, path, key="time", value="price", scale=100)
    assert scaled.range()[1].tolist() == [10049, 10051, 25]
    with pytest.raises(BadInputError, match="line 2.*fraction"):
        traverse.OrderedMap.load(client, path, key="time", value="price", value_type="i8")
    with pytest.raises(BadInputError, match="line 4"):
        traverse.OrderedMap.load(client, path, key="time", value="count", value_type="f8")


def test_arrays_and_pairs_are_loaded_as_they_are_or_not(client: traverse.Client) -> None:
    keys = np.arange(3)
    for values in (np.array([1.0, 2.5, 3.0]), np.array([1, 2, 1 << 40]), [1.0, 2.5, 3.0]):
        with pytest.raises(BadInputError, match="row"):
            traverse.OrderedMap.load(client, (keys, values), value_type="i4")
    with pytest.raises(UnsupportedValueError):
        traverse.OrderedMap.load(client, {1: 1, 2: 2.5})
    loaded = traverse.OrderedMap.load(client, (keys, np.array([1.0, 2.0, 3.0])), value_type="i4")
    assert loaded.range()[1].tolist() == [1, 2, 3]


def test_a_table_of_another_type_is_refused(client: traverse.Client) -> None:
    table = pytest.importorskip("pyarrow").table({"key": [1, 2], "value": [1.5, 2.5]})
    assert traverse.OrderedMap.load(client, table)[1] == 1.5
    with pytest.raises(BadInputError, match="value of f8"):
        traverse.OrderedMap.load(client, table, value_type="i8")


@pytest.mark.parametrize("kind", ["f8", "f4", "i8", "i4", "u8", "u1"])
def test_numbers_of_any_kind_are_added_up(client: traverse.Client, kind: str) -> None:
    numbers = [3, 1, 2] if kind != "f8" else [0.1, 0.2, -0.3]
    made = traverse.OrderedMap.load(client, (np.arange(3) * 10, np.array(numbers, kind)))
    assert made.sum() == math.fsum(numbers) and made.avg() == math.fsum(numbers) / 3
    assert (made.min(), made.max(), made.count(), made.count(5, 20)) == (min(numbers), max(numbers), 3, 2)
    assert made.min(100) is None and made.avg(100) is None and made.sum(100) == 0


def test_a_file_loses_no_row_and_changes_no_number(client: traverse.Client, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    def load(text: str, **options: Any) -> list[Any]:
        path.write_text(text)
        return list(traverse.OrderedMap.load(client, path, **{"key": "k", "value": "v", **options}).items())

    assert load('n,k,v\n"a,b",1,2\n"c",3,4\n') == [(1, 2), (3, 4)]
    assert load('n,k,v\n"a\nb",1,2\n"c",3,4\n', key_type="i8") == [(1, 2), (3, 4)]
    assert load("-1,1\n2,2\n", key=0, value=1, key_type="i8") == [(-1, 1), (2, 2)]
    assert load("k,v\n1,0.5\n2,inf\n", key_type="i8") == [(1, 0.5), (2, math.inf)]
    for text, options in [
        ("k,v\n-1,1\n2,2\n", {}),
        ("k,v\n1.5,1\n2,2\n", {}),
        ("-1,1\n2,2\n", {"key": 0, "value": 1}),
        ('k,v\n1,"1,000"\n', {}),
        ("k,v\n1,0.5\n2,1e400\n", {}),
        ("k,v\n9007199254740993,1\n", {"key_type": "f8"}),
        *((f"k,v\n1,{value}\n2,0.5\n", {"key_type": "i8"}) for value in ("9007199254740993", "1_000", "1e400", "٣", "")),
        ("k,v\n1,9223372036854775808\n2,1\n", {"key_type": "i8"}),
        ("1,x\n2,2\n", {"key": 0, "value": 1, "key_type": "i8"}),
    ]:
        with pytest.raises(BadInputError, match="line|row"):
            load(text, **options)


def test_lists_of_whole_numbers_and_floats_change_none(client: traverse.Client) -> None:
    with pytest.raises(BadInputError, match="row 1.*9007199254740993"):
        traverse.OrderedMap.load(client, ([1, 2], [9007199254740993, 0.5]))
    assert list(traverse.OrderedMap.load(client, ([1, 2], [1 << 63, 0.5])).items()) == [(1, 2.0**63), (2, 0.5)]


@pytest.mark.parametrize("kind", ["f8", "f4"])
def test_a_truth_value_is_a_number(client: traverse.Client, kind: str) -> None:
    made = traverse.OrderedMap.create(client, value=kind)
    made[1], made[2] = True, np.False_
    assert list(made.values()) == [1.0, 0.0]


def test_a_sum_beyond_64_bits_is_the_sum(client: traverse.Client) -> None:
    for kind, most in (("i8", (1 << 63) - 1), ("u8", (1 << 64) - 1)):
        made = traverse.OrderedMap.create(client, value=kind)
        made.update({1: most, 2: most, 100: 5})
        assert made.sum() == 2 * most + 5 and made.avg(1, 2) == pytest.approx(most)
        assert (made.max(), made.min(), made.count(), made.sum(100)) == (most, 5, 3, 5)
        parts = made.buckets(0, 149, 50)
        assert parts.sum.tolist() == [2 * most, 0, 5] and parts.count.tolist() == [2, 0, 1]
    made = traverse.OrderedMap.create(client)
    made.update({1: -(1 << 63), 2: -1})
    assert made.sum() == -(1 << 63) - 1


def test_whole_numbers_only_are_added(client: traverse.Client) -> None:
    made = traverse.HashMap.create(client, value="i8")
    made[1] = 5
    assert made.add(1, -7) == 5 and made[1] == -2
    for addend in (0.5, 1 << 64, True):
        with pytest.raises(UnsupportedValueError):
            made.add(1, addend)  # type: ignore[arg-type]
    assert made[1] == -2


@pytest.mark.parametrize("ttl", [None, 600])
@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_a_sum_that_does_not_fit_is_refused_and_the_value_stays(
    client: traverse.Client, kind: str, ttl: int | None
) -> None:
    made = traverse.HashMap.create(client, value=kind, ttl=ttl)
    limits = np.iinfo(kind)
    least, greatest = int(limits.min), int(limits.max)
    numbers = [least, least + 1, 0, 1, 7, greatest // 2, greatest - 7, greatest - 1, greatest]
    for value in numbers:
        for addend in (0, 1, -1, 8, -8, 1 << 33, -(1 << 33), (1 << 63) - 1, -(1 << 63), (1 << 64) - 1):
            made[1] = value
            if kind == "i8" and addend >= 1 << 63 or not least <= value + addend <= greatest:
                with pytest.raises(UnsupportedValueError):
                    made.add(1, addend)
                assert made[1] == value
            else:
                assert made.add(1, addend) == value and made[1] == value + addend
    made[1] = greatest
    with pytest.raises(UnsupportedValueError, match="the value is unchanged"):
        made.add(1, 1)
    assert made.add(2, 1) is None


def test_times_are_kept_as_they_are_or_refused(client: traverse.Client) -> None:
    moment = datetime.datetime(2020, 1, 1, 0, 0, 1)
    made = traverse.HashMap.create(client, value="M8[s]")
    kept = [moment, moment.date(), np.datetime64(moment, "ns"), np.datetime64("NaT"), "2020-01-01T00:00:01", 5]
    for value in kept:
        made[1] = value
        assert str(made[1]) == str(np.datetime64(value, "s"))
    half = datetime.timedelta(milliseconds=500)
    for value in (moment + half, np.datetime64(moment + half), "2020-01-01T00:00:01.5", np.timedelta64(1, "s"), True):
        with pytest.raises(UnsupportedValueError):
            made[1] = value
        with pytest.raises(UnsupportedValueError):
            made.put_many(np.array([1]), np.array([value]))
    assert made[1] == np.datetime64(5, "s")
    spans = traverse.OrderedMap.create(client, value="m8[s]")
    spans[1] = datetime.timedelta(seconds=3)
    with pytest.raises(UnsupportedValueError):
        spans[1] = half
    assert spans[1] == np.timedelta64(3, "s")
    wide = traverse.OrderedMap.create(client, value="M8[ns]")
    with pytest.raises(UnsupportedValueError):
        wide[1] = np.datetime64("5000-01-01", "D")


def test_what_is_added_to_eight_bytes_has_64_bits(client: traverse.Client) -> None:
    word = client.allocate(8)
    for addend in (1 << 64, -(1 << 63) - 1, True, 1.5):
        with pytest.raises(UnsupportedValueError):
            client.fetch_add(word, addend)  # type: ignore[arg-type]
    assert client.fetch_add(word, -1) == 0 and client.fetch_add(word, 1) == (1 << 64) - 1
    assert client.fetch_add(word, 0) == 0


def test_a_list_adds_large_numbers_up(client: traverse.Client) -> None:
    made = traverse.List.create(client)
    assert made.aggregate() == (0, 0, 0, 0)
    numbers = [1, (1 << 64) - 1, 1 << 63, 5]
    for number in numbers:
        made.append(number)
    assert made.aggregate() == (4, sum(numbers), 1, (1 << 64) - 1)
    other = traverse.List.create(client)
    for _ in range(3):
        other.append((1 << 63) - 1)
    assert other.sum() == 3 * ((1 << 63) - 1)


def test_collections_are_dropped() -> None:
    with traverse.Node(memory="16M") as node, traverse.Client.connect(node) as client:
        before = node.stats()
        made: list[Any] = [
            traverse.HashMap.load(client, {str(number): "x" * number for number in range(500)}),
            traverse.OrderedMap.load(client, {number: number for number in range(5000)}),
            traverse.List.create(client, value=bytes),
        ]
        made[-1].append(1, b"one")
        live = node.stats()["live_bytes"]
        assert live > before["live_bytes"] + 5000 * 16
        for one in made:
            one.drop()
        after = node.stats()
        assert after["live_bytes"] == before["live_bytes"] and after["retired_bytes"] >= live
        parts = ("live_bytes", "retired_bytes", "free_bytes", "waste_bytes")
        assert sum(after[part] for part in parts) == 16 << 20


def test_a_dropped_collection_says_so(client: traverse.Client) -> None:
    made: list[Any] = [
        traverse.HashMap.create(client, value="i8"),
        traverse.HashMap.create(client, value="i8", ttl=60),
        traverse.OrderedMap.create(client),
    ]
    for one in made:
        one[1] = 2
        one.drop()
        for name in ("__getitem__", "__delitem__", "get", "pop"):
            with pytest.raises(GoneError, match="dropped"):
                getattr(one, name)(1)
        with pytest.raises(GoneError, match="dropped"):
            one.insert(1, 3)
        with pytest.raises(GoneError, match="dropped"):
            one.drop()
        assert "dropped" in repr(one)
    numbers = traverse.List.create(client)
    numbers.append(1)
    numbers.drop()
    with pytest.raises(GoneError):
        numbers.append(2)
    with pytest.raises(BadArgumentError, match="expected=1.5"):
        traverse.HashMap.create(client, expected=1.5)  # type: ignore[arg-type]


SERVE = """
import sys
from memlift import traverse
with traverse.Node(memory="16M", log=sys.argv[1]) as node:
    print(node.places[0], flush=True)
    sys.stdin.read()
"""


def test_a_killed_node_with_a_damaged_log_does_not_start(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, os.fspath(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        with traverse.Client.connect(process.stdout.readline().strip()) as client:
            made = traverse.HashMap.create(client, value="i8")
            for number in range(300):
                made[number] = number
            handle = made.handle
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    good = log.read_bytes()
    at = len(good) // 3
    for size in (1, 64, 512, 4096):
        broken = bytearray(good)
        broken[at : at + size] = bytes(byte ^ 0x41 for byte in broken[at : at + size])
        log.write_bytes(broken)
        with pytest.raises(NodeFailedError, match="damaged at byte"):
            traverse.Node(memory="16M", log=log)
        assert log.read_bytes() == broken
    log.write_bytes(good)
    with traverse.Node(memory="32M", log=log) as node, traverse.Client.connect(node) as client:
        again = traverse.HashMap.open(client, handle)
        assert again.get_many(range(300)) == list(range(300))
        assert node.range[1] == 32 << 20


def test_what_is_no_bytes_is_no_value_of_bytes(client: traverse.Client) -> None:
    entries = traverse.HashMap.create(client)
    for wrong in (2, 0, True, 12.75, None, [1, 2], (3,), np.int64(2), np.float64(12.75), {1: 2}):
        with pytest.raises(UnsupportedValueError, match="no bytes"):
            entries[1] = wrong
        assert 1 not in entries
    for right in (b"x", bytearray(b"xy"), memoryview(b"xyz"), np.array([1, 2], "<u2"), np.bytes_(b"abc")):
        entries[1] = right
        assert entries[1] == bytes(memoryview(right))
    with pytest.raises(UnsupportedValueError, match="no bytes"):
        client.write(client.allocate(64), 5)
