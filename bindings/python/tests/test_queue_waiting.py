# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Waiting at a queue: beside other things, in an event loop, and until all is done.

Goal    a queue counts as readable exactly while an item waits; a task that is cancelled takes nothing; `join` ends whoever dies
Method  real processes, killed for real; each loop that the project supports
"""

import asyncio
import gc
import multiprocessing
import multiprocessing.connection
import os
import queue
import random
import select
import selectors
import signal
import threading
import time

import numpy as np
import pytest
import uvloop

import memlift

spawn = multiprocessing.get_context("spawn")
RUNNERS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=RUNNERS)
def run(request):
    return RUNNERS[request.param]


def is_readable(target):
    return bool(select.select([target], [], [], 0)[0])


def put_once(target, item):
    target.put(item)


def wait_and_put(source, target):
    ready = multiprocessing.connection.wait([source, target], 60)
    target.put([source is one for one in ready] + [source.get(timeout=0)])


def put_for_ever(target):
    for i in range(1 << 60):
        target.put((i, np.full(i % 3000, i)))


def take_for_ever(source):
    while True:
        source.get()
        source.task_done()


def take_and_keep(source, ready):
    kept = [source.get(), source.get()]  # noqa: F841
    ready.set()
    time.sleep(3600)


def test_it_is_readable_while_an_item_waits():
    ours = memlift.Queue()
    assert not is_readable(ours) and not ours._reader.poll()
    ours.put(1)
    ours.put(np.arange(10_000))
    assert is_readable(ours) and is_readable(ours.fileno()) and ours._reader.poll()
    ours.get()
    assert is_readable(ours)
    ours.get()
    assert not is_readable(ours) and not ours._reader.poll(0.01)
    for _ in range(3):
        with pytest.raises(queue.Empty):
            ours.get_nowait()
        assert not is_readable(ours)
    threading.Timer(0.05, ours.put, [2]).start()
    assert ours._reader.poll(60) and ours.get_nowait() == 2
    with selectors.DefaultSelector() as selector:
        selector.register(ours, selectors.EVENT_READ)
        ours.put(3)
        assert [key.fileobj for key, _ in selector.select(60)] == [ours]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_it_is_waited_for_beside_other_things(method):
    context = multiprocessing.get_context(method)
    source, target = memlift.Queue(), memlift.Queue()
    process = context.Process(target=wait_and_put, args=(source, target), daemon=True)
    process.start()
    source.put("x")
    assert multiprocessing.connection.wait([target._reader], 60) and target.get() == [True, "x"]
    process.join(60)
    assert multiprocessing.connection.wait([source, process.sentinel], 60) == [process.sentinel]


def test_items_come_to_tasks_in_their_order(run):
    async def main():
        ours = memlift.Queue()
        getters = [asyncio.ensure_future(ours.aget()) for _ in range(5)]
        await asyncio.sleep(0.02)
        assert not any(getter.done() for getter in getters)
        process = spawn.Process(target=put_once, args=(ours, {"x": np.arange(20_000)}), daemon=True)
        process.start()
        np.testing.assert_array_equal((await getters[0])["x"], np.arange(20_000))
        ours.put(1)
        ours.put(2)
        assert await asyncio.gather(*getters[1:3]) == [1, 2]
        await asyncio.get_running_loop().run_in_executor(None, ours.put, 3)
        assert await getters[3] == 3
        ours.put(4)
        ours.put(5)
        assert [await getters[4], await ours.aget()] == [4, 5]
        with pytest.raises(queue.Empty):
            await ours.aget(timeout=0.01)
        with pytest.raises(queue.Empty):
            await ours.aget(timeout=0)
        await asyncio.get_running_loop().run_in_executor(None, process.join)

    run(main())


def test_a_task_that_is_cancelled_takes_nothing(run):
    async def main():
        ours = memlift.Queue()
        for _ in range(50):
            getters = [asyncio.ensure_future(ours.aget()) for _ in range(3)]
            await asyncio.sleep(0)
            ours.put("a")
            if random.random() < 0.5:
                # The first is woken in the same round in which it is cancelled.
                await asyncio.sleep(0)
            getters[0].cancel()
            done, _ = await asyncio.wait(getters, return_when=asyncio.ALL_COMPLETED, timeout=0.05)
            taken = [getter for getter in done if not getter.cancelled()]
            assert len(taken) == 1 and taken[0].result() == "a"
            for getter in getters:
                getter.cancel()
            await asyncio.gather(*getters, return_exceptions=True)
            assert ours.empty()

    run(main())


def test_a_loop_sleeps_while_nothing_comes(run):
    async def main():
        ours = memlift.Queue()
        getter = asyncio.ensure_future(ours.aget())
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.25, "nobody looks again and again"
        ours.put(1)
        assert await getter == 1

    run(main())


def test_closing_ends_the_waits(run):
    async def main():
        ours = memlift.Queue()
        getters = [asyncio.ensure_future(ours.aget()) for _ in range(3)]
        await asyncio.sleep(0.01)
        ours.close()
        for outcome in await asyncio.gather(*getters, return_exceptions=True):
            assert isinstance(outcome, ValueError) and "closed" in str(outcome)

    run(main())


def test_many_loops_and_nothing_that_stays():
    ours, taken, lock = memlift.Queue(), [], threading.Lock()

    async def take():
        while (item := await ours.aget()) is not None:
            with lock:
                taken.append(item)

    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=asyncio.run, args=(take(),)) for _ in range(3)]
    [thread.start() for thread in threads]
    for i in range(3000):
        ours.put(i)
    for _ in threads:
        ours.put(None)
    [thread.join() for thread in threads]
    assert sorted(taken) == list(range(3000))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_tasks_are_done():
    ours = memlift.JoinableQueue()
    ours.join()
    with pytest.raises(ValueError, match="too many times"):
        ours.task_done()
    workers = [spawn.Process(target=take_for_ever, args=(ours,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    for i in range(100):
        ours.put(np.full(1000 + i, i))
    ours.join()
    assert ours.empty()
    for worker in workers:
        worker.kill()
    theirs = {name for name in dir(spawn.JoinableQueue()) if not name.startswith("_")}
    assert theirs <= set(dir(ours)) and not {"join", "task_done"} & set(dir(memlift.Queue()))


def test_join_does_not_wait_for_the_dead():
    ours, ready = memlift.JoinableQueue(), spawn.Event()
    keeper = spawn.Process(target=take_and_keep, args=(ours, ready), daemon=True)
    keeper.start()
    for i in range(3):
        ours.put(i)
    assert ready.wait(60)
    joined = threading.Event()
    joiner = threading.Thread(target=lambda: (ours.join(), joined.set()), daemon=True)
    joiner.start()
    assert ours.get() == 2
    ours.task_done()
    assert not joined.wait(0.3), "two are kept by one that lives"
    keeper.kill()
    assert joined.wait(60)
    with pytest.raises(ValueError):
        ours.task_done()


@pytest.mark.soak
@pytest.mark.parametrize("runner", RUNNERS)
def test_soak_putters_that_are_killed_leave_no_loop_waiting(runner):
    """Each putter is killed at a random moment; what the living put is seen at once all the same."""
    kills, draw = int(os.environ.get("MEMLIFT_KILLS", "10000")), random.Random(2)

    async def main():
        ours, fork = memlift.Queue(bytes_max=64 << 20), multiprocessing.get_context("fork")
        for _ in range(kills):
            putter = fork.Process(target=put_for_ever, args=(ours,))
            putter.start()
            until = time.monotonic() + draw.random() * 0.004
            while time.monotonic() < until:
                try:
                    i, array = await ours.aget(timeout=0.001)
                except queue.Empty:
                    continue
                assert len(array) == i % 3000 and (array == i).all()
            os.kill(putter.pid, signal.SIGKILL)
            putter.join()
            ours.put((-1, np.full(3000 - 1, -1)))
            while (await ours.aget(timeout=60))[0] != -1:
                pass
            assert ours.empty()
            with pytest.raises(queue.Empty):
                ours.get_nowait()
            assert not is_readable(ours)

    RUNNERS[runner](main())


@pytest.mark.soak
def test_soak_killed_takers_keep_nobody_joining():
    kills, draw = int(os.environ.get("MEMLIFT_KILLS", "10000")), random.Random(3)
    ours, fork = memlift.JoinableQueue(), multiprocessing.get_context("fork")
    for i in range(kills):
        takers = [fork.Process(target=take_for_ever, args=(ours,)) for _ in range(2)]
        for taker in takers:
            taker.start()
        for n in range(20):
            ours.put((n, np.full(500, n)))
        time.sleep(draw.random() * 0.004)
        for taker in takers[: 1 + i % 2]:
            os.kill(taker.pid, signal.SIGKILL)
        if i % 2:
            while not ours.empty():
                ours.get()
                ours.task_done()
        ours.join()
        for taker in takers:
            taker.kill()
            taker.join()
