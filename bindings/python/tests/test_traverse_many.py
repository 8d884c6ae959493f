# SPDX-License-Identifier: Apache-2.0 OR MIT
"""put_many and update, against a dict: every kind of key and value, one node and two, other writers at the same time; the last keys
of a range and parts of it; collections in other processes."""

import math
import multiprocessing
import os
import pickle
import random
import signal
import threading

import numpy as np
import pytest
from conftest import free_ports

from memlift import errors
from memlift.traverse import Client, HashHandle, HashMap, List, Node, OrderedMap, _client


@pytest.fixture(scope="module")
def near():
    with Node(memory="96M", listen=f"shm:py-many-near-{os.getpid()}") as node, Client.connect(node.places[0]) as client:
        yield client


@pytest.fixture(scope="module", params=["udp", "shm", "two nodes"])
def client(request, tmp_path_factory):
    if request.param != "two nodes":
        with Node(memory="96M", listen=["127.0.0.1:0", f"shm:py-many-{os.getpid()}"]) as node:
            with Client.connect(node.places[request.param == "shm"]) as client:
                yield client
        return
    places = [f"127.0.0.1:{port}" for port in free_ports(2)]
    path = tmp_path_factory.mktemp("map") / "map.toml"
    text = "epoch = 1\n"
    for name, place, base in zip("ab", places, (1 << 33, 1 << 34), strict=True):
        text += f'[[node]]\nname = "{name}"\naddresses = ["udp:{place}"]\n'
        text += f'[[range]]\nbase = "{base:#x}"\nbytes = "64M"\nnode = "{name}"\n'
    path.write_text(text)
    with (
        Node(memory="64M", listen=places[0], map=path, name="a"),
        Node(memory="64M", listen=places[1], map=path, name="b"),
        Client.connect(map=path) as client,
    ):
        yield client


KEYS = {
    int: lambda draw: draw.choice([draw.randrange(300), draw.randrange(1 << 64)]),
    "i8": lambda draw: draw.choice([draw.randrange(-200, 200), draw.randrange(-(1 << 63), 1 << 63)]),
    float: lambda draw: draw.choice([draw.uniform(-9, 9), float(draw.randrange(200))]),
    bytes: lambda draw: b"%d" % draw.randrange(400) * draw.randrange(1, 40),
    str: lambda draw: "ä%d" % draw.randrange(400),
}
VALUES = {
    "i8": lambda draw: draw.randrange(-(1 << 63), 1 << 63),
    "f4": lambda draw: float(draw.randrange(1 << 20)),
    bytes: lambda draw: draw.randbytes(draw.choice([0, 3, 8, 100, 5000])),
    str: lambda draw: "ü" * draw.randrange(90),
    "V240": lambda draw: np.void(draw.randbytes(240)),
}


ORDERED_KEYS = [int, "i8", float, "S4"]
ORDERED_VALUES = ["i8", "f4", "V240", [("a", "u2"), ("b", "S5")]]


def _kinds(keys, values):
    """Each kind of key and of value once; `make soak` has every kind of key with every kind of value."""
    pairs = [(row == column, key, value) for row, key in enumerate(keys) for column, value in enumerate(values)]
    return [pytest.param(key, value, marks=[] if once else [pytest.mark.soak]) for once, key, value in pairs]


def _same(found, wanted):
    return dict(found.items()).keys() == wanted.keys() and all(found[key] == wanted[key] for key in wanted)


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_hash_map_takes_every_kind_as_a_dict_does(near, key, value):
    _puts_in_a_hash_map(near, key, value)


@pytest.mark.parametrize(("key", "value"), _kinds(KEYS, VALUES))
def test_a_hash_map_takes_many_as_a_dict_does(client, key, value):
    _puts_in_a_hash_map(client, key, value)


def _puts_in_a_hash_map(client, key, value):
    draw, wanted = random.Random(f"{key}{value}"), {}
    entries = HashMap.create(client, expected=300, key=key, value=value)
    for round in range(6):
        pairs = [(KEYS[key](draw), VALUES[value](draw)) for _ in range(draw.choice([0, 1, 70, 300]))]
        before = len(wanted)
        wanted.update(pairs)
        if round % 2:
            entries.update(pairs)
        else:
            assert entries.put_many((one for one, _ in pairs), [one for _, one in pairs]) == len(wanted) - before
        assert _same(entries, wanted)
        for gone in list(wanted)[::3]:
            assert entries.delete(gone)
            del wanted[gone]
    entries.drop()


@pytest.mark.parametrize("value", ORDERED_VALUES, ids=str)
@pytest.mark.parametrize("key", ORDERED_KEYS, ids=str)
def test_an_ordered_map_takes_every_kind_as_a_dict_does(near, key, value):
    _puts_in_an_ordered_map(near, key, value)


@pytest.mark.parametrize(("key", "value"), _kinds(ORDERED_KEYS, ORDERED_VALUES))
def test_an_ordered_map_takes_many_as_a_dict_does(client, key, value):
    _puts_in_an_ordered_map(client, key, value)


