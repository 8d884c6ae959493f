# SPDX-License-Identifier: Apache-2.0 OR MIT
"""An arena whose readers, writers, followers and forked children are killed or leave at random times.

Goal     no reading shows anything but what was written, nobody stands still, and all memory comes back
Method   each value is an array of one number that its ref is sent with. A reading that differs is written to a pipe that every process
         has. The processes come from a server of forks, which has imported everything
"""

import gc
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import deque

import numpy as np
import pytest

import memlift

SIZES = (10, 2_000, 30_000, 200_000)
LONG = 60
GONE = (memlift.PeerDiedError, memlift.ServerUnavailableError, memlift.ClosedError)

fast = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported():
    fast.set_forkserver_preload(["numpy", "memlift", "conftest", __name__])


def rounds():
    """Kills per kind of process in the long tests."""
    return int(os.environ.get("MEMLIFT_KILLS", "2000"))


def wait_until(condition, what):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def is_right(view, number):
    return view.size in SIZES and (view == number).all() and not view.flags.writeable


class Judge:
    """A pipe for what must not be."""

    def __init__(self):
        self.here, self.there = fast.Pipe(duplex=False)

    def check(self):
        if self.here.poll():
            pytest.fail(self.here.recv())


def read_without_end(refs, judge):
    """Reads what it is sent and keeps a few; one in eight is read by a forked child that lives a little longer."""
    held = deque()
    while True:
        number, ref = refs.recv()
        try:
            view = ref.get(timeout=LONG)
        except (memlift.ExpiredError, *GONE):
            continue
        if not is_right(view, number):
            judge.send(f"a reader saw {view[:3]} instead of {number}")
        held.append((number, view))
        if random.random() < 1 / 8 and os.fork() == 0:
            time.sleep(random.random() / 50)
            for number, view in held:
                if not is_right(view, number):
                    judge.send(f"a forked reader saw {view[:3]} instead of {number}")
            os._exit(0)
        if len(held) > 3:
            number, view = held.popleft()
            if not is_right(view, number):
                judge.send(f"a view changed to {view[:3]} from {number}")
            del view


def killed_readers(count, on_full):
    judge = Judge()
    expired = 0
    with memlift.Arena(bytes_max=16 << 20, on_full=on_full) as arena:
        for _ in range(count):
            theirs, ours = fast.Pipe(duplex=False)
            reader = fast.Process(target=read_without_end, args=(theirs, judge.there), daemon=False)
            reader.start()
            theirs.close()
            end = time.monotonic() + random.random() / 20
            kept = []
            while time.monotonic() < end or not kept:
                number = random.randrange(1 << 40)
                ref = arena.put(np.full(random.choice(SIZES), number), reads=random.choice([None, 1]), timeout=LONG)
                kept.append((number, ref))
                ours.send((number, ref))
                if len(kept) > 8:
                    number, ref = kept.pop(random.randrange(len(kept)))
                    try:
                        assert is_right(ref.get(), number)
                    except memlift.ExpiredError:
                        expired += 1
                    ref.release()
            reader.kill()
            reader.join()
            ours.close()
            assert reader.exitcode == -signal.SIGKILL, "it had not ended by itself"
            for _, ref in kept:
                ref.release()
            wait_until(lambda: arena.stats()["used_bytes"] == 0, "a dead reader's memory does not come back")
            assert arena.stats()["values"] == 0
            judge.check()
        wait_until(lambda: arena.stats()["readers"] <= 1, "a dead reader keeps its place")
    return expired


def write_without_end(refs):
    arena = memlift.Arena(bytes_max=16 << 20, on_full="evict")
    refs.send(arena.address)
    while True:
        number = random.randrange(1 << 40)
        array = np.full(random.choice(SIZES), number)
        refs.send((number, arena.put(array)))
        arena.publish("steps", array, slow="drop")


def killed_writers(count):
    for _ in range(count):
        ours, theirs = fast.Pipe(duplex=False)
        writer = fast.Process(target=write_without_end, args=(theirs,), daemon=True)
        writer.start()
        theirs.close()
        address = ours.recv()
        followers = [memlift.Subscription(address, "steps", every=every) for every in (None, 3)]
        ended = []

        def follow(follower, ended=ended):
            last = 0
            try:
                for value in follower:
                    assert value.size in SIZES and (value == value[0]).all() and follower.number > last
                    last = follower.number
            except BaseException as error:
                ended.append(error)

        threads = [threading.Thread(target=follow, args=(follower,), daemon=True) for follower in followers]
        for thread in threads:
            thread.start()
        held = []
        end = time.monotonic() + random.random() / 20
        killed = False
        try:
            while True:
                if not killed and time.monotonic() > end:
                    writer.kill()
                    killed = True
                number, ref = ours.recv()
                try:
                    held.append((number, ref.get(timeout=LONG)))
                except (memlift.ExpiredError, *GONE):
                    pass
                held = held[-10:]
        except EOFError:
            pass
        writer.join()
        assert writer.exitcode == -signal.SIGKILL, "it had not ended by itself"
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive(), "a follower does not learn of the end"
        assert all(isinstance(error, GONE) for error in ended) and len(ended) == 2, ended
        assert all(is_right(view, number) for number, view in held)
        ours.close()


def closed_arenas(count):
    """Closes while threads put, read, follow and wait for room."""
    for _ in range(count):
        arena = memlift.Arena(bytes_max=4 << 20)
        follower = arena.subscribe("steps")
        wrong = []

        def put(arena=arena, wrong=wrong):
            number = 0
            try:
                while True:
                    number += 1
                    array = np.full(random.choice(SIZES), number)
                    view = arena.put(array, reads=1, timeout=LONG).get()
                    arena.publish("steps", array)
                    if not is_right(view, number):
                        wrong.append(f"{view[:3]} instead of {number}")
            except (memlift.ExpiredError, *GONE):
                pass
            except BaseException as error:
                wrong.append(error)

        def follow(follower=follower, wrong=wrong):
            try:
                for value in follower:
                    if not (value == value[0]).all():
                        wrong.append("a follower saw a value that was never there")
            except GONE:
                pass
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=target, daemon=True) for target in (put, put, follow)]
        for thread in threads:
            thread.start()
        time.sleep(random.random() / 50)
        arena.close()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive(), "somebody waits for a closed arena"
        assert not wrong, wrong


def descriptors():
    # An exception that a thread ended with holds what the thread followed, in a circle.
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("on_full", ["wait", "evict"])
def test_killed_readers_leave_no_memory(on_full):
    killed_readers(4, on_full)


def test_a_killed_writer_leaves_nobody_waiting():
    killed_writers(3)


def test_a_closed_arena_leaves_nobody_waiting():
    closed_arenas(5)


@pytest.mark.soak
@pytest.mark.parametrize("on_full", ["wait", "evict"])
def test_soak_killed_readers_leave_no_memory(on_full):
    before = descriptors()
    print(f"{killed_readers(rounds(), on_full)} refs had expired")
    assert descriptors() <= before + 5, "descriptors of dead readers stay"


@pytest.mark.soak
def test_soak_killed_writers_leave_nobody_waiting():
    killed_writers(5)
    before = descriptors()
    killed_writers(rounds())
    assert descriptors() <= before + 5, "descriptors of dead writers stay"


@pytest.mark.soak
def test_soak_closed_arenas_leave_nobody_waiting():
    closed_arenas(5)
    before = descriptors()
    closed_arenas(rounds())
    assert descriptors() <= before + 5, "descriptors of closed arenas stay"
