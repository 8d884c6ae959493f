# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Keys of every kind: in order, the same again, or refused."""

import json
import math

import numpy as np
import pytest
from memlift.errors import BadArgumentError, BadInputError, UnsupportedValueError
from memlift.traverse import Client, HashMap, Node, OrderedMap
from memlift.traverse._keys import Keys

INTEGERS = [-(1 << 63), -(1 << 53) - 1, -256, -1, 0, 1, 255, 1 << 53, (1 << 63) - 1]
FLOATS = [-math.inf, -1e308, -2.5, -1.0, -5e-324, 0.0, 5e-324, 2.2250738585072014e-308, 1.0, 100.49, 1e308, math.inf]
TEXTS = [b"", b"\x00a", b"a", b"a\x00b", b"ab", b"abcdefgh", b"b", b"\xff" * 8]


@pytest.fixture(scope="module")
def client():
    with Node(memory="64M") as node, Client.connect(node) as client:
        yield client


def in_any_order(keys):
    return [keys[index] for index in np.random.default_rng(7).permutation(len(keys))]


@pytest.mark.parametrize(("kind", "keys"), [("u8", [0, 1, 1 << 63, (1 << 64) - 1]), ("i8", INTEGERS), ("f8", FLOATS), ("S8", TEXTS)])
def test_an_ordered_map_has_its_keys_in_their_order(client, kind, keys):
    made = OrderedMap.create(client, key=kind, value="i8")
    for key in in_any_order(keys):
        assert made.insert(key, keys.index(key))
    assert list(made) == keys and list(made.values()) == list(range(len(keys)))
    assert all(type(key) is type(keys[0]) for key in made)
    assert [made[key] for key in keys] == list(range(len(keys)))
    assert made.get_many([keys[1], keys[2]]) == [1, 2]
    asked = np.array(keys, {"u8": "u8", "i8": "i8", "f8": "f8", "S8": object}[kind])
    values, found = made.get_array(asked)
    assert found.all() and values.tolist() == list(range(len(keys)))
    for first in range(len(keys)):
        for last in range(first, len(keys)):
            got, values = made.range(keys[first], keys[last])
            assert got.tolist() == keys[first : last + 1] and values.tolist() == list(range(first, last + 1))
            assert made.count(keys[first], keys[last]) == last + 1 - first
            assert made.sum(keys[first], keys[last]) == sum(range(first, last + 1))
            assert made[keys[first] : keys[last]][0].tolist() == keys[first:last]
    again = OrderedMap.open(client, json.loads(json.dumps(made.handle)))
    assert list(again.items()) == list(made.items())
    del made[keys[1]]
    assert keys[1] not in made and list(made) == keys[:1] + keys[2:]
    made.drop()


def test_numbers_of_random_keys_are_ordered_as_they_are():
    random = np.random.default_rng(3)
    floats = random.normal(size=20_000) * 10.0 ** random.integers(-300, 300, 20_000)
    for keys, kind in [(floats, "f8"), (random.integers(-(1 << 63), (1 << 63) - 1, 20_000), "i8")]:
        numbers = Keys(kind).pack_array(keys)
        assert np.array_equal(np.sort(keys), keys[np.argsort(numbers, kind="stable")])
        assert np.array_equal(Keys(kind).unpack_array(numbers), keys)
        assert [Keys(kind).pack(key) for key in keys[:500].tolist()] == numbers[:500].tolist()
        assert [Keys(kind).unpack(number) for number in numbers[:500].tolist()] == keys[:500].tolist()