def _puts_in_an_ordered_map(client, key, value):
    draw, wanted = random.Random(f"{key}{value}"), {}
    make_key = KEYS.get(key, lambda draw: b"%d" % draw.randrange(1, 9000))
    record = np.dtype([("a", "<u2"), ("b", "S5")])
    make_value = VALUES[value] if isinstance(value, str) else lambda draw: np.array((draw.randrange(9), b"x" * 5), record)[()]
    entries = OrderedMap.create(client, key=key, value=value)
    for round in range(6):
        pairs = [(make_key(draw), make_value(draw)) for _ in range(draw.choice([0, 1, 70, 3000]))]
        before = len(wanted)
        wanted.update(pairs)
        if round % 2:
            entries.update(dict(pairs))
        else:
            assert entries.put_many([one for one, _ in pairs], [one for _, one in pairs]) == len(wanted) - before
        assert list(entries) == sorted(wanted) and _same(entries, wanted)
        for gone in sorted(wanted)[:: 1 + round]:
            assert entries.delete(gone)
            del wanted[gone]
    entries.drop()


@pytest.mark.parametrize("kind", [HashMap, OrderedMap])
def test_arrays_are_put_without_an_object_per_key(client, kind):
    entries = kind.create(client, value="f8")
    keys = np.random.default_rng(1).permutation(20_000).astype(np.uint64)
    assert entries.put_many(keys, keys * 0.5) == 20_000
    assert entries.put_many(keys[::2], np.arange(10_000)[::1]) == 0  # whole numbers fit f8
    values, found = entries.get_array(keys)
    assert found.all() and (values[1::2] == keys[1::2] * 0.5).all() and (values[::2] == np.arange(10_000)).all()
    entries.drop()


@pytest.mark.parametrize("kind", [HashMap, OrderedMap])
def test_what_does_not_fit_changes_nothing(client, kind):
    entries = kind.create(client, value="i8")
    for keys, values in [([1, 2], [1]), ([1, 2], [1, 2.5]), ([1, -2], [1, 2]), ([1, "a"], [1, 2]), ([1], [[1, 2]]), ([1], ["x"])]:
        with pytest.raises((errors.UnsupportedValueError, errors.BadArgumentError)):
            entries.put_many(keys, values)
    assert len(entries) == 0
    entries.update({1: 2}.items())
    with pytest.raises(errors.UnsupportedValueError):
        entries.update(named=1)  # as a dict's update has it, names are keys: here they are none
    assert dict(entries.items()) == {1: 2}
    entries.drop()


@pytest.mark.parametrize("kind", [HashMap, OrderedMap])
def test_numbers_of_several_kinds_are_not_changed(client, kind):
    large = (1 << 53) + 1
    floats = kind.create(client, key=float, value="f8")
    with pytest.raises(errors.UnsupportedValueError, match="float"):
        floats.put_many([0.5, large], [1.0, 2.0])
    with pytest.raises(errors.UnsupportedValueError):
        floats.put_many([0.5, 1.5], [1.0, large])
    assert len(floats) == 0
    whole = kind.create(client, value="u8")
    keys = [25, (1 << 64) - 1, large]
    assert whole.put_many(keys, keys) == 3 and dict(whole.items()) == dict(zip(keys, keys, strict=True))
    assert whole.get_array(keys)[0].tolist() == keys
    if kind is OrderedMap:
        with pytest.raises(errors.UnsupportedValueError, match="zero"):
            kind.create(client, key="S4", value="u8").put_many([b"a\0"], [1])
    floats.drop()
    whole.drop()


@pytest.mark.parametrize("kind", [HashMap, OrderedMap])
def test_writers_of_batches_and_of_single_keys_lose_nothing(client, kind):
    entries = kind.create(client, value="i8")
    failed = []

    def batches(own):
        try:
            for round in range(15):
                keys = np.arange(100, dtype=np.uint64) * 4 + own
                entries.put_many(keys, np.full(100, round))
        except BaseException as error:
            failed.append(error)

    def singles(own):
        try:
            for round in range(150):
                entries[4 * (round % 50) + own] = round
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(own,)) for own, run in enumerate([batches, singles, batches, singles])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    wanted = {4 * index + own: 14 for own in (0, 2) for index in range(100)} | {4 * index + own: 100 + index for own in (1, 3) for index in range(50)}
    assert dict(entries.items()) == wanted
    entries.drop()


