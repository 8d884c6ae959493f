# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a type checker makes of queues, pools and executors."""

import os
import pathlib
import subprocess
import sys

import memlift

PROGRAM = """
import multiprocessing.pool
from typing import assert_type

import memlift

def work(array: list[int]) -> str:
    return str(array)

ours: memlift.Queue[int] = memlift.Queue(3)
assert_type(ours.get(timeout=1.0), int)
ours.put("text")  # refused: arg-type
assert_type(memlift.JoinableQueue[str]().get_nowait(), str)

async def take() -> None:
    assert_type(await ours.aget(), int)

with memlift.Pool(2) as pool:
    theirs: multiprocessing.pool.Pool = pool
    assert_type(pool.map(work, [[1]]), list[str])
    assert_type(pool.apply_async(work, callback=print).get(timeout=1), str)
    pool.map(work, ["text"])  # refused: arg-type
    pool.imap(work, 1)  # refused: arg-type
with memlift.Executor(2) as executor:
    assert_type(executor.submit(work, [1]).result(), str)
    executor.submit(work, "text")  # refused: arg-type
"""


def test_what_is_said_of_types_is_so(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    refused = [(at, "arg-type") for at, line in enumerate(PROGRAM.splitlines(), 1) if "# refused" in line]
    package = pathlib.Path(memlift.__file__).resolve().parents[1]
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}/cache", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(package)}, capture_output=True, text=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("program.py:") and ": error:" in line]
    assert [(int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]")) for line in said] == refused, done.stdout + done.stderr
