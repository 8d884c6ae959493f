# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Arena`: a value is written once and read in place by any process, and its memory comes back."""

import asyncio
import gc
import json
import multiprocessing
import os
import pickle
import queue
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import memlift

ROOT = Path(__file__).resolve().parents[3]
SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def run(code: str, *arguments: str, **options) -> str:
    """Runs a program that is no relative of this process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def total(ref, answers):
    array = ref.get()
    answers.put((float(array.sum()), array.flags.writeable))


@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_an_array_is_read_in_place_by_other_processes(context):
    with memlift.Arena(bytes_max=64 << 20) as arena:
        array = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
        ref = arena.put(array)
        answers = context.Queue()
        readers = [context.Process(target=total, args=(ref, answers)) for _ in range(3)]
        for reader in readers:
            reader.start()
        assert [answers.get(timeout=30) for _ in readers] == [(float(array.sum()), False)] * 3
        for reader in readers:
            reader.join(30)
        mine = ref.get()
        assert mine.dtype == array.dtype and mine.shape == array.shape and np.array_equal(mine, array)
        again = arena.get(ref)
        assert np.shares_memory(mine, again), "one copy, however many readers"


def test_a_stranger_finds_the_value_by_bytes():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        ref = arena.put({"weights": np.arange(6.0).reshape(2, 3), "step": 7, "name": "x"})
        assert len(bytes(ref)) < 120 and memlift.Ref(bytes(ref)) == ref == pickle.loads(pickle.dumps(ref))
        code = """
            import sys, memlift
            value = memlift.Ref(bytes.fromhex(sys.argv[1])).get()
            print(value["weights"].tolist(), value["step"], value["name"])
        """
        assert run(code, bytes(ref).hex()).split("\n")[0] == "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] 7 x"


def test_a_socket_file_serves_readers_elsewhere(tmp_path):
    path = tmp_path / "arena.sock"
    with memlift.Arena(path, bytes_max=1 << 20) as arena:
        ref = arena.put(b"hello")
        code = "import sys, memlift; print(memlift.Ref(bytes.fromhex(sys.argv[1])).get())"
        assert run(code, bytes(ref).hex(), cwd="/").strip() == "b'hello'"
        with pytest.raises(memlift.AddressInUseError):
            memlift.Arena(path)
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(memlift.AddressInUseError):
        memlift.Arena(path)
    assert path.read_text() == "mine"


def test_types_come_out_as_they_went_in_or_are_refused():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        for value in (None, 3, 2.5, "text", b"bytes", [1, (2, {"a": np.arange(3)})], np.float16(1.5), np.ma.array([1, 2], mask=[0, 1])):
            out = arena.put(value).get()
            assert type(out) is type(value)
            np.testing.assert_equal(out, value)
        with pytest.raises(memlift.UnsupportedTypeError, match="allow_pickle"):
            arena.put(threading.Thread)
    with memlift.Arena(bytes_max=1 << 20, allow_pickle=True) as arena:
        ref = arena.put(complex)
        with pytest.raises(memlift.UnsupportedTypeError):
            ref.get()
        assert ref.get(allow_pickle=True) is complex


def test_a_released_value_is_gone_and_its_views_stay():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        ref = arena.put(np.full(1000, 7))
        view = ref.get()
        part = view[10:20]
        ref.release()
        ref.release()
        wait_until(lambda: arena.stats()["values"] == 0)
        with pytest.raises(memlift.ExpiredError, match="released"):
            ref.get()
        other = arena.put(np.full(1000, 9))
        assert (part == 7).all() and arena.stats()["ending_bytes"] >= 8000
        del view
        assert (part == 7).all()
        del part
        gc.collect()
        assert arena.stats()["ending_bytes"] == 0
        assert (other.get() == 9).all()


def test_what_is_written_stays_the_writers_own():
    with memlift.Arena(bytes_max=4 << 20) as arena:
        ref = arena.put({"a": np.arange(100_000), "b": np.zeros(3), "empty": np.zeros(0)})
        mine, again, plain = ref.get(writable=True), ref.get(writable=True), ref.get()
        assert mine["a"].flags.writeable and not plain["a"].flags.writeable
        mine["a"][:] = -1
        mine["b"] += 5
        for other in (again, plain, ref.get()):
            assert np.array_equal(other["a"], np.arange(100_000)) and not other["b"].any()
        assert mine["empty"].size == 0 and mine["empty"].flags.writeable
        code = "import sys, memlift; print(int(memlift.Ref(bytes.fromhex(sys.argv[1])).get()['a'].sum()))"
        assert run(code, bytes(ref).hex()).strip() == str(np.arange(100_000).sum())
        # Its memory is not used again before it is gone, however little of it was written.
        again["a"][0] = 7
        ref.release()
        del mine, plain, other
        gc.collect()
        assert arena.stats()["ending_bytes"] > 0
        arena.put(np.full(100_000, 9))
        assert again["a"][0] == 7 and np.array_equal(again["a"][1:], np.arange(1, 100_000))
        del again
        gc.collect()
        assert arena.stats()["ending_bytes"] == 0
        follower = arena.subscribe("weights", writable=True)
        arena.publish("weights", np.arange(10))
        value = follower.get(timeout=10)
        value += 1
        assert value.tolist() == list(range(1, 11))
        assert arena.put(None).get(writable=True) is None and arena.put(b"x").get(writable=True) == b"x"


def test_views_that_may_be_written_leave_no_mapping():
    def mappings():
        return sum("memlift" in line for line in Path("/proc/self/maps").read_text().splitlines())

    with memlift.Arena(bytes_max=4 << 20) as arena:
        ref = arena.put(np.ones(10_000))
        ref.get()
        before = mappings()
        for _ in range(50):
            ref.get(writable=True)[0] = 3
        gc.collect()
        assert mappings() == before and arena.stats()["values"] == 1


def take(refs, done):
    while (ref := refs.get()) is not None:
        value = ref.get()
        done.put(int(value[0]))
        del value


def test_a_ring_of_batches_stays_within_its_budget():
    with memlift.Arena(bytes_max=8 << 20) as arena:
        refs, done = SPAWN.Queue(), SPAWN.Queue()
        readers = [SPAWN.Process(target=take, args=(refs, done)) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(200):
            refs.put(arena.put(np.full(250_000, number, np.int64), reads=1, timeout=30))
        assert sorted(done.get(timeout=30) for _ in range(200)) == list(range(200))
        for _ in readers:
            refs.put(None)
        for reader in readers:
            reader.join(30)
        stats = arena.stats()
        assert stats["values"] == 0 and stats["used_bytes"] == 0 and stats["memory_bytes"] <= 8 << 20


def hold(ref, said):
    view = ref.get()
    said.put(int(view[0]))
    time.sleep(600)


def test_a_killed_reader_gives_back_what_it_held():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        ref = arena.put(np.ones(100_000), reads=1)
        said = SPAWN.Queue()
        reader = SPAWN.Process(target=hold, args=(ref, said))
        reader.start()
        assert said.get(timeout=30) == 1
        with pytest.raises(memlift.ArenaFullError, match="readers view them"):
            arena.put(np.ones(100_000), timeout=0.1)
        os.kill(reader.pid, signal.SIGKILL)
        assert (arena.put(np.full(100_000, 2.0), timeout=20).get() == 2).all()
        reader.join(30)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_readers_keep_what_they_see_when_the_writer_dies(how):
    code = """
        import sys, numpy as np, memlift
        arena = memlift.Arena(bytes_max=1 << 20)
        print(bytes(arena.put(np.arange(1000))).hex(), bytes(arena.put(np.arange(5))).hex(), flush=True)
        sys.stdin.read()
    """
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    refs = [memlift.Ref(bytes.fromhex(text)) for text in writer.stdout.readline().split()]
    view = refs[0].get()
    writer.send_signal(how)
    writer.wait(30)
    writer.stdin.close()
    writer.stdout.close()
    assert np.array_equal(view, np.arange(1000))
    assert np.array_equal(refs[1].get(), np.arange(5)), "nobody writes that memory any more"
    code = "import sys, memlift; memlift.Ref(bytes.fromhex(sys.argv[1])).get()"
    late = subprocess.run([sys.executable, "-c", code, bytes(refs[0]).hex()], capture_output=True, text=True, timeout=60, check=False)
    assert "ServerUnavailableError" in late.stderr


def test_eviction_keeps_what_is_viewed():
    with memlift.Arena(bytes_max=1 << 20, on_full="evict") as arena:
        refs = [arena.put(np.full(10_000, number)) for number in range(5)]
        held = refs[0].get()
        refs += [arena.put(np.full(10_000, number)) for number in range(5, 40)]
        assert (held == 0).all()
        values = []
        for number, ref in enumerate(refs[1:], 1):
            try:
                assert (ref.get() == number).all()
                values.append(number)
            except memlift.ExpiredError:
                pass
        assert values == list(range(values[0], 40)) and len(values) >= 8, "the youngest are left"
        assert arena.stats()["evicted"] == len(refs) - 1 - len(values)


def inherit(view, go):
    """Runs in a forked child: its parent's view shows the same for as long as the child lives."""
    go.wait(30)
    os._exit(0 if (view == 1).all() else 1)