@pytest.mark.parametrize("key", [int, "i8", float, "S4"], ids=str)
def test_the_last_keys_of_a_range(client, key):
    draw = random.Random(f"last{key}")
    make_key = KEYS.get(key, lambda draw: b"%d" % draw.randrange(1, 9000))
    wanted = {make_key(draw): index for index in range(3000)}
    entries = OrderedMap.create(client, key=key)
    assert [part.tolist() for part in entries.last(5)] == [[], []] and list(reversed(entries)) == []
    entries.update(wanted)
    ordered = sorted(wanted)
    assert list(reversed(entries)) == ordered[::-1]
    for count in (0, 1, 10, 2999, 1 << 70):
        keys, values = entries.last(count)
        assert keys.tolist() == ordered[-count:] * (count > 0) and values.tolist() == [wanted[one] for one in keys.tolist()]
    begin, end = len(ordered) // 4, len(ordered) // 2
    assert entries.last(50, ordered[begin], ordered[end])[0].tolist() == ordered[end - 49 : end + 1]
    assert entries.last(5000, ordered[begin], ordered[end])[0].tolist() == ordered[begin : end + 1]
    for count in (-1, 1.5, True, "2"):
        with pytest.raises(errors.BadArgumentError):
            entries.last(count)
    entries.drop()


@pytest.mark.parametrize("value", ["i8", "f8", "u2"])
@pytest.mark.parametrize("key", ["u8", "i8", "f8"])
def test_parts_of_a_range_are_aggregated(client, key, value):
    draw = np.random.default_rng(5)
    numbers = np.unique(draw.integers(0 if key == "u8" else -5000, 5000, 2000))
    keys = numbers / 4 if key == "f8" else numbers
    values = draw.integers(0, 1000, len(keys)).astype(value)
    series = OrderedMap.create(client, key=key, value=value)
    series.put_many(keys, values)
    for first, last, width in [(10, 900, 60), (0, 1000, 1000), (3, 3, 1), (100, 2000, 7)]:
        parts = series.buckets(first, last, width)
        assert parts.start.tolist() == [first + index * width for index in range((last - first) // width + 1)]
        for start, count, total, least, greatest, mean in zip(*parts, parts.avg, strict=True):
            inside = values[(keys >= start) & (keys < start + width) & (keys <= last)]
            assert count == len(inside)
            if count:
                assert (total, least, greatest) == (inside.sum(dtype=parts.sum.dtype), inside.min(), inside.max()) and mean == total / count
            else:
                assert total == least == greatest == 0 and math.isnan(mean)
    for wrong in [(5, 4, 1), (0, 10, 0), (0, 10, -1), (0, 10, True), (0, 10, "1"), (0, 1 << 40, 1)]:
        with pytest.raises(errors.BadArgumentError):
            series.buckets(*wrong)
    series.drop()


def test_the_greatest_key_is_in_the_last_part(client):
    for key, last in (("u8", (1 << 64) - 1), ("i8", (1 << 63) - 1)):
        series = OrderedMap.create(client, key=key)
        series[last], series[last - 1], series[last - 2] = 5, 6, 7
        assert series.buckets(last - 3, last, 2).sum.tolist() == [7, 11]
        assert series.buckets(last, last, 9).count.tolist() == [1]
        series.drop()


def _total(entries):
    return sum(entries.values())


def _adds(entries, number):
    entries[number] = number
    return os.getpid()


def test_pickles_name_the_public_module_and_those_of_earlier_versions_load():
    handle = HashHandle(64, 3, "int", "f8")
    pickled = pickle.dumps(handle, protocol=2)
    assert b"cmemlift.traverse\nHashHandle\n" in pickled
    assert pickle.loads(pickled.replace(b"cmemlift.traverse\n", b"cmemlift.traverse._collections\n")) == handle


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_collections_go_to_other_processes(method):
    with Node(memory="16M") as node, Client.connect(node) as client, multiprocessing.get_context(method).Pool(2) as pool:
        entries, ordered = HashMap.create(client, value="i8"), OrderedMap.create(client)
        processes = set(pool.starmap(_adds, [(one, number) for one in (entries, ordered) for number in range(200)]))
        assert os.getpid() not in processes
        assert pool.map(_total, [entries, ordered]) == [sum(range(200))] * 2 == [_total(entries), _total(ordered)]


def test_what_is_unpickled_shares_a_client_and_a_key_is_not_pickled():
    with Node(memory="16M") as node, Client.connect(node) as client:
        entries, numbers = HashMap.create(client), List.create(client)
        entries[1] = b"one"
        numbers.append(7)
        again, list_again = pickle.loads(pickle.dumps([entries, numbers]))
        assert again[1] == b"one" and [number for number, _ in list_again] == [7]
        assert again._client is list_again._client is not client
        again._client.close()
        assert pickle.loads(pickle.dumps(entries))[1] == b"one"  # a new one, since that was closed
        pickle.loads(pickle.dumps(client)).close()
    with Node(memory="16M", keys={3: b"k" * 32}) as node, Client.connect(node, tenant=3, key=b"k" * 32) as client:
        with pytest.raises(TypeError, match="key"):
            pickle.dumps(HashMap.create(client))


def test_a_child_that_was_forked_while_another_thread_connects_can_connect():
    with Node(memory="16M") as node, Client.connect(node) as client:
        entries = HashMap.create(client)
        entries[1] = b"one"
        pickled = pickle.dumps(entries)
        _client._UNPICKLING.acquire()  # as that thread has it
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # instead of waiting for ever
            os._exit(7 if pickle.loads(pickled)[1] == b"one" else 1)
        _client._UNPICKLING.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
