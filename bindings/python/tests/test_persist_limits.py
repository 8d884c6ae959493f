# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Pools where a limit of the process is in their way.

Goal    by default a pool takes what there is; asked for more, the error names the setting, and with it lowered the pool works
Method  child processes with limits of their own
"""

import subprocess
import sys

PROGRAM = """
import resource, sys
import memlift
from memlift import persist
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
queue = memlift.Queue()
queue.put(b"x" * 1_000_000)
print(len(queue.get()))
with persist.open(sys.argv[1] + ".default") as pool, persist.shelf(sys.argv[1] + ".shelf") as shelf:
    pool.dict("names")["a"] = shelf["b"] = b"x" * 1_000_000
    print(len(pool.dict("names")["a"]), len(shelf["b"]))
try:
    persist.open(sys.argv[1], size_max="64G")
except ValueError as error:
    print(error)
with persist.open(sys.argv[1], size_max="1G") as pool:
    names = pool.dict("names")
    names.update((at, b"x" * 1000) for at in range(1000))
    print(len(names), names[999] == b"x" * 1000)
"""


def test_a_limit_of_addresses_names_the_setting(tmp_path):
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "limited.pool")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    queued, kept, refused, worked = done.stdout.splitlines()
    assert (queued, kept) == ("1000000", "1000000 1000000")
    assert "size_max" in refused and "ulimit -v" in refused
    assert worked == "1000 True"
