# SPDX-License-Identifier: Apache-2.0 OR MIT
"""HashMap and OrderedMap as mutable mappings, against dict: every method and view, what several clients do at once, and workers that were
forked."""

import multiprocessing
import os
import random
import threading
from collections.abc import ItemsView, KeysView, MutableMapping, ValuesView

import numpy as np
import pytest

from memlift import errors
from memlift.traverse import Client, HashMap, Node, OrderedMap


@pytest.fixture(scope="module")
def node():
    with Node(memory="96M") as node:
        yield node


@pytest.fixture(scope="module")
def client(node):
    with Client.connect(node) as client:
        yield client


KINDS = {
    "hash": lambda client: HashMap.create(client, expected=64, value="i8"),
    "hash of str": lambda client: HashMap.create(client, expected=64, key=str, value="i8"),
    "hash of i8": lambda client: HashMap.create(client, expected=64, key="i8", value="i8"),
    "expiring": lambda client: HashMap.create(client, expected=64, value="i8", ttl=3600),
    "bounded": lambda client: HashMap.create(client, expected=64, value="i8", max_entries=10_000, max_bytes="32M"),
    "ordered": lambda client: OrderedMap.create(client),
    "ordered of i8": lambda client: OrderedMap.create(client, key="i8", value="u4"),
    "ordered of bytes": lambda client: OrderedMap.create(client, key="S6"),
}
KEYS = {"hash of str": lambda number: f"key {number}", "ordered of bytes": lambda number: b"%d" % number}
SIGNED = ("hash of i8", "ordered of i8")


@pytest.fixture(params=KINDS, ids=str)
def kind(request):
    return request.param


@pytest.fixture
def entries(client, kind):
    entries = KINDS[kind](client)
    yield entries
    entries.drop()


def make(kind, number):
    return KEYS.get(kind, lambda number: number - 20 if kind in SIGNED else number)(number)


def test_a_random_history_is_that_of_a_dict(entries, kind):
    draw, model, missing = random.Random(kind), {}, object()
    for _ in range(500):
        key, value = make(kind, draw.randrange(40)), draw.randrange(1 << 31)
        match draw.randrange(9):
            case 0:
                assert entries.setdefault(key, value) == model.setdefault(key, value)
            case 1:
                assert entries.pop(key, missing) == model.pop(key, missing)
            case 2 if key not in model:
                for gone in (lambda: entries.pop(key), lambda: entries[key], lambda: entries.__delitem__(key)):  # noqa: B023
                    with pytest.raises(KeyError):
                        gone()
            case 3 if model:
                found, held = entries.popitem()
                assert model.pop(found) == held
            case 4:
                more = {make(kind, draw.randrange(40)): draw.randrange(1 << 31) for _ in range(3)}
                entries |= more
                model |= more
            case 5 if key in model:
                del entries[key], model[key]
            case _:
                entries[key] = model[key] = value
        assert len(entries) == len(model) and (key in entries) == (key in model)
        assert entries.get(key, missing) == model.get(key, missing)
    assert entries == model and not entries != model and model == entries
    assert isinstance(entries, MutableMapping)
    with pytest.raises(TypeError):
        hash(entries)
    entries.clear()
    assert entries == {} and len(entries) == 0 and list(entries.items()) == []
    for _ in range(2):
        with pytest.raises(KeyError):
            entries.popitem()
    entries[make(kind, 1)] = 5
    assert entries == {make(kind, 1): 5} and entries != {make(kind, 1): 6} and entries != 5


def test_views_are_those_of_a_dict(entries, kind):
    model = {make(kind, number): number * 3 for number in range(30)}
    entries.update(model)
    keys, values, items = entries.keys(), entries.values(), entries.items()
    assert isinstance(keys, KeysView) and isinstance(values, ValuesView) and isinstance(items, ItemsView)
    some, other = make(kind, 7), make(kind, 99)
    assert len(keys) == len(values) == len(items) == 30
    assert some in keys and other not in keys and object() not in keys and None not in keys
    assert (some, 21) in items and (some, 22) not in items and (other, 21) not in items and some not in items and (None, 1) not in items
    assert 21 in values and 22 not in values
    assert set(keys) == set(model) and sorted(values) == sorted(model.values()) and dict(items) == model
    assert keys & {some, other} == {some} and keys - set(model) == set() and (keys | {other}) == set(model) | {other}
    assert keys == model.keys() and items == model.items() and keys >= {some} and not keys.isdisjoint(model)
    assert items & {(some, 21), (some, 22)} == {(some, 21)}
    # They show what is there when they are read.
    del entries[some]
    entries[other] = 1
    assert some not in keys and (other, 1) in items and len(values) == 30


def test_a_copy_is_another_collection(client, entries, kind):
    model = {make(kind, number): number for number in range(200)}
    entries.update(model)
    if kind in ("expiring", "bounded"):
        with pytest.raises(errors.BadArgumentError, match="ttl"):
            entries.copy()
        return
    made = entries.copy()
    assert made == entries == model and made.handle != entries.handle and type(made) is type(entries)
    made[make(kind, 0)] = 77
    del made[make(kind, 1)]
    assert entries == model
    made.drop()
    assert entries == model


