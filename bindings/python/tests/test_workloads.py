# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The paper's workloads of examples/workloads: they run, and every answer that travels is the one worked out without travelling.

Those whose libraries are not installed are said to be missing; tools/setup rivals installs them.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "workloads"
sys.path.insert(0, str(FOLDER))

import workloads  # noqa: E402


def lines(*words):
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_pipeline_of_requests_is_verified():
    (line,) = lines("--workload", "pagerank", "--items", "5000", "--mode", "pipelined")
    assert line["verified"] and line["mode"] == "pipelined" and line["requests"] >= 3
    assert line["request_bytes"] == 40_000 and line["answer_bytes"] == 8 << 12


@pytest.mark.soak
def test_soak_every_workload_that_is_installed_is_verified_in_every_mode_and_under_every_load():
    words = ("--mode", "all", "--load", "all", "--transport", "memlift", "--transport", "shm_memcpy")
    for line in lines("--workload", "all", *words):
        assert line.get("verified") or line["missing"], line


def test_what_is_not_installed_is_said():
    class Nowhere(workloads.Workload):
        modules = ("json", "a_module_that_nobody_has")

    assert Nowhere.missing() == ["a_module_that_nobody_has"]


@pytest.mark.parametrize("graph, side", [("mobilenet_v2", 32), ("vision_transformer", 32)])
def test_networks_have_their_shapes(graph, side):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    import networks
    import numpy as np

    session = onnxruntime.InferenceSession(getattr(networks, graph)(side), providers=["CPUExecutionProvider"])
    answer = session.run(None, {"images": np.ones((2, 3, side, side), np.float32)})[0]
    assert answer.shape == (2, networks.CLASSES) and np.isfinite(answer).all() and np.ptp(answer) > 0
