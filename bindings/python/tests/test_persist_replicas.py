# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Copies of a pool elsewhere: kept up to date while it is written, and restored.

Goal    a restored pool has the state of one moment; with durability="replicated" nothing that was done is missing, whoever is killed; mistakes
        and stores that are away are errors that say what to do, and the pool goes on
Method  folders as stores; a child that is killed in the middle and whose disk is lost; a store that disappears; signals
"""

import datetime
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import memlift
import numpy as np
import pytest
from memlift import errors, persist


def test_a_pool_is_copied_while_it_is_used_and_restored(tmp_path):
    place = tmp_path / "copy"
    with persist.open(tmp_path / "state.pool", replicate=place, replica_interval=0.05) as pool:
        state = pool.dict("state")
        state["step"] = 1
        pool.put_array("weights", np.arange(1000.0))
        pool.wait_replica()
        found = pool.replica
        assert found.url == os.fspath(place) and found.trouble is None and not found.ended
        assert found.sequence == found.committed > 0 and found.sent_bytes > 8000
        assert 0 <= found.lag < 60
        first = found.complete_until
        assert first.tzinfo is datetime.UTC and abs((datetime.datetime.now(datetime.UTC) - first).total_seconds()) < 60
        time.sleep(0.01)
        between = datetime.datetime.now(datetime.UTC)
        time.sleep(0.01)
        state["step"] = 2
    assert pool.replica is None, "it is closed"
    told = []
    last = persist.restore(place, tmp_path / "last.pool", progress=lambda done, total: told.append((done, total)))
    assert told and told[-1][0] <= told[-1][1] == last.bytes
    with persist.open(tmp_path / "last.pool", mode="r") as copy:
        assert copy.dict("state")["step"] == 2
        np.testing.assert_array_equal(copy.array("weights"), np.arange(1000.0))
    for turn, at in enumerate([between, between.timestamp(), between.isoformat()]):
        done = persist.restore(place, tmp_path / f"before {turn}", at)
        assert done.time <= between and done.sequence < last.sequence
        with persist.open(tmp_path / f"before {turn}", mode="r") as copy:
            assert copy.dict("state")["step"] == 1
    # The moment that a replica names is a state of its own.
    there = persist.history(place)
    assert persist.restore(place, tmp_path / "named", there.stretches[0].start).time == there.stretches[0].start
    assert there.stretches[0].end == last.time and not there.missing and there.bytes > 8000
    assert "state.pool, process " in there.writers[0].owner and there.writers[0].since <= first


def test_a_shelf_has_a_copy_too(tmp_path):
    with persist.shelf(tmp_path / "cache", replicate=tmp_path / "copy") as cache:
        cache["key"] = {"any": [1, 2, 3]}
    persist.restore(tmp_path / "copy", tmp_path / "again")
    with persist.shelf(tmp_path / "again", "r") as cache:
        assert cache["key"] == {"any": [1, 2, 3]}


def test_nothing_is_overwritten_and_mistakes_are_named(tmp_path):
    place = tmp_path / "copy"
    with persist.open(tmp_path / "a.pool", replicate=place, durability="replicated") as pool:
        pool.dict("d")["a"] = 1
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(FileExistsError):
        persist.restore(place, tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(errors.ReplicaError, match="begins at"):
        persist.restore(place, tmp_path / "x", "2001-01-01T00:00:00Z")
    for wrong in ["yesterday", datetime.datetime(2026, 1, 1), float("nan"), -1]:
        with pytest.raises(errors.BadArgumentError):
            persist.restore(place, tmp_path / "x", wrong)
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NoReplicaError, match="look at the address"):
        persist.restore(tmp_path / "empty", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        persist.history(tmp_path / "nothing")
    with pytest.raises(errors.BadArgumentError, match="another pool"):
        persist.open(tmp_path / "b.pool", replicate=place)
    with pytest.raises(errors.BadArgumentError, match="undo|convert"):
        persist.open(tmp_path / "c.pool", mechanism="undo", replicate=tmp_path / "copy c")
    with pytest.raises(errors.BadArgumentError, match="replicate=URL"):
        persist.open(tmp_path / "d.pool", durability="replicated")
    with persist.open(tmp_path / "e.pool") as pool:
        assert pool.replica is None
        with pytest.raises(errors.BadArgumentError, match="replicate=URL"), pool.transaction(durability="replicated"):
            pool.dict("d")["a"] = 1
        with pytest.raises(errors.BadArgumentError):
            pool.wait_replica()
        assert len(pool.names()) == 0
    segment = sorted((place / "log").iterdir())[-1]
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(errors.ReplicaError, match="restore is possible|segment"):
        persist.restore(place, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_of_two_writers_the_later_one_has_the_replica(tmp_path):
    place = tmp_path / "copy"
    with pytest.warns(RuntimeWarning, match="belongs to another process"):
        with persist.open(tmp_path / "a.pool", replicate=place, durability="replicated") as first:
            first.dict("d")["a"] = 1
            persist.restore(place, tmp_path / "b.pool")
            with persist.open(tmp_path / "b.pool", replicate=place, durability="replicated") as second:
                second.dict("d")["b"] = 2
                with pytest.raises(errors.NotReplicatedError, match="b.pool, process"):
                    first.dict("d")["c"] = 3
                assert first.dict("d")["c"] == 3, "it is in the file"
                assert first.replica.ended and "stop the other one" in first.replica.trouble
                second.dict("d")["d"] = 4
    persist.restore(place, tmp_path / "c.pool")
    with persist.open(tmp_path / "c.pool", mode="r") as copy:
        assert copy.dict("d").copy() == {"a": 1, "b": 2, "d": 4}


def away(place: pathlib.Path) -> None:
    place.rename(place.with_suffix(".away"))
    place.write_text("no folder")


def back(place: pathlib.Path) -> None:
    place.unlink()
    place.with_suffix(".away").rename(place)


def test_a_pool_goes_on_while_its_store_is_away(tmp_path):
    place = tmp_path / "copy"
    pool = persist.open(tmp_path / "a.pool", replicate=place, replica_interval=0.05, replica_wait=0.3)
    d = pool.dict("d")
    d["a"] = 1
    pool.wait_replica()
    away(place)
    d["a"] = 2
    with pytest.raises(errors.NotReplicatedError):
        pool.wait_replica(0.5)
    assert "copy" in pool.replica.trouble and not pool.replica.ended
    assert pool.replica.sequence < pool.replica.committed
    with pytest.raises(errors.NotReplicatedError), pool.transaction(durability="replicated"):
        d["a"] = 3
    assert d["a"] == 3
    started = time.monotonic()
    with pytest.raises(errors.NotReplicatedError):
        pool.close()
    assert pool.closed and time.monotonic() - started < 30
    with pytest.raises((OSError, errors.Error)):
        persist.open(tmp_path / "a.pool", replicate=place)
    back(place)
    with persist.open(tmp_path / "a.pool", replicate=place) as pool:
        assert pool.dict("d")["a"] == 3
    persist.restore(place, tmp_path / "b.pool")
    with persist.open(tmp_path / "b.pool", mode="r") as copy:
        assert copy.dict("d")["a"] == 3


WRITER = """
import random, sys
from memlift import persist
with persist.open(sys.argv[1], replicate=sys.argv[2], durability="replicated", replica_interval=0.02) as pool:
    d = pool.dict("d")
    dice = random.Random(int(sys.argv[3]))
    count = d.get("count", 0)
    while True:
        count += 1
        with pool.transaction(durability=dice.choice(["replicated", "sync", "buffered"])):
            d[f"key {dice.randrange(40)}"] = [count] * dice.randrange(2000)
            d["count"] = count
        if dice.random() < 0.3:
            count += 1
            d["count"] = count
            print(count, flush=True)
