# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What can be sent, what comes back, and how long it lives.

Goal    the promises of the Python face: bytes in, bytes out; arrays in, read-only views out; no copy of a loan
Method  a real server process; sizes and layouts around the edges
"""

import array
import asyncio
import gc
import pathlib
import threading
import time

import numpy as np
import pytest
from conftest import frees_at_once

import memlift


class Raw(bytes):
    pass


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4095, 4096, 4097, 1_000_003])
def test_bytes_come_back_as_bytes(client, size):
    data = bytes(i * 7 % 256 for i in range(size))
    answer = client.call("echo", data)
    assert type(answer) is bytes and answer == data
    for sent in (bytearray(data), memoryview(data), Raw(data)):
        with pytest.warns(DeprecationWarning, match="arrives as bytes") as warned:
            answer = client.call("echo", sent)
        assert type(answer) is bytes and answer == data and warned[0].filename == __file__


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
)
def test_arrays_keep_type_and_values(client, dtype):
    array = (np.arange(60).reshape(3, 4, 5) % 2).astype(dtype)
    answer = client.call("echo", array)
    assert answer.dtype == array.dtype and answer.shape == array.shape
    np.testing.assert_array_equal(answer, array)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2,) * 8])
def test_shapes(client, shape):
    array = np.ones(shape, np.float32)
    answer = client.call("echo", array)
    assert answer.shape == shape
    np.testing.assert_array_equal(answer, array)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[:, ::3, 1:],
        lambda a: np.asfortranarray(a),
        lambda a: a[..., ::-2],
        lambda a: np.broadcast_to(a[0], a.shape),
        lambda a: a.transpose(1, 0, 2)[::2],
    ],
)
def test_any_memory_layout(client, view):
    array = view(np.arange(7 * 11 * 13, dtype=np.int32).reshape(7, 11, 13))
    np.testing.assert_array_equal(client.call("echo", array), array)


def test_nothing_and_objects_that_numpy_understands(client):
    assert client.call("echo") is None

    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.arange(5.0)

    with pytest.warns(DeprecationWarning, match="Column arrives as a numpy array"):
        np.testing.assert_array_equal(client.call("double", Column()), np.arange(5.0) * 2)
    with pytest.warns(DeprecationWarning, match="array.array arrives as a numpy array"):
        np.testing.assert_array_equal(client.call("double", array.array("d", [1.0])), [2.0])


@pytest.mark.parametrize(
    "bad",
    [np.array([object()]), np.zeros(2, [("a", "O")]), object(), range(3), [1, object()], {"a": lambda: 0}],
    ids=repr,
)
def test_what_cannot_be_sent_is_refused_before_it_is(client, bad):
    with pytest.raises(memlift.UnsupportedTypeError) as refused:
        client.call("echo", bad)
    assert isinstance(refused.value, TypeError) and "cannot send" in str(refused.value)
    assert client.call("echo", b"still here") == b"still here"


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3], "text", {"a": 1, "b": [None, (1.5, 2j)]}, 1.5, 7, True, {1, 2}, np.array(["text"]), np.array([1], ">i4"),
        np.array([1], np.longdouble), np.array(["2026-01-01"], "M8[D]"), np.zeros(3, [("a", "i4")]), np.zeros((1,) * 9),
    ],
    ids=repr,
)  # fmt: skip
def test_other_values_come_back_as_they_are(client, value):
    answer = client.call("echo", value)
    assert type(answer) is type(value)
    np.testing.assert_array_equal(answer, value)
    if isinstance(value, np.ndarray):
        assert answer.dtype == value.dtype and answer.shape == value.shape
    assert client.call("kind", value) == type(value).__name__


def test_arrays_inside_of_values_are_views(client):
    sent = {"x": np.arange(100_000.0), "y": [np.ones((3, 3), "f4"), b"z" * 10_000], "n": 3}
    answer = client.call("echo", sent)
    assert not answer["x"].flags.writeable and not answer["x"].flags.owndata
    np.testing.assert_array_equal(answer["x"], sent["x"])
    np.testing.assert_array_equal(answer["y"][0], sent["y"][0])
    assert answer["y"][1] == sent["y"][1] and answer["n"] == 3
    part = answer["x"][5:]
    del answer
    client.call("echo", {"x": np.zeros(100_000)})
    np.testing.assert_array_equal(part, sent["x"][5:])


def test_an_answer_into_memory_of_the_callers(client):
    out = np.empty(50_000)
    assert client.call("double", np.ones(50_000), out=out) is out and (out == 2).all()
    for wrong in (np.empty(49_999), np.empty(50_000, "f4"), np.empty((50_000, 1))):
        with pytest.raises(ValueError, match="make out like it"):
            client.call("double", np.ones(50_000), out=wrong)
    buffer = bytearray(10)
    assert client.call("echo", b"abc", out=buffer) == 3 and buffer == b"abc" + bytes(7)
    with pytest.raises(ValueError, match="make out longer"):
        client.call("echo", bytes(11), out=buffer)
    with pytest.raises(TypeError, match="bytes and arrays"):
        client.call("echo", "text", out=buffer)
    future = client.call_async("double", np.ones(50_000))
    with pytest.raises(ValueError, match="make out like it"):
        future.result(out=np.empty(3))
    out[:] = 0
    assert future.result(out=out) is out and (out == 2).all()
    with client.pipeline() as pipeline:
        job = pipeline.submit("echo", b"abcd")
        assert pipeline.next(out=buffer) == (job, 4) and buffer[:4] == b"abcd"


def test_pickles_need_both_sides(start, client):
    with pytest.raises(memlift.UnsupportedTypeError, match="allow_pickle=True"):
        client.call("kind", range(3))
    with memlift.ipc.Client(client.address, allow_pickle=True) as allowing:
        with pytest.raises(memlift.RemoteError, match="may run any code"):
            allowing.call("kind", range(3))
    with memlift.ipc.Client(start(allow_pickle=True).address, allow_pickle=True) as both:
        assert both.call("kind", range(3)) == "range"
        assert both.call("echo", {"r": range(3)}) == {"r": range(3)}


def test_answers_are_read_only_and_outlive_everything(start):
    server = start()
    client = memlift.ipc.Client(server.address)
    answer = client.call("double", np.arange(100_000.0))
    assert not answer.flags.writeable
    with pytest.raises(ValueError):
        answer[0] = 1
    part = answer[50_000:]
    client.close()
    del client, answer
    server.kill()
    gc.collect()
    np.testing.assert_array_equal(part, np.arange(50_000, 100_000) * 2.0)


def test_an_answer_is_not_overwritten_while_it_is_viewed(client):
    arrays = [np.full(50_000, i, np.int64) for i in range(40)]
    answers = [client.call("double", array) for array in arrays]
    for array, answer in zip(arrays, answers):
        np.testing.assert_array_equal(answer, array * 2)


def test_memory_comes_back_with_the_last_view(start):
    client = memlift.ipc.Client(start().address)
    sizes = set()
    for round in range(120):
        answer = client.call("double", np.full(200_000, round, np.float64))
        assert answer[0] == round * 2
        if round > 20:
            sizes.add(client.stats()["response_pool_bytes"])
    assert len(sizes) == 1
    assert client.stats()["request_used_bytes"] == 0


def test_a_loan_is_sent_in_place(client):
    loan = client.loan((1000, 30), "float32")
    assert loan.flags.writeable and loan.shape == (1000, 30) and loan.dtype == np.float32
    used = client.stats()["request_used_bytes"]
    for round in range(3):
        loan[:] = round
        np.testing.assert_array_equal(client.call("double", loan), np.full((1000, 30), round * 2.0))
        np.testing.assert_array_equal(client.call("double", loan[10:20]), np.full((10, 30), round * 2.0))
        np.testing.assert_array_equal(client.call("double", loan.T), np.full((30, 1000), round * 2.0))
        assert client.stats()["request_used_bytes"] == used
    del loan
    assert client.stats()["request_used_bytes"] == 0


@pytest.mark.parametrize("shape, dtype", [((3, -1), "f4"), ("ab", "f4"), (3, "O"), (3, ">f4"), (3, "M8[s]")])
def test_loans_that_cannot_be(client, shape, dtype):
    with pytest.raises((TypeError, ValueError)):
        client.loan(shape, dtype)


@frees_at_once
def test_a_server_may_keep_what_it_was_sent(start):
    client = memlift.ipc.Client(start().address)
    for i in range(8):
        client.call("keep", np.full(40_000, i, np.int64))
    np.testing.assert_array_equal(client.call("kept"), np.arange(8) * 40_000)
    assert client.stats()["request_used_bytes"] == 8 * 320_000
    client.call("forget")
    client.call("forget")
    assert client.stats()["request_used_bytes"] == 0


def test_async(client):
    futures = [client.call_async("double", np.full(1000, i)) for i in range(30)]
    for i, future in reversed(list(enumerate(futures))):
        assert future.result()[0] == i * 2
        assert future.done() and future.exception() is None
        assert future.result()[0] == i * 2, "an answer can be asked for again"
    failing = client.call_async("fail")
    assert isinstance(failing.exception(), memlift.RemoteError)
    with pytest.raises(memlift.RemoteError):
        failing.result()


def test_a_future_can_be_asked_again_after_a_timeout(client):
    future = client.call_async("sleep", np.array([0.3]))
    with pytest.raises(memlift.DeadlineExceededError):
        future.result(timeout=0.02)
    assert not future.done()
    assert future.result()[0] == 0.3


def test_pipeline_gives_every_answer_once(client):
    with client.pipeline(depth=4) as pipe:
        jobs = {pipe.submit("double", np.full(10_000, i)): i for i in range(25)}
        answers = dict(pipe.results())
    assert set(answers) == set(jobs)
    for job, i in jobs.items():
        assert (answers[job] == i * 2).all()


def test_pipeline_answers_come_in_any_order(client):
    for _ in range(3):
        client.call("sleep", np.array([0.005]))
    with client.pipeline(depth=2) as pipe:
        slow = pipe.submit("sleep", np.array([0.4]))
        fast = pipe.submit("sleep", np.array([0.001]))
        assert [job for job, _ in pipe.results()] == [fast, slow]


def test_a_failed_call_in_a_pipeline_says_which(client):
    with client.pipeline() as pipe:
        good = pipe.submit("echo", b"x")
        bad = pipe.submit("fail")
        seen = []
        for _ in range(2):
            try:
                seen.append(pipe.next()[0])
            except memlift.RemoteError as error:
                assert error.job == bad
        assert seen == [good] and pipe.next() is None


def test_the_gil_is_free_while_a_call_waits(client):
    done = threading.Event()
    turns = 0

    def count():
        nonlocal turns
        while not done.is_set():
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = turns
    client.call("sleep", np.array([0.3]))
    assert turns - before > 1000
    done.set()
    thread.join()


def test_threads_share_a_client(client):
    failures = []

    def work(seed):
        for i in range(100):
            array = np.full(1 + i * 10, seed * 1000 + i)
            if not (client.call("double", array) == array * 2).all():
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


def test_a_server_serves_while_a_long_operation_runs(shared_server, client):
    with memlift.ipc.Client(shared_server.address) as other:
        slow = other.call_async("sleep", np.array([3.0]))
        for _ in range(20):
            client.call("echo", b"x")
        assert not slow.done()
        slow.result()


def test_large_messages_grow_the_pools(start):
    client = memlift.ipc.Client(start().address, pool_bytes=1 << 20, response_pool_bytes=1 << 20)
    array = np.arange(6_000_000, dtype=np.uint64)
    np.testing.assert_array_equal(client.call("echo", array), array)
    assert len(client.call("zeros", np.array([90_000_000]))) == 90_000_000


def test_addresses_are_names_or_paths_of_any_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def ask(address):
        async with memlift.ipc.AsyncClient(address, timeout=60) as client:
            return await client.call("echo", 1)

    for address, where in (
        (tmp_path / "socket", tmp_path / "socket"), (pathlib.Path("bare"), tmp_path / "bare"), (str(tmp_path / "text"), tmp_path / "text"),
        (pathlib.PurePosixPath("./below/../dotted"), tmp_path / "dotted"),
    ):  # fmt: skip
        (tmp_path / "below").mkdir(exist_ok=True)
        with memlift.ipc.Server(address) as server:
            server.register("echo", lambda value: value)
            server.start()
            assert where.is_socket()
            with memlift.ipc.Client(address, timeout=60) as client:
                assert client.call("echo", 1) == 1
            assert asyncio.run(ask(address)) == 1
    for wrong in (b"bytes", 7, None):
        with pytest.raises(TypeError, match="a str or a path"):
            memlift.ipc.Client(wrong)
        with pytest.raises(TypeError, match="a str or a path"):
            memlift.ipc.Server(wrong)
