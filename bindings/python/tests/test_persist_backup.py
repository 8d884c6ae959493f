# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Copies of a pool that goes on being used.

Goal    a copy is a pool of one moment, with everything that was committed before it was asked for; nothing is overwritten, and Ctrl-C
        ends it without a copy
Method  a thread that moves money between entries of a dict while copies are made; signals
"""

import os
import signal
import threading
import time

import memlift
import numpy as np
import pytest
from memlift import persist


@pytest.mark.parametrize("mechanism", ["redo", "undo", "checkpoint", "shadow"])
def test_copies_are_of_one_moment(tmp_path, mechanism):
    with persist.open(tmp_path / "money.pool", mechanism=mechanism) as pool:
        accounts = pool.dict("accounts")
        accounts.update({number: 100 for number in range(50)})
        stop, moved = threading.Event(), [0]

        def move():
            while not stop.is_set():
                with pool.transaction():
                    a, b = moved[0] % 50, moved[0] * 7 % 50
                    accounts[a] -= 3
                    accounts[b] += 3
                    accounts["moved"] = moved[0] + 1
                moved[0] += 1

        thread = threading.Thread(target=move)
        thread.start()
        try:
            for turn in range(4):
                while moved[0] == 0 and thread.is_alive():
                    time.sleep(0.001)
                before, target = moved[0], tmp_path / f"copy {turn}"
                done = pool.backup(target)
                assert done["copied"] > 0 and done["held_seconds"] >= 0
                with persist.open(target) as copy:
                    found = copy.dict("accounts")
                    assert found["moved"] >= before
                    assert sum(found[number] for number in range(50)) == 5000
        finally:
            stop.set()
            thread.join()


def test_arrays_come_along_and_nothing_is_overwritten(tmp_path):
    with persist.open(tmp_path / "arrays.pool") as pool:
        pool.put_array("weights", np.arange(300_000.0))
        pool.backup(tmp_path / "copy")
        with pytest.raises(FileExistsError):
            pool.backup(tmp_path / "copy")
        with pytest.raises(FileExistsError):
            pool.backup(tmp_path / "arrays.pool")
        with pytest.raises(ValueError, match="bytes_per_second"):
            pool.backup(tmp_path / "none", bytes_per_second=0)
        with pool.transaction(), pytest.raises(memlift.OutOfOrderError):
            pool.backup(tmp_path / "within")
        with pytest.raises(OSError):
            pool.backup(tmp_path / "no folder" / "copy")
    assert sorted(os.listdir(tmp_path)) == ["arrays.pool", "copy"]
    with persist.open(tmp_path / "copy", mode="r") as copy:
        assert np.array_equal(copy.array("weights"), np.arange(300_000.0))


def test_ctrl_c_ends_it_without_a_copy(tmp_path):
    with persist.open(tmp_path / "large.pool") as pool:
        pool.put_array("bytes", np.ones(20_000_000, np.uint8))
        timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pool.backup(tmp_path / "copy", bytes_per_second=1 << 20)
        timer.join()
    assert os.listdir(tmp_path) == ["large.pool"]
