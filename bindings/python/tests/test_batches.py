# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Dynamic batches.

Goal    each call gets its own answer or failure, whatever else is in its batch; no batch is larger, and no call waits longer, than was said
Method  a server in this process whose handlers note their batches
"""

import os
import threading
import time

import numpy as np
import pytest

import memlift
from memlift.ipc import Client, Server

LONG = 60.0


@pytest.fixture
def batches():
    return []


@pytest.fixture
def server(batches):
    with Server(f"pytest-batches-{os.getpid()}") as server:

        @server.batched("double", max_batch=8, max_delay=0.05)
        def double(inputs):
            batches.append(len(inputs))
            return [value * 2 for value in inputs]

        @server.batched("stack", max_batch=16, max_delay=0.05)
        def stack(inputs):
            batches.append(len(inputs))
            return np.stack(inputs) * 2

        @server.batched("picky", max_batch=8, max_delay=0.05)
        def picky(inputs):
            batches.append(len(inputs))
            if any(value < 0 for value in inputs):
                raise ValueError("below zero")
            return inputs

        @server.batched("all or none", max_batch=8, max_delay=0.2, one_by_one=False)
        def all_or_none(inputs):
            batches.append(len(inputs))
            raise ValueError("no luck today")

        @server.batched("mixed", max_batch=8, max_delay=0.05)
        def mixed(inputs):
            batches.append(len(inputs))
            return tuple({"error": ValueError("its own"), "object": object(), "none": None}.get(value, value) for value in inputs)

        @server.batched("wrong", max_batch=8, max_delay=0.0)
        def wrong(given):
            return {"short": [], "text": "x", "dict": {0: 1}, "none": None, "generator": iter([1])}[given[0]]

        @server.batched("async", max_batch=8, max_delay=0.05)
        async def later(inputs):
            batches.append(len(inputs))
            return [value + 1 for value in inputs]

        @server.batched("slow", max_batch=64, max_delay=0.0)
        def slow(inputs):
            batches.append(len(inputs))
            time.sleep(0.1)
            return inputs

        server.start()
        yield server


@pytest.fixture
def client(server):
    with Client(server.address, timeout=LONG) as client:
        yield client


def many(client, operation, inputs):
    """The answers or errors of calls that are made at once."""
    futures = [client.call_async(operation, value) for value in inputs]
    return [future.exception() or future.result() for future in futures]


def test_each_call_has_its_own_answer(client, batches):
    assert many(client, "double", range(50)) == [2 * i for i in range(50)]
    assert max(batches) == 8 and sum(batches) == 50 and len(batches) < 50


def test_rows_of_an_array_are_answers(client, batches):
    arrays = [np.full(10_000, i) for i in range(16)]
    for i, answer in enumerate(many(client, "stack", arrays)):
        assert answer.shape == (10_000,) and (answer == 2 * i).all()
    assert max(batches) > 1


def test_clients_share_batches(server, batches):
    begin, found = threading.Barrier(8), []

    def one(i):
        with Client(server.address, timeout=LONG) as client:
            begin.wait()
            found.append(client.call("double", i) == 2 * i)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8 and max(batches) > 1


def test_one_call_alone_waits_no_longer_than_was_said(client, batches):
    begun = time.monotonic()
    assert client.call("double", 4) == 8
    assert time.monotonic() - begun >= 0.05 and batches == [1]
    begun = time.monotonic()
    assert many(client, "double", range(8)) == [2 * i for i in range(8)]
    assert batches[-1] <= 8 and sum(batches) == 9


def test_what_arrives_while_a_batch_runs_is_the_next_batch(client, batches):
    assert many(client, "slow", range(40)) == list(range(40))
    assert len(batches) <= 4 and sum(batches) == 40


def test_an_exception_as_an_answer_fails_its_call_alone(client):
    answers = many(client, "mixed", ["a", "error", "object", "none", "b"])
    assert answers[0] == "a" and answers[3] is None and answers[4] == "b"
    assert isinstance(answers[1], memlift.RemoteError) and "ValueError: its own" in str(answers[1])
    assert isinstance(answers[2], memlift.RemoteError) and "cannot send an object of type object" in str(answers[2])


def test_a_batch_that_raises_is_tried_one_by_one(client, batches):
    answers = many(client, "picky", [1, 2, -3, 4, -5])
    assert [answers[at] for at in (0, 1, 3)] == [1, 2, 4]
    for at in (2, 4):
        assert isinstance(answers[at], memlift.RemoteError) and "below zero" in str(answers[at])
    assert batches[-1] == 1


def test_a_batch_may_fail_as_a_whole(client, batches):
    answers = many(client, "all or none", range(5))
    assert all(isinstance(answer, memlift.RemoteError) and "no luck today" in str(answer) for answer in answers)
    assert sum(batches) == 5


@pytest.mark.parametrize("what", ["short", "text", "dict", "none", "generator"])
def test_answers_that_are_none_are_said(client, what):
    with pytest.raises(memlift.RemoteError, match="returned"):
        client.call("wrong", what)


def test_an_input_that_cannot_be_read_fails_alone(server, client):
    from memlift._kind import Kind

    answers = many(client, "mixed", ["a", Kind("dataclass", ("nobody:Knows", {})), "b"])
    assert answers[0] == "a" and answers[2] == "b" and "nobody:Knows" in str(answers[1])
    with pytest.raises(memlift.RemoteError, match="one argument"):
        client.call("mixed", 1, 2)
    assert client.call("mixed", "c") == "c"


def test_handlers_may_be_coroutines(client, batches):
    assert many(client, "async", range(20)) == list(range(1, 21))
    assert max(batches) > 1


def test_limits_that_make_no_sense_are_refused(server):
    for limits in ({"max_batch": 0}, {"max_delay": -1}, {"max_delay": float("inf")}, {"max_delay": float("nan")}):
        with pytest.raises(ValueError):
            server.batched("never", **limits)(lambda inputs: inputs)
    with pytest.raises(memlift.Error, match="clashes"):
        server.batched("double")(lambda inputs: inputs)


def test_calls_of_clients_that_are_gone_are_left_out(server, client, batches):
    with Client(server.address, timeout=LONG) as gone:
        client.call_async("slow", 1)
        time.sleep(0.05)
        for i in range(10):
            gone.call_async("slow", i)
    assert client.call("slow", 2) == 2
    assert sum(batches) <= 2 + 10


def test_a_server_that_stops_ends_its_batches():
    server = Server(f"pytest-batches-stop-{os.getpid()}")
    began = threading.Event()

    @server.batched("slow", max_batch=1, max_delay=0)
    def slow(inputs):
        began.set()
        time.sleep(0.2)
        return inputs

    server.start()
    with Client(server.address, timeout=LONG) as client:
        futures = [client.call_async("slow", i) for i in range(50)]
        assert began.wait(LONG)
        server.stop()
        for future in futures[3:]:
            with pytest.raises(memlift.PeerDiedError):
                future.result()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("memlift-batch")]
