# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Second chapter of the tour: Debian's nginx, unmodified, before and after a drop-in.

Flow     here: nginx serves pages of Debian's python3.11-doc, gzip level 6, and random files over TLS; each twice, with and
         without the drop-in ─▶ every file fetched, unpacked and compared ─▶ rounds of short runs of all ─▶ medians
Columns  requests per second of one worker that is kept busy, CPU-seconds of the worker per request, bytes per response
Line     one JSON object per row on stdout; progress on stderr; `missing` says what to install
Owner    servers and files are of this run, in a temporary folder that goes with it
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent / "engines" / "nginx"
sys.path.insert(0, str(ENGINE))

import debian
import nginx_bench
import server
from debian import Missing
from nginx_bench import cpu_s, median
from server import say

# What it is called, and the server: bytes of a file, gzip level, TLS.
PLAN = [
    ("gzip 6, 4 KiB", 4096, 6, None),
    ("gzip 6, 16 KiB", 16384, 6, None),
    ("gzip 6, 64 KiB", 65536, 6, None),
    ("TLS 1.2, 16 KiB", 16384, 0, "tls1.2"),
    ("TLS 1.3, 16 KiB", 16384, 0, "tls1.3"),
]
RUN_S = 0.2


def emit(kind, **fields):
    print(json.dumps({"chapter": "transform", "kind": kind} | fields), flush=True)


def start(rows):
    """The pairs of servers that can be had; what cannot is said once."""
    pairs, said = {}, set()
    for name, size, level, tls in PLAN:
        try:
            pairs[name] = rows.server(size, level, tls, ours=True), rows.server(size, level, tls)
        except Missing as reason:
            if str(reason) not in said:
                said.add(str(reason))
                emit("missing", missing=str(reason))
    return pairs


def measure(pairs, budget_s, run_s):
    """Rounds over all pairs until the time is used up; who comes first alternates."""
    runs = {name: ([], []) for name in pairs}
    begin, rounds = time.monotonic(), 0
    while rounds < 1 or (time.monotonic() - begin) * (rounds + 1) / rounds < budget_s:
        say(f"round {rounds + 1} …")
        for name, pair in pairs.items():
            for side in (0, 1) if rounds % 2 == 0 else (1, 0):
                runs[name][side].append(pair[side].load(run_s))
        rounds += 1
    return runs, rounds, time.monotonic() - begin


def row(name, pair, runs):
    """The line of one workload: memlift first, stock second."""
    rate = [median([run["requests"] / run["seconds"] for run in side]) for side in runs]
    cpu = [median([cpu_s(run) for run in side]) for side in runs]
    ours, stock = ([round(one[index], 9) for one in (rate, cpu)] for index in (0, 1))
    emit(
        "row",
        workload=name,
        requests_per_s=[ours[0], stock[0]],
        cpu_s=[ours[1], stock[1]],
        bytes=[one.wire_bytes() for one in pair],
        ratio=rate[0] / rate[1],
        cpu_ratio=cpu[1] / cpu[0],
        complaints=sum(len(one.complaints()) for one in pair),
    )


def main():
    options = argparse.ArgumentParser(description="Second chapter of the tour; prints one JSON line per row.")
    options.add_argument("--seconds", type=float, default=13.0, help="time for the measured rounds")
    options.add_argument("--libz", default="", help="the libz drop-in")
    options.add_argument("--provider", default="", help="the OpenSSL provider")
    options.add_argument("--quick", action="store_true")
    options = options.parse_args()
    server.end_orderly()
    with server.Bench() as bench:
        try:
            say("starting nginx with and without the drop-ins …")
            rows = nginx_bench.Rows(bench, options)
            pairs = start(rows)
            if not pairs:
                return 0
            budget_s, run_s = (0, nginx_bench.QUICK_RUN_S) if options.quick else (options.seconds, RUN_S)
            runs, rounds, measured_s = measure(pairs, budget_s, run_s)
            cores = server.cores()
            emit(
                "about",
                nginx=debian.version(rows.program),
                files=nginx_bench.FILES,
                connections=server.CONNECTIONS,
                server_core=cores[0],
                client_core=cores[1],
                rounds=rounds,
                measured_s=measured_s,
            )
            for name, pair in pairs.items():
                row(name, pair, runs[name])
        except Missing as reason:
            emit("missing", missing=str(reason))
        except Exception as error:
            traceback.print_exc()
            emit("error", error=f"{type(error).__name__}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
