# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Clients that wait for a server, and calls that are made again after its death.

Goal    a wait ends when the server is there, or by its time with an error that names the address; a call runs twice only if its caller allows it
Method  server processes that start while a client waits, and that are killed under a call
"""

import asyncio
import os
import signal
import threading
import time

import numpy as np
import pytest
from conftest import Process

import memlift
from memlift.ipc import AsyncClient, Client

SHORT, LONG = 0.3, 60.0


def new_name():
    return f"pytest-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def later():
    """later(address, seconds) starts a server process there after that time."""
    timers, processes = [], []

    def later(address, seconds):
        timers.append(threading.Timer(seconds, lambda: processes.append(Process(address, {}))))
        timers[-1].start()

    yield later
    for timer in timers:
        timer.join()
    for process in processes:
        process.kill()


async def _call(address, operation, data, options, **more):
    async with AsyncClient(address, **options) as client:
        return await client.call(operation, data, **more)


def sync(address, operation, data=None, options={}, **more):
    with Client(address, **options) as client:
        return client.call(operation, data, **more)


def on_a_loop(address, operation, data=None, options={}, **more):
    return asyncio.run(_call(address, operation, data, options, **more))


each_kind = pytest.mark.parametrize("call", [sync, on_a_loop])


@each_kind
def test_a_client_waits_for_its_server(call, later, tmp_path):
    for address in (new_name(), str(tmp_path / "later.sock")):
        later(address, SHORT)
        assert call(address, "echo", b"x", {"wait": LONG, "timeout": LONG}) == b"x"


@each_kind
def test_a_wait_for_nobody_ends_in_time_and_names_the_address(call):
    address = new_name()
    for wait in (0, SHORT, 1.0):
        begun = time.monotonic()
        with pytest.raises(memlift.ServerUnavailableError, match=address):
            call(address, "echo", b"x", {"wait": wait})
        assert wait <= time.monotonic() - begun < wait + LONG / 2
    with pytest.raises(ValueError, match="zero or more"):
        call(address, "echo", b"x", {"wait": -1.0})


def test_a_wait_policy_may_still_be_named_by_wait(shared_server):
    for options in ({"wait": "block"}, {"policy": "block"}, {"wait": LONG, "policy": "block"}):
        assert sync(shared_server.address, "echo", b"x", options) == b"x"
        assert on_a_loop(shared_server.address, "echo", b"x", options) == b"x"
    for options in ({"wait": "often"}, {"policy": "often"}):
        with pytest.raises(ValueError, match="choose 'auto', 'block' or 'spin'"):
            sync(shared_server.address, "echo", b"x", options)


def test_ctrl_c_ends_a_wait():
    threading.Timer(SHORT, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Client(new_name(), wait=LONG)
    assert time.monotonic() - begun < LONG / 2


def test_a_cancelled_wait_ends_at_once():
    async def body():
        task = asyncio.ensure_future(AsyncClient(new_name(), wait=LONG).connect())
        await asyncio.sleep(SHORT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun = time.monotonic()
    asyncio.run(body())
    assert time.monotonic() - begun < LONG / 2


def test_an_idempotent_call_is_made_again_when_the_server_is_back(later):
    address = new_name()
    first = Process(address, {})
    with Client(address, timeout=LONG) as client:
        assert int(client.call("pid")) == first.pid
        slow = threading.Timer(SHORT, first.kill)
        slow.start()
        later(address, SHORT * 2)
        # Unanswered when its server dies.
        answer = client.call("sleep", np.array([1.0]), idempotent=True)
        assert answer[0] == 1.0 and int(client.call("pid")) != first.pid
        # Everything else uses the new session, too.
        assert client.call_async("echo", b"x").result() == b"x"
        with client.pipeline() as pipeline:
            pipeline.submit("echo", b"y")
            assert pipeline.next()[1] == b"y"
        assert client.stats()["calls"] >= 4
        slow.join()


def test_what_is_not_idempotent_is_not_made_again(start):
    server = start()
    with Client(server.address, timeout=LONG) as client:
        with pytest.raises(memlift.PeerDiedError):
            client.call("die")
        server.process.join()
        # At the address there is a server again, and still the client does not decide this for its caller.
        second = Process(server.address, {})
        try:
            with pytest.raises(memlift.PeerDiedError):
                client.call("echo", b"x")
            assert client.call("echo", b"x", idempotent=True) == b"x"
            assert client.call("echo", b"y") == b"y"
        finally:
            second.kill()


def test_a_client_may_say_it_for_all_its_calls(start):
    server = start()
    with Client(server.address, timeout=LONG, idempotent=True) as client:
        server.kill()
        second = Process(server.address, {})
        try:
            with pytest.raises(memlift.PeerDiedError):
                client.call("echo", b"x", idempotent=False)
            assert client.call("echo", b"x") == b"x"
        finally:
            second.kill()


@each_kind
def test_a_call_that_kills_its_server_kills_two_at_most(call, start, later):
    server = start()
    later(server.address, SHORT)
    begun = time.monotonic()
    with pytest.raises(memlift.PeerDiedError):
        call(server.address, "die", None, {"timeout": LONG}, idempotent=True)
    assert time.monotonic() - begun < LONG / 2


@each_kind
def test_a_server_that_does_not_come_back_is_waited_for_no_longer_than_the_call_may_take(call, start):
    for limits in ({"timeout": SHORT}, {"wait": SHORT}, {}):
        server = start()
        threading.Timer(SHORT / 2, server.kill).start()
        begun = time.monotonic()
        with pytest.raises((memlift.ServerUnavailableError, memlift.DeadlineExceededError)) as error:
            call(server.address, "sleep", np.array([LONG]), limits, idempotent=True)
        assert time.monotonic() - begun < LONG / 2
        if type(error.value) is memlift.ServerUnavailableError:
            assert server.address in str(error.value) and isinstance(error.value.__cause__, memlift.PeerDiedError)


def test_calls_of_a_loop_share_one_new_session(later):
    address = new_name()
    first = Process(address, {})

    async def body():
        async with AsyncClient(address, timeout=LONG, idempotent=True) as client:
            calls = [asyncio.ensure_future(client.call("sleep", np.array([0.5]))) for _ in range(8)]
            await asyncio.sleep(SHORT / 3)
            first.kill()
            later(address, SHORT)
            assert [answer[0] for answer in await asyncio.gather(*calls)] == [0.5] * 8
            assert client.stats()["server_sessions"] == 1

    asyncio.run(body())


def test_threads_share_one_new_session(later):
    address = new_name()
    first = Process(address, {})
    with Client(address, timeout=LONG, idempotent=True) as client:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(client.call("sleep", np.array([0.5]))[0])) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(SHORT / 3)
        first.kill()
        later(address, SHORT)
        for thread in threads:
            thread.join(LONG)
        assert answers == [0.5] * 6


def test_new_sessions_leave_no_descriptors_behind(start):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    server = start()
    with Client(server.address, timeout=LONG, idempotent=True) as client:
        counts = []
        for _ in range(4):
            server.kill()
            server = Process(server.address, {})
            assert client.call("echo", b"x") == b"x"
            counts.append(descriptors())
        server.kill()
        assert counts[0] == counts[-1]


def test_a_closed_client_stays_closed(start):
    server = start()
    client = Client(server.address, timeout=LONG, idempotent=True)
    server.kill()
    second = Process(server.address, {})
    try:
        assert client.call("echo", b"x") == b"x"
        client.close()
        with pytest.raises(memlift.ClosedError):
            client.call("echo", b"x")
    finally:
        second.kill()
