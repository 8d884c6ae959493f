# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of a session's life: its first call, its idle time, the call after that, its death.

Flow     as in method.py; each function is a row and gives what its line says beyond its name
Layout   the futex limit: two words of 4 bytes in a memfd that two processes map; each is raised by one side and waited for by the other
"""

import ctypes
import mmap
import multiprocessing.reduction
import os
import signal
import statistics
import time
from pathlib import Path

import numpy as np
import reference
import transports
from method import Call, cores, expect, interleave
from transports import cpu_seconds


def row_first_call(fleet, plan, size, rival):
    ours = fleet.get(fleet.ours)
    size = plan.size(size)
    array = np.empty(size // 8, np.uint64)
    connects, times = [], []
    for seed in range(plan.pairs(size) if plan.quick else 31):
        start = time.perf_counter()
        client = ours.another()
        connects.append(time.perf_counter() - start)
        samples = []
        with client:
            for index in range(8):
                reference.pattern(array, 8 * seed + index)
                expected = reference.xor64(array).to_bytes(8, "little")
                start = time.perf_counter()
                expect(client.call("xor64", array), expected)
                samples.append(time.perf_counter() - start)
        times.append([samples[0], statistics.median(samples[3:])])
    return {
        "unit": "s",
        "pairs": times,
        "cpu": None,
        "qualifies": f"first call of a fresh client against the median of its calls 4 to 8; connecting took "
        f"{statistics.median(connects) * 1e3:.2f} ms and lies before the first call; {cores()} cores; ours: {ours.qualifies()}",
    }


def context_switches(pid):
    """Voluntary and involuntary context switches of all threads of a process since they started."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith(("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")):
                total += int(line.split()[1])
    return total


def _idle_client(parent, kind, endpoint, gate):
    """A client that has called once and then waits for nothing of its transport's."""
    transports.bind_to_parent(parent)
    transport = kind.client_of(endpoint)
    transport.call("xor64", bytes(64))
    gate.send(True)
    gate.poll(None)
    os._exit(0)


def row_idle(fleet, plan, size, rival):
    ours = fleet.get(fleet.ours)
    gate, theirs = transports.spawn.Pipe()
    arguments = (os.getpid(), type(ours), ours.endpoint, theirs)
    client = transports.spawn.Process(target=_idle_client, args=arguments, daemon=True)
    client.start()
    theirs.close()
    try:
        if not gate.poll(30):
            raise RuntimeError("the idle client did not come up within 30 s")
        gate.recv()
        time.sleep(1)
        pids = (client.pid, ours.server_pid)
        cpu, before, start = cpu_seconds(*pids), sum(map(context_switches, pids)), time.monotonic()
        time.sleep(plan.idle_seconds)
        switches, seconds = sum(map(context_switches, pids)) - before, time.monotonic() - start
        cpu = cpu_seconds(*pids) - cpu
    finally:
        gate.close()
        client.join(5)
        if client.is_alive():
            client.kill()
            client.join()
    return {
        "unit": "1/s",
        "value": switches / seconds,
        "cpu": [cpu, None],
        "count": {"wakeups": switches},
        "qualifies": f"context switches of all threads of an idle server and an idle client over {seconds:.1f} s; {ours.qualifies()}",
    }


def _clients_to_be_killed(parent, endpoint, gate):
    """Forks a client for each request, and says who it is when it calls; a client lives until it is killed."""
    transports.bind_to_parent(parent)
    import memlift

    own = os.getpid()
    while gate.recv():
        alive, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            transports.bind_to_parent(own)
            # The kernel closes descriptors in their order: both of the pipe's before the session's socket.
            client = memlift.ipc.Client(endpoint, pool_bytes=1 << 20, response_pool_bytes=1 << 20)
            while True:
                client.call("xor64", bytes(20_000))
        os.close(theirs)
        gate.send(child)
        multiprocessing.reduction.send_handle(gate, alive, parent)
        os.close(alive)
        os.waitpid(child, 0)


def _segments(pid):
    """A process's mappings that belong to sessions, by their inodes."""
    return {line.split()[4] for line in open(f"/proc/{pid}/maps") if "memfd:memlift-re" in line}