def test_a_forked_child_keeps_its_parents_views():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        view = arena.put(np.ones(30_000), reads=1).get()
        go = FORK.Event()
        child = FORK.Process(target=inherit, args=(view, go))
        child.start()
        del view
        gc.collect()
        for number in range(30):
            arena.put(np.full(30_000, 2.0 + number), reads=1, timeout=10).get()
        go.set()
        child.join(30)
        assert child.exitcode == 0
        wait_until(lambda: arena.stats()["used_bytes"] == 0)


def child_puts(arena, answers):
    try:
        arena.put(1)
    except memlift.ClosedError as error:
        answers.put(str(error))


def test_only_the_maker_puts():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        answers = FORK.Queue()
        child = FORK.Process(target=child_puts, args=(arena, answers))
        child.start()
        assert "belongs to the process that made it" in answers.get(timeout=30)
        child.join(30)
        assert arena.put(1).get() == 1


def follow(address, topic, every, answers):
    follower = memlift.Subscription(address, topic, every=every)
    answers.put("ready")
    for value in follower:
        answers.put((follower.number, int(value[0]), follower.missed))
        if value[0] < 0:
            return


@pytest.mark.parametrize("every", [None, 4], ids=["latest", "every"])
def test_published_values_reach_their_followers(every):
    with memlift.Arena(bytes_max=16 << 20) as arena:
        answers = [SPAWN.Queue() for _ in range(2)]
        followers = [SPAWN.Process(target=follow, args=(arena.address, "weights", every, each)) for each in answers]
        for follower in followers:
            follower.start()
        assert [each.get(timeout=60) for each in answers] == ["ready"] * 2
        for number in range(50):
            arena.publish("weights", np.full(10_000, number), timeout=30)
        arena.publish("other", np.full(10, 1000))
        arena.publish("weights", np.full(10_000, -1), timeout=30)
        for each in answers:
            seen = []
            while not seen or seen[-1][1] != -1:
                seen.append(each.get(timeout=30))
            numbers = [number for number, _, _ in seen]
            assert numbers == sorted(set(numbers)) and numbers[-1] == 51
            assert all(value == number - 1 for number, value, _ in seen[:-1])
            if every:
                assert numbers == list(range(1, 52)) and seen[-1][2] == 0
            else:
                assert seen[-1][2] == 51 - len(seen)
        for follower in followers:
            follower.join(30)
        wait_until(lambda: arena.stats()["values"] == 2)


