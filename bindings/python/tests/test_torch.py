# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.torch`: batches, tensors and weights, beside what PyTorch itself gives for the same program.

Method   PyTorch is not among the pinned requirements: `make test-ml` installs it, and without it these tests are skipped
"""

import gc
import multiprocessing
import os
import time
import warnings

import numpy as np
import pytest

import memlift

torch = pytest.importorskip("torch")
memlift_torch = pytest.importorskip("memlift.torch")

FORK = multiprocessing.get_context("fork")


class Samples(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.full((3, 64, 64), index, dtype=torch.bfloat16)
        return {"image": image, "label": index, "name": f"sample {index}", "boxes": np.full((2, 4), index), "pair": (index, torch.tensor([index]))}


class Counted(torch.utils.data.IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return iter(range(worker.id, 20, worker.num_workers))


class Fails(Samples):
    def __getitem__(self, index):
        raise KeyError(f"no sample {index}")


def same(mine, theirs):
    if isinstance(mine, torch.Tensor):
        return type(theirs) is torch.Tensor and mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    if isinstance(mine, dict):
        return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, (list, tuple)):
        return type(mine) is type(theirs) and len(mine) == len(theirs) and all(map(same, mine, theirs))
    return type(mine) is type(theirs) and mine == theirs


def shared_files():
    return {name for name in os.listdir("/dev/shm") if name.startswith("torch")}


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_a_loader_gives_what_pytorchs_gives(method):
    given = {"multiprocessing_context": method} if method else {}
    ours = memlift_torch.DataLoader(Samples(23), 5, num_workers=2, persistent_workers=True, **given)
    theirs = list(torch.utils.data.DataLoader(Samples(23), batch_size=5))
    for _ in range(2):
        for mine, other in zip(ours, theirs, strict=True):
            assert same(mine, other), (mine, other)
            mine["image"] += 1  # it is ours
            assert not mine["image"].is_shared()


def test_every_argument_of_a_loader_works():
    plain = torch.utils.data.DataLoader(Samples(7), batch_size=None)
    for mine, other in zip(memlift_torch.DataLoader(Samples(7), None, num_workers=2), plain, strict=True):
        assert same(mine, other)
    own = memlift_torch.DataLoader(Samples(9), 3, num_workers=1, collate_fn=lambda batch: [sample["label"] for sample in batch])
    assert list(own) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    shuffled = memlift_torch.DataLoader(Samples(9), shuffle=True, num_workers=2, prefetch_factor=4, timeout=60, drop_last=True)
    assert sorted(int(batch["label"]) for batch in shuffled) == list(range(9))
    batches = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(9)), 4, False)
    assert [len(batch["name"]) for batch in memlift_torch.DataLoader(Samples(9), batch_sampler=batches, num_workers=2)] == [4, 4, 1]
    assert len(list(memlift_torch.DataLoader(Samples(9), 4))) == 3, "without workers"
    assert sorted(int(number) for batch in memlift_torch.DataLoader(Counted(), 5, num_workers=2) for number in batch) == list(range(20))
    with pytest.raises(KeyError, match="no sample"):
        list(memlift_torch.DataLoader(Fails(9), 4, num_workers=2))
    with pytest.raises(RuntimeError, match="sparse tensors are not currently supported"):
        memlift_torch.collate([torch.eye(3).to_sparse()] * 2)


def test_batches_leave_no_files_and_no_descriptors():
    loader = memlift_torch.DataLoader(Samples(200), 10, num_workers=2)
    kept = []
    before = len(os.listdir("/proc/self/fd"))
    for batch in loader:
        kept.append(batch["image"])
        assert not shared_files()
    # PyTorch's own costs a descriptor for each tensor that is kept.
    assert len(os.listdir("/proc/self/fd")) < before + len(kept)
    assert all((image == torch.arange(10 * number, 10 * number + 10).reshape(10, 1, 1, 1)).all() for number, image in enumerate(kept))


def test_a_killed_worker_is_an_error():
    loader = iter(memlift_torch.DataLoader(Samples(100_000), 2, num_workers=2))
    next(loader)
    for worker in loader._workers:
        worker.kill()
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for _ in range(100_000):
            next(loader)


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64,
]


def bits(tensor):
    return bytes(tensor.clone(memory_format=torch.contiguous_format).untyped_storage()) if tensor.numel() else b""


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_tensors_of_every_type_are_read_in_place(dtype):
    with memlift.Arena(bytes_max=16 << 20) as arena:
        plain = torch.arange(24).to(torch.float32).to(dtype).reshape(4, 6)
        for tensor in (plain, plain.t(), plain[1:3, ::2], plain[0, 0], plain[:0]):
            ref = arena.put(tensor)
            for out in (ref.get(writable=True), ref.get()):
                assert type(out) is torch.Tensor and out.dtype == dtype and out.shape == tensor.shape
                assert bits(out) == bits(tensor)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mine = arena.put(plain).get(writable=True)
            mine.zero_()


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.BatchNorm1d(500), torch.nn.ReLU(), torch.nn.Linear(500, 7, dtype=torch.float32))


def lies_in_an_arena(tensor):
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= tensor.data_ptr() < end:
                return "memlift" in line


def infers(ref, x, answers):
    torch.set_num_threads(1)
    module = model()
    for parameter in module.parameters():
        parameter.data.zero_()
    memlift_torch.load_state(module, ref)
    answers.put((module.eval()(x).detach().numpy(), all(map(lies_in_an_arena, module.parameters()))))


def test_weights_are_there_once_for_many_readers():
    torch.set_num_threads(1)
    with memlift.Arena(bytes_max=64 << 20) as arena:
        module = model().eval()
        x = torch.randn(5, 300)
        wanted = module(x).detach().numpy()
        ref = memlift_torch.put_state(arena, module)
        answers = FORK.Queue()
        readers = [FORK.Process(target=infers, args=(ref, x, answers)) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in readers:
            answer, in_place = answers.get(timeout=60)
            np.testing.assert_array_equal(answer, wanted)
            assert in_place
        for reader in readers:
            reader.join(60)
        trained = memlift_torch.load_state(fresh := model(), ref)
        assert not trained.missing_keys and not trained.unexpected_keys
        assert all(parameter.requires_grad for parameter in fresh.parameters())
        optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            fresh(x).square().sum().backward()
            optimizer.step()
        other = model().eval()
        memlift_torch.load_state(other, ref)
        np.testing.assert_array_equal(other(x).detach().numpy(), wanted, "what one trains the others do not see")
        with pytest.raises(RuntimeError, match="Missing key"):
            memlift_torch.load_state(torch.nn.Linear(3, 3), ref)
        with pytest.raises(memlift.UnsupportedTypeError, match="weight"):
            memlift_torch.put_state(arena, {"weight": torch.empty(3, device="meta")})


def takes(tensors, answers):
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    tensor, again = tensors.get(timeout=60)
    tensor += 1
    answers.put((tensor.sum().item(), again.sum().item()))


def test_torch_multiprocessing_through_an_arena():
    import torch.multiprocessing as mp

    with memlift.Arena(bytes_max=64 << 20) as arena:
        memlift_torch.reduce_through(arena)
        try:
            tensors, answers = mp.get_context("fork").Queue(), FORK.Queue()
            child = FORK.Process(target=takes, args=(tensors, answers))
            child.start()
            plain, shared = torch.ones(100_000), torch.zeros(5).share_memory_()
            tensors.put((plain, shared))
            assert answers.get(timeout=60) == (200_000.0, 0.0)
            child.join(60)
            assert plain.sum() == 100_000
            end = time.monotonic() + 20
            while arena.stats()["values"] and time.monotonic() < end:
                time.sleep(0.01)
            assert arena.stats()["values"] == 0, "it was received once"
            assert not shared_files()
        finally:
            memlift_torch.reduce_by_torch()
        gc.collect()
