# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Peers that are killed while calls are unanswered and both pools grow: in every mode the survivor has an error, and nobody stands still.

Goal     a server's death ends its clients' calls; a client's death ends its session; an executor's workers and its parent likewise
Method   each mode calls without end in a thread of its own; a call that does not end is found by that thread not ending. Processes of the
         long tests come from a server of forks, which has imported everything. Queues have tests of their own (`test_queue.py`)
"""

import asyncio
import concurrent.futures
import gc
import math
import multiprocessing
import os
import random
import select
import signal
import threading
import time

import numpy as np
import pytest

import memlift
from conftest import Process

SIZES = (40, 5_000, 70_000, 300_000, 1_500_000, 5_000_000)
LONG = 60
SLACK = 20
"""Descriptors of this process that may come and go."""
GONE = (memlift.PeerDiedError, memlift.ServerUnavailableError)


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


def streamed(address):
    with memlift.ipc.Client(address) as client:
        held = _held(client)
        while held:
            for size, item in zip(SIZES, client.stream("items", np.array(SIZES), ahead=3), strict=True):
                assert item.size == size


def iterated(address):
    asyncio.run(_iterated(address))


async def _iterated(address):
    async with memlift.ipc.AsyncClient(address) as client:
        while True:
            sizes = [item.size async for item in client.iterate("items", np.array(SIZES))]
            assert sizes == list(SIZES)


MODES = [sync, futures, pipelined, loop, streamed, iterated]


fast = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported():
    fast.set_forkserver_preload(["numpy", "memlift", "conftest", __name__])


def kills():
    """Kills per side and mode."""
    return int(os.environ.get("MEMLIFT_KILLS", "2000"))


def _kill_while(modes, server, pause):
    """Kills a server while each of the modes calls it in a thread of its own."""
    ended = {}

    def run(mode):
        try:
            mode(server.address)
        except BaseException as error:
            ended[mode] = error

    threads = [threading.Thread(target=run, args=(mode,), name=mode.__name__, daemon=True) for mode in modes]
    for thread in threads:
        thread.start()
    time.sleep(pause)
    os.kill(server.pid, signal.SIGKILL)
    until = time.monotonic() + LONG
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        assert not thread.is_alive(), f"the calls do not end: {thread.name}"
    for mode in modes:
        assert isinstance(ended[mode], GONE), (mode, ended[mode])


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_a_killed_server_leaves_nobody_waiting(start, mode):
    for pause in (0.0, 0.05):
        _kill_while([mode], start(handlers=8), pause)


def _descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.soak
def test_soak_killed_servers_leave_nobody_waiting():
    # One death is seen in every mode, so a kill costs a sixth.
    for i in range(kills()):
        server = Process(f"pytest-{os.getpid()}-{i}", {"handlers": 4 * len(MODES)}, fast)
        try:
            _kill_while(MODES, server, random.random() / 10)
        finally:
            server.kill()
        if i == 5:
            before = _descriptors()
    assert _descriptors() < before + SLACK


def _call_without_end(mode, address, ready):
    ready.set()
    MODES[mode](address)


def _killed_clients(modes, server, count):
    address = server.address
    with memlift.ipc.Client(address) as bystander:
        for _ in range(count):
            started = []
            for mode in modes:
                ready = fast.Event()
                client = fast.Process(target=_call_without_end, args=(MODES.index(mode), address, ready), daemon=True)
                client.start()
                started.append((client, ready))
            for _, ready in started:
                assert ready.wait(LONG)
            random.shuffle(started)
            for client, _ in started:
                time.sleep(random.random() / 20 / len(modes))
                client.kill()
            for client, _ in started:
                client.join()
                assert client.exitcode == -signal.SIGKILL, "it had not ended by itself"
            until = time.monotonic() + LONG
            while bystander.call("echo", b"x") != b"x" or bystander.stats()["server_sessions"] != 1:
                assert time.monotonic() < until, "the session of a dead client stays"
                # Calls of the dead client that take no time to run are still answered.


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_a_killed_client_leaves_no_session(start, mode):
    _killed_clients([mode], start(handlers=64), 2)


@pytest.mark.soak
def test_soak_killed_clients_leave_no_session():
    for i in range(0, kills(), 4):
        # Each dead client leaves three handlers asleep.
        server = Process(f"pytest-{os.getpid()}-of-{i}", {"handlers": 16 * len(MODES)}, fast)
        try:
            _killed_clients(MODES, server, min(4, kills() - i))
        finally:
            server.kill()


def doubled(array):
    return array * 2


def _killed_workers(count):
    broken = 0
    for _ in range(count):
        with memlift.Executor(2, mp_context=multiprocessing.get_context("fork")) as executor:
            arrays = [np.ones(size, np.uint8) for size in SIZES * 3]
            futures = [executor.submit(doubled, array) for array in arrays]
            time.sleep(random.random() / 20)
            random.choice(executor._workers.processes).kill()
            for future, array in zip(futures, arrays, strict=True):
                try:
                    assert (future.result(LONG) == 2).all() and future.result().size == array.size
                except concurrent.futures.BrokenExecutor:
                    broken += 1
    return broken


def _submit_without_end(pipe):
    with memlift.Executor(2, mp_context=multiprocessing.get_context("fork")) as executor:
        pipe.send([process.pid for process in _started(executor)])
        while True:
            for future in [executor.submit(doubled, np.ones(size, np.uint8)) for size in SIZES * 3]:
                future.result()


def _started(executor):
    for future in [executor.submit(doubled, np.ones(9)) for _ in range(8)]:
        future.result()
    return executor._workers.processes


def _killed_parents(count):
    for _ in range(count):
        ours, theirs = fast.Pipe()
        parent = fast.Process(target=_submit_without_end, args=(theirs,))
        parent.start()
        theirs.close()
        try:
            assert ours.poll(LONG)
            workers = [os.pidfd_open(pid) for pid in ours.recv()]
            time.sleep(random.random() / 20)
        finally:
            parent.kill()
            parent.join()
            ours.close()
        assert parent.exitcode == -signal.SIGKILL, "it had not ended by itself"
        for worker in workers:
            ended = select.poll()
            ended.register(worker, select.POLLIN)
            assert ended.poll(LONG * 1000), "a worker outlives its parent"
            os.close(worker)


def test_killed_workers_and_parents_of_an_executor_leave_nobody_waiting():
    _killed_workers(2)
    _killed_parents(2)


@pytest.mark.soak
def test_soak_killed_workers_leave_no_future_waiting():
    print(f"{_killed_workers(kills())} futures failed")


@pytest.mark.soak
def test_soak_killed_parents_leave_no_worker():
    _killed_parents(kills())


def test_a_server_leaves_what_is_not_its_own(tmp_path):
    path = tmp_path / "precious.npy"
    path.write_text("data")
    with pytest.raises(memlift.AddressInUseError, match="a regular file"):
        memlift.ipc.Server(str(path))
    assert path.read_text() == "data"
    for make in (memlift.ipc.Server, memlift.Arena):
        with pytest.raises(memlift.Error, match="folder/x.*its folder must be there"):
            make(tmp_path / "folder" / "x")
    with memlift.Arena(tmp_path / "arena.sock"), pytest.raises(memlift.ServerRefusedError, match="is an arena"):
        memlift.ipc.Client(tmp_path / "arena.sock")
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
        with pytest.raises(memlift.DeadlineExceededError):
            client.call("sleep", slow, timeout=limit)
        future = client.call_async("sleep", slow, timeout=limit)
        with pytest.raises(memlift.DeadlineExceededError):
            future.result()
        with client.pipeline(4) as pipeline:
            job = pipeline.submit("sleep", slow, timeout=limit)
            with pytest.raises(memlift.DeadlineExceededError) as raised:
                pipeline.next()
            assert raised.value.job == job


@pytest.mark.parametrize("limit", [1e19, float(2**63), 1e300, math.inf])
def test_a_limit_beyond_every_clock_is_none(start, limit):
    server = start(handlers=2)
    with memlift.ipc.Client(server.address, timeout=limit) as client, client.pipeline(2) as pipeline:
        assert client.call("echo", b"x") == client.call("echo", b"x", timeout=limit) == b"x"
        assert client.call_async("echo", b"x", timeout=limit).result(limit) == b"x"
        pipeline.submit("echo", b"x", timeout=limit)
        assert pipeline.next(limit)[1] == b"x"
        assert [item.size for item in client.stream("items", np.array([3, 4]), timeout=limit)] == [3, 4]
        assert client.ping(timeout=limit)["state"] == "ready"

    async def in_a_loop():
        async with memlift.ipc.AsyncClient(server.address, wait=limit) as client:
            return await client.call("echo", b"x", timeout=limit)

    assert asyncio.run(in_a_loop()) == b"x"
    queue = memlift.Queue(1)
    queue.put(b"x", timeout=limit)
    assert queue.get(timeout=limit) == b"x"
    for wrong in (-1.0, math.nan, -math.inf):
        with pytest.raises(ValueError, match="or None for no limit"):
            memlift.ipc.Client(server.address, timeout=wrong)
