# SPDX-License-Identifier: Apache-2.0 OR MIT
"""States in a file: what comes back is what was saved, whole, and no more than what differs is written.

Method  states are compared by type, dtype and bytes; bytes written by the kernel's count of this process (`/proc/self/io`); a child is killed while it
        saves; bits of the file are flipped
Not here torch's own classes where it is not installed
"""

import collections
import datetime
import enum
import fractions
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import typing

import numpy as np
import pytest

import memlift
from memlift import persist


def same(a, b):
    """Compares two states by type, dtype, shape and bytes."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert len(a) == len(b)
        for (key, one), (other_key, other) in zip(a.items(), b.items(), strict=True):
            same(key, other_key)
            same(one, other)
        if isinstance(a, collections.OrderedDict):
            same(vars(a), vars(b))
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    elif isinstance(a, np.generic):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    elif type(a).__module__ == "torch":
        import torch

        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        first, second = (one.detach().flatten().contiguous() for one in (a, b))
        assert not a.numel() or first.view(torch.uint8).equal(second.view(torch.uint8))
    elif isinstance(a, float):
        assert math.isnan(a) and math.isnan(b) or a == b and math.copysign(1, a) == math.copysign(1, b)
    else:
        assert a == b


def arrays():
    base = np.arange(2 * 3 * 700).reshape(2, 3, 700)
    record = np.dtype([("x", "f4"), ("y", ">i2", (3,))])
    return {
        "kinds": [base.astype(kind) for kind in ("?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "g", ">f8", "M8[s]", "m8[ns]", "S7", "U3")],
        "record": np.zeros(900, record),
        "shapes": [base[:, ::2, ::-3], base.T, np.asfortranarray(base), np.array(7.5), np.empty((3, 0, 2)), np.zeros(1), base[:0]],
        "small": np.arange(100, dtype="f4"),
    }


def plain():
    ordered = collections.OrderedDict(b=1, a=[2.5])
    ordered._metadata = collections.OrderedDict({"": {"version": 1}})
    return {
        "numbers": [None, True, False, 0, -1, 1 << 200, -0.0, math.inf, math.nan, 1 - 2j, np.float32(1.5), np.int64(-3), np.bool_(True)],
        "texts": ["", "ä\0", b"", b"\xff", bytearray(b"ab"), np.str_("x"), np.bytes_(b"y")],
        "sets": [set(), {1, "a", (2, 3)}, frozenset({b"x"})],
        "empty": [{}, [], (), ((),), collections.OrderedDict()],
        "ordered": ordered,
        1: ("a", ("tuple", 1)),
        (1, "b"): [{"x": ()}],
        np.int8(4): 2,
    }


def test_what_comes_back_is_what_was_saved(tmp_path):
    state = {"arrays": arrays(), "plain": plain()}
    path = tmp_path / "a.ckpt"
    saved = persist.save(path, state)
    assert saved.step == 0 and saved.bytes >= saved.written > 0
    loaded = persist.load(path)
    same(loaded, state)
    assert loaded["arrays"]["kinds"][3].flags.writeable
    for other in (7, None, "text", [], np.arange(5), np.zeros(5000)):
        persist.save(path, other)
        same(persist.load(path), other)


def test_numbers_of_other_libraries(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    state = {"w": np.arange(3000).astype(ml_dtypes.bfloat16), "b": np.ones(3, ml_dtypes.float8_e5m2)}
    persist.save(tmp_path / "a.ckpt", state)
    same(persist.load(tmp_path / "a.ckpt"), state)


class Colour(enum.IntEnum):
    RED = 1


class Point(typing.NamedTuple):
    x: int


def itself():
    inside = []
    inside.append({"again": inside})
    return inside


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), r"\['m'\]\[1\]: an object of type object "),
        (fractions.Fraction(1, 3), "fractions.Fraction"),
        (datetime.date(2020, 1, 1), "datetime.date"),
        (Colour.RED, "Colour"),
        (Point(1), "Point"),
        (collections.defaultdict(list), "defaultdict"),
        (collections.Counter(), "Counter"),
        (np.array([object()]), r"\['m'\]\[1\]: an array of dtype object"),
        (np.ma.masked_array([1, 2]), "MaskedArray"),
        (np.matrix([1]), "matrix"),
        (np.zeros(2, [("a", "i4")])[0], "numpy.void"),
        (np.longlong(1), "numpy.longlong"),
        (range(3), "range"),
        ("\ud800", "surrogate"),
        ({"\ud800": 1}, "a key in .*surrogate"),
        (lambda: 0, "function"),
        ({Point(1): 2}, "a key in .*Point"),
        (itself(), "contains itself"),
    ],
)
def test_what_would_change_is_refused_by_name(tmp_path, value, named):
    path = tmp_path / "a.ckpt"
    with pytest.raises(memlift.UnsupportedValueError, match=named):
        persist.save(path, {"m": [1, value]})
    assert not path.exists(), "a refusal leaves no file"
    persist.save(path, {"m": 5})
    with pytest.raises(memlift.UnsupportedValueError, match=named), persist.Checkpoint(path, keep=2) as checkpoint:
        checkpoint.save({"m": [1, value]})
    assert persist.load(path) == {"m": 5}


def test_nothing_is_pickled_or_unpickled(tmp_path, monkeypatch):
    import pickle

    def never(*_, **__):
        raise AssertionError("pickled")

    for name in ("dumps", "loads", "dump", "load"):
        monkeypatch.setattr(pickle, name, never)
    persist.save(tmp_path / "a.ckpt", {"a": arrays(), "p": plain()})
    persist.load(tmp_path / "a.ckpt")


def test_torch(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for _ in range(2):
        model(torch.rand(8, 300)).sum().backward()
        optimizer.step()
    base = torch.arange(84 * 20).reshape(20, 4, 7, 3)
    kinds = (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.complex64)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "kinds": [base.to(kind) for kind in kinds],
        "views": [base[::2, :, 1:], base.transpose(0, 2), base[:0], torch.tensor(3.0), torch.ones(2000).bfloat16()[1::2]],
        "grad": torch.ones(3, requires_grad=True),
        "float8": torch.ones(2000).to(torch.float8_e4m3fn),
    }
    path = tmp_path / "a.ckpt"
    persist.save(path, state)
    for copy in (True, False):
        loaded = persist.load(path, copy=copy)
        same(loaded, state)
    other = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 10))
    other.load_state_dict(loaded["model"])
    torch.optim.AdamW(other.parameters()).load_state_dict(loaded["optimizer"])
    same(other.state_dict(), state["model"])
    for value in (torch.nn.Parameter(torch.ones(3)), torch.ones(3).to_sparse(), torch.ones(2, requires_grad=True) * 2, torch.ones(3).to("meta"),
                  torch.Size([1]), torch.float32):  # fmt: skip
        with pytest.raises(memlift.UnsupportedValueError, match=type(value).__qualname__):
            persist.save(path, [value])


def test_what_has_one_memory_is_stored_once_and_has_one_again(tmp_path):
    weights = np.random.default_rng(1).random(50_000)
    saved = persist.save(tmp_path / "a.ckpt", {"in": weights, "out": weights, "half": weights[:25_000]})
    assert saved.written == weights.nbytes * 3 // 2
    loaded = persist.load(tmp_path / "a.ckpt")
    loaded["in"][7] = -1
    assert loaded["out"][7] == -1 and loaded["half"][7] == weights[7]


def write_bytes():
    """Bytes for which this process has caused writes to a disk so far."""
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def counted(work):
    before = write_bytes()
    work()
    return write_bytes() - before


def test_only_what_differs_is_written(tmp_path):
    chance = np.random.default_rng(7)
    state = {"frozen": chance.random((1000, 2000)), "table": chance.random((4000, 1024)), "bias": chance.random(300)}
    size = sum(array.nbytes for array in state.values())
    whole = {"numpy.savez": lambda path: np.savez(path, **state)}
    try:
        import torch

        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        whole["torch.save"] = lambda path: torch.save(tensors, path)
        from safetensors.torch import save_file

        whole["safetensors"] = lambda path: save_file(tensors, path)
    except ImportError:
        pass
    on_disk = counted(lambda: (tmp_path / "probe").write_bytes(bytes(1 << 20))) >= 1 << 20
    with persist.Checkpoint(tmp_path / "a.ckpt") as checkpoint:
        first = checkpoint.save(state)
        assert first == (0, size, size)
        state["table"][chance.integers(0, 4000, 40)] += 1
        results = []
        bytes_ours = counted(lambda: results.append(checkpoint.save(state)))
        assert results[0].written <= 40 * 3 * 4096, results
        bytes_same = counted(lambda: results.append(checkpoint.save(state)))
        assert results[1] == (2, size, 0)
        same(checkpoint.load(), state)
    written = {name: counted(lambda: save(tmp_path / f"{name}.npz")) for name, save in whole.items()}
    print(f"state {size} bytes, 40 of 4000 rows changed: written {bytes_ours}, again without a change {bytes_same}, beside", written)
    if on_disk:
        assert bytes_ours < 4 << 20 and bytes_same < 1 << 20, (bytes_ours, bytes_same)
        assert all(one >= size for one in written.values()), written


def test_steps_are_kept_and_removed_in_the_order_in_which_they_were_saved(tmp_path):
    path = tmp_path / "a.ckpt"
    with persist.Checkpoint(path, keep=3) as checkpoint:
        with pytest.raises(memlift.GoneError, match="no state"):
            checkpoint.load()
        assert checkpoint.steps() == []
        for step in (10, 20, 30, 40):
            assert checkpoint.save({"step": step, "w": np.full(5000, step)}, step=step).step == step
        assert checkpoint.steps() == [20, 30, 40]
        assert checkpoint.load(20)["w"][0] == 20
        with pytest.raises(memlift.GoneError, match="step 10; .*20, 30, 40"):
            checkpoint.load(10)
        checkpoint.save("back", step=30)
        assert checkpoint.steps() == [20, 40, 30] and checkpoint.load() == "back"
        assert checkpoint.save("next").step == 31
        assert "steps [40, 30, 31]" in repr(checkpoint)
    # Without `keep`, as many stay as before.
    assert persist.save(path, "later").step == 32
    with persist.Checkpoint(path, "r") as checkpoint:
        assert checkpoint.steps() == [30, 31, 32]
        with pytest.raises(memlift.ReadOnlyError):
            checkpoint.save(1)
    assert persist.load(path, 31) == "next"
    persist.save(path, "alone", keep=1)
    with persist.open(path) as pool:
        assert sorted(pool.names()) == ["checkpoint", "checkpoint numbers"], "no memory of a removed state is left"
    for wrong in (-1, True, 1.5, "7"):
        with pytest.raises(memlift.BadArgumentError, match="step="):
            persist.save(path, 0, wrong)
    for wrong in (0, True, "2"):
        with pytest.raises(memlift.BadArgumentError, match="keep="):
            persist.save(path, 0, keep=wrong)


def test_any_states_one_after_the_other(tmp_path):
    """Arrays change in any pages, grow, come and go: each state that is kept comes back as it was."""
    for seed in range(12):
        chance = random.Random(seed)
        path, keep, model, state = tmp_path / f"{seed}.ckpt", chance.randrange(1, 4), {}, {}
        checkpoint = persist.Checkpoint(path, keep=keep)
        for step in range(25):
            for name in chance.sample("abcd", chance.randrange(0, 4)):
                array = state.get(name)
                if array is None or chance.random() < 0.2:
                    state[name] = np.frombuffer(chance.randbytes(chance.choice([0, 900, 4096, 5000, 60_000, 3_000_007])), np.uint8).copy()
                elif len(array) and chance.random() < 0.8:
                    for _ in range(chance.choice([1, 2, 30, 400])):
                        at = chance.randrange(len(array))
                        array[at : at + chance.choice([1, 5, 4096, 9000])] ^= chance.randrange(1, 256)
                else:
                    del state[name]
            checkpoint.save(state, step=step)
            model[step] = {name: array.copy() for name, array in state.items()}
            if chance.random() < 0.3:
                checkpoint.close()
                checkpoint = persist.Checkpoint(path)
            for kept in checkpoint.steps():
                same(checkpoint.load(kept, copy=chance.random() < 0.5), model[kept])
            assert checkpoint.steps() == sorted(model)[-keep:]
        checkpoint.close()
        live = sum(array.nbytes for kept in sorted(model)[-keep:] for array in model[kept].values())
        with persist.open(path) as pool:
            stored = sum(pool.array(name).nbytes for name, kind in pool.names().items() if kind == "array")
        assert stored <= 2 * live + 4096, "old objects take at most as much as the arrays"


def test_views_of_the_file_are_no_copies(tmp_path):
    path = tmp_path / "a.ckpt"
    state = {"w": np.arange(100_000.0), "small": np.arange(3)}
    persist.save(path, state)
    loaded = persist.load(path, copy=False)
    same({name: array.copy() for name, array in loaded.items()}, state)
    view = loaded["w"]
    assert not view.flags.writeable and not view.flags.owndata and not loaded["small"].flags.writeable
    base = view
    while isinstance(base, np.ndarray):
        base = base.base
    assert "memlift pool memory" in repr(base)
    # The file is in use until the views are gone.
    with pytest.raises(memlift.PoolInUseError):
        persist.save(path, 1)
    del loaded, view, base
    with persist.Checkpoint(path) as checkpoint:
        view = checkpoint.load(copy=False)["w"]
        state["w"][5] = -1
        checkpoint.save(state)
        checkpoint.save({})
        assert view[5] == 5, "a view stays as it was, whatever is saved later"


def test_another_process_loads_while_this_one_has_the_file_open(tmp_path):
    path = tmp_path / "a.ckpt"
    with persist.Checkpoint(path, keep=2, readers=True) as checkpoint:
        checkpoint.save({"w": np.arange(9000)})
        child = "import sys; from memlift import persist; print(persist.load(sys.argv[1])['w'].sum())"
        done = subprocess.run([sys.executable, "-c", child, path], capture_output=True, text=True, timeout=100)
        assert done.stdout.strip() == str(np.arange(9000).sum()), done.stderr
    with persist.Checkpoint(path), pytest.raises(memlift.PoolInUseError):
        persist.load(path)


def test_other_files_stay_as_they_are(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, w=np.arange(1000))
    before = path.read_bytes()
    for work in (lambda: persist.save(path, 1), lambda: persist.load(path)):
        with pytest.raises(memlift.NotAPoolError):
            work()
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        persist.load(tmp_path / "none")
    persist.shelf(tmp_path / "shelf").close()
    with pytest.raises(memlift.GoneError, match="no state"):
        persist.load(tmp_path / "shelf")


def state_of(step):
    """Arrays of which some change whole, some in a few pages, some never."""
    table = np.zeros((600, 512))
    for earlier in range(step + 1):
        table[earlier * 37 % 600] = earlier
    return {"step": step, "all": np.full(60_000, step), "table": table, "frozen": np.arange(30_000), "small": np.full(20, step), "list": [step] * 9}


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from test_persist_checkpoint import persist, state_of

path, start = sys.argv[2], int(sys.argv[3])
checkpoint = persist.Checkpoint(path, keep=2)
for step in range(start, 10**9):
    checkpoint.save(state_of(step), step=step)
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""


def one_life(path, start, chance, patience):
    child = subprocess.Popen([sys.executable, "-c", CHILD, os.path.dirname(__file__), path, str(start)], stdout=subprocess.PIPE, text=True)
    last = int(child.stdout.readline())
    for _ in range(chance.randrange(4)):
        last = int(child.stdout.readline())
    try:
        child.wait(chance.random() * patience)
    except subprocess.TimeoutExpired:
        pass
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split("\n")
    child.wait()
    return max([last, *(int(line) for line in rest[:-1])])


def lives(path, count, chance):
    step = -1
    for _ in range(count):
        acknowledged = one_life(path, step + 1, chance, 0.02)
        step = persist.load(path)["step"]
        assert step >= acknowledged
        with persist.Checkpoint(path, "r") as checkpoint:
            assert checkpoint.steps() == [step - 1, step] if step else [0]
            for kept in checkpoint.steps():
                same(checkpoint.load(kept), state_of(kept))
    return step


@pytest.mark.parametrize("folder", [None, "/dev/shm"])
def test_a_killed_save_leaves_the_last_state_or_the_new_one(tmp_path, folder):
    with tempfile.TemporaryDirectory(dir=folder or tmp_path) as inside:
        assert lives(os.path.join(inside, "a.ckpt"), 8, random.Random(folder)) > 8


@pytest.mark.soak
def test_soak_killed_saves(tmp_path):
    lives(tmp_path / "a.ckpt", 200, random.Random())


def spoilt(path, at, bit):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("folder", [None, "/dev/shm"])
def test_a_flipped_bit_is_never_a_wrong_array(tmp_path, folder):
    """On a disk pages have checksums; elsewhere the state's own see what is in its arrays."""
    chance = random.Random(3)
    with tempfile.TemporaryDirectory(dir=folder or tmp_path) as inside:
        path = os.path.join(inside, "a.ckpt")
        state = {"w": np.arange(40_000.0), "v": np.frombuffer(chance.randbytes(70_000), np.uint8)}
        persist.save(path, {"w": state["w"] + (np.arange(40_000) == 7), "v": state["v"]})
        persist.save(path, state)
        with open(path, "rb") as file:
            whole = file.read()
        places = [whole.rindex(state["v"][at : at + 64].tobytes()) for at in (0, 30_000, 69_900)]
        places += [whole.rindex(state["w"][at : at + 64].tobytes()) for at in (0, 39_000)]
        for place in places:
            at, bit = place + chance.randrange(64), chance.randrange(8)
            spoilt(path, at, bit)
            for copy in (True, False):
                with pytest.raises(memlift.PoolDamagedError):
                    persist.load(path, copy=copy)
            spoilt(path, at, bit)
        refused = 0
        if folder is None:
            for at in (place for place in range(len(whole)) if whole[place] and chance.random() < 0.0005):
                bit = chance.randrange(8)
                spoilt(path, at, bit)
                try:
                    same(persist.load(path), state)
                except memlift.Error:
                    refused += 1
                spoilt(path, at, bit)
            assert refused > 10
        same(persist.load(path), state)


