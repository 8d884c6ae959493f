# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures the ways to an ONNX model: python compare.py [--clients 4] [--seconds 5] [--json] [NAME …]

    memlift      examples/serving/server.py: images of calls that are open at the same time go through the model at once
    memlift-one  the same server with batches of one image
    grpc         gRPC, the arrays' bytes
    ray          Ray Serve with its batching, the arrays' bytes over HTTP
    fastapi      FastAPI, arrays as JSON

Each client is a process that has one call open at a time, and compares every answer with what the model says without a server. Those whose packages are missing are
said to be so: pip install onnx onnxruntime fastapi uvicorn grpcio "ray[serve]"
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection

import numpy as np
from model import Model, image, make
from rivals import CLIENTS, NEEDS

FOLDER = os.path.dirname(os.path.abspath(__file__))
NAMES = ("memlift", "memlift-one", "grpc", "ray", "fastapi")
IMAGES = 16
"""Images of a client, which it sends in turn."""


def missing(name: str) -> str | None:
    """Returns a package that a server needs and that is not installed."""

    def is_there(package: str) -> bool:
        try:
            return importlib.util.find_spec(package) is not None
        except ModuleNotFoundError:
            return False

    return next((package for package in NEEDS.get(name, ()) if not is_there(package)), None)


def free_port() -> int:
    """Returns a port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(name: str, path: str) -> tuple[subprocess.Popen[str], str | int]:
    """Starts a server, and returns it with its address when it answers."""
    address: str | int
    if name.startswith("memlift"):
        address = f"onnx-{os.getpid()}-{name}"
        command = ["server.py", address, path, "1" if name == "memlift-one" else "8"]
    else:
        address = free_port()
        command = ["rivals.py", name, str(address), path]
    command = [sys.executable, os.path.join(FOLDER, command[0]), *command[1:]]
    # Ray reports its end by SIGTERM at length.
    errors = subprocess.DEVNULL if name == "ray" else None
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    assert server.stdout is not None
    while (line := server.stdout.readline()) and line != "ready\n":
        pass
    if not line:
        server.wait()
        raise RuntimeError(f"the server of {name} ended before it was ready")
    return server, address


def connect(name: str, address: str | int):  # noqa: ANN201
    """Opens a connection; returns a function from image to probabilities."""
    if not name.startswith("memlift"):
        return CLIENTS[name](int(address))
    import memlift

    client = memlift.ipc.Client(str(address), wait=30, timeout=60)
    return lambda image: client.call("classify", image)


def run_client(name: str, address: str | int, path: str, seed: int, seconds: float, pipe: Connection) -> None:
    """Body of a client process: calls for so many seconds, and sends the time of each call."""
    images = [image(seed * IMAGES + i) for i in range(IMAGES)]
    model = Model(path)
    expected = [model.run(one[None])[0] for one in images]
    classify = connect(name, address)
    for one in images:
        classify(one)
    pipe.send(None)
    pipe.recv()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end or not times:
        i = len(times) % IMAGES
        answer = classify(images[i])
        times.append(time.perf_counter() - begun)
        # A model gives slightly other values for an image among others than for one alone.
        if not np.allclose(answer, expected[i], rtol=1e-3, atol=1e-6):
            raise SystemExit(f"{name}: a wrong answer")
    pipe.send(times)


def measure(name: str, path: str, clients: int, seconds: float) -> dict[str, float | str]:
    """Runs one server with its clients."""
    if (package := missing(name)) is not None:
        return {"name": name, "missing": package}
    server, address = start(name, path)
    spawn = multiprocessing.get_context("spawn")
    try:
        pipes, processes = [], []
        for seed in range(clients):
            ours, theirs = spawn.Pipe()
            processes.append(spawn.Process(target=run_client, args=(name, address, path, seed, seconds, theirs), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send(None)
        times = np.sort(np.concatenate([pipe.recv() for pipe in pipes]))
        for process in processes:
            process.join()
            if process.exitcode:
                raise RuntimeError(f"a client of {name} failed")
    finally:
        # Ray has processes of its own.
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    p50, p99 = np.quantile(times, (0.5, 0.99)) * 1e3
    return {"name": name, "calls": len(times), "per_second": len(times) / seconds, "p50_ms": float(p50), "p99_ms": float(p99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all of them if none is named")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not options.json:
        print(f"{'':12} {'calls/s':>9} {'p50 ms':>9} {'p99 ms':>9}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "classifier.onnx")
        make(path)
        for name in options.names or NAMES:
            row = measure(name, path, options.clients, options.seconds)
            if options.json:
                print(json.dumps(row), flush=True)
            elif "missing" in row:
                print(f"{name:12} {row['missing']} is not installed", flush=True)
            else:
                print(f"{name:12} {row['per_second']:9.0f} {row['p50_ms']:9.2f} {row['p99_ms']:9.2f}", flush=True)


if __name__ == "__main__":
    main()
