# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Several processes that write one pool in turn.

Goal    each change that was acknowledged is there, also when writers are killed in the middle of a turn; nobody waits longer than was said;
        Ctrl-C ends the wait
Method  processes that count up the same entry, each in a turn of its own, some of them killed; a holder that does not let go
"""

import signal
import subprocess
import sys
import time

import pytest

from memlift import errors, persist

COUNTER = """
import sys
from memlift import persist
path, turns = sys.argv[1], int(sys.argv[2])
for _ in range(turns):
    with persist.open(path, wait=60) as pool:
        counts = pool.dict("counts")
        with pool.transaction():
            counts["all"] = counts.get("all", 0) + 1
            counts["again"] = counts.get("again", 0) + 1
    print("counted", flush=True)
"""

HOLDER = """
import sys, time
from memlift import persist
with persist.open(sys.argv[1]) as pool:
    print("held", flush=True)
    sys.stdin.read()
"""

WAITER = """
import sys
from memlift import persist
print("waits", flush=True)
try:
    persist.open(sys.argv[1], wait=600)
except KeyboardInterrupt:
    sys.exit(7)
"""


def started(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ended(processes):
    for process in processes:
        process.kill()
        process.communicate()


def test_turns_of_many_lose_nothing_when_some_are_killed(tmp_path):
    path = tmp_path / "pool"
    counters = [started(COUNTER, path, 40) for _ in range(4)]
    killed = [started(COUNTER, path, 1_000_000) for _ in range(2)]
    try:
        acknowledged = 0
        for process in killed:
            for _ in range(10):
                acknowledged += process.stdout.readline() == "counted\n"
            process.kill()
            acknowledged += process.stdout.read().count("counted\n")  # what `communicate` reads is not what `readline` has buffered
        for process in counters:
            text, _ = process.communicate()
            assert process.returncode == 0
            acknowledged += text.count("counted\n")
    finally:
        ended(counters + killed)
    with persist.open(path, mode="w") as pool:
        counts = pool.dict("counts")
        # A killed process may have counted once more than it could say.
        assert acknowledged <= counts["all"] <= acknowledged + len(killed)
        assert counts["again"] == counts["all"]


def test_the_wait_ends(tmp_path):
    path = tmp_path / "pool"
    persist.open(path).close()
    holder = started(HOLDER, path)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(errors.PoolInUseError):
            persist.open(path)
        began = time.monotonic()
        with pytest.raises(errors.PoolInUseError):
            persist.open(path, wait=0.3)
        assert time.monotonic() - began >= 0.3
        with pytest.raises(errors.PoolInUseError):
            persist.open(path, mode="r", wait=0.1)
        with pytest.raises(errors.PoolInUseError):
            persist.shelf(path, wait=0.1)
        for wrong in (-1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="wait"):
                persist.open(path, wait=wrong)
    finally:
        ended([holder])
    persist.open(path, mode="w", wait=60).close()


def test_ctrl_c_ends_the_wait(tmp_path):
    path = tmp_path / "pool"
    persist.open(path).close()
    holder, waiter = started(HOLDER, path), None
    try:
        assert holder.stdout.readline() == "held\n"
        waiter = started(WAITER, path)
        assert waiter.stdout.readline() == "waits\n"
        time.sleep(0.2)
        waiter.send_signal(signal.SIGINT)
        assert waiter.wait() == 7
    finally:
        ended([process for process in (holder, waiter) if process])