def test_a_save_after_damage_writes_what_is_damaged_anew(tmp_path):
    path = tmp_path / "a.ckpt"
    state = {"w": np.arange(40_000.0)}
    persist.save(path, state)
    spoilt(path, path.read_bytes().rindex(state["w"][20_000:20_010].tobytes()), 3)
    saved = persist.save(path, state)
    assert saved.written == state["w"].nbytes
    same(persist.load(path), state)


@pytest.mark.parametrize(
    "value",
    [
        1,
        (1, None, []),
        (1, None, [], {0: 1}),
        (1, ("array", 0, "<f8", (1,)), [], {}),
        (1, ("array", 0, "<f8", (2,)), [("p", b"12345678")], {}),
        (1, ("array", -1, "<f8", (1,)), [("p", b"12345678")], {}),
        (1, ("array", 0, "|O", (1,)), [("p", b"12345678")], {}),
        (1, ("array", 0, "<f8", [1]), [("p", b"12345678")], {}),
        (1, ("array", 0, "|u1", (5000,)), [("p", 5000, [0, 0, 5000])], {0: (5000, 0)}),
        (1, ("array", 0, "|u1", (5000,)), [("p", 5000, [0, 0, 5000])], {0: (4000, 0)}),
        (1, ("array", 0, "|u1", (5000,)), [("p", 5000, [0, 0, 1, 0, 1, 4999])], {0: (5000, 0)}),
        (1, ("array", 0, "|u1", (5000,)), [("p", 5000, [0, 0, 6000, 0, 0, -1000])], {0: (7000, 0)}),
        (1, ("ordered", [1], [], {}), [], {}),
        (1, ("ordered", [[]], [1], {}), [], {}),
        (1, ("ordered", [], [], []), [], {}),
        (1, ("torch",), [], {}),
        (1, (), [], {}),
        (1, ("code", "x"), [], {}),
        (1, {("list", 1): 2}, [], {}),
    ],
)
def test_what_a_file_says_is_checked(tmp_path, value):
    with persist.open(tmp_path / "a.ckpt") as pool:
        pool.dict("checkpoint")[0] = value
    with pytest.raises(memlift.PoolDamagedError):
        persist.load(tmp_path / "a.ckpt")


