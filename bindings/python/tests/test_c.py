# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Clients in C and servers in Python: arrays are arrays on both sides, and values of Python are read in C."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest

import memlift

ROOT = pathlib.Path(__file__).parents[3]


def compiled(tmp_path_factory, name):
    library = memlift.libraries().get("c")
    if shutil.which("cc") is None or library is None:
        pytest.skip(f"not run: cc is {shutil.which('cc')}, libmemlift_c.so is {library}")
    target = tmp_path_factory.mktemp("c") / name
    command = ["cc", "-std=c11", ROOT / f"bindings/c/tests/{name}.c", "-I", ROOT / "bindings/c/include", "-o", target, library]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}"], check=True)
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory, "arrays")


def test_arrays_of_c_are_arrays_in_python(program, tmp_path) -> None:
    seen = []

    def double(array):
        seen.append((array.dtype, array.shape))
        # Of one element numpy makes a scalar, which is a value and no array.
        return np.asarray(array * np.float32(2))

    address = tmp_path / "socket"
    with memlift.ipc.Server(address) as server:
        server.register("double", double)
        server.start()
        done = subprocess.run([program, "unused", address], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("all as the header says\n"), done.stdout + done.stderr
    assert seen == [(np.dtype("f4"), shape) for shape in [(2, 3), (1 << 18,), (), (2, 0)]]


def test_values_of_python_are_read_in_c(tmp_path_factory, tmp_path) -> None:
    program = compiled(tmp_path_factory, "values")
    answer = {
        "name": "grüße",
        "blob": b"by",
        "none": None,
        "yes": True,
        "large": 1 << 70,
        "numbers": [-5, 2.5, (), 7],
        "frame": np.arange(6.0).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "special": np.matrix([[1, 2]]),
    }
    address = tmp_path / "socket"
    with memlift.ipc.Server(address) as server:
        server.register("describe", lambda _: answer)
        server.register("array", lambda _: np.arange(4))
        server.start()
        done = subprocess.run([program, address], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("all as the header says\n"), done.stdout + done.stderr
