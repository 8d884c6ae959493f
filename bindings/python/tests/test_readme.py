# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The README's Python runs as it stands there. (Its Rust is a documentation test of the crate `memlift`.)"""

import pathlib
import re
import subprocess
import sys
import time

import pytest

README = pathlib.Path(__file__).parents[3] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)

# What a block takes for granted.
GIVEN = """
import numpy as np
page, record, key, nonce = b"some text " * 500, b"a secret", bytes(16), bytes(12)
weights = np.ones(1000)
times = np.arange(1_699_980_000, 1_699_999_000, 10)
values = np.full(times.size, 7)
"""


def block(mark: str) -> str:
    found = [text for text in BLOCKS if mark in text]
    assert len(found) == 1, f"the README has {len(found)} blocks with {mark!r}"
    return found[0]


def test_server_and_client() -> None:
    name = f"readme-{time.monotonic_ns()}"
    server, client = (block(mark).replace('"features"', f'"{name}"') for mark in ("# server.py", "# client.py"))
    with subprocess.Popen([sys.executable, "-c", server], stderr=subprocess.PIPE, text=True) as serving:
        try:
            for _ in range(600):
                done = subprocess.run([sys.executable, "-c", client], capture_output=True, text=True)
                if "ServerUnavailableError" not in done.stderr:
                    break
                assert serving.poll() is None, serving.stderr.read()
                time.sleep(0.1)
            assert done.returncode == 0, done.stderr
            first, second = done.stdout.splitlines()
            assert first == second and first.startswith("[0.")
        finally:
            serving.kill()


def test_the_first_script(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(block("import Executor"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0.")


@pytest.mark.parametrize(
    "mark, after",
    [
        ("transform.pack", "import gzip; assert gzip.decompress(packed) == page\n"
         "assert transform.open(key, nonce, tag, sealed) == record"),
        ("persist.open", 'with persist.open("state.pool") as pool: assert pool.dict("settings").copy() == {"rate": 0.1, "step": 1}'),
        ("traverse.Node", "assert keys[-1] == 1_700_000_000 and found[-1] == 12 and (found[:-1] == 7).all()"),
    ],
    ids=["transform", "persist", "traverse"],
)
def test_block(tmp_path, mark, after) -> None:
    program = GIVEN + block(mark) + after
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == 6


def test_it_is_short() -> None:
    assert len(README.read_text().split()) <= 1200


def test_its_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)", README.read_text()):
        assert link.startswith("http") or (README.parent / link).exists(), link
