# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of calls: arrays, loans, queues, bytes one after the other or a hundred under way, calls at a rate, eight clients at once.

Flow     as in method.py; each function is a row and gives what its line says beyond its name
Memory   rows of arrays count what either side takes beyond the array, in KiB: `ours_kib`, `theirs_kib`
"""

import mmap
import os
import time

import numpy as np
import reference
import transports
from method import Call, Window, cores, expect, interleave, measure_array, memory, shared_array
from transports import cpu_seconds


class CopyLimit:
    """The limit of handing an array over: one copy past the cache into a shared page, one read pass."""

    pids = (os.getpid(),)

    def __init__(self, size):
        self.target = shared_array(size)

    def run(self, payload):
        reference.copy_nt(self.target, payload)
        return reference.xor64(self.target).to_bytes(8, "little")

    def qualifies(self):
        return f"one non-temporal copy and one read pass, one core, prefaulted memfd, {mmap.PAGESIZE} B pages"


def row_array(fleet, plan, size, rival, who=None):
    ours = Call(fleet.get(who or fleet.ours))
    theirs = CopyLimit(plan.size(size)) if rival == "limit" else Call(fleet.get(rival))
    size = plan.size(size)
    array = np.empty(size // 8, np.uint64)
    reference.pattern(array, 0)
    warm, measure = measure_array(array, plan.warm_calls), measure_array(array, plan.calls(size))
    for contender in (ours, theirs):
        warm(contender, 0)
    times, cpu = interleave(plan.pairs(size), (ours, measure), (theirs, measure))
    count = {}
    if not plan.quick and rival != "limit":
        sides = (("ours_kib", ours.transport.name), ("theirs_kib", rival))
        count = {key: max(0, memory(name, size)) >> 10 for key, name in sides}
    return {
        "unit": "s",
        "pairs": times,
        "cpu": cpu,
        "count": count,
        "qualifies": f"array outside the pool, rewritten before each sample; every byte read by the server; "
        f"{cores()} cores, not pinned; ours: {ours.qualifies()}; theirs: {theirs.qualifies()}",
    }


def row_queue(fleet, plan, size, rival):
    return row_array(fleet, plan, size, rival, "memlift_queue")


def row_loan(fleet, plan, size, rival):
    """The client writes into the loaned buffer outside the window; loaning and calling are inside."""
    size = plan.size(size)
    ours, target = Call(fleet.get(fleet.ours)), shared_array(size)

    def measure_loan(contender, seed):
        window = Window(contender)
        with window:
            buffer = contender.transport.client.loan((size // 8,), "uint64")
        reference.pattern(buffer, seed)
        expected = reference.xor64(buffer).to_bytes(8, "little")
        with window:
            expect(contender.run(buffer), expected)
        return window.per_call(1)

    class ReadLimit:
        pids = (os.getpid(),)

    def measure_read(contender, seed):
        reference.pattern(target, seed)
        expected = reference.xor64(target).to_bytes(8, "little")
        window = Window(contender)
        with window:
            expect(reference.xor64(target).to_bytes(8, "little"), expected)
        return window.per_call(1)

    for _ in range(plan.warm_calls):
        measure_loan(ours, 0)
    times, cpu = interleave(plan.pairs(size), (ours, measure_loan), (ReadLimit, measure_read))
    return {
        "unit": "s",
        "pairs": times,
        "cpu": cpu,
        "qualifies": f"written in place outside the window, then loan + call; {cores()} cores, not pinned; "
        f"ours: {ours.qualifies()}; theirs: one read pass, one core, prefaulted memfd, {mmap.PAGESIZE} B pages",
    }


def row_bytes(fleet, plan, size, rival):
    ours, theirs = Call(fleet.get(fleet.ours)), Call(fleet.get(rival))
    payloads = []
    for seed in range(16):
        array = np.empty(size, np.uint8)
        reference.pattern(array, seed)
        payload = array.tobytes()
        payloads.append((payload, reference.xor64(payload).to_bytes(8, "little")))

    def measure_calls(calls):
        def measure(contender, _):
            call, window = contender.transport.call, Window(contender)
            with window:
                for index in range(calls):
                    payload, expected = payloads[index & 15]
                    if call("xor64", payload) != expected:
                        raise RuntimeError("the server read other bytes than were sent")
            return window.per_call(calls)

        return measure

    for contender in (ours, theirs):
        measure_calls(20 if plan.quick else 500)(contender, 0)
    measure = measure_calls(plan.calls(size))
    times, cpu = interleave(plan.pairs(size), (ours, measure), (theirs, measure))
    return {
        "unit": "s",
        "pairs": times,
        "cpu": cpu,
        "qualifies": f"{plan.calls(size)} calls back to back per sample, one outstanding; {cores()} cores, not pinned; "
        f"ours: {ours.qualifies()}; theirs: {theirs.qualifies()}",
    }


def row_asyncio(fleet, plan, size, rival, depth=100):
    ours, theirs = Call(fleet.get("memlift_asyncio")), Call(fleet.get(rival))
    payloads = []
    for seed in range(16):
        array = np.empty(size, np.uint8)
        reference.pattern(array, seed)
        payloads.append(array.tobytes())
    expected = [reference.xor64(payload).to_bytes(8, "little") for payload in payloads]

    def measure_calls(calls):
        def measure(contender, _):
            window = Window(contender)
            with window:
                answers = contender.transport.many(payloads, calls, depth)
            if answers != [expected[at % 16] for at in range(calls)]:
                raise RuntimeError("the server read other bytes than were sent")
            return window.per_call(calls)

        return measure

    calls = 200 if plan.quick else 4000
    for contender in (ours, theirs):
        measure_calls(200)(contender, 0)
    measure = measure_calls(calls)
    times, cpu = interleave(plan.pairs(size), (ours, measure), (theirs, measure))
    return {
        "unit": "s",
        "pairs": times,
        "cpu": cpu,
        "qualifies": f"{calls} calls per sample, {depth} under way; {cores()} cores, not pinned; ours: {ours.qualifies()}; "
        f"theirs: {theirs.qualifies()}",
    }


def row_rate(fleet, plan, size, rival):
    calls, gap = 50 if plan.quick else 1000, 1 / size

    def paced(contender, _):
        payload = bytes(64)
        expected = contender.run(payload)
        first, start = cpu_seconds(*contender.pids), time.perf_counter()
        for index in range(calls):
            time.sleep(max(0.0, start + gap * index - time.perf_counter()))
            expect(contender.run(payload), bytes(expected))
        spent = (cpu_seconds(*contender.pids) - first) / calls
        return spent, spent

    ours, theirs = Call(fleet.get(fleet.ours)), Call(fleet.get("memlift_block"))
    pairs, cpu = interleave(2 if plan.quick else 21, (ours, paced), (theirs, paced))
    return {
        "unit": "us",
        "pairs": pairs,
        "cpu": cpu,
        "qualifies": f"CPU time of client and server per call of 64 bytes, {size} calls a second; ours: {ours.qualifies()};"
        f" theirs: {theirs.qualifies()}",
    }


def _member(parent, kind, endpoint, seed, size, gate):
    """One client of the crowd: its array, and as many calls as it is told to make."""
    transports.bind_to_parent(parent)
    transport = kind.client_of(endpoint)
    array = np.empty(size // 8, np.uint64)
    reference.pattern(array, seed)
    one = measure_array(array, 1, fresh=False)

    class Alone:
        pids = ()
        run = staticmethod(lambda payload: transport.call("xor64", payload))

    one(Alone, seed)
    gate.send(True)
    while calls := gate.recv():
        for _ in range(calls):
            one(Alone, seed)
        gate.send(True)
    os._exit(0)


class Crowd:
    """Clients of one server, each a process."""

    def __init__(self, transport, clients, size):
        self.transport, self.members = transport, []
        for seed in range(clients):
            gate, theirs = transports.spawn.Pipe()
            arguments = (os.getpid(), type(transport), transport.endpoint, seed, size, theirs)
            member = transports.spawn.Process(target=_member, args=arguments, daemon=True)
            member.start()
            theirs.close()
            self.members.append((member, gate))
        for _, gate in self.members:
            gate.recv()
        self.pids = (*transport.pids, *(member.pid for member, _ in self.members))

    def run(self, calls):
        for _, gate in self.members:
            gate.send(calls)
        for _, gate in self.members:
            gate.recv()

    def close(self):
        for member, gate in self.members:
            gate.send(0)
            gate.close()
            member.join(5)
            if member.is_alive():
                member.kill()
                member.join()


def row_clients8(fleet, plan, size, rival):
    size, clients, calls = plan.size(16 << 20), 8, 1 if plan.quick else 4
    crowds = []

    def measure(crowd, _):
        window = Window(crowd)
        with window:
            crowd.run(calls)
        return window.per_call(calls * clients)

    try:
        for name in (fleet.ours, rival):
            crowds.append(Crowd(fleet.get(name), clients, size))
        for crowd in crowds:
            crowd.run(1)
        times, cpu = interleave(2 if plan.quick else 31, (crowds[0], measure), (crowds[1], measure))
        return {
            "unit": "s",
            "pairs": times,
            "cpu": cpu,
            "qualifies": f"time per call over all clients; {clients} client processes, {calls} calls of {size} bytes each per sample, "
            f"one word rewritten before each; {cores()} cores, not pinned; ours: {fleet.get(fleet.ours).qualifies()}; theirs: {fleet.get(rival).qualifies()}",
        }
    finally:
        for crowd in crowds:
            crowd.close()