def test_an_ordered_map_has_parts_and_both_ends(client):
    series = OrderedMap.create(client, value="f8")
    model = {key * 10: key / 2 for key in range(500)}
    series.update(model)
    inside = [(key, value) for key, value in model.items() if 95 <= key <= 2000]
    items, keys, values = series.items(95, 2000), series.keys(95, 2000), series.values(95, 2000)
    assert list(items) == inside and list(reversed(items)) == inside[::-1] and len(items) == len(keys) == len(values) == len(inside)
    assert list(reversed(keys)) == [key for key, _ in inside[::-1]] and list(reversed(values)) == [value for _, value in inside[::-1]]
    assert 100 in keys and 90 not in keys and (100, 5.0) in items and (90, 4.5) not in items and (100, 5.5) not in items
    assert list(reversed(series.items())) == list(model.items())[::-1]
    for first, last, limit in [(None, None, 7), (95, 2000, 7), (95, 2000, 10_000), (5000, None, 3), (None, 0, 5), (95, 2000, 0), (30, 20, 4)]:
        whole = [key for key in model if (first is None or key >= first) and (last is None or key <= last)]
        for reverse in (False, True):
            wanted = (whole[::-1] if reverse else whole)[:limit]
            found, held = series.range(first, last, limit, reverse=reverse)
            assert found.tolist() == wanted and held.tolist() == [model[key] for key in wanted], (first, last, limit, reverse)
    assert series.range(reverse=True)[0].tolist() == list(model)[::-1]
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises(errors.BadArgumentError, match="limit"):
            series.range(limit=wrong)
    assert series.popitem() == (4990, 249.5) and series.popitem(last=False) == (0, 0.0) and len(series) == 498
    series.drop()


@pytest.mark.parametrize("key", ["i8", "f8"])
def test_the_least_key_ends_a_way_backwards(client, key):
    series = OrderedMap.create(client, key=key)
    least = -(1 << 63) if key == "i8" else float("-inf")
    series.update({least: 1, 0: 2, 5: 3})
    assert list(reversed(series)) == [5, 0, least] and series.range(least, 0, 2, reverse=True)[1].tolist() == [2, 1]
    series.drop()


@pytest.mark.parametrize("make_map", [KINDS["hash"], KINDS["expiring"], KINDS["ordered"]], ids=["hash", "expiring", "ordered"])
def test_each_entry_goes_to_one_of_those_who_take_it(node, client, make_map):
    entries = make_map(client)
    entries.update({number: number for number in range(400)})
    came, failed, winners = [], [], []

    def take(own):
        try:
            with Client.connect(node) as mine:
                here = type(entries).open(mine, entries.handle)
                winners.append(here.setdefault(1000, own))
                for number in range(0, 200):
                    value = here.pop(number, None)
                    if value is not None:
                        came.append(value)
                while True:
                    try:
                        key, value = here.popitem()
                    except KeyError:
                        return
                    if key != 1000:
                        came.append(value)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=take, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and sorted(came) == list(range(400)) and len(entries) == 0
    assert set(winners) <= set(range(4))
    entries.drop()


def test_of_several_defaults_one_counts(node, client):
    for entries in (HashMap.create(client, value="i8"), OrderedMap.create(client), OrderedMap.create(client, value="V24")):
        came = []

        def give(own, entries=entries, came=came):
            value = np.void(bytes([own]) * 24) if entries.handle.value == "|V24" else own
            with Client.connect(node) as mine:
                here = type(entries).open(mine, entries.handle)
                came.append([bytes(np.array(here.setdefault(key, value)).tobytes()) for key in range(50)])

        threads = [threading.Thread(target=give, args=(own,)) for own in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(came) == 4 and all(one == came[0] for one in came)
        entries.drop()


def _count(entries):
    return len(entries), sum(entries.values())


def _refused(entries):
    try:
        len(entries)
    except errors.ClosedError as error:
        return "fork" in str(error)
    return False


_GLOBAL = None


def _global_refused(_):
    return _refused(_GLOBAL)


@pytest.mark.parametrize("make_map", [KINDS["hash"], KINDS["expiring"], KINDS["ordered"]], ids=["hash", "expiring", "ordered"])
def test_workers_that_were_forked_get_their_own_client_or_an_error(make_map):
    global _GLOBAL
    with Node(memory="16M") as node, Client.connect(node) as client:
        _GLOBAL = entries = make_map(client)
        entries.update({number: 1 for number in range(100)})
        with multiprocessing.get_context("fork").Pool(2) as pool:
            # By its handle: each worker connects for itself.
            assert pool.map_async(_count, [entries] * 4).get(60) == [(100, 100)] * 4
            # The parent's object itself: refused, not answered wrongly.
            assert all(pool.map_async(_global_refused, range(4)).get(60))
        assert os.getpid() and len(entries) == 100
        _GLOBAL = None
