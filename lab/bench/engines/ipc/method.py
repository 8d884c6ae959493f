# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How the ipc rows are measured: samples, their windows, their pairs, the memory that a transport takes.

Flow     Plan says how often ─▶ Fleet starts a transport ─▶ interleave runs A B, B A, … ─▶ Window times what lies inside it
Order    before every sample of an array its bytes are written anew, with other contents, outside the window; a sample ends when
         the client has checked the server's answer
Memory   Pss of client, server and whatever else the transport runs, sampled from outside while it calls; what the kernel keeps in
         socket buffers is not in it
Not here which rows there are (rows_*.py)
"""

import functools
import mmap
import os
import statistics
import time

import numpy as np
import reference
import transports
from transports import cpu_seconds


def cores():
    return len(os.sched_getaffinity(0))


class Plan:
    """How often: enough for the statistics, or once for --quick, which sends at most 16 MiB."""

    def __init__(self, quick):
        self.quick = quick

    def size(self, size):
        return min(size, 1 << 24) if self.quick else size

    def pairs(self, size):
        return 2 if self.quick else 21 if size >= 1 << 28 else 31 if size >= 1 << 26 else 61

    def calls(self, size):
        """Calls per sample, so that a sample is long against the clock and the scheduler."""
        calls = 1 if size >= 1 << 24 else 20 if size >= 1 << 20 else 200 if size >= 1 << 16 else 2000
        return min(calls, 3) if self.quick else calls

    warm_calls = property(lambda self: 1 if self.quick else 4)
    idle_seconds = property(lambda self: 1.0 if self.quick else 4.0)


class Fleet:
    """Each transport's server is started once, at its first row, and serves all rows."""

    def __init__(self, ours):
        self.ours, self._running = ours, {}

    def get(self, name):
        if name not in self._running:
            kind = transports.transport(name)
            kind.check()
            transport = kind()
            try:
                transport.start_server("transports:reading")
                transport.connect()
            except BaseException:
                transport.close()
                raise
            self._running[name] = transport
        return self._running[name]

    def hush(self, wanted):
        """Ends what is noisy, but for the transport that the next row wants."""
        for name in [name for name, transport in self._running.items() if transport.noisy and name != wanted]:
            self._running.pop(name).close()

    def close(self):
        for transport in self._running.values():
            transport.close()
        self._running.clear()


class Call:
    """A transport as one side of a pair."""

    def __init__(self, transport):
        self.transport = transport
        self.pids = (os.getpid(), *transport.pids)

    def run(self, payload):
        return self.transport.call("xor64", payload)

    def qualifies(self):
        return self.transport.qualifies()


def shared_array(size):
    """A prefaulted array in a memfd, as the pool is one."""
    handle = os.memfd_create("memlift-bench-limit", os.MFD_CLOEXEC)
    try:
        os.ftruncate(handle, size)
        area = mmap.mmap(handle, size)
    finally:
        os.close(handle)
    array = np.frombuffer(area, np.uint64)
    reference.pattern(array, 1)
    return array


def expect(answer, expected):
    if bytes(answer) != expected:
        raise RuntimeError(f"the server read other bytes than were sent: {bytes(answer).hex()} for {expected.hex()}")


class Window:
    """Adds up the time inside its `with` blocks, and the CPU time of all processes of a contender from the
    first block to the last, less what this thread did between the blocks."""

    def __init__(self, contender):
        self.pids, self.seconds = contender.pids, 0.0
        self._first = self._left = None
        self._between = 0.0

    def __enter__(self):
        if self._first is None:
            self._first = cpu_seconds(*self.pids)
        else:
            self._between += time.thread_time() - self._left
        self._start = time.perf_counter()

    def __exit__(self, *_):
        self.seconds += time.perf_counter() - self._start
        self._left = time.thread_time()

    def per_call(self, calls):
        """Seconds and CPU-seconds per call."""
        return self.seconds / calls, (cpu_seconds(*self.pids) - self._first - self._between) / calls


def interleave(pairs, ours, theirs):
    """Runs A B, B A, A B, …; gives pairs of seconds per call and the median CPU-seconds per call of both."""
    times, cpu = [], [[], []]
    for index in range(pairs):
        sample = [0.0, 0.0]
        for side in ((0, 1), (1, 0))[index % 2]:
            contender, measure = (ours, theirs)[side]
            sample[side], spent = measure(contender, 2 * index + side)
            cpu[side].append(spent)
        times.append(sample)
    return times, [statistics.median(cpu[0]), statistics.median(cpu[1])]


def measure_array(array, calls, fresh=True):
    """A sample of `calls` calls with an array whose bytes are new; one word more changes at every call, and no other unless `fresh`."""
    step = np.uint64(0x9E3779B97F4A7C15)
    words = array.shape[0]
    total = None

    def measure(contender, seed):
        nonlocal total
        if fresh:
            reference.pattern(array, seed)
        if fresh or total is None:
            total = reference.xor64(array)
        window = Window(contender)
        for index in range(calls):
            at = (index * 4097) % words
            old = array[at]
            array[at] = old ^ (step + np.uint64(index))
            total ^= int(old) ^ int(array[at])
            expected = total.to_bytes(8, "little")
            with window:
                answer = contender.run(array)
                expect(answer, expected)
            del answer
        return window.per_call(calls)

    return measure


def _pss(pids):
    """Bytes that these processes hold, shared ones divided among their holders."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total << 10


def _caller(parent, name, size, gate):
    """A client that makes its array, says who takes part, and calls when it is told to."""
    transports.bind_to_parent(parent)
    transport = transports.transport(name)()
    try:
        transport.start_server("transports:reading")
        transport.connect()
        array = np.empty(size // 8, np.uint64)
        reference.pattern(array, 0)
        gate.send((os.getpid(), *transport.pids))
        gate.recv()
        for seed in range(6):
            reference.pattern(array, seed)
            expect(transport.call("xor64", array), reference.xor64(array).to_bytes(8, "little"))
        gate.send(True)
        gate.recv()
    except EOFError:
        pass
    finally:
        transport.close()


@functools.cache
def memory(name, size):
    """Bytes that handing over arrays of `size` takes beyond the array itself: the highest Pss during six calls, less the one
    before the first."""
    gate, theirs = transports.spawn.Pipe()
    client = transports.spawn.Process(target=_caller, args=(os.getpid(), name, size, theirs))
    client.start()
    theirs.close()
    try:
        pids = gate.recv()
        before = highest = _pss(pids)
        gate.send(True)
        while not gate.poll(0.001):
            highest = max(highest, _pss(pids))
        gate.recv()
        highest = max(highest, _pss(pids))
        gate.send(True)
        return highest - before
    finally:
        gate.close()
        client.join(20)
        if client.is_alive():
            client.kill()
            client.join()