def test_a_zero_without_a_sign_is_the_zero(client):
    made = OrderedMap.create(client, key="f8")
    made[-0.0] = 1
    assert made[0.0] == 1 and 0 in made and len(made) == 1 and math.copysign(1, next(iter(made))) == 1


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("u8", [-1, 1 << 64, 1.0, b"a", "a", True, None, np.array([-1]), np.array([0.5])]),
        ("i8", [1 << 63, -(1 << 63) - 1, 1.5, b"a", "a", False, np.array([1 << 63], np.uint64)]),
        ("f8", [math.nan, (1 << 53) + 1, b"a", "1.5", True, 1j, np.array([math.nan]), np.array([(1 << 53) + 1])]),
        ("S2", [b"abc", b"a\x00", "ab", 1, np.array([b"abc"])]),
    ],
)
def test_a_key_that_is_none_is_refused(client, kind, keys):
    made = OrderedMap.create(client, key=kind)
    for key in keys:
        with pytest.raises(UnsupportedValueError):
            made.get_array(key) if isinstance(key, np.ndarray) else made.insert(key, 1)
        if not isinstance(key, np.ndarray):
            assert key not in made
    assert len(made) == 0


def test_kinds_that_there_are_none_of_are_refused(client):
    for kind in ("S9", "S0", "f4", "U4", str, bytes, complex):
        with pytest.raises(BadArgumentError, match="HashMap takes bytes"):
            OrderedMap.create(client, key=kind)
    with pytest.raises(BadArgumentError, match="bytes or str"):
        HashMap.create(client, key="f4")


@pytest.mark.parametrize("keys", [INTEGERS, FLOATS])
def test_hash_maps_have_such_keys_too(client, keys):
    kind = "i8" if keys is INTEGERS else float
    made = HashMap.create(client, key=kind, value="f8")
    for key in keys:
        made[key] = float(keys.index(key))
    assert dict(made.items()) == {key: float(index) for index, key in enumerate(keys)}
    values, found = made.get_array(np.array(keys))
    assert found.all() and values.tolist() == list(map(float, range(len(keys))))
    assert HashMap.open(client, json.loads(json.dumps(made.handle)))[keys[0]] == 0.0
    with pytest.raises(UnsupportedValueError):
        made["a"] = 1.0


def sources(keys, values, folder):
    arrow, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    path = folder / "keys.csv"
    path.write_text("key,value\n" + "".join(f"{key!r},{value}\n" for key, value in zip(keys, values, strict=True)))
    columns = {"key": keys, "value": values}
    return {
        "arrays": (np.array(keys), np.array(values)),
        "lists": (keys, values),
        "mapping": dict(zip(keys, values, strict=True)),
        "pairs": list(zip(keys, values, strict=True)),
        "arrow": arrow.table(columns),
        "pandas": pandas.DataFrame(columns),
        "csv": str(path),
    }


@pytest.mark.parametrize("keys", [[3, -7, 0, -(1 << 63)], [2.5, -1.25, 100.49, -1e300]])
def test_loads_keep_keys_as_they_are(client, keys, tmp_path):
    wanted = sorted(zip(keys, [1, 2, 3, 4], strict=True))
    for name, source in sources(keys, [1, 2, 3, 4], tmp_path).items():
        options = {"key_type": "f8" if isinstance(keys[0], float) else "i8"} if name == "csv" else {}
        assert list(OrderedMap.load(client, source, **options).items()) == wanted, name
        if name == "csv" and isinstance(keys[0], float):
            options = {"key_type": float}
        assert sorted(HashMap.load(client, source, **options).items()) == wanted, name


def test_a_load_says_which_key_is_none(client, tmp_path):
    for source, options in [
        (([1.5, math.nan], [1, 2]), {}),
        (([1, -1], [1, 2]), {"key_type": "u8"}),
        ([(1.5, 1), ("a", 2)], {"key_type": "f8"}),
        ({b"a": 1, b"abc": 2}, {"key_type": "S2"}),
    ]:
        with pytest.raises((BadInputError, UnsupportedValueError), match="2|-1"):
            OrderedMap.load(client, source, **options)
    path = tmp_path / "bad.csv"
    path.write_text("key,value\n1.5,1\nx,2\n")
    with pytest.raises(BadInputError, match="row 3"):
        OrderedMap.load(client, str(path), key_type="f8")
