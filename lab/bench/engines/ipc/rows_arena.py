# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of the arena: an array that is written once and read where it lies by many processes.

Flow     write once ─▶ tell each reader by its pipe ─▶ every reader reads every byte and answers with what it found
Rows     arena/broadcast/SIZE/8   from the write until the last answer of eight readers
         arena/put/SIZE/8         the writer's share of that alone, against one copy past the cache into prefaulted memory
         arena/ref                hand-over of an array that lies there already: queue, view, first element, queue
Method   as in method.py: the array's bytes are new before each sample, and each answer is compared
Not here rivals with one reader only (rows_calls.py)
"""

import mmap
import os
from multiprocessing import shared_memory

import numpy as np
import reference
from method import Window, cores, expect, interleave, shared_array
from transports import Missing, bind_to_parent, spawn

READERS = 8


def _read(parent, opened, pipe):
    """A reader: takes what each message names, and answers with the exclusive or of its words."""
    bind_to_parent(parent)
    pipe.send_bytes(b"ready")
    kept = {}
    while message := pipe.recv_bytes():
        array = opened(message, kept)
        answer = reference.xor64(array).to_bytes(8, "little")
        # The view goes before the answer: its memory is free when the writer goes on.
        del array
        pipe.send_bytes(answer)


def _from_arena(message, _):
    import memlift

    return memlift.Ref(message).get()


def _from_area(message, kept):
    """A careful user's way: the area is attached once."""
    name, _, count = message.decode().partition(" ")
    if name not in kept:
        kept[name] = _attach(name)
    return np.frombuffer(kept[name].buf, np.uint64, int(count))


def _attach(name):
    """Attaches without the bookkeeping process of the interpreter, which would remove the area with the first reader."""
    from multiprocessing import resource_tracker

    register, resource_tracker.register = resource_tracker.register, lambda *_: None
    try:
        return shared_memory.SharedMemory(name=name)
    finally:
        resource_tracker.register = register


