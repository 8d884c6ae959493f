# SPDX-License-Identifier: Apache-2.0 OR MIT
"""First chapter of the tour: a predictive-analytics pipeline over two processes, for real.

Flow     here: train XGBoost on scikit-learn's breast-cancer data, once
         client: build a batch (200,000 rows × 30 float32, 24 MB: rows of the data with jitter) ─▶
         server process: predict ─▶ client: compare all 200,000 predictions with local ones
         over memlift (sync, async, pipelined, pipelined into loaned buffers), mp_queue, mp_pipe, zmq, grpc_uds
Columns  transfer      the same call with an operation that only reads every byte and answers 8 bytes, ms
         end to end    from the start of building a batch to its checked predictions, median, ms
         throughput    rows per second over a whole run, building and checking included
         cpu           CPU-seconds of client and server process per batch
         ratio         memlift's throughput in the same mode over this one's
Order    rounds over all rows, in a new order each, until the time is used up; medians over the rounds
Prints   one table on stdout, or with --json one object per line: `about`, `row`, `missing`, `error`; progress on stderr

Pipelined means at most 4 requests outstanding, for everybody who can; async one, while the next batch is
built. XGBoost predicts with one thread less than there are cores (at least one), the same for all: the
client needs a core too.
"""

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from pathlib import Path

ENGINES = Path(__file__).resolve().parent.parent / "engines" / "ipc"
sys.path.insert(0, str(ENGINES))
sys.path.insert(0, str(Path(__file__).resolve().parent))

try:
    import numpy as np
    import xgboost
except ImportError as error:
    sys.exit(f"{error}: pip install -r {ENGINES / 'requirements.txt'}")

import reference
import transports
from transports import Missing, cpu_seconds

ROWS, COLUMNS, DEPTH = 200_000, 30, 4
TRANSFER_CALLS = 2


def threads():
    return max(1, len(os.sched_getaffinity(0)) - 1)


def predictor(model):
    """A function from a batch to the probability of a benign tumour per row, from a stored model."""
    booster = xgboost.Booster()
    booster.load_model(bytearray(model))
    booster.set_param({"nthread": threads()})

    def predict(batch):
        return booster.inplace_predict(batch, validate_features=False)

    return predict


def operations(model):
    """What the server process can do."""
    return transports.reading() | {"predict": predictor(model)}


def train():
    """The stored model, the data, and the share of its training rows that it gets right."""
    from sklearn.datasets import load_breast_cancer  # here, so that no server process waits for it

    data, target = load_breast_cancer(return_X_y=True)
    data = np.ascontiguousarray(data, np.float32)
    settings = {"objective": "binary:logistic", "max_depth": 4, "eta": 0.3, "nthread": threads(), "seed": 1}
    booster = xgboost.train(settings, xgboost.DMatrix(data, target), num_boost_round=20)
    model = bytes(booster.save_raw("ubj"))
    right = float(np.mean((predictor(model)(data) > 0.5) == target))
    return model, data, right


class Batches:
    """Builds batch `seed` into an array: rows drawn from the data, each value moved by up to 1 % of its column's spread."""

    def __init__(self, data):
        self.data, self.scale = data, (data.std(axis=0) * 0.02).astype(np.float32)
        self.noise = np.empty((ROWS, COLUMNS), np.float32)

    def build(self, seed, target):
        draw = np.random.Generator(np.random.SFC64(seed))
        np.take(self.data, draw.integers(0, len(self.data), ROWS), axis=0, out=target, mode="clip")
        draw.random(out=self.noise, dtype=np.float32)
        self.noise -= np.float32(0.5)
        self.noise *= self.scale
        target += self.noise


