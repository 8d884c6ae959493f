# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What is there after kill -9.

Goal    every acknowledged transaction is there, none is there in part, and nothing is damaged
Method  a child commits and says so on a pipe; it is killed at a moment chosen by chance; the pool is opened again
"""

import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from memlift import persist

CHILD = """
import sys
import numpy as np
from memlift import persist

path, durability, domain, start = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
pool = persist.open(path, size=1 << 20, lane_bytes=256 << 10, durability=durability, domain=domain)
d = pool.dict("d")
for number in range(start, 10**9):
    with pool.transaction():
        d[number] = "x" * (number * 37 % 700)
        d["last"] = number
        if number % 5 == 0:
            pool.put_array("a", np.full(100 + number * 131 % 9000, number))
        if number % 3 == 0 and "a" in pool:
            with pool.edit("a") as a:
                a[len(a) // 2] = -number
            d["edited"] = number
        if number % 11 == 0:
            d.pop(number - 7, None)
    if durability == "buffered":
        if number % 16:
            continue
        pool.sync()
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def one_life(path, durability, domain, start, chance):
    """Runs a child for a while; the last number that it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), durability, domain, str(start)], stdout=subprocess.PIPE, text=True
    )
    acknowledged = start - 1
    for _ in range(chance.randrange(1, 120)):
        acknowledged = int(child.stdout.readline())
    # What it says between the signal and its death counts, too.
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split("\n")
    numbers = [int(line) for line in rest[:-1]]
    child.wait()
    return max([acknowledged, *numbers])


def check(path, acknowledged):
    """What is there is whole: the state after some transaction, not before the acknowledged one."""
    with persist.open(path, mode="w") as pool:
        d = pool.dict("d")
        last = d["last"]
        assert last >= acknowledged
        removed = {number - 7 for number in range(11, last + 1, 11)}
        expected = [number for number in range(last + 1) if number not in removed]
        assert [key for key in d if isinstance(key, int)] == expected
        assert all(d[number] == "x" * (number * 37 % 700) for number in expected)
        made = last // 5 * 5
        array = pool.array("a").copy()
        model = np.full(100 + made * 131 % 9000, made)
        for number in range(made, last + 1):
            if number % 3 == 0:
                model[len(model) // 2] = -number
        np.testing.assert_array_equal(array, model)
        assert d["edited"] == last // 3 * 3
    return last


@pytest.mark.parametrize("domain", ["lines", "pages"])
@pytest.mark.parametrize("durability", ["sync", "group", "buffered"])
def test_every_acknowledged_transaction_survives_kill_9(tmp_path, durability, domain):
    path, chance = tmp_path / "killed.pool", random.Random(f"{durability} {domain}")
    last = -1
    for _ in range(6):
        last = check(path, one_life(path, durability, domain, last + 1, chance))
    assert last > 100


@pytest.mark.soak
@pytest.mark.parametrize("domain", ["lines", "pages"])
def test_soak_kill_9(tmp_path, domain):
    path, chance = tmp_path / "killed.pool", random.Random()
    last = -1
    for _ in range(200):
        durability = chance.choice(["sync", "group", "buffered"])
        last = check(path, one_life(path, durability, domain, last + 1, chance))
