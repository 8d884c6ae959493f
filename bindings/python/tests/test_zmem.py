# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Arrays under a budget: contents, the budget, what outlives the block, system calls, refusals. A process becomes a job
once, so each test is a process of its own."""

import subprocess
import sys
import textwrap

import pytest

import memlift
from memlift._sizes import in_bytes


def run(text: str) -> str:
    program = "import sys\nimport numpy as np\nimport memlift\n" + textwrap.dedent(text)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if "handle faults" in done.stderr:
        pytest.skip("this kernel offers no way to handle faults")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_arrays_larger_than_the_total_keep_their_contents() -> None:
    out = run(
        """
        with memlift.zmem.job("160M"):
            arrays = [np.arange(index, index + (4 << 20), dtype=np.int64) for index in range(8)]
        for index, array in enumerate(arrays):
            assert (array == np.arange(index, index + (4 << 20), dtype=np.int64)).all()
        numbers = memlift.zmem.numbers()
        assert numbers["mapped_bytes"] >= 8 * (32 << 20), numbers
        assert numbers["present_bytes"] + numbers["store_bytes"] <= 160 << 20, numbers
        assert numbers["pages_packed"] > 10_000, numbers
        del array
        arrays.clear()
        assert memlift.zmem.numbers()["mapped_bytes"] < 1 << 20
        print("right")
        """
    )
    assert out == "right\n"


def test_growing_shrinking_and_small_arrays() -> None:
    out = run(
        """
        with memlift.zmem.job("256M"):
            array = np.arange(1000)
            for count in (10_000, 1_000_000, 50_000, 2_000_000, 10):
                kept = min(count, array.size)
                array.resize(count, refcheck=False)
                assert (array[: min(kept, 10)] == np.arange(min(kept, 10))).all()
            assert (np.zeros(1 << 20) == 0).all()
        assert not np.zeros(1 << 20).any()
        print("right")
        """
    )
    assert out == "right\n"


def test_pinned_arrays_go_to_files(tmp_path) -> None:
    out = run(
        f"""
        path = {str(tmp_path / "array")!r}
        with memlift.zmem.job("128M"):
            array = np.arange(2 << 20, dtype=np.int64)
            other = [np.full(4 << 20, index, dtype=np.int64) for index in range(4)]
        with memlift.zmem.pinned(array):
            array.tofile(path)
        array[:] = 0
        with memlift.zmem.pinned(array), open(path, "rb", buffering=0) as file:
            assert file.readinto(memoryview(array).cast("B")) == array.nbytes
        assert (array == np.arange(2 << 20, dtype=np.int64)).all()
        print("right")
        """
    )
    assert out == "right\n"


def test_what_is_refused() -> None:
    out = run(
        """
        for total, kind in (("4 bananas", ValueError), (1 << 60, MemoryError)):
            try:
                with memlift.zmem.job(total):
                    pass
            except kind as error:
                print(error)
        try:
            with memlift.zmem.job("64M", on_overflow="panic"):
                pass
        except ValueError as error:
            print(error)
        assert memlift.zmem.numbers() is None
        """
    )
    assert "4 bananas" in out and "panic" in out and len(out.splitlines()) == 3


def test_sizes_are_read() -> None:
    assert in_bytes("4G") == 4 << 30
    assert in_bytes("1.5 MiB") == 3 << 19
    assert in_bytes(77) == 77
