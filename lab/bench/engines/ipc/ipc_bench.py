# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures the ipc rows: memlift and a rival, call by call, in one run.

Flow     --row NAME RIVAL … ──▶ pairs of samples ──▶ one JSON line per row on stdout, progress on stderr
Rows     ipc/array/SIZE       an array made outside the pool goes over, the server reads every byte
         ipc/loan/SIZE        the array already lies in the pool
         ipc/bytes/SIZE/python        bytes, back to back, many calls per sample
         ipc/bytes/SIZE/python/idle   one call after an idle second, against two processes that wake each other by a futex
         ipc/bytes/SIZE/asyncio       bytes, 100 calls under way on one event loop
         ipc/auto/…, ipc/packed/SIZE   the options of a call: rows_options.py
         ipc/clients8/16MiB   eight client processes and one server
         ipc/paper/…          the paper's baselines: rows_paper.py
         ipc/queue/SIZE       an array through memlift.Queue, a number back through another one
         ipc/arena/…          one writer, eight readers: rows_arena.py
         ipc/torch/…          beside PyTorch and Ray: rows_torch.py
         ipc/first_call/SIZE  first call of a fresh client against the later calls of that client
         ipc/death/reclaim    clients killed at random times: from the hang-up until the server holds nothing of them
         ipc/rate/CALLS       CPU time of both sides per call, at so many calls per second
         ipc/idle             context switches of an idle server and an idle client
Method   method.py; a script that has no `numpy` says that every row is missing
Line     {name, rival, unit, pairs: [[ours, theirs]…], cpu: [ours, theirs] per call, count, qualifies,
         verified}, or {name, rival, missing}, or {name, rival, error}
Not here statistics and verdicts: they are the reader's (lab/bench/src/statistics.rs), the same for all services

`--ours NAME` puts another transport in memlift's place. `--ours zmq` against zmq says what the method makes
of two equal things.
"""

import argparse
import json
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

try:
    import rows_arena
    import rows_calls
    import rows_life
    import rows_options
    import rows_paper
    import rows_torch
    import transports
    from method import Fleet, Plan
    from transports import Missing
except ImportError as error:
    # Without numpy there is nothing to send: every row is missing, and says so.
    MISSING = f"{error}: pip install -r {Path(__file__).resolve().parent / 'requirements.txt'}"
else:
    MISSING = None


def kinds():
    """Rows by their names, without what is a number in them."""
    return {
        "arena/broadcast": rows_arena.row_broadcast,
        "arena/put": rows_arena.row_put,
        "arena/ref": rows_arena.row_ref,
        "array": rows_calls.row_array,
        "loan": rows_calls.row_loan,
        "queue": rows_calls.row_queue,
        "bytes/python": rows_calls.row_bytes,
        "bytes/python/idle": rows_life.row_after_idle,
        "bytes/asyncio": rows_calls.row_asyncio,
        "auto/sync": rows_options.row_auto_sync,
        "auto/pipelined": rows_options.row_auto_pipelined,
        "packed": rows_options.row_packed,
        "clients8/16MiB": rows_calls.row_clients8,
        "rate": rows_calls.row_rate,
        "paper/percall/throughput": rows_paper.row_throughput,
        "paper/percall/latency": rows_paper.row_latency,
        "paper/pool/throughput": rows_paper.row_throughput,
        "paper/pool/loan": rows_paper.row_loan,
        "paper/pool/cpu": rows_paper.row_cpu,
        "torch/dataloader": rows_torch.row_loader,
        "torch/ray": rows_torch.row_ray,
        "first_call": rows_life.row_first_call,
        "death/reclaim": rows_life.row_death,
        "idle": rows_life.row_idle,
    }


def main():
    options = argparse.ArgumentParser(description="Measures the ipc rows; prints one JSON line per row.")
    options.add_argument("--row", nargs=2, action="append", required=True, metavar=("NAME", "RIVAL"), help="a row (repeatable)")
    options.add_argument("--quick", action="store_true", help="run and verify every row, time proves nothing")
    options.add_argument("--ours", default="memlift", metavar="NAME", help="who stands in memlift's place")
    options = options.parse_args()
    if MISSING:
        for name, rival in options.row:
            print(json.dumps({"name": name, "rival": rival, "missing": MISSING}), flush=True)
        return 0
    transports.end_orderly()
    plan, fleet, failed = Plan(options.quick), Fleet(options.ours), False
    try:
        for name, rival in options.row:
            fleet.hush(rival)
            parts = name.split("/")[1:]
            number = next((int(part) for part in parts if part.isdigit()), 0)
            kind = "/".join(part for part in parts if not part.isdigit())
            print(f"{name} against {rival} …", file=sys.stderr, flush=True)
            line = {"name": name, "rival": rival}
            try:
                line |= kinds()[kind](fleet, plan, number, rival)
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
