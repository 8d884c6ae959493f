# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sessions are opened with processes that are stopped (SIGSTOP): Ctrl-C and cancellation end that, and other threads go on meanwhile."""

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest
from conftest import interrupted

import memlift
from memlift.ipc import AsyncClient, Client, Server
from memlift.traverse import AsyncClient as AsyncWalks
from memlift.traverse import Client as Walks
from memlift.traverse import Node

LONG = 60
fast = multiprocessing.get_context("forkserver")


def _serve(pipe):
    with Server(f"pytest-stopped-{os.getpid()}") as server, memlift.Arena(bytes_max=8 << 20) as arena:
        server.register("echo", lambda value: value)
        server.start()
        pipe.send((server.address, arena.address, arena.put(np.ones(10))))
        time.sleep(LONG)


@pytest.fixture(scope="module")
def stopped():
    """Addresses of a server and an arena, and a Ref, of a process that does not run."""
    ours, theirs = fast.Pipe()
    process = fast.Process(target=_serve, args=(theirs,))
    process.start()
    found = ours.recv()
    os.kill(process.pid, signal.SIGSTOP)
    yield found
    process.kill()
    process.join()


@pytest.fixture
def silent():
    """The place of a socket that never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as place:
        place.bind(("127.0.0.1", 0))
        yield "127.0.0.1:{}".format(place.getsockname()[1])


def test_ctrl_c_ends_the_opening_of_a_session(stopped):
    server, arena, ref = stopped
    interrupted(lambda: Client(server))
    interrupted(lambda: Client(server, timeout=LONG))
    interrupted(lambda: ref.get(timeout=LONG))
    interrupted(lambda: ref.release(timeout=LONG))
    interrupted(lambda: memlift.Subscription(arena, "topic", timeout=LONG))


def test_other_threads_go_on_while_a_session_is_opened(stopped):
    turns, over = [], threading.Event()

    def turn():
        while not over.wait(0.01):
            turns.append(1)

    thread = threading.Thread(target=turn)
    thread.start()
    for opens in (lambda: stopped[2].get(timeout=1), lambda: Client(stopped[0], timeout=1)):
        turns.clear()
        with pytest.raises(memlift.DeadlineExceededError):
            opens()
        assert len(turns) > 5
    over.set()
    thread.join()


def test_a_cancelled_opening_holds_neither_the_loop_nor_its_threads(stopped, silent):
    async def opened(client):
        async with client:
            raise AssertionError("nobody answers")

    async def main():
        turns = 0
        for client in (AsyncClient(stopped[0]), AsyncClient(stopped[0], timeout=LONG), AsyncWalks.connect(silent, deadline=25)):
            opening = asyncio.ensure_future(opened(client))
            for _ in range(20):
                await asyncio.sleep(0.01)
                turns += 1
            assert not opening.done()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        return turns

    begun = time.monotonic()
    # Its end waits for the threads of the openings, which would end by their limits at the soonest.
    assert asyncio.run(main()) == 60
    assert time.monotonic() - begun < 20


def test_an_event_ends_an_opening(stopped):
    ended = threading.Event()
    timer = threading.Timer(0.2, ended.set)
    timer.start()
    with pytest.raises(memlift.ClosedError, match="interrupted"):
        Client(stopped[0], ended=ended)
    timer.join()


@pytest.fixture
def profiler():
    """Signals every 0.7 ms, as a profiler's timer sends them: each call of the system may end early."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_whose_handlers_return_disturb_no_opening(profiler):
    name = f"shm:pytest-signals-{os.getpid()}"
    with (
        Node(memory="16M", listen=[name, "127.0.0.1:0"]) as node,
        Server(f"pytest-signals-{os.getpid()}") as server,
        memlift.Arena(bytes_max=8 << 20) as arena,
    ):
        server.register("echo", lambda value: value)
        server.start()
        for _ in range(100):
            for place in node.places:
                Walks.connect(place, deadline=25).close()
            Client(server.address).close()
            memlift.Subscription(arena.address, "topic", timeout=LONG)


def test_openings_end_by_their_limits_under_signals(stopped, profiler):
    for opens in (lambda: Client(stopped[0], timeout=0.5), lambda: stopped[2].get(timeout=0.5)):
        with pytest.raises(memlift.DeadlineExceededError):
            opens()
    interrupted(lambda: Client(stopped[0]))


def test_an_async_client_of_nodes_that_was_closed_does_not_connect(silent):
    async def main():
        client = AsyncWalks.connect(silent, deadline=25)
        await client.aclose()
        with pytest.raises(memlift.ClosedError):
            await client.__aenter__()

    asyncio.run(main())
