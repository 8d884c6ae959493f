# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Readers in other processes, beside the one that writes a pool.

Goal    each snapshot is of one moment and has everything that was done before; a refresh has the rest; arrays that are in use stay; who may not
        read, or reads too slowly, is told what to do
Method  a writer that is another process, and dies; four readers at once; a writer that keeps little
"""

import multiprocessing
import subprocess
import sys
import time

import numpy as np
import pytest

from memlift import errors, persist

WRITER = """
import sys
from memlift import persist
pool = persist.open(sys.argv[1], readers=True)
d = pool.dict("d")
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "set":
        with pool.transaction():
            for key in range(2000):
                d[key] = int(rest)
    print("done", flush=True)
"""


class Writer:
    """A process that writes a pool when it is told to."""

    def __init__(self, path):
        command = [sys.executable, "-c", WRITER, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell("hello")

    def tell(self, what):
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.kill()
        self.process.communicate()


def test_a_reader_sees_one_moment_and_then_the_next(tmp_path):
    path = tmp_path / "pool"
    writer = Writer(path)
    try:
        writer.tell("set 1")
        with persist.open(path, mode="r") as pool:
            assert pool.beside
            d = pool.dict("d")
            writer.tell("set 2")
            assert set(d.values()) == {1} and len(d) == 2000
            pool.refresh()
            assert set(d.values()) == {2} and d[7] == 2
            with pytest.raises(errors.ReadOnlyError):
                d[7] = 3
            writer.end()
            with pytest.raises(errors.SnapshotGoneError, match="no process"):
                pool.refresh()
            assert set(d.values()) == {2}, "what was read stays"
    finally:
        writer.end()
    with persist.open(path, mode="r") as pool:
        assert not pool.beside and pool.dict("d")[7] == 2
        pool.refresh()


def test_views_of_arrays_stay_and_new_ones_are_new(tmp_path):
    with persist.open(tmp_path / "pool", readers="8M") as writer:
        writer.put_array("a", np.zeros(300_000))
        with persist.open(tmp_path / "pool", mode="r") as reader:
            old = reader.array("a")
            writer.put_array("a", np.ones(300_000))
            assert not old.any()
            reader.refresh()
            assert reader.array("a").all() and not old.any()
            del old


def _count(path, expected, found):
    with persist.open(path, mode="r") as pool:
        found.put(sum(pool.dict("d").values()))
        until = time.monotonic() + 20
        while sum(pool.dict("d").values()) != expected and time.monotonic() < until:
            pool.refresh()
        found.put(sum(pool.dict("d").values()))


def test_many_processes_read_at_once(tmp_path):
    path = tmp_path / "pool"
    with persist.open(path, readers=True) as pool:
        d = pool.dict("d")
        for key in range(500):
            d[key] = 1
        context = multiprocessing.get_context("spawn")
        found = context.Queue()
        children = [context.Process(target=_count, args=(path, 1000, found)) for _ in range(4)]
        for child in children:
            child.start()
        assert [found.get(timeout=30) for _ in children] == [500] * 4
        with pool.transaction():
            for key in range(500):
                d[key] = 2
        assert [found.get(timeout=30) for _ in children] == [1000] * 4
        for child in children:
            child.join(30)
            assert child.exitcode == 0


def test_who_may_not_read_hears_what_to_do(tmp_path):
    with persist.open(tmp_path / "pool"), pytest.raises(errors.PoolInUseError, match="readers"):
        persist.open(tmp_path / "pool", mode="r")
    with pytest.raises(errors.BadArgumentError, match="redo and checkpoint"):
        persist.open(tmp_path / "undo", mechanism="undo", readers=True)


def test_a_snapshot_that_needs_more_than_is_kept_ends(tmp_path):
    with persist.open(tmp_path / "pool", readers="64K") as writer:
        d = writer.dict("d")
        for key in range(3000):
            d[key] = b"x" * 100
        with persist.open(tmp_path / "pool", mode="r") as reader:
            for key in range(3000):
                d[key] = b"y" * 100
            writer.sync()
            seen = reader.dict("d")
            reader.refresh()
            assert seen[0] == b"y" * 100
            for key in range(3000):
                d[key] = b"z" * 100
            writer.refresh()
            with persist.open(tmp_path / "pool", mode="r") as newer:
                assert newer.dict("d")[2999] == b"z" * 100
            with pytest.raises(errors.SnapshotGoneError, match="more pages"):
                list(seen.values())
