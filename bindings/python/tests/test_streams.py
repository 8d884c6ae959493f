# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Streaming answers: handlers that are generators, and clients that iterate.

Goal    every item arrives once, in order and in type; a generator is never further ahead than its consumer allows; it is closed when its
        consumer stops, dies or closes; the death of either side ends the iteration in time
Method  servers in this process where the test looks into their generators, and in others that are killed
"""

import asyncio
import contextlib
import functools
import gc
import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

import memlift
from memlift.ipc import AsyncClient, Client, Server

SHORT, LONG = 0.2, 60.0
spawn = multiprocessing.get_context("spawn")


class Watched:
    """Generators that say what became of them."""

    def __init__(self):
        self.made, self.closed, self.threads = [], threading.Event(), set()

    def count(self, last):
        try:
            for i in range(last):
                self.made.append(i)
                self.threads.add(threading.get_ident())
                yield i
        finally:
            self.closed.set()


@pytest.fixture
def watched():
    return Watched()


@pytest.fixture
def server(watched):
    with Server(f"pytest-streams-{os.getpid()}") as server:
        server.register("count", watched.count)
        server.register("echo", lambda value: value)

        @server.handler("items")
        def items(*values, reverse=False):
            yield from reversed(values) if reverse else values

        @server.handler("fails")
        def fails(count):
            yield from range(count)
            raise ValueError("no luck today")

        @server.handler("slow")
        def slow(seconds, count):
            for i in range(count):
                time.sleep(seconds)
                yield i

        @server.handler("arrays")
        def arrays(count, size):
            for i in range(count):
                yield np.full(size, i)

        @server.handler("nonsense")
        def nonsense(_):
            try:
                yield 1
                yield object()
            finally:
                watched.closed.set()

        server.start()
        yield server


class OnALoop:
    """An AsyncClient whose `stream` is an ordinary iterator."""

    def __init__(self, address, **options):
        self.loop = asyncio.new_event_loop()
        self.client = AsyncClient(address, **options)
        self.loop.run_until_complete(self.client.connect())

    def stream(self, *arguments, **named):
        items = self.client.iterate(*arguments, **named)
        try:
            while True:
                try:
                    item = self.loop.run_until_complete(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.loop.run_until_complete(items.aclose())

    def call(self, *arguments, **named):
        return self.loop.run_until_complete(self.client.call(*arguments, **named))

    def stats(self):
        return self.client.stats()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


@pytest.fixture(params=[Client, OnALoop], ids=["sync", "loop"])
def client(request, server):
    with request.param(server.address, timeout=LONG) as client:
        yield client


@pytest.mark.parametrize("ahead", [0, 1, 2, 7])
def test_items_arrive_once_and_in_order(client, ahead):
    assert list(client.stream("count", 100, ahead=ahead)) == list(range(100))
    assert list(client.stream("count", 0, ahead=ahead)) == []
    assert list(client.stream("items", 1, ahead=ahead)) == [1]


def test_items_arrive_in_type(client):
    values = (None, b"bytes", "text", [1, (2,)], np.float32(3), {"a": {4}})
    found = list(client.stream("items", *values))
    assert found == list(values) and [type(value) for value in found] == [type(value) for value in values]
    assert list(client.stream("items", 1, 2, reverse=True)) == [2, 1]


def test_arrays_are_views_and_their_memory_comes_back(client):
    for size in (10, 100_000):
        kept = []
        for i, array in enumerate(client.stream("arrays", 40, size)):
            assert (array == i).all() and not array.flags.writeable
            kept = [*kept[-3:], array]
        assert [array[0] for array in kept] == [36, 37, 38, 39]
    assert client.stats()["response_pool_bytes"] < 40 * 800_000


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_generator_waits_for_its_consumer(client, watched, ahead):
    items = client.stream("count", 1000, ahead=ahead)
    for wanted in range(20):
        assert next(items) == wanted
        time.sleep(0.01)
        assert len(watched.made) <= wanted + 1 + ahead
    assert not watched.closed.is_set()
    items.close()
    assert watched.closed.wait(LONG)


@pytest.mark.parametrize("way", ["break", "close", "drop", "raise"])
def test_a_consumer_that_stops_ends_the_generator(client, watched, way):
    items = client.stream("count", 1_000_000)
    with contextlib.suppress(ZeroDivisionError):
        for i in items:
            if i == 5:
                if way == "raise":
                    1 / 0
                break
    if way == "close":
        items.close()
    del items
    gc.collect()
    assert watched.closed.wait(LONG) and len(watched.made) < 20
    assert client.call("echo", 1) == 1


def test_what_a_generator_raises_ends_the_iteration(client):
    found = []
    with pytest.raises(memlift.RemoteError, match="no luck today") as error:
        for item in client.stream("fails", 3, ahead=5):
            found.append(item)
    assert found == [0, 1, 2] and "in fails" in str(error.value)
    assert client.call("echo", 1) == 1


def test_an_item_that_cannot_be_sent_ends_the_iteration(client, watched):
    found = []
    with pytest.raises(memlift.RemoteError, match="cannot send an object of type object"):
        for item in client.stream("nonsense", None):
            found.append(item)
    assert found == [1] and watched.closed.wait(LONG)


def test_arguments_that_do_not_fit_are_said(client):
    with pytest.raises(memlift.UnsupportedTypeError):
        list(client.stream("items", object()))
    with pytest.raises(memlift.RemoteError, match="positional argument"):
        list(client.stream("fails"))
    with pytest.raises(memlift.UnknownOperationError, match="count"):
        list(client.stream("echo", 1))
    with pytest.raises(memlift.UnknownOperationError, match="nothing"):
        list(client.stream("nothing"))
    with pytest.raises(memlift.RemoteError, match="client.stream"):
        client.call("count", 1)
    with pytest.raises(ValueError, match="0 or more"):
        client.stream("count", 1, ahead=-1)
        list(client.stream("count", 1, ahead=-1))


def test_the_librarys_own_operations_are_not_listed(client):
    with pytest.raises(memlift.UnknownOperationError) as error:
        client.call("nothing")
    assert "echo" in str(error.value) and "memlift." not in str(error.value)


def test_a_time_limit_is_that_of_each_item(client):
    # Ten items of which each is in time, and all together are not.
    assert list(client.stream("slow", SHORT / 2, 10, timeout=SHORT * 4)) == list(range(10))
    with pytest.raises(memlift.DeadlineExceededError):
        list(client.stream("slow", 3.0, 3, timeout=SHORT))


def test_a_slow_consumer_is_not_late(client):
    for i, item in enumerate(client.stream("count", 4, timeout=SHORT)):
        time.sleep(SHORT * 1.5)
        assert item == i


def test_many_streams_at_once(client):
    streams = [iter(client.stream("count", 50)) for _ in range(20)]
    for wanted in range(50):
        assert [next(stream) for stream in streams] == [wanted] * 20
    for stream in streams:
        with pytest.raises(StopIteration):
            next(stream)


def test_streams_of_many_threads(server):
    found = []

    def iterate():
        with Client(server.address, timeout=LONG) as client:
            for _ in range(5):
                found.append(list(client.stream("count", 40)) == list(range(40)))

    threads = [threading.Thread(target=iterate) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 30


def test_streams_are_numbered_per_session_and_limited(server):
    with Client(server.address, timeout=LONG) as one, Client(server.address, timeout=LONG) as other:
        first = one.stream("count", 10)
        assert next(first) == 0
        # The number of another session's stream is nobody's here.
        with pytest.raises(memlift.RemoteError, match="no such stream"):
            other.call("memlift.stream.next", (first._number, 1))
        other.call("memlift.stream.close", (first._number, 0))
        assert list(first) == list(range(1, 10))
        held = [one.stream("count", 10) for _ in range(256)]
        assert [next(stream) for stream in held] == [0] * 256
        with pytest.raises(memlift.RemoteError, match="256 streams are open"):
            next(one.stream("count", 10))
        for stream in held:
            stream.close()
        assert list(one.stream("count", 3)) == [0, 1, 2]


@pytest.mark.parametrize("operation", ["memlift.stream.open", "memlift.stream.next", "memlift.stream.close"])
@pytest.mark.parametrize("lie", [None, 1, (1,), ("a", 1), (1, "a"), (1, 2, 3), (True, 1), [1, 2], {}, b""], ids=repr)
def test_lies_are_refused(client, operation, lie):
    with pytest.raises((memlift.RemoteError, memlift.UnknownOperationError)):
        client.call(operation, lie)
    assert list(client.stream("count", 3)) == [0, 1, 2]


def test_a_close_that_comes_before_its_open_is_remembered(server, watched):
    from memlift._values import arguments

    with Client(server.address, timeout=LONG) as client:
        client.call("memlift.stream.close", (123_456, 0))
        with pytest.raises(memlift.Error):
            client.call("memlift.stream.open", arguments((123_456, "count", 10), {}))
        assert watched.made == []


def test_methods_partials_and_objects_may_be_generators(server):
    class Counter:
        def __call__(self, last):
            yield from range(last)

        def half(self, last):
            yield from range(last // 2)

    server.register("object", Counter())
    server.register("method", Counter().half)
    server.register("partial", functools.partial(Counter().half, 8))
    with Client(server.address, timeout=LONG) as client:
        assert list(client.stream("object", 3)) == [0, 1, 2]
        assert list(client.stream("method", 4)) == [0, 1]
        assert list(client.stream("partial")) == [0, 1, 2, 3]


def test_a_closed_client_ends_its_generators(server, watched):
    client = Client(server.address, timeout=LONG)
    stream = client.stream("count", 1000)
    assert next(stream) == 0
    client.close()
    with pytest.raises(memlift.ClosedError):
        list(stream)
    assert watched.closed.wait(LONG)


def test_a_server_that_stops_closes_its_generators(watched):
    with Server(f"pytest-streams-stop-{os.getpid()}") as server:
        server.register("count", watched.count)
        server.start()
        client = Client(server.address, timeout=LONG)
        stream = client.stream("count", 1000)
        assert next(stream) == 0
    assert watched.closed.is_set()
    with pytest.raises(memlift.PeerDiedError):
        list(stream)
    client.close()


def test_a_server_that_nobody_has_any_more_frees_its_address(watched):
    address = f"pytest-streams-free-{os.getpid()}"
    server = Server(address)
    server.register("count", watched.count)
    del server
    Server(address).stop()


def consume(address, ready):
    with Client(address, timeout=LONG) as client:
        for _ in client.stream("count", 1_000_000):
            ready.set()
            time.sleep(0.001)


def test_a_consumer_that_dies_ends_the_generator(server, watched):
    ready = spawn.Event()
    process = spawn.Process(target=consume, args=(server.address, ready))
    process.start()
    assert ready.wait(LONG) and not watched.closed.is_set()
    process.kill()
    process.join()
    assert watched.closed.wait(1.0)


def produce(address, ready):
    with Server(address) as server:

        @server.handler("forever")
        def forever():
            i = 0
            while True:
                yield i
                i += 1
                if i == 20:
                    time.sleep(LONG)

        server.start()
        ready.set()
        time.sleep(LONG)


@pytest.mark.parametrize("kind", [Client, OnALoop], ids=["sync", "loop"])
@pytest.mark.parametrize("after", [1, 19, 20])
def test_a_server_that_dies_ends_the_iteration(kind, after):
    address = f"pytest-streams-die-{os.getpid()}-{time.monotonic_ns()}"
    ready = spawn.Event()
    process = spawn.Process(target=produce, args=(address, ready))
    process.start()
    assert ready.wait(LONG)
    with kind(address, timeout=LONG) as client:
        found = 0
        with pytest.raises(memlift.PeerDiedError):
            for item in client.stream("forever"):
                found += 1
                if found == after:
                    threading.Timer(SHORT, process.kill).start()
                if found > after:
                    time.sleep(0.05)
        assert found >= after
    process.join()


def test_no_other_session_takes_a_streams_place():
    address = f"pytest-streams-again-{os.getpid()}"
    watched = Watched()

    def serve():
        server = Server(address)
        server.register("count", watched.count)
        server.register("echo", lambda value: value)
        server.start()
        return server

    server = serve()
    with Client(address, timeout=LONG, idempotent=True) as client:
        stream = client.stream("count", 1000)
        assert next(stream) == 0
        server.stop()
        del server
        again = serve()
        assert client.call("echo", 1) == 1
        with pytest.raises(memlift.PeerDiedError):
            list(stream)
        assert list(client.stream("count", 3)) == [0, 1, 2]
        again.stop()
