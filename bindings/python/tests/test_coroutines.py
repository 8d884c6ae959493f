# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Handlers that are `async def`.

Goal    many run at once on one loop, up to a bound; each answer and each failure is its own; a client that is gone cancels its tasks;
        nothing of a stopped server runs on
Method  a server in this process whose handlers say what became of them
"""

import asyncio
import functools
import gc
import os
import threading
import time

import numpy as np
import pytest

import memlift
from memlift.ipc import AsyncClient, Client, Server

LONG = 60.0


class State:
    def __init__(self):
        self.running = self.most = 0
        self.began, self.cancelled, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.threads = set()


@pytest.fixture
def state():
    return State()


def make(address, state, **options):
    server = Server(address, **options)
    server.register("echo", lambda value: value)

    @server.handler("meet")
    async def meet(seconds, *, say=None):
        state.threads.add(threading.get_ident())
        state.running += 1
        state.most = max(state.most, state.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            state.running -= 1
        return say

    @server.handler("double")
    async def double(array):
        await asyncio.sleep(0)
        return array * 2

    @server.handler("fail")
    async def fail(_):
        await asyncio.sleep(0)
        raise ValueError("no luck today")

    @server.handler("nonsense")
    async def nonsense(_):
        return object()

    @server.handler("exit")
    async def leave(_):
        raise SystemExit(3)

    @server.handler("for ever")
    async def for_ever(_):
        state.began.set()
        try:
            await asyncio.sleep(LONG * 10)
        except asyncio.CancelledError:
            state.cancelled.set()
            raise

    @server.handler("count")
    async def count(last, seconds=0.0):
        try:
            for i in range(last):
                await asyncio.sleep(seconds)
                yield i
        finally:
            await asyncio.sleep(0)
            state.closed.set()

    server.start()
    return server


@pytest.fixture
def server(state):
    with make(f"pytest-coroutines-{os.getpid()}", state) as server:
        yield server


@pytest.fixture
def client(server):
    with Client(server.address, timeout=LONG) as client:
        yield client


def test_answers_and_failures_are_each_their_own(client):
    np.testing.assert_array_equal(client.call("double", np.arange(100_000)), np.arange(100_000) * 2)
    assert client.call("meet", 0.0, say={"a": [1]}) == {"a": [1]}
    for _ in range(3):
        with pytest.raises(memlift.RemoteError, match="no luck today"):
            client.call("fail")
        with pytest.raises(memlift.RemoteError, match="cannot send an object of type object"):
            client.call("nonsense")
        with pytest.raises(memlift.RemoteError, match="SystemExit: 3"):
            client.call("exit")
        with pytest.raises(memlift.RemoteError, match="unexpected keyword"):
            client.call("double", np.ones(3), key=1)
        assert client.call("double", np.ones(3))[0] == 2
    assert client.stats()["request_used_bytes"] == 0


def test_many_run_at_once_on_one_thread(server, client, state):
    futures = [client.call_async("meet", 0.3, say=i) for i in range(60)]
    assert [future.result() for future in futures] == list(range(60))
    assert state.most > 30 and len(state.threads) == 1
    assert threading.get_ident() not in state.threads


def test_no_more_run_at_once_than_the_server_says(state):
    with make(f"pytest-coroutines-few-{os.getpid()}", state, coroutines=3) as server, Client(server.address, timeout=LONG) as client:
        futures = [client.call_async("meet", 0.02, say=i) for i in range(20)]
        assert [future.result() for future in futures] == list(range(20))
        assert state.most == 3
        assert [list(stream) for stream in [client.stream("count", 5) for _ in range(6)]] == [[0, 1, 2, 3, 4]] * 6
    with pytest.raises(ValueError, match="1 or more"):
        Server("never", coroutines=0)


def test_other_operations_go_on_meanwhile(client):
    held = [client.call_async("meet", 3.0) for _ in range(40)]
    for i in range(20):
        assert client.call("echo", i) == i
    assert not any(future.done() for future in held)
    for future in held:
        future.result()


def test_a_client_that_is_gone_cancels_its_calls(server, state):
    other = Client(server.address, timeout=LONG)
    with Client(server.address, timeout=LONG) as client:
        future = client.call_async("for ever")
        assert state.began.wait(LONG) and not state.cancelled.is_set()
        stays = other.call_async("meet", 0.3, say="there")
    assert state.cancelled.wait(LONG)
    with pytest.raises(memlift.ClosedError):
        future.result()
    assert stays.result() == "there"
    other.close()


def test_a_server_that_stops_cancels_what_runs(state):
    server = make(f"pytest-coroutines-stop-{os.getpid()}", state)
    with Client(server.address, timeout=LONG) as client:
        future = client.call_async("for ever")
        stream = client.stream("count", 1000)
        assert state.began.wait(LONG) and next(stream) == 0
        server.stop()
        assert state.cancelled.is_set() and state.closed.is_set()
        with pytest.raises(memlift.PeerDiedError):
            future.result()
        with pytest.raises(memlift.PeerDiedError):
            list(stream)
    assert not [thread for thread in threading.enumerate() if thread.name in ("memlift-loop", "memlift-ends")]


def test_a_handler_may_stop_its_server(state):
    server = Server(f"pytest-coroutines-self-{os.getpid()}")

    @server.handler("stop")
    async def stop(_):
        server.stop()

    server.start()
    with Client(server.address, timeout=LONG) as client, pytest.raises(memlift.PeerDiedError):
        client.call("stop")
    server.stop()


def test_a_server_without_coroutines_has_no_loop():
    before = threading.active_count()
    with Server(f"pytest-coroutines-none-{os.getpid()}", handlers=1) as server:
        server.register("echo", lambda value: value)
        server.start()
        with Client(server.address, timeout=LONG) as client:
            assert client.call("echo", 1) == 1
        assert threading.active_count() <= before + 2


def test_async_generators_stream(server, client, state):
    assert list(client.stream("count", 100)) == list(range(100))
    assert state.closed.wait(LONG)
    state.closed.clear()
    items = client.stream("count", 100)
    assert next(items) == 0
    items.close()
    assert state.closed.wait(LONG)

    async def body():
        async with AsyncClient(server.address, timeout=LONG) as client:
            streams = [client.iterate("count", 20, seconds=0.01) for _ in range(10)]
            found = await asyncio.gather(*(collect(stream) for stream in streams))
            assert found == [list(range(20))] * 10

    async def collect(stream):
        return [item async for item in stream]

    asyncio.run(body())


def test_a_client_that_is_gone_ends_an_async_generator(server, state):
    client = Client(server.address, timeout=LONG)
    items = client.stream("count", 10, seconds=LONG)
    threading.Timer(0.2, client.close).start()
    with pytest.raises(memlift.ClosedError):
        next(items)
    assert state.closed.wait(LONG)


def test_methods_partials_and_objects_may_be_coroutines(server, client):
    class Half:
        async def __call__(self, value):
            return value / 2

        async def of(self, part, value):
            return value * part

    server.register("object", Half())
    server.register("method", Half().of)
    server.register("partial", functools.partial(Half().of, 0.25))
    assert client.call("object", 3) == 1.5
    assert client.call("method", 0.5, 3) == 1.5
    assert client.call("partial", 8) == 2.0


def test_a_server_that_nobody_has_any_more_frees_its_address():
    address = f"pytest-coroutines-free-{os.getpid()}"
    server = Server(address)

    async def one(_):
        pass

    async def many():
        yield 1

    server.register("one", one)
    server.register("many", many)
    del server
    gc.collect()
    Server(address).stop()
