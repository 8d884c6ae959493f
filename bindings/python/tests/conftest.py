# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Servers in other processes, and what a test must not leave behind."""

import multiprocessing
import os
import pathlib
import signal
import socket
import sysconfig
import threading
import time

import numpy as np
import pytest

import memlift

spawn = multiprocessing.get_context("spawn")

frees_at_once = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="a Python without GIL frees an object that another thread made when that thread runs again",
)

# A shell ignores Ctrl-C in what it runs in the background, and so do all children then; some of them are to be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


def free_ports(count):
    """Ports that were free just now."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def leftovers():
    """Says what memlift has by name on this machine, but for the benches: they run beside the tests, and clear up when they end.

    A segment that is being made has a dot before its name.
    """

    def look():
        found = [path for folder in ("/dev/shm", "/tmp") for path in pathlib.Path(folder).iterdir()]
        return {path for path in found if "memlift" in path.name and not path.name.lstrip(".").startswith("memlift-bench-")}

    return look


def serve(address, ready, options):
    """Body of a server process."""
    server = memlift.ipc.Server(address, **options)
    kept = []

    server.register("echo", lambda data: data)
    server.register("double", lambda array: array * 2)
    server.register("xor", lambda array: np.bitwise_xor.reduce(array.view(np.uint64).ravel()))
    server.register("zeros", lambda n: np.zeros(int(n[0]), np.uint8))
    server.register("keep", lambda array: kept.append(array))
    server.register("kept", lambda _: np.array([array.sum() for array in kept]))
    server.register("forget", lambda _: kept.clear())
    server.register("nonsense", lambda _: object())
    server.register("kind", lambda value: type(value).__name__)
    server.register("pid", lambda _: str(os.getpid()).encode())

    @server.handler("items")
    def items(sizes):
        for size in sizes:
            yield np.ones(int(size), np.uint8)

    @server.handler("fail")
    def fail(_):
        raise ValueError("no luck today")

    @server.handler("sleep")
    def sleep(seconds):
        time.sleep(float(seconds[0]))
        return seconds

    @server.handler("die")
    def die(_):
        os.kill(os.getpid(), signal.SIGKILL)

    server.start()
    ready.send_bytes(b"ready")
    server.serve_forever()


class Process:
    """A server process that ends with its test."""

    def __init__(self, address, options, context=spawn):
        self.address = address
        # A pipe, not an event: a test may kill the server as soon as it serves, and an event's lock would stay taken.
        ready, ends = context.Pipe(duplex=False)
        self.process = context.Process(target=serve, args=(address, ends, options), daemon=True)
        self.process.start()
        ends.close()
        assert ready.poll(60), "the server did not start"

    @property
    def pid(self):
        return self.process.pid

    def kill(self):
        self.process.kill()
        self.process.join()


@pytest.fixture
def start():
    """start(**options) gives a server process at an address of its own."""
    started = []

    def start(context=spawn, **options):
        address = f"pytest-{os.getpid()}-{time.monotonic_ns()}"
        started.append(Process(address, options, context))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture(scope="session")
def shared_server():
    process = Process(f"pytest-shared-{os.getpid()}", {})
    yield process
    process.kill()


@pytest.fixture
def client(shared_server):
    with memlift.ipc.Client(shared_server.address, timeout=60) as client:
        yield client


def interrupted(wait):
    """Runs `wait` and ends it as Ctrl-C does."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as raised:
        wait()
    timer.join()
    # The signal ended the wait; had a time limit done so, its error would be the context.
    assert raised.value.__context__ is None
