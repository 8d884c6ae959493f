# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.ipc.AsyncClient`: awaiting answers on an event loop.

Goal    answers reach those who wait for them; cancelling, deadlines, closing and dying servers leave nobody waiting and no memory
        taken; no way through the loop for what is answered already
Method  a real server process; asyncio's own loop, uvloop, and anyio on asyncio
"""

import asyncio
import gc
import os
import signal

import anyio
import numpy as np
import pytest
import uvloop

import memlift
from memlift.ipc import AsyncClient

LOOPS = {"asyncio": lambda body: asyncio.run(body()), "uvloop": lambda body: uvloop.run(body()), "anyio": anyio.run}


@pytest.fixture(params=LOOPS)
def run(request):
    """run(coroutine function): on each kind of loop."""
    return LOOPS[request.param]


def test_calls(run, shared_server):
    async def body():
        async with AsyncClient(shared_server.address, timeout=60) as client:
            assert await client.call("echo", b"x") == b"x"
            np.testing.assert_array_equal(await client.call("double", np.arange(100_000)), np.arange(100_000) * 2)
            assert (await client.call("echo", {"a": [1, np.ones(3)]}))["a"][1].sum() == 3
            out = np.empty(3)
            assert await client.call("double", np.ones(3), out=out) is out and out[0] == 2
            with pytest.raises(memlift.RemoteError, match="no luck today"):
                await client.call("fail")
            with pytest.raises(memlift.UnknownOperationError):
                await client.call("nothing")
            with pytest.raises(memlift.UnsupportedTypeError):
                await client.call("echo", object())

    run(body)


def test_many_at_once_each_get_their_own(run, shared_server):
    async def body():
        async with AsyncClient(shared_server.address, timeout=60) as client:
            answers = await asyncio.gather(*(client.call("double", np.full(1 + i * 10, i)) for i in range(300)))
            for i, answer in enumerate(answers):
                assert len(answer) == 1 + i * 10 and (answer == 2 * i).all()
            del answers, answer
            assert client.stats()["outstanding"] == 0

    run(body)


def test_answers_come_in_any_order_and_the_loop_runs_meanwhile(run, shared_server):
    async def body():
        async with AsyncClient(shared_server.address, timeout=60) as client:
            order = []

            async def one(name, seconds):
                await client.call("sleep", np.array([seconds]))
                order.append(name)

            for _ in range(3):  # until the server knows that this takes long
                await one("warm", 0.005)
            order.clear()
            ticks = 0
            tasks = [asyncio.ensure_future(one("slow", 0.4)), asyncio.ensure_future(one("fast", 0.01))]
            while not all(task.done() for task in tasks):
                ticks += 1
                await asyncio.sleep(0.005)
            assert order == ["fast", "slow"] and ticks > 3

    run(body)


def test_streams(run, shared_server):
    async def numbers():
        for i in range(30):
            await asyncio.sleep(0)
            yield np.full(1000, i)

    async def body():
        async with AsyncClient(shared_server.address, timeout=60) as client:
            for items in ([np.full(1000, i) for i in range(30)], numbers()):
                seen = {index: answer[0] async for index, answer in client.stream("double", items, depth=4)}
                assert seen == {i: 2 * i for i in range(30)}
            assert [item async for item in client.stream("double", [])] == []
            with pytest.raises(memlift.RemoteError):
                async for _ in client.stream("fail", [1, 2, 3]):
                    pass
            async for index, _ in client.stream("double", numbers(), depth=2):
                if index >= 3:
                    break
            assert await client.call("echo", b"x") == b"x"

    run(body)


def test_a_cancelled_call_keeps_its_memory_until_the_server_is_done(run, start):
    server = start()

    async def body():
        async with AsyncClient(server.address, timeout=60) as client:
            tasks = [asyncio.ensure_future(client.call("sleep", np.full(50_000, 0.2))) for _ in range(3)]
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            assert client.stats()["request_used_bytes"] > 0, "the server still reads it"
            for i in range(20):
                assert (await client.call("double", np.full(50_000, i)))[7] == 2 * i
            while client.stats()["outstanding"]:
                await client.call("sleep", np.array([0.05]))
            gc.collect()
            assert client.stats()["request_used_bytes"] == 0

    run(body)


def test_a_storm_of_cancellations(run, shared_server):
    async def body():
        async with AsyncClient(shared_server.address, timeout=60) as client:
            for round in range(10):
                tasks = [asyncio.ensure_future(client.call("double", np.full(3000, i))) for i in range(100)]
                for _ in range(round % 4):
                    await asyncio.sleep(0)
                for task in tasks[round % 3 :: 2]:
                    task.cancel()
                for i, answer in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                    assert isinstance(answer, asyncio.CancelledError) or (answer == 2 * i).all()
            assert (await client.call("double", np.ones(10))).sum() == 20

    run(body)


def test_deadlines(run, start):
    server = start()

    async def body():
        async with AsyncClient(server.address) as client:
            with pytest.raises(memlift.DeadlineExceededError, match="0.05 s"):
                await client.call("sleep", np.array([0.5]), timeout=0.05)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.call("sleep", np.array([0.2]))
            assert await client.call("echo", b"x") == b"x"

    run(body)


def test_a_server_that_dies_ends_every_call(run, start):
    server = start()

    async def body():
        async with AsyncClient(server.address) as client:
            tasks = [asyncio.ensure_future(client.call("sleep", np.array([60.0]))) for _ in range(100)]
            await asyncio.sleep(0.1)
            os.kill(server.pid, signal.SIGKILL)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, memlift.PeerDiedError) for result in results)
            with pytest.raises(memlift.PeerDiedError):
                await client.call("echo", b"x")

    run(body)


def test_closing_ends_every_call(run, shared_server):
    async def body():
        client = AsyncClient(shared_server.address)
        with pytest.raises(memlift.ClosedError, match="async with"):
            await client.call("echo", b"x")
        await client.connect()
        kept = await client.call("double", np.arange(50_000))
        task = asyncio.ensure_future(client.call("sleep", np.array([0.2])))
        await asyncio.sleep(0.02)
        client.close()
        with pytest.raises(memlift.ClosedError):
            await task
        np.testing.assert_array_equal(kept, np.arange(50_000) * 2)

    run(body)


def test_one_descriptor_is_watched_and_none_is_left(run, shared_server):
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    async def body():
        async with AsyncClient(shared_server.address) as client:
            await asyncio.gather(*(client.call("echo", b"x") for _ in range(50)))

    run(body)
    before = descriptors()
    for _ in range(3):
        run(body)
    assert descriptors() <= before


def test_the_clients_of_a_loop_share_its_descriptor(shared_server):
    async def body():
        watched = asyncio.get_running_loop()._selector.get_map()
        before = len(watched)
        clients = [await AsyncClient(shared_server.address, timeout=60).connect() for _ in range(5)]
        while clients:
            assert len(watched) == before + 1
            answers = await asyncio.gather(*(client.call("double", np.full(3, i)) for client in clients for i in range(40)))
            assert [answer[0] for answer in answers] == [2 * i for _ in clients for i in range(40)]
            clients.pop(len(clients) // 2).close()
        assert len(watched) == before

    asyncio.run(body())


class Eager:
    """A session in which every answer is there when the call has been sent."""

    def __init__(self, session):
        self._session = session

    def __getattr__(self, name):
        return getattr(self._session, name)

    def submit(self, *arguments):
        number, answered = self._session.submit(*arguments)
        # A server that sleeps is rung for then.
        self._session.flush()
        while not answered:
            answered = self._session.turn()
        return number, answered


def test_an_answer_that_is_there_needs_no_way_through_the_loop(shared_server):
    async def body():
        async with AsyncClient(shared_server.address, timeout=60) as client:
            client._session = Eager(client._session)
            steps = 0

            async def count():
                nonlocal steps
                while True:
                    steps += 1
                    await asyncio.sleep(0)

            counter = asyncio.ensure_future(count())
            for i in range(10):
                assert await client.call("echo", b"%d" % i) == b"%d" % i
            assert steps == 0
            counter.cancel()

    asyncio.run(body())


def test_a_client_belongs_to_one_loop(shared_server):
    client = AsyncClient(shared_server.address)
    asyncio.run(client.connect())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(client.call("echo", b"x"))
    client.close()