def test_a_state_of_a_newer_release_is_not_called_damaged(tmp_path):
    with persist.open(tmp_path / "a.ckpt") as pool:
        pool.dict("checkpoint")[0] = (2, "later")
    with pytest.raises(memlift.BadArgumentError, match="newer release"):
        persist.load(tmp_path / "a.ckpt")


def test_a_save_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.ckpt"
    with persist.Checkpoint(path, size_max="4M") as checkpoint:
        checkpoint.save({"w": np.zeros(100_000)})
        with pytest.raises(memlift.PoolFullError):
            checkpoint.save({"w": np.ones(1_000_000)})
        assert checkpoint.load()["w"].sum() == 0
        checkpoint.save({"w": np.full(100_000, 2)})
    assert persist.load(path)["w"].sum() == 200_000


def test_a_state_written_by_another_thread_while_it_is_saved_can_be_read(tmp_path):
    """Which of the values are there is not said, but the state is not damaged by it."""
    import threading

    state, stop = {"w": np.zeros(2_000_000)}, threading.Event()

    def change():
        while not stop.is_set():
            state["w"] += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with persist.Checkpoint(tmp_path / "a.ckpt") as checkpoint:
            for _ in range(5):
                checkpoint.save(state)
                assert checkpoint.load()["w"].shape == (2_000_000,)
    finally:
        stop.set()
        thread.join()


