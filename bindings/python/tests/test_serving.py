# SPDX-License-Identifier: Apache-2.0 OR MIT
"""examples/serving: an ONNX model behind memlift, and beside it behind other servers. Each client compares every answer with the model's own.

Needs onnx and onnxruntime; `make test-ml` installs them, with the other servers.
"""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import memlift

FOLDER = pathlib.Path(__file__).parents[3] / "examples" / "serving"
LONG = 60

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")), reason="needs onnx and onnxruntime (make test-ml)"
)


def compare(*words):
    command = [sys.executable, str(FOLDER / "compare.py"), "--json", "--clients", "3", "--seconds", "0.5", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_onnx_model_answers_in_batches_and_one_by_one():
    rows = compare("memlift", "memlift-one")
    assert [row["name"] for row in rows] == ["memlift", "memlift-one"]
    assert all(row["calls"] >= 3 for row in rows)


def test_an_onnx_model_has_several_servers_and_survives_one():
    sys.path.insert(0, str(FOLDER))
    try:
        from model import Model, image, make
    finally:
        sys.path.remove(str(FOLDER))
    path = FOLDER.parent / f"classifier-{os.getpid()}.onnx"
    address = f"pytest-onnx-{os.getpid()}"
    servers = []
    try:
        make(str(path))
        for _ in range(2):
            command = [sys.executable, str(FOLDER / "server.py"), address, str(path)]
            servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for server in servers:
            assert server.stdout.readline() == "ready\n"
        expected = Model(str(path)).run(image(1)[None])[0]
        with memlift.ipc.Client(address, timeout=LONG, idempotent=True) as client:
            assert abs(client.call("classify", image(1)) - expected).max() < 1e-5
            servers[0].kill()
            for _ in range(20):
                assert abs(client.call("classify", image(1)) - expected).max() < 1e-5
            # The other one ends in order.
            servers[1].send_signal(signal.SIGTERM)
            assert servers[1].wait(LONG) == 0
        until = time.monotonic() + LONG
        assert servers[0].wait(until - time.monotonic()) == -signal.SIGKILL
    finally:
        path.unlink(missing_ok=True)
        for server in servers:
            server.kill()
            server.wait()
            server.stdout.close()


def test_an_onnx_model_beside_fastapi_grpc_and_ray_serve():
    rows = {row["name"]: row for row in compare()}
    print(rows)
    assert set(rows) == {"memlift", "memlift-one", "grpc", "ray", "fastapi"}
    assert all("missing" in row or row["calls"] >= 3 for row in rows.values())