def test_a_follower_that_stops_is_named_or_left_behind():
    with memlift.Arena(bytes_max=16 << 20) as arena:
        follower = arena.subscribe("steps", every=2)
        with pytest.raises(memlift.ArenaFullError, match=f'process {os.getpid()} follows "steps"'):
            for number in range(10):
                arena.publish("steps", np.full(1000, number), timeout=0.2)
    with memlift.Arena(bytes_max=16 << 20) as arena:
        follower = arena.subscribe("steps", every=2)
        for number in range(10):
            arena.publish("steps", np.full(1000, number), slow="drop")
        seen = []
        while not seen or seen[-1] != 9:
            seen.append(int(follower.get(timeout=10)[0]))
        assert follower.missed == 10 - len(seen) > 0
        with pytest.raises(memlift.DeadlineExceededError):
            follower.get(timeout=0.01)


def test_followers_learn_that_the_arena_has_ended():
    arena = memlift.Arena(bytes_max=1 << 20)
    follower = arena.subscribe("x")
    arena.close()
    with pytest.raises(memlift.PeerDiedError):
        follower.get(timeout=10)


def test_a_follower_in_an_event_loop():
    async def main():
        with memlift.Arena(bytes_max=1 << 20) as arena:
            follower = arena.subscribe("x")
            with pytest.raises(memlift.DeadlineExceededError):
                await follower.aget(timeout=0.05)
            waiting = asyncio.create_task(follower.aget())
            await asyncio.sleep(0.05)
            arena.publish("x", np.arange(4))
            assert (await waiting).tolist() == [0, 1, 2, 3]

    asyncio.run(main())


