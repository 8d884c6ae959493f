# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the paper's workloads over memlift or over what people use instead, and says what that took.

    run.py --workload pagerank --mode pipelined --load matched --seconds 20 --transport memlift --transport zmq

Flow     answers are worked out here, once ─▶ a server process ─▶ clients, each a process: request ─▶ call ─▶ finish, until the
         time is used up ─▶ every answer's digest compared ─▶ one line per transport
Modes    sync: one call at a time · async: the next request is made while one call is under way · pipelined: four under way
Loads    undersubscribed: half as many clients as cores · matched: as many · oversubscribed: twice as many
Servers  one for all clients; transports that connect two processes (shm_memcpy, percall, mp_pipe, mp_queue) have one for each client
Missing  a library that is not installed: the line says so, and the program goes on
"""

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[3] / "lab" / "bench" / "engines" / "ipc"):
    sys.path.insert(0, str(folder))

import numpy as np  # noqa: E402
import transports  # noqa: E402
import workloads  # noqa: E402

MODES = ("sync", "async", "pipelined")
LOADS = {"undersubscribed": 0.5, "matched": 1, "oversubscribed": 2}
DEPTH = {"sync": 1, "async": 2, "pipelined": 4}
SEEDS = 2
PAIRED = ("shm_memcpy", "percall", "mp_pipe", "mp_queue", "unix_socket")


def digest(answer):
    return hashlib.blake2b(np.ascontiguousarray(answer), digest_size=16).hexdigest()


class Plain:
    """Calls under way on a transport; answers come in the order of the calls."""

    def __init__(self, transport, depth):
        if depth > transport.outstanding:
            raise transports.Missing(f"{transport.name} has {transport.outstanding} call under way at most")
        self.transport, self.depth, self.waiting = transport, depth, []

    def submit(self, number, request):
        if self.depth == 1:
            self.waiting.append((number, self.transport.call("run", request)))
        else:
            self.transport.submit("run", request)
            self.waiting.append((number, None))

    def collect(self):
        number, answer = self.waiting.pop(0)
        return number, self.transport.collect() if self.depth > 1 else answer

    def close(self):
        pass


class Pipelined:
    """memlift's pipeline; answers come as they are ready."""

    def __init__(self, transport, depth):
        self.pipe, self.waiting = transport.client.pipeline(depth=depth), {}

    def submit(self, number, request):
        self.waiting[self.pipe.submit("run", request)] = number

    def collect(self):
        job, answer = self.pipe.next()
        return self.waiting.pop(job), answer

    def close(self):
        self.pipe.close()


def work(job, workload, transport, expected):
    """Requests until the time is used up; gives latencies and the seconds of each stage."""
    depth = DEPTH[job.mode]
    calls = (Pipelined if job.mode == "pipelined" and transport.name == "memlift" else Plain)(transport, depth)
    latencies, stages, started, number = [], {"prepare": 0.0, "finish": 0.0}, {}, 0

    def settle():
        at, answer = calls.collect()
        begin = time.perf_counter()
        latencies.append(begin - started.pop(at))
        workload.finish(answer)
        stages["finish"] += time.perf_counter() - begin
        if digest(answer) != expected[at % SEEDS]:
            raise RuntimeError(f"{workload.name} over {transport.name}: the answer to request {at} is not the one worked out here")

    begin = time.perf_counter()
    while number < job.least or time.perf_counter() - begin < job.seconds:
        start = time.perf_counter()
        request = workload.request(number % SEEDS)
        stages["prepare"] += time.perf_counter() - start
        if len(calls.waiting) == depth:
            settle()
        started[number] = time.perf_counter()
        calls.submit(number, request)
        if depth == 1:
            settle()
        number += 1
    while calls.waiting:
        settle()
    calls.close()
    return {"requests": number, "seconds": time.perf_counter() - begin, "latencies": latencies, "stages": stages}


def client(parent, job, name, endpoint, expected, gate):
    """One client process: connects, says so, works when it is told to."""
    transports.bind_to_parent(parent)
    kind, workload = transports.transport(name), workloads.ALL[job.workload](job.items)
    transport = None
    try:
        if endpoint is None:
            transport = kind()
            transport.start_server("workloads:operations", (job.workload, job.items))
            transport.connect()
        else:
            transport = kind.client_of(endpoint)
        if digest(transport.call("run", workload.request(0))) != expected[0]:
            raise RuntimeError(f"{job.workload} over {name}: the first answer is not the one worked out here")
        pids = [os.getpid(), *(transport.pids if endpoint is None else ())]
        gate.send({"pids": pids})
        gate.recv()
        gate.send(work(job, workload, transport, expected))
        gate.recv()
    except Exception as error:
        gate.send({"missing" if isinstance(error, transports.Missing) else "error": f"{type(error).__name__}: {error}"})
    finally:
        if endpoint is None and transport is not None:
            transport.close()