def test_a_closed_checkpoint_says_so(tmp_path):
    checkpoint = persist.Checkpoint(tmp_path / "a.ckpt")
    checkpoint.close()
    assert "(closed)" in repr(checkpoint)
    with pytest.raises(memlift.ClosedError):
        checkpoint.save(1)


def test_what_a_failed_or_killed_save_left_is_removed_by_the_next(tmp_path, monkeypatch):
    import memlift._checkpoint as module

    monkeypatch.setattr(module, "_BATCH", 1 << 16)
    path = tmp_path / "a.ckpt"
    state = {str(at): np.full(20_000, at) for at in range(6)}
    child = """
import os, sys
sys.path.insert(0, sys.argv[1])
import memlift._checkpoint as module
from test_persist_checkpoint import np, persist

module._BATCH = 1 << 16
checkpoint = persist.Checkpoint(sys.argv[2])
checkpoint.save("before")
store = module._Batch.store
def stop(batch):
    store(batch)
    if batch.following == 4:
        os.kill(os.getpid(), 9)
module._Batch.store = stop
checkpoint.save({str(at): np.full(20_000, at) for at in range(6)})
"""
    done = subprocess.run([sys.executable, "-c", child, os.path.dirname(__file__), path], capture_output=True, text=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert persist.load(path) == "before"

    def stored():
        with persist.open(path) as pool:
            return sum(kind == "array" for kind in pool.names().values())

    assert stored() in (3, 4), "what the killed save had stored, of which the last may not have been durable"
    persist.save(path, "after")
    assert stored() == 0 and persist.load(path) == "after"

    # Ctrl-C in the middle, and just when it is done.
    with persist.Checkpoint(path) as checkpoint:
        store = module._Batch.store

        def interrupted(batch):
            store(batch)
            if batch.following == 3:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(module._Batch, "store", interrupted)
            with pytest.raises(KeyboardInterrupt):
                checkpoint.save(state)
        assert checkpoint.load() == "after"
        end = persist._Transaction.__exit__

        def late(transaction, *how):
            end(transaction, *how)
            if transaction._durability == "sync":
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(persist._Transaction, "__exit__", late)
            with pytest.raises(KeyboardInterrupt):
                checkpoint.save(state)
        same(checkpoint.load(), state)
    assert stored() == 6
    same(persist.load(path), state)


def test_a_file_whose_first_save_failed_has_no_state(tmp_path):
    path = tmp_path / "a.ckpt"
    with persist.Checkpoint(path, size_max="1M") as checkpoint:
        with pytest.raises(memlift.PoolFullError):
            checkpoint.save({"a": np.arange(1 << 20)})
        for step in (None, 0):
            with pytest.raises(memlift.GoneError, match="no state was saved"):
                checkpoint.load(step)
        assert checkpoint.steps() == []
        checkpoint.save({"a": np.arange(1 << 10)})
    assert persist.load(path)["a"].size == 1 << 10
