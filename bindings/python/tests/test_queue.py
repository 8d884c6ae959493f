# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Queue` in the place of multiprocessing.Queue.

Goal    the interface and behaviour of multiprocessing.Queue, arrays in place, nothing lost or left behind by processes that die
Method  real processes of every start method, killed for real; the books are compared with what is held
"""

import gc
import multiprocessing
import os
import pickle
import queue
import random
import signal
import threading
import time

import numpy as np
import pytest

import memlift

spawn = multiprocessing.get_context("spawn")
METHODS = ["spawn", "forkserver", "fork"]


def double(source, target):
    while (item := source.get()) is not None:
        target.put({key: value * 2 for key, value in item.items()})


def produce(target, first, count):
    for i in range(first, first + count):
        target.put((i, np.full(1 + i * 50, i)))


def consume(source, target):
    while (item := source.get()) is not None:
        i, array = item
        assert len(array) == 1 + i * 50 and (array == i).all()
        target.put(i)


def hold_and_wait(source, target, ready):
    held = source.get()  # noqa: F841
    ready.set()
    target.get()


def put_once(target, item):
    target.put(item)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_every_start_method(method):
    context = multiprocessing.get_context(method)
    source, target = memlift.Queue(), memlift.Queue(ctx=context)
    process = context.Process(target=double, args=(source, target), daemon=True)
    process.start()
    for i in range(5):
        source.put({"x": np.arange(i * 1000.0), "n": i})
    for i in range(5):
        item = target.get(timeout=60)
        assert item["n"] == 2 * i
        np.testing.assert_array_equal(item["x"], np.arange(i * 1000.0) * 2)
    source.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_the_interface_is_that_of_multiprocessing():
    theirs = {name for name in dir(spawn.Queue()) if not name.startswith("_")}
    assert theirs <= set(dir(memlift.Queue()))


def test_full_and_empty():
    bounded = memlift.Queue(2)
    assert bounded.empty() and not bounded.full() and bounded.qsize() == 0
    with pytest.raises(queue.Empty):
        bounded.get_nowait()
    with pytest.raises(queue.Empty):
        bounded.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        bounded.get(True, -1)
    bounded.put(1)
    bounded.put_nowait("two")
    assert bounded.full() and not bounded.empty() and bounded.qsize() == 2
    with pytest.raises(queue.Full):
        bounded.put_nowait(3)
    with pytest.raises(queue.Full):
        bounded.put(np.zeros(1000), timeout=0.01)
    assert bounded.get(False) == 1
    bounded.put(3)
    assert [bounded.get(), bounded.get()] == ["two", 3]
    assert not memlift.Queue(0).full() and not memlift.Queue(-1).full()


def test_a_closed_queue_refuses_and_the_others_go_on():
    ours = memlift.Queue()
    ours.put(1)
    theirs = memlift._native.Queue(fds=ours._descriptors())
    ours.close()
    for use in (ours.get, lambda: ours.put(2)):
        with pytest.raises(ValueError, match="closed"):
            use()
    ours.join_thread()
    ours.cancel_join_thread()
    theirs.put(2)
    assert [theirs.get(), theirs.get()] == [1, 2]


def test_close_ends_the_waits_of_other_threads():
    empty, full, joined = memlift.Queue(), memlift.Queue(1), memlift.JoinableQueue()
    full.put(1)
    joined.put(1)
    ended = []

    def wait(use):
        try:
            use()
        except ValueError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=wait, args=(use,), daemon=True) for use in (empty.get, lambda: full.put(2), joined.join)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    for ours in (empty, full, joined):
        ours.close()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 3 and all("closed" in text for text in ended)


def test_it_is_passed_on_only_while_a_process_starts():
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(memlift.Queue())


def test_many_items_wait_for_a_getter_that_comes_late():
    many = memlift.Queue()
    for i in range(20_000):
        many.put(i)
    assert many.qsize() == 20_000
    assert [many.get() for _ in range(20_000)] == list(range(20_000))


def test_arrays_lie_in_place_and_are_writable():
    ours = memlift.Queue()
    ours.put(np.arange(100_000))
    array = ours.get()
    assert array.flags.writeable and array.base is not None and not array.flags.owndata
    assert ours.stats()["reading"] == 1
    array += 1
    np.testing.assert_array_equal(array, np.arange(1, 100_001))
    part = array[10:]
    del array
    gc.collect()
    assert ours.stats()["reading"] == 1, "a part keeps the memory"
    del part
    gc.collect()
    assert ours.stats()["reading"] == 0 and ours.stats()["viewed_bytes"] == 0


def test_an_item_into_memory_of_the_getters():
    queue, out = memlift.Queue(), np.empty(30_000)
    queue.put(np.arange(30_000.0))
    assert queue.get(out=out) is out and (out == np.arange(30_000.0)).all()
    assert queue.stats()["viewed_bytes"] == 0
    queue.put(b"abc")
    assert queue.get(out=out.data.cast("B")) == 3 and out.data.cast("B")[:3] == b"abc"
    queue.put(np.ones(5))
    with pytest.raises(ValueError, match="make out like it") as wrong:
        queue.get(out=out)
    assert (wrong.value.item == 1).all()
    queue.put("text")
    with pytest.raises(TypeError, match="type str") as wrong:
        queue.get(out=out)
    assert wrong.value.item == "text"


def test_what_was_put_may_be_changed_at_once():
    ours, array = memlift.Queue(), np.zeros(50_000)
    for i in range(10):
        array[:] = i
        ours.put(array)
    assert [ours.get()[-1] for _ in range(10)] == list(range(10))


def test_views_that_are_kept_do_not_stop_putters():
    ours = memlift.Queue(bytes_max=8 << 20)
    kept = []
    for i in range(40):
        ours.put(np.full(1 << 17, i, np.float64), timeout=60)
        kept.append(ours.get())
    assert [array[0] for array in kept] == list(range(40))
    assert ours.stats()["memory_bytes"] <= 8 << 20


def test_memory_is_bounded():
    ours = memlift.Queue(bytes_max=1 << 20)
    with pytest.raises(memlift.MessageTooLargeError):
        ours.put(np.zeros(1 << 18))
    with pytest.raises(queue.Full):
        while True:
            ours.put(bytes(100_000), timeout=0)
    while not ours.empty():
        assert ours.get() == bytes(100_000)


def test_several_producers_and_consumers():
    jobs, done = memlift.Queue(8), memlift.Queue()
    consumers = [spawn.Process(target=consume, args=(jobs, done), daemon=True) for _ in range(2)]
    producers = [spawn.Process(target=produce, args=(jobs, first, 40), daemon=True) for first in (0, 40)]
    for process in consumers + producers:
        process.start()
    assert sorted(done.get(timeout=60) for _ in range(80)) == list(range(80))
    for process in producers:
        process.join(60)
    for _ in consumers:
        jobs.put(None)
    for process in consumers:
        process.join(60)
    assert [process.exitcode for process in consumers + producers] == [0] * 4


def test_threads_share_a_queue():
    ours, sums = memlift.Queue(4), []

    def work():
        sums.append(sum(int(ours.get()[0]) for _ in range(200)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    for i in range(600):
        ours.put(np.full(1 + i % 3 * 1000, i))
    [thread.join() for thread in threads]
    assert sum(sums) == sum(range(600))


def test_a_killed_holder_gives_back_what_it_held():
    source, target = memlift.Queue(bytes_max=8 << 20), memlift.Queue()
    ready = spawn.Event()
    process = spawn.Process(target=hold_and_wait, args=(source, target, ready), daemon=True)
    process.start()
    source.put(np.ones(300_000))
    assert ready.wait(60)
    assert source.stats()["reading"] == 1
    process.kill()
    process.join()
    # Only fits when the dead's part is back.
    source.put(np.full(800_000, 3.0), timeout=60)
    assert source.get(timeout=60)[0] == 3 and source.stats()["reading"] == 0


def churn(ours):
    while True:
        i, array = ours.get()
        ours.put((i, array * 1))


def test_processes_killed_at_any_time_hang_nobody():
    ours = memlift.Queue(bytes_max=32 << 20)
    for round in range(6):
        processes = [spawn.Process(target=churn, args=(ours,), daemon=True) for _ in range(2)]
        for process in processes:
            process.start()
        for i in range(20):
            ours.put((i, np.full(3000 + i, i)))
        seen = 0
        while seen < 30:
            i, array = ours.get(timeout=60)
            assert (array == i).all() and len(array) == 3000 + i
            ours.put((i, array))
            seen += 1
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.join()
        del array
        while not ours.empty():
            ours.get(timeout=60)
    ours.put(np.zeros(2_500_000), timeout=60)
    assert ours.get(timeout=60).nbytes == 20_000_000
    gc.collect()
    assert ours.stats()["items"] == 0


def test_the_maker_may_end_before_what_it_put_is_taken():
    ours = memlift.Queue()
    process = spawn.Process(target=put_once, args=(ours, {"x": np.arange(5000)}))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    np.testing.assert_array_equal(ours.get(timeout=60)["x"], np.arange(5000))


def test_nothing_stays(leftovers):
    before = leftovers(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        ours = memlift.Queue()
        ours.put(np.zeros(100_000))
        ours.get()
        assert leftovers() == before[0]
        del ours
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before[1]


def test_pickles_only_where_they_were_allowed():
    with pytest.raises(memlift.UnsupportedTypeError, match="allow_pickle=True"):
        memlift.Queue().put(pickle)
    with pytest.raises(memlift.UnsupportedTypeError, match="allow_pickle=True"):
        memlift.Queue().put(range(3))
    allowing = memlift.Queue(allow_pickle=True)
    allowing.put([range(3), np.arange(3)])
    refusing = memlift._native.Queue(fds=allowing._descriptors())
    with pytest.raises(memlift.UnsupportedTypeError, match="may run any code"):
        refusing.get()
    allowing.put([range(3), np.arange(3)])
    numbers, array = allowing.get()
    allowing.put(np.array([1, "a"], object))
    assert list(allowing.get()) == [1, "a"]
    assert numbers == range(3) and list(array) == [0, 1, 2]


def put_and_get_for_ever(ours, seed):
    draw = random.Random(seed)
    while True:
        n = draw.choice([1, 20, 600, 5000, 40_000])
        ours.put((n, np.full(n, n)))
        m, array = ours.get()
        if len(array) != m or not (array == m).all():
            os._exit(9)


@pytest.mark.soak
def test_soak_kills_at_random_times():
    ours, draw, children = memlift.Queue(64, bytes_max=64 << 20), random.Random(1), []
    try:
        for _ in range(int(os.environ.get("MEMLIFT_KILLS", "10000"))):
            while len(children) < 4:
                child = os.fork()
                if child == 0:
                    try:
                        put_and_get_for_ever(ours, draw.random())
                    finally:
                        os._exit(8)
                children.append(child)
            time.sleep(draw.random() * 0.01)
            child = children.pop(draw.randrange(4))
            os.kill(child, signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it had not ended by itself"
            # A process that is killed between its put and its get leaves an item. 64 of them, and all would wait to put.
            while ours.qsize() > 32:
                ours.get(timeout=60)
            for n in (3, 9000):
                ours.put((n, np.full(n, n)), timeout=60)
            for _ in range(2):
                n, array = ours.get(timeout=60)
                assert len(array) == n and (array == n).all()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    while not ours.empty():
        ours.get()
    del array
    ours.put(np.zeros(6_000_000), timeout=60)
    # Only a put without room looks for what the dead had.
    with pytest.raises(queue.Full):
        ours.put(np.zeros(6_000_000), block=False)
    ours.get()
    gc.collect()
    stats = ours.stats()
    assert (stats["items"], stats["writing"], stats["reading"], stats["viewed_bytes"]) == (0, 0, 0, 0)