def told(gate):
    answer = gate.recv()
    if "missing" in answer:
        raise transports.Missing(answer["missing"])
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def run(job, name, expected):
    """All clients over one transport; gives what its line says."""
    kind = transports.transport(name)
    kind.check()
    clients, server, gates = max(1, int(LOADS[job.load] * len(os.sched_getaffinity(0)))), None, []
    try:
        if name not in PAIRED:
            server = kind()
            server.start_server("workloads:operations", (job.workload, job.items))
        for _ in range(clients):
            gate, theirs = transports.spawn.Pipe()
            arguments = (os.getpid(), job, name, server and server.endpoint, expected, theirs)
            process = transports.spawn.Process(target=client, args=arguments)
            process.start()
            theirs.close()
            gates.append((process, gate))
        pids = [pid for _, gate in gates for pid in told(gate)["pids"]] + list(server.pids if server else ())
        cpu, begin = transports.cpu_seconds(*pids), time.perf_counter()
        for _, gate in gates:
            gate.send(True)
        done = [told(gate) for _, gate in gates]
        seconds, cpu = time.perf_counter() - begin, transports.cpu_seconds(*pids) - cpu
        for _, gate in gates:
            gate.send(True)
    finally:
        for process, gate in gates:
            gate.close()
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        if server is not None:
            server.close()
    requests = sum(one["requests"] for one in done)
    latencies = sorted(latency for one in done for latency in one["latencies"])
    stage = {name: 1e3 * sum(one["stages"][name] for one in done) / requests for name in ("prepare", "finish")}
    return {
        "clients": clients,
        "requests": requests,
        "seconds": seconds,
        "requests_per_s": requests / seconds,
        "latency_ms": 1e3 * statistics.median(latencies),
        "latency_p99_ms": 1e3 * latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        "prepare_ms": stage["prepare"],
        "finish_ms": stage["finish"],
        "cpu_s_per_request": cpu / requests,
        "verified": True,
    }


def main():
    words = argparse.ArgumentParser(description="Runs the paper's workloads over memlift or over what people use instead.")
    words.add_argument("--workload", choices=[*workloads.ALL, "all"], default="all")
    words.add_argument("--mode", choices=[*MODES, "all"], default="sync")
    words.add_argument("--load", choices=[*LOADS, "all"], default="undersubscribed")
    words.add_argument("--seconds", type=float, default=10.0, help="how long clients go on making requests")
    words.add_argument("--items", type=int, help="images, rows, edges or queries of a request (default: the paper's)")
    words.add_argument("--transport", action="append", help="memlift, zmq, shm_memcpy, percall, grpc_uds, … (repeatable; default: memlift)")
    words.add_argument("--quick", action="store_true", help="small requests, three of them: shows that everything runs, and no more")
    words.add_argument("--json", action="store_true", help="one JSON object per line")
    words = words.parse_args()
    transports.end_orderly()
    failed = False
    for workload in [*workloads.ALL] if words.workload == "all" else [words.workload]:
        kind = workloads.ALL[workload]
        absent = kind.missing()
        items = words.items or (kind.quick_items if words.quick else kind.items)
        if not absent:
            here = kind(items)
            serve = here.serve()
            expected = [digest(serve(here.request(seed))) for seed in range(SEEDS)]
            size = {"request_bytes": here.request(0).nbytes, "answer_bytes": serve(here.request(0)).nbytes}
        for mode in MODES if words.mode == "all" else [words.mode]:
            for load in LOADS if words.load == "all" else [words.load]:
                for name in words.transport or ["memlift"]:
                    line = {"workload": workload, "mode": mode, "load": load, "transport": name}
                    job = argparse.Namespace(workload=workload, mode=mode, load=load, items=items)
                    job.seconds, job.least = (0.0, 3) if words.quick else (words.seconds, 1)
                    if absent:
                        line["missing"] = f"{', '.join(absent)}: pip install -r {HERE / 'requirements.txt'}"
                    else:
                        try:
                            line |= size | run(job, name, expected)
                        except transports.Missing as reason:
                            line["missing"] = str(reason)
                        except Exception as error:
                            failed, line["error"] = True, f"{type(error).__name__}: {error}"
                    print(json.dumps(line) if words.json else shown(line), flush=True)
    return 1 if failed else 0


def shown(line):
    what = "{workload:<12} {mode:<10} {load:<15} {transport:<11}".format(**line)
    if "verified" not in line:
        return f"{what} {line.get('error') or 'missing: ' + line['missing']}"
    return what + " {requests_per_s:9.2f} requests/s  latency {latency_ms:9.1f} ms  CPU {cpu_s_per_request:7.3f} s  {clients} clients".format(**line)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
