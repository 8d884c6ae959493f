# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Whatever is opened, fails, is killed or is dropped leaves no descriptor, mapping, thread or memory behind.

Goal     descriptors, mappings and threads do not grow with the number of rounds, neither here nor in the server
Method   each round opens and ends something, often with an exception whose traceback refers back to the object that raised it. After a
         collection the counts are those from before the rounds, at the second try at the latest; what ends in another thread or process is
         waited for
"""

import asyncio
import gc
import itertools
import multiprocessing
import os
import time

import numpy as np
import pytest

import memlift
from conftest import Process

LONG, WAIT = 60, 20
MORE = 4
"""Times as many rounds are made if the first ones have left something."""
QUICK, SLOW = 6, 2
"""Rounds of what takes milliseconds, and of what starts processes."""
SOAK_QUICK, SOAK_SLOW = 1000, 100
GROWN_BYTES = 16 << 20
"""Memory of this process that the long test may take: allocators keep some."""

fast = multiprocessing.get_context("forkserver")
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported():
    fast.set_forkserver_preload(["numpy", "memlift", "conftest", __name__])


def counts(pid):
    """Descriptors, mappings and threads of a process."""
    with open(f"/proc/{pid}/maps") as maps:
        return len(os.listdir(f"/proc/{pid}/fd")), sum(1 for _ in maps), len(os.listdir(f"/proc/{pid}/task"))


def anonymous_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def address():
    return f"pytest-leaks-{os.getpid()}-{next(_numbers)}"


def end(process, pipe):
    process.kill()
    process.join()
    process.close()
    pipe.close()


class Shared:
    """What the rounds call: a server in another process, and one here."""

    def __init__(self, address):
        self.address = address
        self.here = memlift.ipc.Server(f"{address}-here", handlers=2)
        self.here.register("echo", lambda value: value)
        self.here.register("sleep", lambda seconds: time.sleep(float(seconds[0])))


@pytest.fixture(scope="module")
def shared(shared_server):
    shared = Shared(shared_server.address)
    with shared.here:
        shared.here.start()
        yield shared


# Rounds. Each keeps the exception as a local, as a program does that looks at it later: then its traceback, the frame and the objects of
# the frame are a circle.


def a_client(shared):
    with memlift.ipc.Client(shared.address) as client:
        client.call("echo", np.ones(5000))


def a_client_that_is_not_closed(shared):
    memlift.ipc.Client(shared.address).call("echo", np.ones(100_000))


def a_call_that_fails(shared):
    with memlift.ipc.Client(shared.address) as client:
        try:
            client.call("fail", b"")
        except memlift.RemoteError as error:
            _kept = error


def a_future_that_fails(shared):
    client = memlift.ipc.Client(shared.address)
    future = client.call_async("fail", b"")
    try:
        future.result()
    except memlift.RemoteError as error:
        _kept = error


def a_pipeline_that_fails(shared):
    with memlift.ipc.Client(shared.address) as client, client.pipeline(4) as pipeline:
        pipeline.submit("fail", b"")
        try:
            pipeline.next()
        except memlift.RemoteError as error:
            _kept = error


def an_awaited_call_that_fails(shared):
    async def main():
        async with memlift.ipc.AsyncClient(shared.address) as client:
            try:
                await client.call("fail", np.ones(1000))
            except memlift.RemoteError as error:
                _kept = error

    asyncio.run(main())


def an_async_client_that_is_not_closed(shared):
    async def main():
        client = await memlift.ipc.AsyncClient(shared.address).connect()
        try:
            await client.call("fail", b"")
        except memlift.RemoteError as error:
            _kept = error

    asyncio.run(main())


def an_awaited_call_that_is_cancelled(shared):
    async def main():
        async with memlift.ipc.AsyncClient(shared.address) as client:
            call = asyncio.ensure_future(client.call("sleep", np.array([0.001]), out=np.zeros(1)))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await client.call("echo", b"")

    asyncio.run(main())


def streams_that_are_left(shared):
    sizes = np.array([1000] * 100)

    async def main():
        async with memlift.ipc.AsyncClient(shared.address) as client:
            async for _ in client.iterate("items", sizes):
                break

    with memlift.ipc.Client(shared.address) as client:
        for _ in client.stream("items", sizes):
            break
    asyncio.run(main())


def nobody_at_the_address(_):
    try:
        memlift.ipc.Client("pytest-leaks-nobody")
    except memlift.ServerUnavailableError as error:
        _kept = error


class Service:
    """A server whose handlers are methods of what has it."""

    def __init__(self):
        self.server = memlift.ipc.Server(address())
        self.server.register("echo", self.echo)
        self.server.register("later", self.later)
        self.server.register("items", self.items)
        self.server.batched("batch")(self.batch)

    def echo(self, value):
        return value

    async def later(self, value):
        return value

    async def items(self, value):
        yield value

    def batch(self, values):
        return values


def a_server_with_methods(_):
    service = Service()
    service.server.start()
    with memlift.ipc.Client(service.server.address) as client:
        for operation in ("echo", "later", "batch"):
            assert client.call(operation, b"x") == b"x"
        assert list(client.stream("items", b"x")) == [b"x"]
    service.server.stop()


def a_server_with_methods_that_never_starts(_):
    Service()


def a_queue(_):
    queue = memlift.Queue()
    queue.put(np.ones(100_000))
    queue.fileno()
    _view = queue.get()
    try:
        queue.put(object())
    except memlift.UnsupportedTypeError as error:
        _kept = error


def an_arena(_):
    with memlift.Arena(bytes_max=8 << 20) as arena:
        subscription = memlift.Subscription(arena.address, "topic")
        arena.publish("topic", np.ones(1000))
        _views = subscription.get(timeout=LONG), arena.put(np.ones(10_000)).get()
        gone = arena.put(np.ones(10))
        gone.release()
        try:
            gone.get()
        except memlift.ExpiredError as error:
            _kept = error


def a_killed_server(_):
    server = Process(address(), {"handlers": 2}, fast)
    client = memlift.ipc.Client(server.address)
    futures = [client.call_async("sleep", np.array([9.0])) for _ in range(3)]
    server.kill()
    for future in futures:
        try:
            future.result()
        except memlift.PeerDiedError as error:
            _kept = error


def a_killed_server_of_a_loop(_):
    server = Process(address(), {"handlers": 2}, fast)

    async def main():
        async with memlift.ipc.AsyncClient(server.address) as client:
            call = asyncio.ensure_future(client.call("sleep", np.array([9.0])))
            await asyncio.sleep(0)
            server.kill()
            try:
                await call
            except memlift.PeerDiedError as error:
                _kept = error

    asyncio.run(main())


def _call_and_wait(address, pipe):
    client = memlift.ipc.Client(address)
    client.call("echo", np.ones(100_000))
    client.call_async("sleep", np.array([0.05]))
    pipe.send(None)
    time.sleep(LONG)


def a_killed_client(shared):
    ours, theirs = fast.Pipe()
    client = fast.Process(target=_call_and_wait, args=(shared.here.address, theirs))
    client.start()
    theirs.close()
    ours.recv()
    end(client, ours)


def _write_and_wait(pipe):
    arena = memlift.Arena(bytes_max=8 << 20)
    arena.publish("topic", np.ones(10_000))
    pipe.send((arena.address, arena.put(np.ones(10_000))))
    time.sleep(LONG)


def a_killed_writer_of_an_arena(_):
    ours, theirs = fast.Pipe()
    writer = fast.Process(target=_write_and_wait, args=(theirs,))
    writer.start()
    theirs.close()
    place, ref = ours.recv()
    view, subscription = ref.get(), memlift.Subscription(place, "topic")
    subscription.get(timeout=LONG)
    end(writer, ours)
    try:
        subscription.get(timeout=LONG)
    except memlift.Error as error:
        _kept = error
    assert view.sum() == 10_000


def _read_and_wait(ref, pipe):
    _view = ref.get()
    pipe.send(None)
    time.sleep(LONG)


def a_killed_reader_of_an_arena(_):
    ours, theirs = fast.Pipe()
    with memlift.Arena(bytes_max=8 << 20) as arena:
        reader = fast.Process(target=_read_and_wait, args=(arena.put(np.ones(10_000)), theirs))
        reader.start()
        theirs.close()
        ours.recv()
        end(reader, ours)


def _fail(_):
    raise ValueError("no luck today")


def _die(_):
    os._exit(3)


def executors(_):
    with memlift.Executor(1, mp_context=fast) as executor:
        for function in (_fail, _die):
            try:
                executor.submit(function, 1).result()
            except Exception as error:
                _kept = error
    memlift.Executor(1, mp_context=fast).submit(abs, 1).result()


def pools(_):
    with memlift.Pool(1, context=fast) as pool:
        for function in (_fail, _die):
            try:
                pool.apply(function, (1,))
            except Exception as error:
                _kept = error
    memlift.Pool(1, context=fast).apply(abs, (1,))


QUICKLY = [
    a_client,
    a_client_that_is_not_closed,
    a_call_that_fails,
    a_future_that_fails,
    a_pipeline_that_fails,
    an_awaited_call_that_fails,
    an_async_client_that_is_not_closed,
    an_awaited_call_that_is_cancelled,
    streams_that_are_left,
    nobody_at_the_address,
    a_server_with_methods,
    a_server_with_methods_that_never_starts,
    a_queue,
    an_arena,
]
SLOWLY = [
    a_killed_server,
    a_killed_server_of_a_loop,
    a_killed_client,
    a_killed_writer_of_an_arena,
    a_killed_reader_of_an_arena,
    executors,
    pools,
]


def _leaves_nothing(kind, shared, pids, rounds, grown_max):
    for _ in range(2):
        kind(shared)  # what a process makes once
    gc.collect()
    time.sleep(0.05)
    # What is lost is lost each time. The most threads that ever ran at once leave their stacks with the C library, once: more rounds tell.
    for times in (1, MORE):
        before = [counts(pid) for pid in pids]
        for _ in range(rounds * times):
            kind(shared)
        until, grown = time.monotonic() + WAIT, []
        while time.monotonic() < until:
            gc.collect()
            grown = [tuple(now - then for now, then in zip(counts(pid), was, strict=True)) for pid, was in zip(pids, before, strict=True)]
            if max(map(max, grown)) <= grown_max * times:
                return
            time.sleep(0.05)
    raise AssertionError(f"{rounds * MORE} rounds leave {grown} (descriptors, mappings, threads; here, in the server)")


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [*((kind, QUICK) for kind in QUICKLY), *((kind, SLOW) for kind in SLOWLY)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nothing_is_left(shared, shared_server, kind, rounds):
    _leaves_nothing(kind, shared, [os.getpid(), shared_server.pid], rounds, rounds - 1)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [*((kind, SOAK_QUICK) for kind in QUICKLY), *((kind, SOAK_SLOW) for kind in SLOWLY)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_soak_nothing_is_left(shared, shared_server, kind, rounds):
    pids = [os.getpid(), shared_server.pid]
    _leaves_nothing(kind, shared, pids, rounds // 10, rounds // 20)
    memory = anonymous_bytes()
    _leaves_nothing(kind, shared, pids, rounds, rounds // 20)
    assert anonymous_bytes() - memory < GROWN_BYTES
