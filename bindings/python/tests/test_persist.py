# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Persistent dicts and arrays from Python.

Goal    what is committed is there after reopening, what is rolled back is not, and what must be refused says so
Method  each property against an ordinary dict or array, in one process; processes that die are in test_persist_crash.py
"""

import copy
import ctypes
import gc
import os
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

import memlift
from memlift import errors, persist

SMALL = {"size": 1 << 20, "lane_bytes": 1 << 20}

VALUES = [
    None, True, False, 0, 1, -1, 127, 128, -128, -129, 255, 256, 2**31, -(2**63), 2**63 - 1, 2**63, -(2**63) - 1, 10**40,
    -(10**40), 0.0, -0.5, 1e300, float("inf"), "", "text", "ümläut \U0001f40d", "x" * 100_000, b"", b"\x00\xff", b"y" * 3_000_000,
    [], [1, [2, [3]]], (), (1, "a", None), {}, {"k": [1, 2], 3: b"v"}, [True, (None, {"d": {}})],
]  # fmt: skip


@pytest.fixture(params=["lines", "pages"])
def path(request, tmp_path, monkeypatch):
    """A place for a pool; each test runs where fences count and where syncs count."""
    monkeypatch.setitem(SMALL, "domain", request.param)
    return tmp_path / "test.pool"


def reopened(pool):
    pool.close()
    return persist.open(pool.path, mode="w", domain=SMALL["domain"])


def test_values_come_back_as_they_were(path):
    pool = persist.open(path, **SMALL)
    d = pool.dict("values")
    for number, value in enumerate(VALUES):
        d[number] = value
    for _ in range(2):
        for number, value in enumerate(VALUES):
            assert d[number] == value and type(d[number]) is type(value), value
        assert list(d) == list(range(len(VALUES)))
        pool = reopened(pool)
        d = pool.dict("values")


def test_nan_and_zero_keep_their_bits(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        d["nan"], d["minus"] = float("nan"), -0.0
        assert np.isnan(d["nan"]) and np.signbit(d["minus"])


TIMES = [kind(1, unit) for kind in (np.datetime64, np.timedelta64) for unit in ("Y", "s", "ns")]


def test_keys_are_told_apart_by_kind(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        keys = ["1", b"1", 1, -1, "", b"", 0, 2**70, "é", 256, 65536, "k" * 5000]
        for number, key in enumerate(keys):
            d[key] = number
        assert list(d) == keys and [d[key] for key in keys] == list(range(len(keys)))
        for wrong in (1.5, None, (1,), True, ["list"], np.float64(1), np.True_, *TIMES):
            with pytest.raises(errors.UnsupportedValueError, match="a key is"):
                d[wrong] = 1
            with pytest.raises(TypeError):
                d.get(wrong)
        # As in a dict: what is equal is one key.
        d[np.int16(256)], d[np.str_("é")], d[np.bytes_(b"1")] = "number", "text", "bytes"
        assert (d[256], d["é"], d[b"1"]) == ("number", "text", "bytes") and list(d) == keys


def test_it_is_a_dict(path):
    pool = persist.open(path, **SMALL)
    d, model = pool.dict("d"), {}
    chance = random.Random(5)
    for _ in range(1500):
        key, what = chance.choice([f"k{chance.randrange(60)}", chance.randrange(60)]), chance.randrange(9)
        if what < 4:
            d[key] = model[key] = chance.randbytes(chance.randrange(200))
        elif what == 4:
            assert d.pop(key, "none") == model.pop(key, "none")
        elif what == 5:
            assert d.setdefault(key, "set") == model.setdefault(key, "set")
        elif what == 6 and key in model:
            del d[key], model[key]
        elif what == 7:
            more = {f"k{chance.randrange(60)}": n for n in range(5)}
            d.update(more)
            model.update(more)
        elif model:
            assert d.popitem() == model.popitem()
        assert (key in d) == (key in model) and d.get(key) == model.get(key) and len(d) == len(model)
    assert list(d) == list(model) and list(d.items()) == list(model.items()) and list(d.values()) == list(model.values())
    assert d == model and d.copy() == model and d | {1: 2} == model | {1: 2}
    d = reopened(pool).dict("d")
    assert list(d.items()) == list(model.items())
    d.clear()
    assert not d and list(d) == []
    for missing in (lambda: d["no"], lambda: d.pop("no"), d.popitem, lambda: d.__delitem__("no")):
        with pytest.raises(KeyError):
            missing()
    d.update([("a", 1)], b=2)
    assert d.copy() == {"a": 1, "b": 2} and "2 keys" in repr(d)


def test_iteration_in_batches_and_changes_meanwhile(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        with pool.transaction():
            for number in range(1000):
                d[number] = number
        assert list(d) == list(range(1000))
        for key in d:
            d[key] = "longer than it was before, so that it moves"
        assert set(d.values()) == {"longer than it was before, so that it moves"}
        walk = iter(d)
        next(walk)
        d["new"] = 1
        with pytest.raises(RuntimeError, match="changed size"):
            list(walk)


def test_a_transaction_is_all_or_nothing(path):
    pool = persist.open(path, **SMALL)
    d = pool.dict("d")
    d["a"] = 1
    pool.put_array("x", np.arange(5))
    with pytest.raises(ZeroDivisionError), pool.transaction():
        d["a"] = 2
        d["b"] = 3
        pool.dict("made here")["c"] = 4
        pool.put_array("x", np.zeros(9))
        pool.put_array("y", np.ones(70_000))
        assert d["a"] == 2 and pool.array("x").shape == (9,) and len(pool.names()) == 4
        1 / 0  # noqa: B018
    assert d.copy() == {"a": 1} and pool.names() == {"d": "dict", "x": "array"}
    assert pool.array("x").tolist() == [0, 1, 2, 3, 4]
    with pool.transaction():
        d["a"] = 5
        with pool.transaction():
            d["b"] = 6
    pool = reopened(pool)
    assert pool.dict("d").copy() == {"a": 5, "b": 6}


def test_an_inner_transaction_that_fails_takes_the_outer_with_it(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        with pytest.raises(errors.TransactionAbortedError, match="rolled back"), pool.transaction():
            d["outer"] = 1
            with pytest.raises(ValueError), pool.transaction():
                d["inner"] = 2
                raise ValueError
            d["after"] = 3
        assert not d


def test_an_operation_that_fails_in_the_middle_dooms_its_transaction(path):
    with persist.open(path, size=1 << 20, size_max=2 << 20, lane_bytes=1 << 20, domain=SMALL["domain"]) as pool:
        d = pool.dict("d")
        with pytest.raises(errors.TransactionAbortedError, match="full"), pool.transaction():
            d["a"] = 1
            with pytest.raises(errors.PoolFullError, match="no room"):
                d["b"] = b"x" * (4 << 20)
        assert not d
        d["c"] = 2
        with pytest.raises(errors.UnsupportedValueError), pool.transaction():
            d["d"] = object()
        with pool.transaction():  # nothing was touched by the refusal: this one may go on
            with pytest.raises(errors.UnsupportedValueError):
                d["d"] = object()
            d["e"] = 3
        assert d.copy() == {"c": 2, "e": 3}


def test_handles_of_what_was_rolled_back_or_removed(path):
    with persist.open(path, **SMALL) as pool:
        with pytest.raises(ValueError), pool.transaction():
            lost = pool.dict("lost")
            lost["a"] = 1
            raise ValueError
        for use in (lambda: len(lost), lambda: lost.get("a"), lambda: lost.__setitem__("a", 1), lambda: list(lost)):
            with pytest.raises(errors.GoneError, match="rolled back"):
                use()
        kept, other = pool.dict("kept"), pool.dict("other")
        kept["k"] = other["o"] = 1
        pool.remove("kept")
        pool.dict("successor")["s"] = 2
        with pytest.raises(LookupError):
            kept["k"]
        assert other.copy() == {"o": 1}
        assert pool.dict("kept").copy() == {} and kept.copy() == {}
        with pytest.raises(KeyError):
            pool.remove("nobody")


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_arrays_keep_type_shape_and_values(path, dtype):
    pool = persist.open(path, **SMALL)
    arrays = {
        "plain": (np.arange(60).reshape(3, 4, 5) % 2).astype(dtype),
        "fortran": np.asfortranarray((np.arange(12) % 2).reshape(3, 4).astype(dtype)),
        "strided": (np.arange(40) % 3).astype(dtype)[::-2],
        "scalar": np.array(1, dtype),
        "empty": np.zeros((3, 0), dtype),
        "large": (np.arange(50_000) % 7).astype(dtype),
    }
    for name, array in arrays.items():
        pool.put_array(name, array)
    pool = reopened(pool)
    for name, array in arrays.items():
        back = pool.array(name)
        assert back.dtype == array.dtype and back.shape == array.shape and not back.flags.writeable
        np.testing.assert_array_equal(back, array)


def test_a_view_is_the_pools_memory_and_read_only(path):
    with persist.open(path, **SMALL) as pool:
        pool.put_array("a", np.arange(100_000, dtype=np.float32))
        one, two = pool.array("a"), pool.array("a")
        assert np.shares_memory(one, two) and one.flags.c_contiguous and one.flags.aligned
        assert one.__array_interface__["data"] == (two.ctypes.data, True)
        assert memoryview(one).readonly
        assert np.from_dlpack(one[:10].copy()).tolist() == list(range(10))
        for write in (lambda: one.__setitem__(0, 1), lambda: one.setflags(write=True)):
            with pytest.raises(ValueError):
                write()
        with pytest.raises((BufferError, TypeError), match="not writable|read-only"):
            (ctypes.c_char * 8).from_buffer(one.base)
        del one, two


def test_a_view_never_changes(path):
    with persist.open(path, **SMALL) as pool:
        was = np.arange(20_000)
        pool.put_array("a", was)
        first = pool.array("a")
        with pool.edit("a") as a:
            a[7] = -1
        second = pool.array("a")
        pool.put_array("a", np.zeros(20_000, int))
        pool.remove("a")
        for number in range(30):  # whoever took the memory would write to it
            pool.put_array(f"other {number}", np.full(20_000, 99))
        np.testing.assert_array_equal(first, was)
        assert second[7] == -1 and second[8] == 8
        used = pool.info()["free_bytes"]
        del first, second
        gc.collect()
        pool.put_array("last", np.zeros(1))
        assert pool.info()["free_bytes"] > used  # what nobody looks at any more was given back


def test_memory_of_replaced_arrays_comes_back_after_reopening(path):
    pool = persist.open(path, **SMALL)
    pool.put_array("a", np.zeros(50_000))
    view = pool.array("a")
    pool.put_array("a", np.zeros(3))
    with pytest.raises(BufferError, match="still in use"):
        pool.close()
    assert pool.closed and view.sum() == 0
    with pytest.raises(errors.PoolInUseError):
        persist.open(path)
    del view
    with persist.open(path) as pool:
        free = pool.info()["free_bytes"]
        pool.put_array("b", np.zeros(50_000))
        assert pool.info()["heap_bytes"] - free < 400_000 + (1 << 20)
        assert pool.array("a").shape == (3,)


def test_a_view_inside_a_transaction(path):
    with persist.open(path, **SMALL) as pool:
        pool.put_array("a", np.arange(5_000))
        with pytest.raises(ValueError), pool.transaction():
            before = pool.array("a")
            with pool.edit("a") as a:
                a[0] = 5
            changed = pool.array("a")
            pool.put_array("new", np.arange(5_000))
            new = pool.array("new")
            raise ValueError
        for number in range(10):
            pool.put_array(f"n{number}", np.full(5_000, 77))
        assert before[0] == 0 and changed[0] == 5 and new.sum() == np.arange(5_000).sum()
        assert pool.array("a")[0] == 0 and "new" not in pool


def test_edit_keeps_what_differs_and_logs_no_more(path):
    pool = persist.open(path, **SMALL)
    model = np.arange(100_000, dtype=np.int64)
    pool.put_array("a", model)
    before = pool.info()["log_bytes"]
    with pool.edit("a") as a:
        a[500] = a[99_999] = -1
    assert pool.info()["log_bytes"] - before < 1024
    model[500] = model[99_999] = -1
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 9
    with pool.edit("a") as a:  # most of it: past the log
        a *= 2
    model *= 2
    with pytest.raises(KeyError), pool.edit("a") as a:
        a[:] = 0
        raise KeyError
    with pool.edit("a"):
        pass
    np.testing.assert_array_equal(pool.array("a"), model)
    np.testing.assert_array_equal(reopened(pool).array("a"), model)


def test_array_makes_what_is_missing_and_checks_what_is_there(path):
    with persist.open(path, **SMALL) as pool:
        assert pool.array("a", (2, 3), "f4").tolist() == [[0, 0, 0], [0, 0, 0]]
        assert pool.array("b", 4).dtype == np.float64 and pool.array("c", ()).shape == ()
        assert pool.array("a", (2, 3), np.float32).shape == (2, 3)
        for wrong in ({"shape": (3, 2)}, {"dtype": "f8"}, {"shape": ()}):
            with pytest.raises(errors.BadArgumentError):
                pool.array("a", **wrong)
        with pytest.raises(errors.GoneError, match="no array"):
            pool.array("nobody")
        with pytest.raises(errors.GoneError), pool.edit("nobody"):
            pass
        assert not pool._native.in_transaction
        pool.dict("d")
        for wrong in (lambda: pool.array("d"), lambda: pool.put_array("d", np.zeros(3)), lambda: pool.dict("a")):
            with pytest.raises(errors.BadArgumentError, match="is a"):
                wrong()


def test_arrays_of_many_dimensions_and_names_of_bytes(path):
    with persist.open(os.fsencode(path), **SMALL) as pool:
        pool.put_array("a", np.full((1,) * 64, 7))
    with persist.open(path) as pool:
        assert pool.array("a").ndim == 64 and pool.array("a").item() == 7
        with pytest.raises(errors.BadArgumentError, match=r"shape \(3,\), not \(2,\)"):
            pool.put_array("b", np.zeros(3))
            pool.array("b", (2,))


@pytest.mark.parametrize("bad", [np.ma.array([1, 2], mask=[0, 1]), np.array(["a"]), np.array([object()]), np.zeros(2, ">f8"), np.zeros(2, "M8[s]"), [[1], [2, 3]]])
def test_arrays_of_other_things_are_refused(path, bad):
    with persist.open(path, **SMALL) as pool, pytest.raises((TypeError, ValueError)):
        pool.put_array("a", bad)


def test_values_of_other_kinds_are_refused_or_pickled(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        itself = []
        itself.append(itself)
        for wrong in (range(3), memoryview(b"x"), np.zeros(3), np.array(1.5), itself, [object()], type("Odd", (), {"__module__": None})(), {("a", object())}, Exception(), np.void(b"x"), np.longlong(1)):
            with pytest.raises(errors.UnsupportedValueError):
                d["a"] = wrong
        with pytest.raises(UnicodeEncodeError):
            d["a"] = "\ud800"
        assert not d
        pickled = pool.dict("d", pickle=True)
        pickled["range"] = range(2)
        pickled["list"] = [range(3), "plain"]
        assert pickled["range"] == range(2) and pickled["list"] == [range(3), "plain"]
        with pytest.raises(errors.UnsupportedValueError, match="pickle=True"):
            d["range"]


SCALARS = [
    *(kind(value) for kind in (np.bool_, *np.sctypeDict.values()) for value in (0, 1)
      if issubclass(kind, np.number | np.bool_) and np.dtype(np.dtype(kind).str).type is kind),
    *(np.finfo(kind).max for kind in (np.float16, np.float32, np.float64, np.longdouble)),
    *(np.iinfo(kind).min for kind in (np.int8, np.int16, np.int32, np.int64)),
    np.complex64(1 - 2j), np.complex128(complex("nan")), np.clongdouble(1j), np.datetime64("NaT"), np.datetime64("2026-11-27T01:02", "25s"),
    np.timedelta64(-3, "h"), np.str_(""), np.str_("a\0"), np.str_("é"), np.bytes_(b""), np.bytes_(b"\0x\0"),
]


def test_scalars_of_numpy_come_back_as_they_were(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        for number, value in enumerate(SCALARS):
            d[number] = value
            d["in"] = {"a": [value, (value,)]}
            assert [type(one) for one in (d["in"]["a"][0], d["in"]["a"][1][0])] == [type(value)] * 2
    with persist.open(path) as pool:
        d = pool.dict("d")
        for number, value in enumerate(SCALARS):
            found = d[number]
            assert type(found) is type(value) and repr(found) == repr(value)
            if isinstance(value, np.generic) and not isinstance(value, str | bytes):
                assert found.dtype == value.dtype and found.tobytes() == value.tobytes()


def test_the_rest_of_a_mutable_mapping(path):
    with persist.open(path, size="1M", size_max="4M", lane_bytes="64K", domain=SMALL["domain"]) as pool:
        d, model = pool.dict("d"), {}
        for one in (d, model):
            one |= {"a": 1}
            one |= [("b", {1, 2}), ("c", frozenset([b"x"]))]
            one["d"] = bytearray(b"y")
            one["e"] = 1 + 2j
        assert dict(d) == model and list(reversed(d)) == list(reversed(model))
        assert {"z": 1} | d == {"z": 1} | model and d | {"z": 1} == model | {"z": 1}
        assert [type(value) for value in d.values()] == [type(value) for value in model.values()]
        assert list(reversed(d.items())) == list(reversed(model.items()))
        assert list(reversed(d.keys())) == list(reversed(model)) and d.keys() & {"a", "z"} == {"a"}
        assert list(reversed(d.values())) == list(reversed(model.values()))
        with pytest.raises(errors.UnsupportedValueError):
            d |= {"f": 1, "g": object()}
        assert "f" not in d, "all or nothing"
        # A copy is a dict of its own; what cannot be elsewhere says what to do.
        for copied in (copy.copy(d), copy.deepcopy(d)):
            assert type(copied) is dict and copied == model
            copied["a"] = 5
            assert d["a"] == 1
        with pytest.raises(TypeError, match=r"pickle dict\(d\)"):
            pickle.dumps(d)
        for refuse in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="backup"):
                refuse(pool)
    with persist.open(path, size=np.int64(1 << 20), domain=SMALL["domain"]), pytest.raises(TypeError):
        persist.open(path, size=1.5)
    for wrong in ("4 apples", "", "M"):
        with pytest.raises(errors.BadArgumentError, match="4G"):
            persist.open(path, size=wrong)


def test_durabilities(path):
    for durability in ("sync", "group", "buffered"):
        with persist.open(path, **SMALL, durability=durability) as pool:
            pool.dict("d")[durability] = 1
            with pool.transaction(durability="buffered"):
                pool.dict("d")[durability + " buffered"] = 2
            pool.sync()
    with persist.open(path) as pool:
        assert len(pool.dict("d")) == 6
        with pytest.raises(ValueError, match="no durability"), pool.transaction(durability="perhaps"):
            pass


def test_one_sync_per_transaction(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        d["a"] = 0
        before = pool.info()["hardens"]
        with pool.transaction():
            for number in range(20):
                d["a"] = number
        assert pool.info()["hardens"] - before == 1


def test_closed_read_only_and_the_wrong_files(path):
    pool = persist.open(path, **SMALL)
    d = pool.dict("d")
    d["a"] = 1
    with pytest.raises(errors.PoolInUseError, match="one owner"):
        persist.open(path)
    with pytest.raises(FileExistsError):
        persist.open(path, mode="x")
    with pytest.raises(errors.OutOfOrderError), pool.transaction():
        pool.close()
    pool.close()
    pool.close()
    for use in (lambda: d["a"], lambda: pool.dict("d"), lambda: pool.info(), lambda: pool.array("a"), pool.sync, lambda: len(d)):
        with pytest.raises(errors.ClosedError, match="closed"):
            use()
    assert "closed" in repr(pool) and "closed" in repr(d)
    with persist.open(path, mode="r") as pool:
        assert pool.dict("d")["a"] == 1 and pool.guarantee.domain in ("lines", "pages")
        with pytest.raises(errors.ReadOnlyError):
            pool.dict("d")["a"] = 2
        with pytest.raises(errors.ReadOnlyError), pool.transaction():
            pass
    with pytest.raises(FileNotFoundError):
        persist.open(path.with_name("missing"), mode="w")
    with pytest.raises(OSError):
        persist.open(path.parent)
    wrong = path.with_name("wrong")
    wrong.write_bytes(b"no pool at all" * 10_000)
    with pytest.raises(errors.NotAPoolError, match="wrong: this is not a memlift pool.*use another file"):
        persist.open(wrong)
    wrong.write_bytes(path.read_bytes()[: 1 << 18])
    with pytest.raises((errors.PoolDamagedError, errors.NotAPoolError)):
        persist.open(wrong)
    for bad in ({"mode": "z"}, {"durability": "never"}, {"domain": "moon"}, {"mechanism": "magic"}):
        with pytest.raises(ValueError, match="no "):
            persist.open(path, **bad)
    with pytest.raises(errors.BadArgumentError, match="lane_bytes"):
        persist.open(path.with_name("new"), lane_bytes=5 << 32)


def test_too_much(path):
    with persist.open(path, mechanism="undo", **SMALL) as pool:
        d = pool.dict("d")
        with pytest.raises(errors.TransactionTooLargeError, match="split it"), pool.transaction():
            for number in range(20_000):
                d[number] = b"x" * 500
        assert not d
        assert list(pool) == ["d"]


def test_a_transaction_of_more_than_a_lane(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        d.update({number: b"x" * 50 for number in range(100_000)})
        with pytest.raises(KeyError), pool.transaction():
            d.clear()
            raise KeyError
        assert len(d) == 100_000
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        assert len(d) == 100_000 and d[77_777] == b"x" * 50
        d.clear()
        d["all"] = b"y" * (5 << 20)
    with persist.open(path, **SMALL) as pool:
        assert dict(pool.dict("d")) == {"all": b"y" * (5 << 20)}


def test_arrays_and_values_of_more_than_64_mib(path):
    array = np.arange(9 << 20, dtype=np.float64)
    with persist.open(path, **SMALL) as pool:
        pool.put_array("a", array)
        pool.dict("d")["a"] = b"x" * (65 << 20)
    with persist.open(path, **SMALL) as pool:
        assert np.array_equal(pool.array("a"), array) and len(pool.dict("d")["a"]) == 65 << 20
        pool.put_array("a", array[:10])
        pool.put_array("b", array + 1)
        assert np.array_equal(pool.array("b"), array + 1) and pool.array("a").tolist() == list(range(10))
    refusing = path.with_name("shadow")
    with persist.open(refusing, mechanism="shadow", **SMALL) as pool:
        with pytest.raises(errors.BadArgumentError, match="redo and undo"):
            pool.put_array("a", array)
        assert not list(pool)


def test_full_pools_say_so_and_go_on(path):
    with persist.open(path, size=1 << 20, size_max=4 << 20, lane_bytes=1 << 20, domain=SMALL["domain"]) as pool:
        d = pool.dict("d")
        with pytest.raises(errors.PoolFullError, match="full"):
            for number in range(10_000):
                d[number] = b"x" * 4_000
        kept = len(d)
        assert 100 < kept < 2_000 and list(d) == list(range(kept))
        d.clear()
        for number in range(kept):
            d[number] = b"y" * 4_000
        assert len(d) == kept


def test_damaged_values_are_an_error_and_not_a_crash(path):
    pool = persist.open(path, **SMALL)
    d = pool.dict("d")
    for number in range(50):
        d[number] = ["marker", {"a": number, "b": (1.5, None, 10**30)}]
    pool.close()
    good = path.read_bytes()
    chance, failures = random.Random(3), 0
    start = good.rindex(b"marker") - 4_000  # in the heap: the log lies before it
    for _ in range(60):
        spoilt = bytearray(good)
        for _ in range(40):
            spoilt[start + chance.randrange(5_000)] = chance.randrange(256)
        path.write_bytes(spoilt)
        try:
            with persist.open(path) as pool:
                pool.dict("d").copy()
        except (memlift.errors.Error, TypeError, RuntimeError):
            failures += 1
    assert failures > 50


def test_threads_lose_nothing(path):
    with persist.open(path, **SMALL, durability="group") as pool:
        d = pool.dict("d")
        d["sum"] = 0

        def work(number):
            for step in range(100):
                with pool.transaction():
                    d["sum"] += 1
                d[f"{number} {step}"] = step

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert d["sum"] == 400 and len(d) == 401


def test_a_transaction_is_its_threads(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        begun, seen, end = threading.Event(), [], threading.Event()

        def other():
            block = pool.transaction()
            block.__enter__()
            d["a"] = 1
            begun.set()
            end.wait()  # and the thread ends without leaving the block

        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        with pytest.raises(errors.OutOfOrderError, match="no open transaction"):
            pool._native.end(True)
        reader = threading.Thread(target=lambda: seen.append(d.get("a")))
        reader.start()
        end.set()
        thread.join()
        reader.join()
        assert seen == [None] and not d


def test_a_forked_child_has_no_pool(path):
    with persist.open(path, **SMALL) as pool:
        d = pool.dict("d")
        d["a"] = 1
        before = path.read_bytes()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                d["a"] = 2
            except errors.ClosedError:
                code = 0
            del d, pool
            gc.collect()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert path.read_bytes() == before
        d["a"] = 3
    with persist.open(path) as pool:
        assert pool.dict("d")["a"] == 3


def test_from_ipc_to_a_pool_and_back(client, path):
    array = np.arange(250_000, dtype=np.float32).reshape(500, 500)
    answer = client.call("echo", array)  # a view of the session's memory
    pool = persist.open(path, **SMALL)
    pool.put_array("answer", answer)
    stored = pool.array("answer")
    doubled = client.call("double", stored)  # sent straight from the pool's memory
    with pool.edit("answer") as a:
        a[:] = doubled
    del stored
    gc.collect()
    pool = reopened(pool)
    np.testing.assert_array_equal(pool.array("answer"), array * 2)
    np.testing.assert_array_equal(client.call("echo", pool.array("answer")), array * 2)


def test_it_ends_with_the_interpreter(path):
    program = (
        "import sys, numpy as np; from memlift import persist\n"
        "pool = persist.open(sys.argv[1], domain=sys.argv[2], size=1 << 20)\n"
        "pool.dict('d')['a'] = 1; pool.put_array('x', np.arange(9000)); view = pool.array('x')\n"
        "block = pool.transaction(); block.__enter__(); pool.dict('d')['a'] = 2\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path), SMALL["domain"]], check=True, timeout=120)
    with persist.open(path) as pool:
        assert pool.dict("d")["a"] == 1 and pool.array("x")[8999] == 8999


def test_a_compacted_pool_gives_the_disk_back_and_loses_nothing(tmp_path):
    path = tmp_path / "words.pool"
    with persist.open(path) as pool:
        words = pool.dict("words")
        pool.put_array("numbers", np.arange(100_000))
        array = pool.array("numbers")
        with pool.transaction():
            for number in range(5000):
                words[number] = "a" * (number % 700)
        with pool.transaction():
            for number in range(5000):
                if number % 10:
                    del words[number]
        done = pool.compact()
        assert done["moved"] > 100 and done["freed"] > 1 << 20
        assert done["disk_bytes"] == path.stat().st_blocks * 512 <= done["disk_bytes_before"] - (1 << 20)
        assert dict(words) == {number: "a" * (number % 700) for number in range(0, 5000, 10)}
        assert (array == np.arange(100_000)).all()
        del array
        with pool.transaction(), pytest.raises(errors.OutOfOrderError):
            pool.compact()
    with persist.open(path) as pool:
        assert list(pool.dict("words")) == list(range(0, 5000, 10))