class Client:
    """The client's side of the pipeline, the same for every transport."""

    def __init__(self, batches, predict, count):
        self.batches, self.count = batches, count
        self.ring = [np.empty((ROWS, COLUMNS), np.float32) for _ in range(DEPTH + 1)]
        self.expected, self.words = [], []
        for seed in range(count):
            target = self.ring[seed % len(self.ring)]
            batches.build(seed, target)
            self.expected.append(predict(target).copy())

    def array(self, index):
        return self.ring[index % len(self.ring)]

    def check(self, index, answer):
        if answer.shape != (ROWS,) or not np.array_equal(answer, self.expected[index]):
            raise RuntimeError(f"predictions of batch {index} differ from the local ones")

    def run(self, transport, mode):
        """All batches once in a mode; gives the latency of each batch."""
        return getattr(self, "run_" + mode.replace("+", "_"))(transport)

    def run_sync(self, transport):
        latencies = []
        for index in range(self.count):
            start = time.perf_counter()
            batch = self.array(index)
            self.batches.build(index, batch)
            self.check(index, transport.call("predict", batch))
            latencies.append(time.perf_counter() - start)
        return latencies

    def run_async(self, transport):
        return self._window(transport.submit, lambda: (None, transport.collect()), self.array, 1)

    def run_pipelined(self, transport):
        if transport.name != "memlift":
            return self._window(transport.submit, lambda: (None, transport.collect()), self.array, DEPTH)
        with transport.client.pipeline(depth=DEPTH) as pipe:
            return self._window(pipe.submit, lambda: next(iter(pipe.results())), self.array, DEPTH)

    def run_pipelined_loan(self, transport):
        """As pipelined, but the batch is built in the pool, so nothing is copied."""
        client = transport.client
        with client.pipeline(depth=DEPTH) as pipe:
            loan = lambda _: client.loan((ROWS, COLUMNS), "float32")  # noqa: E731
            return self._window(pipe.submit, lambda: next(iter(pipe.results())), loan, DEPTH)

    def _window(self, submit, collect, array, depth):
        """Builds and submits while fewer than `depth` are outstanding, else collects; then collects the rest."""
        starts, latencies, jobs = {}, [], []

        def settle():
            job, answer = collect()
            entry = next(item for item in jobs if job is None or item[0] == job)
            jobs.remove(entry)
            self.check(entry[1], answer)
            latencies.append(time.perf_counter() - starts.pop(entry[1]))

        for index in range(self.count):
            starts[index] = time.perf_counter()
            batch = array(index)
            self.batches.build(index, batch)
            while len(jobs) >= depth:
                settle()
            jobs.append((submit("predict", batch), index))
            del batch
        while jobs:
            settle()
        return latencies


PLAN = [
    ("memlift", "sync"),
    ("memlift", "async"),
    ("memlift", "pipelined"),
    ("memlift", "pipelined+loan"),
    ("mp_queue", "sync"),
    ("mp_queue", "pipelined"),
    ("mp_pipe", "sync"),
    ("zmq", "sync"),
    ("zmq", "pipelined"),
    ("grpc_uds", "sync"),
    ("grpc_uds", "pipelined"),
]


def transfer(transport, client, mode):
    """One call that moves a batch and only reads it, seconds."""
    if mode == "pipelined+loan":
        array = transport.client.loan((ROWS, COLUMNS), "float32")
        array[:] = client.ring[0]
    else:
        array = client.ring[0]
    expected = reference.xor64(array).to_bytes(8, "little")
    start = time.perf_counter()
    answer = transport.call("xor64", array)
    seconds = time.perf_counter() - start
    if bytes(answer) != expected:
        raise RuntimeError("the server read other bytes than were sent")
    return seconds


def measure(running, client, budget_s, say):
    """Rounds over all rows until the time is used up; gives the samples per row."""
    samples = {row: {"transfer": [], "latency": [], "run": [], "cpu": []} for row in PLAN if row[0] in running}
    start, rounds = time.monotonic(), 0
    while rounds < 1 or (time.monotonic() - start) * (rounds + 1) / rounds < budget_s:
        order = list(samples)
        turn = rounds * 5 % len(order)
        for row in order[turn:] + order[:turn]:
            name, mode = row
            say(f"round {rounds + 1}: {name} {mode} …")
            transport, sample = running[name], samples[row]
            for _ in range(TRANSFER_CALLS):
                sample["transfer"].append(transfer(transport, client, mode))
            pids = (os.getpid(), transport.server_pid)
            cpu, begin = cpu_seconds(*pids), time.perf_counter()
            sample["latency"] += client.run(transport, mode)
            sample["run"].append(time.perf_counter() - begin)
            sample["cpu"].append(cpu_seconds(*pids) - cpu)
        rounds += 1
    return samples, rounds


def lines(samples, count, running):
    """The rows of the table."""
    rate = {row: count * ROWS / statistics.median(sample["run"]) for row, sample in samples.items()}
    for row, sample in samples.items():
        name, mode = row
        ours = ("memlift", mode)
        moved = statistics.median(sample["transfer"])
        line = {
            "kind": "row",
            "transport": name,
            "mode": mode,
            "transfer_ms": moved * 1e3,
            "end_to_end_ms": statistics.median(sample["latency"]) * 1e3,
            "rows_per_s": rate[row],
            "cpu_s": statistics.median(sample["cpu"]) / count,
            "ratio": rate[ours] / rate[row] if name != "memlift" and ours in rate else None,
            "transfer_ratio": None,
            "qualifies": running[name].qualifies(),
        }
        if name != "memlift" and ("memlift", "sync") in samples:
            line["transfer_ratio"] = moved / statistics.median(samples["memlift", "sync"]["transfer"])
        yield line


