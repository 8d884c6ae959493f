# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows beside PyTorch and Ray: batches of a DataLoader, and a tensor between two actors.

Flow     a worker or an actor has the bytes ─▶ they are handed over ─▶ every byte is read and compared
Rows     torch/dataloader/SIZE    time per batch of samples of SIZE bytes, one worker, against PyTorch's own loader
         torch/ray/SIZE           a tensor that one actor returns and another one reads, against Ray's object store
Method   as in method.py. A sample of a dataset is a part of one tensor at a place that depends on its number, so making it costs nothing
         and its bytes are known. Readings are part of the time on both sides
Not here GPUs
"""

import functools
import operator
import os

import numpy as np
import reference
from method import Window, cores, expect, interleave
from transports import Missing

BATCH_BYTES = 64 << 20
PLACES = 509


def _torch():
    try:
        import torch
    except ImportError as error:
        raise Missing("pip install torch, or tools/setup ml") from error
    torch.set_num_threads(1)
    return torch


def _words(size):
    """What samples are parts of."""
    words = np.empty(size // 8 + PLACES, np.uint64)
    reference.pattern(words, 7)
    return words


class Samples:
    """A map-style dataset of `count` samples."""

    def __init__(self, size, count):
        import torch

        self.size, self.count = size, count
        self.words = torch.from_numpy(_words(size).view(np.int64))

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return self.words[number % PLACES : number % PLACES + self.size // 8]


class Loader:
    """One side: a loader whose worker stays."""

    def __init__(self, make, samples, batch):
        self.loader = make(samples, batch_size=batch, num_workers=1, persistent_workers=True, prefetch_factor=2)
        for _ in self.loader:
            pass
        self.pids = (os.getpid(), *(worker.pid for worker in self.loader._iterator._workers))
        self.make = make

    def qualifies(self):
        return f"{self.make.__module__}.{self.make.__name__}"

    def close(self):
        self.loader._iterator._shutdown_workers()
        del self.loader


def row_loader(_, plan, size, rival):
    torch = _torch()
    if rival != "torch":
        raise Missing(f"no rival {rival}")
    import memlift.torch

    size = plan.size(size)
    batch = max(1, min(32, BATCH_BYTES // size))
    batches = 4 if plan.quick else max(6, min(200, (1 << 28) // (size * batch)))
    samples = Samples(size, batch * batches)
    expected = [
        functools.reduce(operator.xor, (reference.xor64(samples[number].numpy().view(np.uint64)) for number in range(at * batch, (at + 1) * batch)))
        for at in range(batches)
    ]

    def measure(side, _):
        found = []
        window = Window(side)
        with window:
            for values in side.loader:
                found.append(reference.xor64(values.numpy().reshape(-1).view(np.uint64)))
                del values
        if found != expected:
            raise RuntimeError("a batch has other bytes than its samples")
        return window.per_call(batches)

    ours, theirs = Loader(memlift.torch.DataLoader, samples, batch), Loader(torch.utils.data.DataLoader, samples, batch)
    try:
        times, cpu = interleave(plan.pairs(size * batch * batches), (ours, measure), (theirs, measure))
        return {
            "unit": "s",
            "pairs": times,
            "cpu": cpu,
            "qualifies": f"{batch} samples per batch, {batches} batches, one worker that stays, every byte read; torch {torch.__version__}; "
            f"{cores()} cores, not pinned; ours: {ours.qualifies()}; theirs: {theirs.qualifies()}",
        }
    finally:
        ours.close()
        theirs.close()


class Actors:
    """Two actors of Ray; the method of the first says how its tensor travels."""

    pids = (os.getpid(),)

    def __init__(self, method, maker, reader):
        self.method, self.maker, self.reader = method, maker, reader

    def qualifies(self):
        return f"method {self.method}"


def row_ray(_, plan, size, rival):
    torch = _torch()
    if rival != "ray":
        raise Missing(f"no rival {rival}")
    try:
        import ray
    except ImportError as error:
        raise Missing("pip install ray, or tools/setup ml") from error
    import memlift.ray

    size = plan.size(size)
    memlift.ray.register()
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    try:
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
            object_store_memory=max(8 * size, 1 << 30), runtime_env={"env_vars": environment},
        )
    except Exception as error:
        ray.shutdown()
        raise Missing(f"ray does not start here: {error}") from error

    class Maker:
        def __init__(self, size):
            self.tensor = torch.empty(size // 8, dtype=torch.int64)

        def fill(self, seed):
            words = self.tensor.numpy().view(np.uint64)
            reference.pattern(words, seed)
            return int(reference.xor64(words))

        @ray.method(tensor_transport="memlift")
        def ours(self):
            return self.tensor.detach()

        def theirs(self):
            return self.tensor

    class Reader:
        def read(self, tensor):
            return int(reference.xor64(tensor.numpy().view(np.uint64)))

    made = ray.remote(num_cpus=1)(Maker).remote(size)
    reads = ray.remote(num_cpus=1, enable_tensor_transport=True)(Reader).remote()

    def measure(side, seed):
        expected = ray.get(side.maker.fill.remote(seed))
        window = Window(side)
        with window:
            found = ray.get(side.reader.read.remote(getattr(side.maker, side.method).remote()))
        expect(found.to_bytes(8, "little"), expected.to_bytes(8, "little"))
        return window.per_call(1)

    ours, theirs = Actors("ours", made, reads), Actors("theirs", made, reads)
    try:
        for _ in range(plan.warm_calls):
            measure(ours, 0)
            measure(theirs, 0)
        times, cpu = interleave(plan.pairs(size), (ours, measure), (theirs, measure))
        return {
            "unit": "s",
            "pairs": times,
            "cpu": cpu,
            "qualifies": f"one actor returns a tensor of {size} bytes, another one reads every byte; ray {ray.__version__}, one node; CPU time is the "
            f"driver's only; {cores()} cores, not pinned; ours: tensor transport memlift; theirs: Ray's object store",
        }
    finally:
        ray.shutdown()