"""


def test_nothing_replicated_is_lost_with_the_process_and_its_disk(tmp_path):
    place, path, last = tmp_path / "copy", tmp_path / "pool 0", 0
    for turn in range(4):
        child = subprocess.Popen([sys.executable, "-c", WRITER, path, place, str(turn)], stdout=subprocess.PIPE, text=True)
        told = last
        for _ in range(random.randrange(2, 25)):
            told = int(child.stdout.readline())
        time.sleep(random.random() / 50)
        child.kill()
        rest = child.stdout.read().split()
        child.wait()
        told = int(rest[-1]) if rest else told
        path = tmp_path / f"pool {turn + 1}"  # the other one is lost
        persist.restore(place, path)
        with persist.open(path) as pool:
            last = pool.dict("d")["count"]
        assert last >= told


def test_ctrl_c_ends_a_wait(tmp_path):
    place = tmp_path / "copy"
    pool = persist.open(tmp_path / "a.pool", replicate=place, replica_wait=60)
    pool.dict("d")["a"] = 1
    pool.wait_replica()
    away(place)
    pool.dict("d")["a"] = 2
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pool.wait_replica(60)
    assert time.monotonic() - started < 20
    back(place)
    pool.close()


def test_ctrl_c_ends_an_open_whose_store_does_not_answer(tmp_path, monkeypatch):
    silent = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
    for name, value in [("ALLOW_HTTP", "true"), ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("REGION", "c")]:
        monkeypatch.setenv(f"AWS_{name}", value)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        persist.open(tmp_path / "a.pool", replicate="s3://words/a")
    assert time.monotonic() - started < 20
    silent.close()
    with persist.open(tmp_path / "a.pool") as pool:
        pool.dict("d")["a"] = 1


def test_what_a_callback_raises_ends_a_restore(tmp_path):
    with persist.open(tmp_path / "a.pool", replicate=tmp_path / "copy") as pool:
        pool.put_array("a", np.random.default_rng(1).random(3_000_000))

    def progress(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        persist.restore(tmp_path / "copy", tmp_path / "b.pool", progress=progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pool", "copy"]


def test_a_forked_child_leaves_the_replica_alone(tmp_path):
    with persist.open(tmp_path / "a.pool", replicate=tmp_path / "copy") as pool:
        pool.dict("d")["a"] = 1
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert pool.replica is None
                with pytest.raises(memlift.errors.ClosedError):
                    pool.wait_replica()
                pool.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        pool.dict("d")["a"] = 2
        pool.wait_replica()
    persist.restore(tmp_path / "copy", tmp_path / "b.pool")
    with persist.open(tmp_path / "b.pool", mode="r") as copy:
        assert copy.dict("d")["a"] == 2
