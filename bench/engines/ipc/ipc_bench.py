# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures the ipc rows: memlift and a rival, call by call, in one run.

Flow     --row NAME RIVAL … ──▶ pairs of samples ──▶ one JSON line per row on stdout, progress on stderr
Rows     ipc/array/SIZE       an array made outside the pool goes over, the server reads every byte
         ipc/loan/SIZE        the array already lies in the pool
         ipc/bytes/SIZE       bytes, back to back, many calls per sample
         ipc/queue/SIZE       an array through memlift.Queue, a number back through another one
         ipc/asyncio/SIZE     bytes, 100 calls under way on one event loop
         ipc/first_call/SIZE  first call of a fresh client against the later calls of that client
         ipc/death/reclaim    clients killed at random times: from the hang-up until the server holds nothing of them
         ipc/rate/CALLS       CPU time of both sides per call, at so many calls per second
         ipc/idle             context switches of an idle server and an idle client
Order    pairs run A B, B A, A B, …; before every sample of an array its bytes are written anew, with other
         contents, outside the window; a sample ends when the client has checked the server's answer
Line     {name, rival, unit, pairs: [[ours, theirs]…], cpu: [ours, theirs] per call, count, qualifies,
         verified}, or {name, rival, missing}, or {name, rival, error}
Not here statistics and verdicts: they are the reader's (bench/src/statistics.rs), the same for all services

`--ours NAME` puts another transport in memlift's place. `--ours zmq` against zmq says what the method makes
of two equal things.
"""

import argparse
import json
import mmap
import multiprocessing.reduction
import os
import signal
import statistics
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

try:
    import numpy as np
    import reference
    import transports
    from transports import Missing, cpu_seconds
except ImportError as error:
    # Without numpy there is nothing to send: every row is missing, and says so.
    MISSING = f"{error}: pip install -r {Path(__file__).resolve().parent / 'requirements.txt'}"
else:
    MISSING = None

ALL_ROWS = [
    ("ipc/array/134217728", "zmq"),
    ("ipc/array/134217728", "mp_queue"),
    ("ipc/array/134217728", "limit"),
    ("ipc/array/16777216", "limit"),
    ("ipc/array/1048576", "zmq"),
    ("ipc/array/1048576", "mp_queue"),
    ("ipc/loan/134217728", "limit"),
    ("ipc/bytes/64", "mp_pipe"),
    ("ipc/bytes/64", "zmq"),
    ("ipc/queue/4096", "mp_queue"),
    ("ipc/queue/1048576", "mp_queue"),
    ("ipc/queue/134217728", "mp_queue"),
    ("ipc/asyncio/64", "zmq_asyncio"),
    ("ipc/first_call/16777216", "steady"),
    ("ipc/death/reclaim", "none"),
    ("ipc/rate/1000", "block"),
    ("ipc/idle", "none"),
]


def cores():
    return len(os.sched_getaffinity(0))


class Plan:
    """How often: enough for the statistics, or once for --quick."""

    def __init__(self, quick):
        self.quick = quick

    def pairs(self, size):
        return 2 if self.quick else 31 if size >= 1 << 26 else 61

    def calls(self, size):
        """Calls per sample, so that a sample is long against the clock and the scheduler."""
        calls = 1 if size >= 1 << 24 else 20 if size >= 1 << 20 else 200 if size >= 1 << 16 else 2000
        return min(calls, 20) if self.quick else calls

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

    def close(self):
        for transport in self._running.values():
            transport.close()
        self._running.clear()


class Call:
    """A transport as one side of a pair."""

    def __init__(self, transport):
        self.transport = transport
        self.pids = (os.getpid(), transport.server_pid)

    def run(self, payload):
        return self.transport.call("xor64", payload)

    def qualifies(self):
        return self.transport.qualifies()


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


def measure_array(array, calls):
    """A sample of `calls` calls with an array whose bytes are new; one word more changes at every call."""
    step = np.uint64(0x9E3779B97F4A7C15)
    words = array.shape[0]

    def measure(contender, seed):
        reference.pattern(array, seed)
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


def row_queue(fleet, plan, size, rival):
    return row_array(fleet, plan, size, rival, "memlift_queue")


def row_array(fleet, plan, size, rival, who=None):
    ours = Call(fleet.get(who or fleet.ours))
    theirs = CopyLimit(size) if rival == "limit" else Call(fleet.get(rival))
    array = np.empty(size // 8, np.uint64)
    reference.pattern(array, 0)
    warm, measure = measure_array(array, plan.warm_calls), measure_array(array, plan.calls(size))
    for contender in (ours, theirs):
        warm(contender, 0)
    times, cpu = interleave(plan.pairs(size), (ours, measure), (theirs, measure))
    return {
        "unit": "s",
        "pairs": times,
        "cpu": cpu,
        "qualifies": f"array outside the pool, rewritten before each sample; every byte read by the server; "
        f"{cores()} cores, not pinned; ours: {ours.qualifies()}; theirs: {theirs.qualifies()}",
    }


def row_loan(fleet, plan, size, rival):
    """The client writes into the loaned buffer outside the window; loaning and calling are inside."""
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


def row_first_call(fleet, plan, size, rival):
    ours = fleet.get(fleet.ours)
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
    transport = kind.__new__(kind)
    transport.endpoint, transport._futures = endpoint, []
    transport.connect()
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
    """Lines of a process's mappings that belong to sessions."""
    return sum("memfd:memlift-re" in line for line in open(f"/proc/{pid}/maps"))


