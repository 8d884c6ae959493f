# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.persist.shelf` beside the standard library's shelve, doing the same; expiry and size limit; a kill."""

import random
import shelve
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from memlift import persist
from memlift.errors import BadArgumentError


@pytest.mark.parametrize("writeback", [False, True])
def test_it_does_what_shelve_does(tmp_path, writeback):
    seeded = random.Random(7)
    values = [None, 1.5, "text", b"bytes", [1, [2]], {"a": {2, 3}}, (1, "x"), range(5), complex(1, 2)]
    ours = persist.shelf(tmp_path / "ours", writeback=writeback)
    theirs = shelve.open(str(tmp_path / "theirs"), writeback=writeback)
    for _ in range(400):
        key, value = str(seeded.randrange(30)), seeded.choice(values)
        act = seeded.randrange(8)
        results = []
        for one in (ours, theirs):
            match act:
                case 0 | 1 | 2:
                    one[key] = value
                    results.append(None)
                case 3:
                    results.append(one.pop(key, "none"))
                case 4:
                    results.append(one.get(key, "none"))
                case 5:
                    results.append(one.setdefault(key, value))
                case 6:
                    results.append((key in one, len(one), sorted(one)))
                case 7:
                    if key in one and isinstance(one[key], list):
                        one[key].append(3)  # kept by writeback only
                    results.append(one.get(key))
        assert results[0] == results[1], (act, key)
    ours.close()
    theirs.close()
    with persist.shelf(tmp_path / "ours", "r") as ours, shelve.open(str(tmp_path / "theirs"), "r") as theirs:
        assert dict(ours) == dict(theirs)
        assert sorted(ours.items(), key=str) == sorted(theirs.items(), key=str)


def test_flags_errors_and_a_second_close(tmp_path):
    with pytest.raises(FileNotFoundError):
        persist.shelf(tmp_path / "none", "w")
    with pytest.raises(BadArgumentError, match="flag="):
        persist.shelf(tmp_path / "none", "x")
    shelf = persist.shelf(tmp_path / "a")
    shelf.update(a=1, b=np.arange(3))
    with pytest.raises(KeyError):
        shelf["c"]
    with pytest.raises(KeyError):
        del shelf["c"]
    with pytest.raises(Exception, match="pickle"):
        shelf["c"] = lambda: None
    with pytest.raises(RuntimeError, match="undone"), shelf.transaction():
        shelf["a"] = 2
        raise RuntimeError("undone")
    assert shelf["a"] == 1 and shelf["b"].tolist() == [0, 1, 2]
    shelf.close()
    shelf.close()
    assert shelf.closed and "closed" in repr(shelf)
    with persist.shelf(tmp_path / "a", "n") as shelf:
        assert len(shelf) == 0 and shelf.volume() == 0


def test_values_expire(tmp_path):
    with persist.shelf(tmp_path / "a", expire=0.05) as shelf:
        shelf["soon"] = 1
        shelf.set("later", 2, expire=1000)
        assert shelf.touch("soon", 0.1)
        time.sleep(0.2)
        assert "soon" not in shelf and shelf.get("soon") is None and list(shelf) == ["later"]
        with pytest.raises(KeyError):
            del shelf["soon"]
        assert not shelf.add("later", 3) and shelf.add("soon", 4, expire=1000)
    with persist.shelf(tmp_path / "a") as shelf:
        shelf.set("gone", 5, expire=-1)
        assert len(shelf) == 3 and shelf.expire() == 1 and dict(shelf) == {"later": 2, "soon": 4}


def test_the_size_limit_holds_and_the_oldest_goes(tmp_path):
    with persist.shelf(tmp_path / "a", size_limit=10_000, durability="buffered") as shelf:
        for number in range(200):
            shelf[number] = bytes(400 + number)
            assert shelf.volume() <= 10_000
            if 0 in shelf:
                shelf[0] = bytes(300)  # set again: it is not the oldest any more
        assert 0 in shelf and 199 in shelf and 100 not in shelf
        kept = sorted(shelf)[1:]
        assert kept == list(range(kept[0], 200)), "what was set longest ago went"
        with pytest.raises(BadArgumentError, match="size limit"):
            shelf["large"] = bytes(20_000)
        assert shelf.volume() == sum(len(entry[0]) for entry in shelf._entries.values())


def test_what_is_set_survives_a_kill(tmp_path):
    program = """
import sys
from memlift import persist
shelf = persist.shelf(sys.argv[1], size_limit=1 << 20)
number = 0
while True:
    shelf[f"key {number}"] = [number] * 50
    print(number, flush=True)
    number += 1
"""
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        if int(line) >= 60:
            break
    child.send_signal(signal.SIGKILL)
    acknowledged = [60, *map(int, child.stdout.read().split())][-1]
    child.wait()
    with persist.shelf(tmp_path / "a", "w") as shelf:
        assert all(shelf[f"key {number}"] == [number] * 50 for number in range(acknowledged + 1))
        assert shelf.volume() == sum(len(entry[0]) for entry in shelf._entries.values())
