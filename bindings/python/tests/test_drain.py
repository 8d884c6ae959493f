# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Health, readiness, and the orderly end of a server.

Goal    what is open when a server drains is answered, in each kind of call; what comes is refused by name; a successor has the address at once
Method  servers in this process, and one that a service manager ends by SIGTERM
"""

import asyncio
import multiprocessing
import os
import signal
import threading
import time

import pytest

import memlift
from memlift.ipc import AsyncClient, Client, Server

SHORT, LONG = 0.3, 60.0
spawn = multiprocessing.get_context("spawn")


def serve(address, **options):
    server = Server(address, **options)
    server.register("echo", lambda value: value)
    server.register("pid", lambda _: os.getpid())

    @server.handler("sleep")
    def sleep(seconds):
        time.sleep(seconds)
        return seconds

    @server.handler("asleep")
    async def asleep(seconds):
        await asyncio.sleep(seconds)
        return seconds

    @server.handler("count")
    def count(last):
        for i in range(last):
            time.sleep(0.02)
            yield i

    @server.handler("acount")
    async def acount(last):
        for i in range(last):
            await asyncio.sleep(0.02)
            yield i

    @server.batched("batch", max_batch=4, max_delay=0.05)
    def batch(seconds):
        time.sleep(max(seconds))
        return seconds

    server.start()
    return server


@pytest.fixture
def address():
    return f"pytest-drain-{os.getpid()}-{time.monotonic_ns()}"


def test_a_server_says_how_it_is(address):
    with serve(address, ready=False) as server, Client(address, timeout=LONG) as client:
        assert client.ping() == {"state": "not ready", "sessions": 1, "busy_handlers": 0, "queued": 0}
        server.ready()
        assert client.ping(timeout=LONG)["state"] == "ready"
        server.ready(False)
        assert client.ping()["state"] == "not ready"

        async def body():
            async with AsyncClient(address, timeout=LONG) as other:
                return await other.ping()

        assert asyncio.run(body())["state"] == "not ready"
        server.begin_drain()
        assert client.ping()["state"] == "draining"


def is_stopped(pid):
    states = [open(f"/proc/{pid}/task/{task}/stat").read().rpartition(")")[2].split()[0] for task in os.listdir(f"/proc/{pid}/task")]
    return set(states) == {"T"}


def test_a_server_that_is_stopped_does_not_answer_a_ping(start):
    server = start()
    with Client(server.address, timeout=LONG) as client:
        assert client.ping()["state"] == "ready"
        os.kill(server.pid, signal.SIGSTOP)
        try:
            while not is_stopped(server.pid):
                time.sleep(0.001)  # a thread that runs on another core stops a little later
            with pytest.raises(memlift.DeadlineExceededError):
                client.ping(timeout=SHORT)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        server.kill()
        with pytest.raises(memlift.PeerDiedError):
            client.ping()


def test_what_is_open_is_answered_and_what_comes_is_refused(address):
    server = serve(address)
    with Client(address, timeout=LONG) as client:
        open_calls = [client.call_async(name, 0.5) for name in ("sleep", "asleep", "batch")]
        streams = [client.stream(name, 20) for name in ("count", "acount")]
        assert [next(stream) for stream in streams] == [0, 0]
        ended = []
        draining = threading.Thread(target=lambda: ended.append(server.stop(drain=LONG)))
        draining.start()
        while client.ping()["state"] != "draining":
            time.sleep(0.005)
        for name in ("echo", "asleep", "batch", "nothing"):
            with pytest.raises(memlift.DrainingError) as refused:
                client.call(name, 1)
            assert isinstance(refused.value, memlift.ServerUnavailableError) and f'"{name}"' in str(refused.value)
        with pytest.raises(memlift.DrainingError):
            next(client.stream("count", 1))
        assert [list(stream) for stream in streams] == [list(range(1, 20))] * 2
        assert [future.result() for future in open_calls] == [0.5] * 3
        draining.join()
        assert ended == [True]
        with pytest.raises(memlift.PeerDiedError):
            client.call("echo", 1)
    with pytest.raises(memlift.ServerUnavailableError):
        Client(address)


@pytest.mark.parametrize("what", ["call", "stream"])
def test_a_drain_ends_by_its_time(address, what):
    server = serve(address)
    with Client(address, timeout=LONG) as client:
        held = client.call_async("asleep", LONG) if what == "call" else client.stream("count", 1_000_000)
        if what == "stream":
            assert next(held) == 0
        else:
            while held.state()["state"] != "taken":
                time.sleep(0.005)
        begun = time.monotonic()
        assert not server.stop(drain=SHORT)
        assert SHORT <= time.monotonic() - begun < LONG / 2
        with pytest.raises(memlift.PeerDiedError):
            held.result() if what == "call" else list(held)
    with pytest.raises(ValueError, match="zero or more"):
        server.stop(drain=-1)


def test_a_server_with_nothing_to_do_ends_at_once(address):
    server = serve(address)
    with Client(address, timeout=LONG) as client:
        assert client.call("echo", 1) == 1
        begun = time.monotonic()
        assert server.stop(drain=LONG)
        assert time.monotonic() - begun < LONG / 2
    assert Server(address).stop()


@pytest.mark.parametrize("kind", ["sync", "loop"])
def test_an_idempotent_call_goes_to_the_successor(address, kind):
    first = serve(address)

    def replace():
        time.sleep(SHORT / 2)
        thread = threading.Thread(target=first.stop, args=(LONG,))
        thread.start()
        while True:
            try:
                return thread, serve(address)
            except memlift.AddressInUseError:
                time.sleep(0.005)

    def sync():
        with Client(address, timeout=LONG, idempotent=True) as client:
            slow = client.call_async("asleep", 1.0)
            thread, second = replace()
            assert [client.call("echo", i) for i in range(20)] == list(range(20))
            # What the first server had begun, it ends.
            assert slow.result() == 1.0
            thread.join()
            return second

    async def body():
        async with AsyncClient(address, timeout=LONG, idempotent=True) as client:
            slow = asyncio.ensure_future(client.call("asleep", 1.0, idempotent=False))
            thread, second = await asyncio.get_running_loop().run_in_executor(None, replace)
            assert await asyncio.gather(*(client.call("echo", i) for i in range(20))) == list(range(20))
            assert await slow == 1.0
            thread.join()
            return second

    (sync() if kind == "sync" else asyncio.run(body())).stop()


def child(address, ready):
    server = serve(address)
    signal.signal(signal.SIGTERM, lambda *_: server.stop(drain=30))
    ready.set()
    server.serve_forever()


def test_a_service_manager_ends_a_server_in_order(address):
    ready = spawn.Event()
    process = spawn.Process(target=child, args=(address, ready))
    process.start()
    assert ready.wait(LONG)
    with Client(address, timeout=LONG) as client:
        futures = [client.call_async("asleep", 0.5) for _ in range(10)]
        assert client.call("echo", 1) == 1
        process.terminate()
        assert [future.result() for future in futures] == [0.5] * 10
    process.join(LONG)
    assert process.exitcode == 0
