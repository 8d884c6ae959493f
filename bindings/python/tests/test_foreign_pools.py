# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Libraries that start processes by themselves, with memlift's in their place: tqdm, dask, SciPy, black, joblib and PyTorch's DataLoader.

Goal    each gives what it gives with the standard library's processes, under every start method (some of them in `make soak` only)
Method  a program per library and start method (this file, run as one), since libraries keep locks of the first start method that they see
"""

import concurrent.futures
import functools
import importlib.util
import multiprocessing
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest

import memlift


def square(number):
    return number * number


def total(array):
    return float(np.sum(array))


def sphere(point):
    return float(np.sum(np.square(point)))


def not_seven(number):
    if number == 7:
        raise KeyError(number)
    return number


class Executor(memlift.Executor):
    """What stands for ProcessPoolExecutor: these libraries send objects of their own."""

    __init__ = functools.partialmethod(memlift.Executor.__init__, allow_pickle=True)


def use_tqdm():
    from tqdm.contrib.concurrent import process_map

    concurrent.futures.ProcessPoolExecutor = Executor
    assert process_map(square, range(50), max_workers=2, chunksize=5) == [number**2 for number in range(50)]
    assert process_map(total, [np.ones(100_000)] * 10, max_workers=2) == [100_000.0] * 10


def use_dask():
    import dask
    import dask.array

    with Executor(2) as pool, dask.config.set(scheduler="processes", pool=pool):
        ones = dask.array.ones((1000, 1000), chunks=(250, 1000))
        assert float((ones + ones.T).sum().compute()) == 2e6
        squares = dask.compute(*[dask.delayed(square)(number) for number in range(20)])
        assert squares == tuple(number**2 for number in range(20))


def use_scipy():
    from scipy.integrate import quad_vec
    from scipy.optimize import brute, differential_evolution

    with memlift.Pool(2, allow_pickle=True) as pool, Executor(2) as executor:
        evolve = functools.partial(
            differential_evolution, sphere, [(-5, 5)] * 3, updating="deferred", maxiter=20, rng=1
        )
        search = functools.partial(brute, sphere, ((-1, 1), (-1, 1)), Ns=10, finish=None)
        for workers in (pool.map, executor.map):
            assert (evolve(workers=workers).x == evolve(workers=1).x).all()
            assert (search(workers=workers) == search(workers=1)).all()
            assert quad_vec(np.sin, 0, 2, workers=workers)[0] == quad_vec(np.sin, 0, 2)[0]


def use_black():
    import black
    import black.concurrency
    from click.testing import CliRunner

    concurrent.futures.ProcessPoolExecutor = Executor
    black.concurrency.ProcessPoolExecutor = Executor
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for number in range(8):
            (folder / f"file{number}.py").write_text("x = {  'a':1 }\n" * 50)
        (folder / "bad.py").write_text("def f(:\n")
        done = CliRunner().invoke(black.main, ["--workers", "2", "--no-cache", name])
        assert done.exit_code == 123 and "8 files reformatted, 1 file failed" in done.output, done.output
        assert all(file.read_text() == 'x = {"a": 1}\n' * 50 for file in folder.glob("file*.py"))


def use_joblib():
    import joblib

    import memlift.joblib

    memlift.joblib.register()
    delayed = joblib.delayed
    with joblib.parallel_config("memlift", n_jobs=2):
        squares = [number**2 for number in range(300)]
        assert joblib.Parallel()(delayed(square)(number) for number in range(300)) == squares
        arrays = [np.full(200_000, number) for number in range(12)]
        negated = joblib.Parallel()(delayed(np.negative)(array) for array in arrays)
        assert all((found == -array).all() for found, array in zip(negated, arrays, strict=True))
        factor = 3
        assert joblib.Parallel()(delayed(lambda number: number * factor)(n) for n in range(10)) == [n * 3 for n in range(10)]
        for order in ("generator", "generator_unordered"):
            assert sorted(joblib.Parallel(return_as=order)(delayed(square)(n) for n in range(20))) == squares[:20]
        with pytest.raises(KeyError, match="7"):
            joblib.Parallel()(delayed(not_seven)(number) for number in range(20))
        with joblib.Parallel() as parallel:  # one pool for several calls
            assert [parallel(delayed(square)(n) for n in range(5)) for _ in range(3)] == [squares[:5]] * 3
        started = time.monotonic()
        with pytest.raises(multiprocessing.TimeoutError):
            joblib.Parallel(timeout=0.3)(delayed(time.sleep)(60) for _ in range(2))
        assert time.monotonic() - started < 30  # the workers were ended, not waited for


class Samples:
    """Map-style, with what a sample of PyTorch is made of. `fails` is the index of one that cannot be loaded."""

    def __init__(self, count, fails=-1):
        self.count, self.fails = count, fails

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        import torch

        if index == self.fails:
            raise KeyError(f"no sample {index}")
        image = torch.full((3, 100, 100), index, dtype=torch.bfloat16)
        return {"image": image, "label": index, "name": f"sample {index}", "boxes": np.full((2, 4), index)}


def stacked(samples):
    """One copy into private memory. `default_collate` makes batches in PyTorch's shared memory, for PyTorch's queue."""
    import torch

    return torch.stack([sample["image"] for sample in samples]), np.stack([sample["boxes"] for sample in samples])


def use_torch():
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Context(type(multiprocessing.get_context(sys.argv[2]))):
        """The context of a start method, with queues of ours."""

        def Queue(self, maxsize=0):
            made.append(memlift.Queue(maxsize, allow_pickle=True))
            return made[-1]

    class Counting(IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            return iter(range(worker.id, 20, worker.num_workers))

    made = []

    def loader(data, workers=2, **options):
        context = {"multiprocessing_context": Context()} if workers else {}
        return DataLoader(data, batch_size=5, num_workers=workers, timeout=60 if workers else 0, **context, **options)

    def same(ours, theirs):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.keys() == other.keys() and mine["name"] == other["name"]
            assert all(torch.equal(mine[key], other[key]) for key in ("image", "label", "boxes"))
            assert mine["image"].dtype == torch.bfloat16

    samples = Samples(23)
    several = loader(samples, persistent_workers=True, prefetch_factor=4)
    same([*several, *several], [*loader(samples, 0)] * 2)
    assert len(made) == 3, "a queue for each worker, and one for the results"
    del several  # forked workers of others would end it, too
    # Without PyTorch's shared memory nothing of a batch has a name, and what is taken stays.
    pairs = list(loader(samples, 1, collate_fn=stacked))
    for (images, boxes), plain in zip(pairs, loader(samples, 0, collate_fn=stacked), strict=True):
        assert torch.equal(images, plain[0]) and (boxes == plain[1]).all() and not images.is_shared()
        images += 1  # it is the taker's alone
    if sys.argv[2] == "fork":  # elsewhere each worker imports PyTorch first
        with pytest.raises(KeyError, match="no sample 7"):
            list(loader(Samples(23, fails=7)))
        # A class of a function cannot be pickled.
        assert sorted(int(number) for batch in loader(Counting()) for number in batch) == list(range(20))


LIBRARIES = ["tqdm", "dask", "scipy", "black", "joblib", "torch"]
# What is sent to a worker is the same under forkserver and spawn, and each worker imports the whole library under both.
ONCE = [("dask", "spawn"), ("scipy", "spawn"), ("black", "spawn"), ("joblib", "forkserver")]
RUNS = [
    pytest.param(library, method, marks=[pytest.mark.soak] if (library, method) in ONCE else [])
    for library in LIBRARIES
    for method in ("fork", "spawn", "forkserver")
]


@pytest.mark.parametrize(("library", "method"), RUNS)
def test_a_library_with_processes_of_ours(library, method):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    command = [sys.executable, __file__, library, method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr


if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    globals()[f"use_{sys.argv[1]}"]()
    print("done")