def three_digits(value):
    """`value` as text with three digits, or whole."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def table(found):
    """The chapter as text, from its lines."""
    about = next((line for line in found if line["kind"] == "about"), None)
    rows = [line for line in found if line["kind"] == "row"]
    text = []
    if about:
        text += [
            "",
            "ipc: a model server in another process",
            "XGBoost {xgboost} ({threads} thread, {right:.1%} right) on scikit-learn's breast-cancer data; batches of {rows} rows × "
            "{columns} float32 ({megabytes:.0f} MB),".format(megabytes=about["batch_bytes"] * 1e-6, **about),
            "all predictions compared with local ones. Medians of {rounds} rounds of {batches} batches, {measured_s:.0f} s, "
            "{cores} cores.".format(**about),
            "",
        ]
    line = "{:<9} {:<15} {:>13} {:>15} {:>13} {:>11} {:>9} {:>9}".format
    if rows:
        text.append(line("over", "mode", "transfer ms", "end to end ms", "Mrows/s", "CPU ms", "transfer", "job"))
    times = lambda ratio: "–" if ratio is None else three_digits(ratio) + "×"  # noqa: E731
    for row in rows:
        numbers = [row["transfer_ms"], row["end_to_end_ms"], row["rows_per_s"] * 1e-6, row["cpu_s"] * 1e3]
        ratios = [row["transfer_ratio"], row["ratio"]]
        text.append(line(row["transport"], row["mode"], *map(three_digits, numbers), *map(times, ratios)))
    if about and rows:
        text += [
            "",
            "transfer: one call that reads every byte of a batch; the last but one column says how many times memlift's it takes.",
            "job: how many times the rows per second memlift does in the same mode, building and checking included.",
            f"CPU: client and server process, per batch. pipelined: up to {about['depth']} batches outstanding, so a batch waits for those "
            "before it.",
        ]
    text += [f"{line['transport']} is missing: {line['missing']}" for line in found if line["kind"] == "missing"]
    text += [f"failed: {line['error']}" for line in found if line["kind"] == "error"]
    return "\n".join(text)


def main():
    options = argparse.ArgumentParser(description="First chapter of the tour: a model server in another process.")
    options.add_argument("--seconds", type=float, default=18.0, help="time for the measured rounds")
    options.add_argument("--batches", type=int, default=3, help="batches per run")
    options.add_argument("--json", action="store_true", help="one JSON object per line instead of the table")
    options = options.parse_args()
    transports.end_orderly()
    found = []

    def tell(line):
        found.append(line)
        if options.json:
            print(json.dumps(line), flush=True)

    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731

    say("training the model …")
    try:
        model, data, right = train()
    except ImportError as error:
        sys.exit(f"{error}: pip install -r {ENGINES / 'requirements.txt'}")
    say("starting the server processes …")
    running, failed = {}, False
    try:
        for name in dict.fromkeys(name for name, _ in PLAN):
            kind = transports.transport(name)
            try:
                kind.check()
            except Missing as reason:
                tell({"kind": "missing", "transport": name, "missing": str(reason)})
                failed |= name == "memlift"
                continue
            running[name] = kind()
            running[name].launch("ipc_chapter:operations", (model,))
        client = Client(Batches(data), predictor(model), options.batches)
        last = options.batches - 1
        for transport in running.values():
            transport.wait_ready()
            transport.connect()
            client.check(last, transport.call("predict", client.array(last)))
        begin = time.monotonic()
        samples, rounds = measure(running, client, options.seconds, say)
        about = {
            "kind": "about",
            "rows": ROWS,
            "columns": COLUMNS,
            "batch_bytes": ROWS * COLUMNS * 4,
            "batches": options.batches,
            "rounds": rounds,
            "measured_s": time.monotonic() - begin,
            "depth": DEPTH,
            "xgboost": xgboost.__version__,
            "threads": threads(),
            "cores": len(os.sched_getaffinity(0)),
            "right": right,
        }
        for line in [about, *lines(samples, options.batches, running)]:
            tell(line)
    except Exception as error:
        failed = True
        traceback.print_exc()
        tell({"kind": "error", "error": f"{type(error).__name__}: {error}"})
    finally:
        for transport in running.values():
            transport.close()
    if not options.json:
        print(table(found), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