def row_death(fleet, plan, size, rival):
    ours = fleet.get(fleet.ours)
    gate, theirs = transports.spawn.Pipe()
    nursery = transports.spawn.Process(
        target=_clients_to_be_killed, args=(os.getpid(), ours.endpoint, theirs), daemon=True
    )
    nursery.start()
    theirs.close()
    times, random = [], np.random.default_rng(1)
    try:
        for _ in range(20 if plan.quick else 10_000):
            # Other sessions, which idle, may give segments back at any time: what is new is the client's.
            before = _segments(ours.server_pid)
            gate.send(True)
            child = gate.recv()
            alive = multiprocessing.reduction.recv_handle(gate)
            while len(own := _segments(ours.server_pid) - before) < 2:
                time.sleep(0.0002)
            time.sleep(random.random() * 0.002)
            os.kill(child, signal.SIGKILL)
            os.read(alive, 1)
            start = time.perf_counter()
            os.close(alive)
            while not own.isdisjoint(_segments(ours.server_pid)):
                time.sleep(0.00005)
            times.append(time.perf_counter() - start)
        gate.send(False)
    finally:
        gate.close()
        nursery.join(5)
        if nursery.is_alive():
            nursery.kill()
            nursery.join()
    times.sort()
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
    return {
        "unit": "ms",
        "value": p99 * 1e3,
        "count": {"p99_us": round(p99 * 1e6), "median_us": round(times[len(times) // 2] * 1e6)},
        "qualifies": f"{len(times)} clients killed by SIGKILL while they call; both 1 MiB pools unmapped, as /proc of the server"
        f" says; p99, longest {times[-1] * 1e3:.1f} ms; {ours.qualifies()}",
    }


_SYS_FUTEX, _WAIT, _WAKE = 202, 0, 1
_syscall = ctypes.CDLL(None, use_errno=True).syscall


def _raise(words, at):
    words[at] += 1
    _syscall(_SYS_FUTEX, ctypes.byref(words, 4 * at), _WAKE, 1, None, None, 0)


def _wait_for(words, at, value):
    while words[at] < value:
        _syscall(_SYS_FUTEX, ctypes.byref(words, 4 * at), _WAIT, value - 1, None, None, 0)


def _futex_words(handle):
    return (ctypes.c_uint32 * 2).from_buffer(mmap.mmap(handle, mmap.PAGESIZE))


def _echo_by_futex(parent, gate):
    transports.bind_to_parent(parent)
    words = _futex_words(multiprocessing.reduction.recv_handle(gate))
    gate.send(True)
    value = 0
    while True:
        value += 1
        _wait_for(words, 0, value)
        _raise(words, 1)


class FutexEcho:
    """The limit of a call to a process that sleeps: it is woken, and wakes the caller, and nothing else."""

    def __init__(self):
        gate, theirs = transports.spawn.Pipe()
        self.process = transports.spawn.Process(target=_echo_by_futex, args=(os.getpid(), theirs), daemon=True)
        self.process.start()
        theirs.close()
        handle = os.memfd_create("memlift-bench-futex", os.MFD_CLOEXEC)
        os.ftruncate(handle, mmap.PAGESIZE)
        self.words, self.value = _futex_words(handle), 0
        multiprocessing.reduction.send_handle(gate, handle, self.process.pid)
        os.close(handle)
        gate.recv()
        self.pids = (os.getpid(), self.process.pid)

    def run(self, _):
        self.value += 1
        _raise(self.words, 0)
        _wait_for(self.words, 1, self.value)

    def close(self):
        self.process.kill()
        self.process.join()


def row_after_idle(fleet, plan, size, rival):
    ours, theirs, payload = Call(fleet.get(fleet.ours)), FutexEcho(), bytes(size)
    idle_s = 0.05 if plan.quick else 1.0

    def measure(contender, _):
        time.sleep(idle_s)
        cpu, start = cpu_seconds(*contender.pids), time.perf_counter()
        contender.run(payload)
        return time.perf_counter() - start, cpu_seconds(*contender.pids) - cpu

    try:
        for contender in (ours, theirs):
            contender.run(payload)
        expect(ours.run(payload), reference.xor64(payload).to_bytes(8, "little"))
        times, cpu = interleave(2 if plan.quick else 31, (ours, measure), (theirs, measure))
    finally:
        theirs.close()
    return {
        "unit": "s",
        "pairs": times,
        "cpu": cpu,
        "qualifies": f"one call after {idle_s} s in which nobody did anything; theirs: two processes that wake each other by a shared "
        f"futex, from Python through ctypes; {cores()} cores, not pinned; ours: {ours.qualifies()}",
    }