def row_death(fleet, plan, size, rival):
    ours = fleet.get(fleet.ours)
    gate, theirs = transports.spawn.Pipe()
    nursery = transports.spawn.Process(
        target=_clients_to_be_killed, args=(os.getpid(), ours.endpoint, theirs), daemon=True
    )
    nursery.start()
    theirs.close()
    before, times, random = _segments(ours.server_pid), [], np.random.default_rng(1)
    try:
        for _ in range(20 if plan.quick else 10_000):
            gate.send(True)
            child = gate.recv()
            alive = multiprocessing.reduction.recv_handle(gate)
            while _segments(ours.server_pid) < before + 2:
                time.sleep(0.0002)
            time.sleep(random.random() * 0.002)
            os.kill(child, signal.SIGKILL)
            os.read(alive, 1)
            start = time.perf_counter()
            os.close(alive)
            while _segments(ours.server_pid) != before:
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


KINDS = {
    "array": row_array,
    "loan": row_loan,
    "bytes": row_bytes,
    "queue": row_queue,
    "asyncio": row_asyncio,
    "first_call": row_first_call,
    "death": row_death,
    "rate": row_rate,
    "idle": row_idle,
}


def main():
    options = argparse.ArgumentParser(description="Measures the ipc rows; prints one JSON line per row.")
    options.add_argument("--row", nargs=2, action="append", metavar=("NAME", "RIVAL"), help="only this row (repeatable)")
    options.add_argument("--quick", action="store_true", help="run and verify every row, time proves nothing")
    options.add_argument("--ours", default="memlift", metavar="NAME", help="who stands in memlift's place")
    options = options.parse_args()
    if MISSING:
        for name, rival in options.row or ALL_ROWS:
            print(json.dumps({"name": name, "rival": rival, "missing": MISSING}), flush=True)
        return 0
    transports.end_orderly()
    plan, fleet, failed = Plan(options.quick), Fleet(options.ours), False
    try:
        for name, rival in options.row or ALL_ROWS:
            parts = name.split("/")
            print(f"{name} against {rival} …", file=sys.stderr, flush=True)
            line = {"name": name, "rival": rival}
            try:
                size = int(parts[2]) if len(parts) > 2 and parts[2].isdigit() else 0
                line |= KINDS[parts[1]](fleet, plan, size, rival)
                line["verified"] = True
            except Missing as reason:
                line["missing"] = str(reason)
            except Exception as error:
                failed = True
                traceback.print_exc()
                line["error"] = f"{type(error).__name__}: {error}"
            print(json.dumps(line), flush=True)
    finally:
        fleet.close()
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