class Readers:
    """Processes that read what they are told of."""

    def __init__(self, opened):
        self.pipes, self.processes = [], []
        for _ in range(READERS):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_read, args=(os.getpid(), opened, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv_bytes()

    @property
    def pids(self):
        return (os.getpid(), *(process.pid for process in self.processes))

    def ask(self, message):
        for pipe in self.pipes:
            pipe.send_bytes(message)

    def answers(self):
        return [pipe.recv_bytes() for pipe in self.pipes]

    def close(self):
        for pipe in self.pipes:
            try:
                pipe.send_bytes(b"")
            except OSError:
                pass
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _read_awake(parent, opened, questions, answers):
    """A reader that polls for its messages for a moment, as a pipe does not."""
    bind_to_parent(parent)
    answers.put(b"ready")
    kept = {}
    while message := questions.get():
        array = opened(message, kept)
        word = array[0].tobytes()
        del array
        answers.put(word)


class AwakeReader:
    """A process that answers with the first word of what it is told of, by queues of memlift on both sides of the row."""

    def __init__(self, opened):
        import memlift

        self.questions, self.words = memlift.Queue(), memlift.Queue()
        arguments = os.getpid(), opened, self.questions, self.words
        self.process = spawn.Process(target=_read_awake, args=arguments, daemon=True)
        self.process.start()
        self.pids = (os.getpid(), self.process.pid)
        self.words.get(timeout=60)

    def word_of(self, message):
        self.questions.put(message)
        return self.words.get()

    def close(self):
        self.questions.put(b"")
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class ArenaSide:
    """memlift's: one value, `reads` times."""

    def __init__(self, size, readers):
        import memlift

        self.arena = memlift.Arena(bytes_max=2 * size + (1 << 20))
        self.readers = readers(_from_arena)
        self.pids = self.readers.pids

    def write(self, array, reads):
        return bytes(self.arena.put(array, reads=reads, timeout=60))

    def close(self):
        self.readers.close()
        self.arena.close()

    def qualifies(self):
        import memlift

        return f"memlift.Arena {memlift.__version__}, values go after their last reading"


class AreaSide:
    """By hand: one block of multiprocessing.shared_memory that stays, and nobody writes before all have answered."""

    def __init__(self, size, readers):
        self.area = shared_memory.SharedMemory(create=True, size=size)
        self.target = np.frombuffer(self.area.buf, np.uint64, size // 8)
        reference.pattern(self.target, 1)
        self.readers = readers(_from_area)
        self.pids = self.readers.pids

    def write(self, array, _):
        np.copyto(self.target, array)
        return f"{self.area.name} {array.size}".encode()

    def close(self):
        self.readers.close()
        del self.target
        self.area.close()
        self.area.unlink()

    def qualifies(self):
        return "multiprocessing.shared_memory by hand: one block, attached once and prefaulted, one copy (numpy)"


class RaySide:
    """Ray's object store: one put, and a task for each reader on an actor of its own."""

    pids = (os.getpid(),)

    def __init__(self, size, _):
        try:
            import ray
        except ImportError as error:
            raise Missing("pip install ray") from error
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        here = os.path.dirname(os.path.abspath(__file__))
        environment = {"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
        try:
            ray.init(
                address="local", num_cpus=READERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                object_store_memory=max(4 * size, 1 << 30), runtime_env={"env_vars": environment},
            )
        except Exception as error:
            ray.shutdown()
            raise Missing(f"ray does not start here: {error}") from error

        class Reader:
            def read(self, array):
                import reference

                return reference.xor64(array).to_bytes(8, "little")

        self.ray = ray
        self.actors = [ray.remote(num_cpus=1)(Reader).remote() for _ in range(READERS)]
        ray.get([actor.read.remote(np.ones(8, np.uint64)) for actor in self.actors])

    def broadcast(self, array):
        ref = self.ray.put(array)
        return self.ray.get([actor.read.remote(ref) for actor in self.actors])

    def close(self):
        self.ray.shutdown()

    def qualifies(self):
        return f"ray {self.ray.__version__}, one node, {len(self.actors)} actors, one put into its object store"


SIDES = {"memlift": ArenaSide, "shm_memcpy": AreaSide, "ray": RaySide}


def broadcast(side, array):
    if hasattr(side, "broadcast"):
        return side.broadcast(array)
    side.readers.ask(side.write(array, READERS))
    return side.readers.answers()


def row_broadcast(_, plan, size, rival):
    size = plan.size(size)
    array = np.empty(size // 8, np.uint64)

    def measure(side, seed):
        reference.pattern(array, seed)
        expected = reference.xor64(array).to_bytes(8, "little")
        window = Window(side)
        with window:
            answers = broadcast(side, array)
        for answer in answers:
            expect(answer, expected)
        return window.per_call(1)

    with _sides(rival, size) as (ours, theirs):
        for side in (ours, theirs):
            for _ in range(plan.warm_calls):
                measure(side, 0)
        times, cpu = interleave(plan.pairs(size), (ours, measure), (theirs, measure))
        return {
            "unit": "s",
            "pairs": times,
            "cpu": cpu,
            "qualifies": f"one write, {READERS} processes read every byte in place; {cores()} cores, not pinned; "
            f"ours: {ours.qualifies()}; theirs: {theirs.qualifies()}",
        }


class PutLimit:
    """The limit of putting an array: one copy past the cache into memory that is there."""

    pids = (os.getpid(),)

    def __init__(self, size):
        self.target = shared_array(size)

    def close(self):
        pass

    def qualifies(self):
        return f"one non-temporal copy, one core, prefaulted memfd, {mmap.PAGESIZE} B pages"


def row_put(_, plan, size, rival):
    """The writer's time alone: the readers read outside the window."""
    size = plan.size(size)
    array = np.empty(size // 8, np.uint64)

    def measure(side, seed):
        reference.pattern(array, seed)
        expected = reference.xor64(array).to_bytes(8, "little")
        window = Window(side)
        if isinstance(side, PutLimit):
            with window:
                reference.copy_nt(side.target, array)
            expect(reference.xor64(side.target).to_bytes(8, "little"), expected)
            return window.per_call(1)
        with window:
            message = side.write(array, READERS)
        side.readers.ask(message)
        for answer in side.readers.answers():
            expect(answer, expected)
        return window.per_call(1)

    if rival != "limit":
        raise Missing(f"no rival {rival}")
    ours, theirs = ArenaSide(size, Readers), PutLimit(size)
    try:
        for _ in range(plan.warm_calls):
            measure(ours, 0)
            measure(theirs, 0)
        times, cpu = interleave(plan.pairs(size), (ours, measure), (theirs, measure))
        return {
            "unit": "s",
            "pairs": times,
            "cpu": cpu,
            "qualifies": f"the writer's time, {READERS} processes then read every byte; {cores()} cores, not pinned; "
            f"ours: {ours.qualifies()}; theirs: {theirs.qualifies()}",
        }
    finally:
        ours.close()


def row_ref(_, plan, __, rival):
    """Many hand-overs per sample, each of another array, to a reader that is awake; what the queue costs is on both sides."""
    calls = 3 if plan.quick else 1000
    words = np.arange(64 * 1024, dtype=np.uint64)

    def measure(side, seed):
        numbers = [np.uint64(seed * calls + at) for at in range(min(calls, 64))]
        messages = []
        for number in numbers:
            words[0] = number
            messages.append(side.write(words, None) if isinstance(side, ArenaSide) else side.write_own(words, len(messages)))
        window = Window(side)
        with window:
            for at in range(calls):
                word = side.readers.word_of(messages[at % len(messages)])
                if word != numbers[at % len(numbers)].tobytes():
                    raise RuntimeError("the reader saw another array than was named")
        if isinstance(side, ArenaSide):
            import memlift

            for message in messages:
                memlift.Ref(message).release()
        return window.per_call(calls)

    if rival != "shm_memcpy":
        raise Missing(f"no rival {rival}")
    ours, theirs = ArenaSide(64 << 20, AwakeReader), AreasSide(words.nbytes)
    try:
        for side in (ours, theirs):
            measure(side, 0)
        times, cpu = interleave(plan.pairs(0), (ours, measure), (theirs, measure))
        return {
            "unit": "s",
            "pairs": times,
            "cpu": cpu,
            "qualifies": f"64 arrays of 512 KiB that lie there already, named in turn through a memlift.Queue to a reader that is awake, the first word back; {cores()} cores, not "
            f"pinned; ours: {ours.qualifies()}; theirs: {theirs.qualifies()}",
        }
    finally:
        ours.close()
        theirs.close()


def _from_new_area(message, _):
    """An area that was not seen before: attached for this message."""
    name, _, count = message.decode().partition(" ")
    area = _attach(name)
    array = np.frombuffer(area.buf, np.uint64, int(count))[:1].copy()
    area.close()
    return array


class AreasSide(AreaSide):
    """By hand, with a block for each array: the reader attaches, looks and detaches."""

    def __init__(self, size):
        self.areas = [shared_memory.SharedMemory(create=True, size=size) for _ in range(64)]
        self.readers = AwakeReader(_from_new_area)
        self.pids = self.readers.pids

    def write_own(self, array, number):
        np.frombuffer(self.areas[number].buf, np.uint64, array.size)[:] = array
        return f"{self.areas[number].name} {array.size}".encode()

    def close(self):
        self.readers.close()
        for area in self.areas:
            area.close()
            area.unlink()

    def qualifies(self):
        return "multiprocessing.shared_memory by hand: a block for each array, attached when it is named"


class _sides:
    """Both sides of a row, ended with it."""

    def __init__(self, rival, size):
        self.made, self.rival, self.size = [], rival, size

    def __enter__(self):
        if self.rival not in SIDES:
            raise Missing(f"no rival {self.rival}")
        try:
            for name in ("memlift", self.rival):
                self.made.append(SIDES[name](self.size, Readers))
        except BaseException:
            self.__exit__()
            raise
        return self.made

    def __exit__(self, *_):
        for side in self.made:
            side.close()