def test_ctrl_c_ends_a_wait():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        arena.put(np.ones(100_000))
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            arena.put(np.ones(100_000))


def test_nothing_stays_behind():
    # A file in /dev/shm would be open or mapped; what lies there may be of tests beside this one.
    code = """
        import os, numpy as np, memlift
        arena = memlift.Arena(bytes_max=64 << 20)
        ref = arena.put(np.ones(1_000_000))
        view = ref.get()
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(100):
            arena.put(np.ones(1000), reads=1).get()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert "/dev/shm" not in open("/proc/self/maps").read()
        paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        links = [os.readlink(path) for path in paths if os.path.lexists(path)]
        assert any("memfd:" in link for link in links) and not any("/dev/shm" in link for link in links), links
        os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_memory_goes_back_after_a_quiet_time():
    with memlift.Arena(bytes_max=64 << 20) as arena:
        arena.put(np.ones(4_000_000), reads=1).get()
        wait_until(lambda: arena.stats()["memory_bytes"] == 0, seconds=30)
        assert (arena.put(np.ones(1000)).get() == 1).all()


def test_strangers_that_speak_nonsense_are_hung_up_on():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        ref = arena.put(np.arange(10))
        for noise in (b"", b"x", os.urandom(104), b"memlifta" + os.urandom(96), b"memlifta" + bytes([2]) + bytes(95)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(f"\0memlift/{os.getuid()}/{arena.address}")
                stranger.send(noise)
                stranger.settimeout(10)
                while stranger.recv(4096) and noise[:9] != b"memlifta\2":
                    pass
        assert ref.get().tolist() == list(range(10))
        wait_until(lambda: arena.stats()["readers"] == 1)


def test_it_is_seen_from_outside():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        arena.put(np.arange(1000))
        built = Path(memlift._native.__file__).resolve().parent / "memlift"
        command = str(built) if built.exists() else shutil.which("memlift", path=ROOT / "target/release")
        if command is None:
            pytest.skip("the command is not built")
        shown = subprocess.run([command, "metrics", "--once"], capture_output=True, text=True, timeout=60, check=True).stdout
        assert any("memlift_ipc_values_put_total" in line and arena.address in line for line in shown.splitlines())


def test_refs_that_make_no_sense_are_refused():
    with memlift.Arena(bytes_max=1 << 20) as arena:
        good = bytes(arena.put(1))
        for cut in range(len(good) - 1):
            with pytest.raises((memlift.Error, ValueError)):
                memlift.Ref(good[:cut]).get(timeout=1)
        for at in range(4, 44):
            changed = bytearray(good)
            changed[at] ^= 1
            with pytest.raises(memlift.Error):
                memlift.Ref(bytes(changed)).get(timeout=1)
        with pytest.raises(ValueError, match="reads"):
            arena.put(1, reads=0)
        with pytest.raises(memlift.MessageTooLargeError):
            arena.put(np.ones(1 << 20))
        with pytest.raises(queue.Empty):
            memlift.Queue().get(timeout=0)
        json.dumps(arena.stats())
