# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Servers that are killed while calls are unanswered and both pools grow: in every mode the caller has an error, and no loop stands still.

Method   each mode calls without end in a thread of its own; a call that does not end is found by that thread not ending. Queues and
         executors have tests of their own for this (`test_queue.py`, `test_executor.py`)
"""

import asyncio
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

import memlift

SIZES = (40, 5_000, 70_000, 300_000, 1_500_000, 5_000_000)
LONG = 60
GONE = (memlift.PeerDied, memlift.ServerUnavailable)


def _held(client):
    """Calls that are never answered, with a slot each."""
    return [client.call_async("sleep", np.full(1000, 1e6)) for _ in range(3)]


def sync(address):
    with memlift.ipc.Client(address) as client:
        held = _held(client)
        while held:
            for size in SIZES:
                assert client.call("echo", np.ones(size, np.uint8)).size == size


def futures(address):
    with memlift.ipc.Client(address) as client:
        held = _held(client)
        while held:
            for size in SIZES:
                for future in [client.call_async("echo", np.ones(size, np.uint8)) for _ in range(3)]:
                    assert future.result().size == size


def pipelined(address):
    with memlift.ipc.Client(address) as client, client.pipeline(4) as pipeline:
        held = _held(client)
        while held:
            for size in SIZES:
                for _ in range(3):
                    pipeline.submit("echo", np.ones(size, np.uint8))
            for _, value in pipeline.results():
                assert value.size in SIZES


def loop(address):
    asyncio.run(_loop(address))


async def _loop(address):
    async with memlift.ipc.AsyncClient(address) as client:
        held = [asyncio.ensure_future(client.call("sleep", np.full(1000, 1e6))) for _ in range(3)]
        try:
            while True:
                for size in SIZES:
                    arrays = [np.ones(size, np.uint8)] * 3
                    for value in await asyncio.gather(*(client.call("echo", array) for array in arrays)):
                        assert value.size == size
        finally:
            # The loop runs on: those that wait hear of it, too.
            for error in await asyncio.gather(*held, return_exceptions=True):
                assert isinstance(error, GONE), error


MODES = [sync, futures, pipelined, loop]


def _kill_while(mode, server, pause):
    ended = []

    def run():
        try:
            mode(server.address)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(pause)
    os.kill(server.pid, signal.SIGKILL)
    thread.join(LONG)
    assert not thread.is_alive(), "the calls do not end"
    assert isinstance(ended[0], GONE), ended[0]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_a_killed_server_leaves_nobody_waiting(start, mode):
    for pause in (0.0, 0.05):
        _kill_while(mode, start(handlers=8), pause)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_soak_killed_servers_leave_nobody_waiting(start, mode):
    for _ in range(int(os.environ.get("MEMLIFT_KILLS", "2000"))):
        _kill_while(mode, start(handlers=8), random.random() / 10)


def test_a_server_leaves_what_is_not_its_own(tmp_path):
    path = tmp_path / "precious.npy"
    path.write_text("data")
    with pytest.raises(memlift.AddressInUse, match="a regular file"):
        memlift.ipc.Server(str(path))
    assert path.read_text() == "data"
    free = tmp_path / "free.sock"
    server = memlift.ipc.Server(str(free))
    with pytest.raises(OSError, match="a running program"):
        memlift.ipc.Server(str(free))
    server.stop()


@pytest.mark.parametrize("limit", [0.19, 0.2, 0.21, 0.4])
def test_a_limit_as_long_as_a_slice_is_a_limit(start, limit):
    server = start(handlers=8)
    with memlift.ipc.Client(server.address, timeout=LONG) as client:
        slow = np.array([2.0])
        with pytest.raises(memlift.DeadlineExceeded):
            client.call("sleep", slow, timeout=limit)
        future = client.call_async("sleep", slow, timeout=limit)
        with pytest.raises(memlift.DeadlineExceeded):
            future.result()
        with client.pipeline(4) as pipeline:
            job = pipeline.submit("sleep", slow, timeout=limit)
            with pytest.raises(memlift.DeadlineExceeded) as raised:
                pipeline.next()
            assert raised.value.job == job
