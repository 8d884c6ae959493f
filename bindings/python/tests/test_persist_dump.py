# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Dicts and arrays of Python in `memlift pool dump` and `check`.

Goal    what a program put into a pool is shown by name, key and value, and a pool that Python writes is sound and whole for the tools
Method  the command on pools that this module writes
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memlift import _native, persist


@pytest.fixture(scope="module")
def command():
    built = Path(_native.__file__).resolve().parent / "memlift"
    found = str(built) if built.exists() else shutil.which("memlift")
    if found is None:
        pytest.skip("there is no memlift command to run")
    return found


def run(command, *arguments):
    done = subprocess.run([command, "pool", *map(str, arguments)], capture_output=True, text=True, check=True)
    return done.stdout


def dumped(command, path, kind):
    lines = run(command, "dump", path, "--type", kind, "--json").splitlines()
    return [json.loads(line)["value"] for line in lines]


def test_what_a_program_put_in_is_shown_by_name_key_and_value(tmp_path, command):
    path = tmp_path / "state.pool"
    with persist.open(path) as pool:
        settings = pool.dict("settings")
        settings["rate"] = 0.25
        settings["on"] = True
        settings["nothing"] = None
        settings[7] = [1, "two", b"\x00\xff"]
        settings["nested"] = {"a": (1, 2), 3: {"x"}}
        settings["numpy"] = np.float32(1.5)
        settings["large"] = 10**30
        settings["text"] = "ümläut \x1b[31m"
        pool.put_array("weights", np.arange(6, dtype=np.int16).reshape(2, 3))
        pool.put_array("empty", np.zeros((0, 4)))
        pool.dict("kept", pickle=True)["object"] = complex(1, -2)
    entries = {json.dumps(one["key"]): one["value"] for one in dumped(command, path, "dict entry")}
    assert entries['"rate"'] == 0.25 and entries['"on"'] is True and entries['"nothing"'] is None
    assert entries["7"][:2] == [1, "two"] and entries["7"][2]["bytes"] == "00ff"
    nested = {json.dumps(key): value for key, value in entries['"nested"']["pairs"]}
    assert nested == {'"a"': {"kind": "tuple", "values": [1, 2]}, "3": {"kind": "set", "values": ["x"]}}
    assert entries['"numpy"'] == {"kind": "numpy <f4", "values": [1.5]}
    assert int(entries['"large"']) == 10**30
    assert entries['"text"'] == "ümläut \x1b[31m"
    assert entries['"object"'] == {"kind": "complex", "values": [1.0, -2.0]}
    dicts = [one for one in dumped(command, path, "dict") if "name" in one]
    assert dicts == [{"name": "settings", "entries": 8}, {"name": "kept", "entries": 1}]
    [array] = dumped(command, path, "array")
    assert array == {"name": "weights", "type": "i2[2, 3]", "elements": [0, 1, 2, 3, 4, 5]}
    text = run(command, "dump", path, "--type", "dict entry")
    assert '{ key: "rate", value: 0.25 }' in text and "\x1b" not in text, "no control characters reach a terminal"
    checked = json.loads(run(command, "check", path, "--json"))
    assert checked["sound"] and checked["findings"] == []


def test_checkpoints_and_shelves_are_shown_too(tmp_path, command):
    with persist.shelf(tmp_path / "shelf") as shelf:
        shelf["a"] = {"any": object}
    [entry] = [one for one in dumped(command, tmp_path / "shelf", "dict entry") if one["key"] == "a"]
    assert entry["value"]["kind"] == "tuple"
    persist.save(tmp_path / "state", {"w": np.arange(100_000.0), "step": 3})
    for path in ("shelf", "state"):
        checked = json.loads(run(command, "check", tmp_path / path, "--json"))
        assert checked["sound"] and checked["findings"] == []
        assert run(command, "dump", tmp_path / path).count("\n") > 3
