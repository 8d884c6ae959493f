# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of the paper (Rocket, arXiv 2601.06331): what its baselines are, and what overlapping client work with copies is worth.

Flow     the client writes an array ─▶ it is handed over ─▶ the server sums up every byte, in order ─▶ the client checks it
Rows     paper/percall/throughput  pipelined, against a mapping per call and one memcpy, one call at a time
         paper/percall/latency     one call, the array written before it, against the same
         paper/pool/throughput     pipelined, against areas that stay mapped and one memcpy, one call at a time
         paper/pool/loan           as throughput, but memlift's client writes into the pool, so that nothing is copied
         paper/pool/cpu            CPU-seconds of client and server, pipelined against one call at a time
Work     the server sums up once where one call or CPU time is looked at, twice where throughput is: the paper's servers work about as long as
         their clients, and less than that leaves nothing to overlap
Pinning  where there are cores for it, the client's thread to one and the server to another, on both sides: a scheduler that leaves them
         on one core, as it does where cores share no cache that it knows of, leaves nothing to overlap
Stages   each row says how long writing, copying and reading take alone, so that it can be seen what could overlap
"""

import os
import statistics
import time
from pathlib import Path

import numpy as np
import reference
from method import Call, Window, cores, interleave, shared_array
from rows_calls import row_array

BYTES = 32 << 20
"""Between the paper's 25 MB of a table and 76 MB of a graph."""
DEPTH = 4
SEEDS = 8


class Work:
    """What the client writes, and what the server has to find in it."""

    def __init__(self, size, operation):
        self.size, self.operation = size, operation
        self.ring = [np.empty(size // 8, np.uint64) for _ in range(DEPTH + 1)]
        self.expected = []
        for seed in range(SEEDS):
            reference.pattern(self.ring[0], seed)
            self.expected.append(reference.checksum(self.ring[0]).to_bytes(8, "little"))
        for array in self.ring:
            reference.pattern(array, 0)

    def own(self, index):
        return self.ring[index % len(self.ring)]

    def write(self, index, array):
        reference.pattern(array, index % SEEDS)
        return array

    def check(self, index, answer):
        if bytes(answer) != self.expected[index % SEEDS]:
            raise RuntimeError("the server read other bytes than were sent")

    def one_by_one(self, transport, calls):
        for index in range(calls):
            self.check(index, transport.call(self.operation, self.write(index, self.own(index))))

    def pipelined(self, transport, calls):
        self._pipelined(transport, calls, self.own)

    def loaned(self, transport, calls):
        self._pipelined(transport, calls, lambda _: transport.client.loan((self.size // 8,), "uint64"))

    def _pipelined(self, transport, calls, array_of):
        jobs = {}
        with transport.client.pipeline(depth=DEPTH) as pipe:

            def collect():
                job, answer = pipe.next()
                self.check(jobs.pop(job), answer)

            for index in range(calls):
                array = self.write(index, array_of(index))
                if len(jobs) == DEPTH:
                    collect()
                jobs[pipe.submit(self.operation, array)] = index
                del array
            while jobs:
                collect()

    def stages(self):
        """Milliseconds of each stage alone, medians."""
        target, array, took = shared_array(self.size), self.ring[0], [[], [], []]
        for seed in range(5):
            marks = [time.perf_counter()]
            reference.pattern(array, seed)
            marks.append(time.perf_counter())
            np.copyto(target, array)
            marks.append(time.perf_counter())
            reference.checksum(target)
            marks.append(time.perf_counter())
            for stage, (start, end) in zip(took, zip(marks, marks[1:])):
                stage.append(end - start)
        return "write {:.1f} ms, copy {:.1f} ms, one reading {:.1f} ms".format(*(statistics.median(stage) * 1e3 for stage in took))


class Apart:
    """Inside its `with`, this thread runs on one core and the servers on another."""

    def __init__(self, *contenders):
        self.cores = sorted(os.sched_getaffinity(0))
        self.servers = [int(task.name) for one in contenders for pid in one.pids[1:] for task in Path(f"/proc/{pid}/task").iterdir()]
        self.said = "not pinned" if len(self.cores) < 2 else "client and server pinned to a core each"

    def _pin(self, client, server):
        os.sched_setaffinity(0, client)
        for task in self.servers:
            os.sched_setaffinity(task, server)

    def __enter__(self):
        if len(self.cores) > 1:
            self._pin(self.cores[:1], self.cores[1:2])
        return self

    def __exit__(self, *_):
        self._pin(self.cores, self.cores)


def _streamed(fleet, plan, rival, how="pipelined", cpu_only=False, operation="checksum_twice"):
    ours, theirs, work = Call(fleet.get(fleet.ours)), Call(fleet.get(rival)), Work(plan.size(BYTES), operation)
    calls = 4 if plan.quick else 32

    def measure(run):
        def sample(contender, _):
            window = Window(contender)
            with window:
                run(contender.transport, calls)
            seconds, cpu = window.per_call(calls)
            return (cpu if cpu_only else seconds), cpu

        return sample

    run = getattr(work, how)
    run(ours.transport, calls)
    work.one_by_one(theirs.transport, 2)
    sides = (ours, measure(run)), (theirs, measure(work.one_by_one))
    with Apart(ours, theirs) as apart:
        pairs, cpu = interleave(2 if plan.quick else 31, *sides)
    return {
        "unit": "s",
        "pairs": pairs,
        "cpu": cpu,
        "qualifies": f"{work.size} bytes per call, written by the client inside the window, {operation} by the server; alone: {work.stages()}; "
        f"{cores()} cores, {apart.said}; "
        f"ours: {how}, {DEPTH} under way, {ours.qualifies()}; theirs: one call at a time, {theirs.qualifies()}",
    }


def row_throughput(fleet, plan, _, rival):
    return _streamed(fleet, plan, rival)


def row_loan(fleet, plan, _, rival):
    return _streamed(fleet, plan, rival, how="loaned")


def row_cpu(fleet, plan, _, rival):
    return _streamed(fleet, plan, rival, cpu_only=True, operation="checksum")


def row_latency(fleet, plan, _, rival):
    return row_array(fleet, plan, BYTES, rival)
