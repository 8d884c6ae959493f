# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Several server processes at one address.

Goal    each client has a session with one of them; when one is killed, stopped or drained, idempotent calls go on with another one
Method  server processes that are killed while clients call, and others that take their place
"""

import asyncio
import multiprocessing
import os
import pathlib
import random
import signal
import socket
import threading
import time

import pytest
from conftest import Process

import memlift
from memlift.ipc import AsyncClient, Client, Server

LONG = 60.0
SHARED = {"shared": True}
fast = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported():
    fast.set_forkserver_preload(["numpy", "memlift", "conftest"])


def new_name():
    return f"pytest-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def member():
    """member(address) starts a server process there, beside those that are there."""
    started = []

    def member(address, **options):
        started.append(Process(address, SHARED | options, fast))
        return started[-1]

    yield member
    for process in started:
        if process.process.is_alive():
            os.kill(process.pid, signal.SIGCONT)
        process.kill()


def pid_of(client, **options):
    return int(client.call("pid", **options))


@pytest.mark.parametrize("by_path", [False, True])
def test_clients_reach_all_of_them(member, tmp_path, by_path):
    address = str(tmp_path / "shared.sock") if by_path else new_name()
    members = [member(address) for _ in range(3)]
    clients = [Client(address, timeout=LONG) for _ in range(12)]
    # Four each, unless a server had no core for 20 ms: then another one took its turn.
    assert {pid_of(client) for client in clients} == {process.pid for process in members}
    # The first one made the socket; it is not missed.
    members.pop(0).kill()
    assert {pid_of(Client(address, timeout=LONG)) for _ in range(8)} <= {process.pid for process in members}
    for process in members:
        process.kill()
    with pytest.raises(memlift.ServerUnavailableError):
        Client(address)
    again = member(address)
    assert pid_of(Client(address, timeout=LONG)) == again.pid


def _calls(address, counts, at, errors, stop):
    """Calls without end; each is made again once if its server dies."""
    try:
        with Client(address, timeout=LONG, idempotent=True) as client:
            while not stop.is_set():
                assert pid_of(client) > 0
                counts[at] += 1
    except BaseException as error:
        errors.append(error)


async def _loop_calls(address, counts, at, stop):
    async with AsyncClient(address, timeout=LONG, idempotent=True) as client:
        while not stop.is_set():
            for pid in await asyncio.gather(*(client.call("pid") for _ in range(4))):
                assert int(pid) > 0
            counts[at] += 1


def _async_calls(address, counts, at, errors, stop):
    try:
        asyncio.run(_loop_calls(address, counts, at, stop))
    except BaseException as error:
        errors.append(error)


def _kill_in_turn(member, kills, replacement):
    address = new_name()
    members = [member(address) for _ in range(3)]
    counts, errors, stop = [0] * 4, [], threading.Event()
    bodies = [_calls, _calls, _async_calls, _async_calls]
    threads = [threading.Thread(target=body, args=(address, counts, at, errors, stop)) for at, body in enumerate(bodies)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(kills):
            # Each client has made a call since the last kill, so no call meets two of them.
            before, until = list(counts), time.monotonic() + LONG
            while not errors and any(now < then + 2 for now, then in zip(counts, before, strict=True)):
                assert time.monotonic() < until, "a client stands still"
                time.sleep(0.001)
            time.sleep(random.random() / 50)
            members.pop(random.randrange(3)).kill()
            members.append(replacement(address))
            assert not errors, errors
    finally:
        stop.set()
        for thread in threads:
            thread.join(LONG)
    assert not errors and not any(thread.is_alive() for thread in threads)


def test_kills_are_not_seen_by_calls_that_may_run_twice(member):
    _kill_in_turn(member, 4, member)


@pytest.mark.soak
def test_soak_kills_are_not_seen_by_calls_that_may_run_twice(member):
    def replacement(address):
        return Process(address, SHARED, fast)

    _kill_in_turn(member, int(os.environ.get("MEMLIFT_KILLS", "2000")), replacement)


def test_other_calls_say_that_their_server_died(member):
    address = new_name()
    members = [member(address), member(address)]
    with Client(address, timeout=LONG) as client:
        first = pid_of(client)
        with pytest.raises(memlift.PeerDiedError):
            client.call("die")
        with Client(address, timeout=LONG) as other:
            assert pid_of(other) != first
        assert pid_of(client, idempotent=True) != first
    # A request that kills its server kills two at most, though a third one is there.
    members += [member(address), member(address)]
    with Client(address, timeout=LONG, idempotent=True) as client, pytest.raises(memlift.PeerDiedError):
        client.call("die")
    time.sleep(0.1)
    assert sum(process.process.is_alive() for process in members) == 1


def is_stopped(pid):
    """Says if no thread of the process runs any more; until then it may accept a connection."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def test_one_that_is_stopped_delays_clients_and_no_more(member):
    address = new_name()
    stopped, runs = member(address), member(address)
    os.kill(stopped.pid, signal.SIGSTOP)
    while not is_stopped(stopped.pid):
        time.sleep(0.001)
    for _ in range(4):
        with Client(address, timeout=LONG) as client:
            assert pid_of(client) == runs.pid
    os.kill(stopped.pid, signal.SIGCONT)


def serve(address, name, **options):
    server = Server(address, shared=True, **options)
    server.register("name", lambda _: name)
    server.start()
    return server


def test_servers_are_replaced_one_by_one_without_an_error():
    address = new_name()
    old = [serve(address, f"old {i}") for i in range(2)]
    errors, stop = [], threading.Event()

    def calls():
        try:
            with Client(address, timeout=LONG, idempotent=True) as client:
                while not stop.is_set():
                    client.call("name")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    new = []
    for i, server in enumerate(old):
        new.append(serve(address, f"new {i}"))
        assert server.stop(drain=LONG)
    with Client(address, timeout=LONG) as client:
        assert client.call("name").startswith("new")
    stop.set()
    for thread in threads:
        thread.join(LONG)
    assert not errors, errors
    assert [server.stats()["members"] for server in new] == [2, 2]
    for server in new:
        server.stop()


def test_readiness_counts():
    address = new_name()
    with serve(address, "loading", ready=False) as loading, serve(address, "ready"):
        with Client(address, timeout=LONG) as first:
            # The ready one, unless it had no core for 20 ms.
            assert first.call("name") in ("ready", "loading")
        loading.ready()
        assert loading.stats()["members"] == 2


def test_an_address_is_shared_by_those_who_say_so(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(memlift.AddressInUseError, match="a regular file"):
        Server(path, shared=True).start()
    assert path.read_text() == "data"
    with memlift.Arena(tmp_path / "arena.sock"), pytest.raises(memlift.AddressInUseError):
        Server(tmp_path / "arena.sock", shared=True).start()
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.bind(str(tmp_path / "stream.sock"))
    stream.listen()
    begun = time.monotonic()
    with stream, pytest.raises(memlift.AddressInUseError):
        Server(tmp_path / "stream.sock", shared=True).start()
    assert time.monotonic() - begun < 9, "it tried to join for as long as it would a server"
    address = new_name()
    with Server(address) as alone:
        alone.start()
        with pytest.raises(memlift.AddressInUseError, match="with nobody"):
            Server(address, shared=True).start()
    with serve(address, "first"), pytest.raises(memlift.AddressInUseError):
        Server(address)
    server = Server(address, shared=True)
    assert server.stats()["members"] == 0
    with pytest.raises(memlift.ServerUnavailableError):
        Client(address)
    server.start()
    assert server.stats()["members"] == 1
    server.stop()
    with pytest.raises(memlift.ClosedError):
        server.start()


def test_a_forked_child_is_a_member_of_its_own():
    address = new_name()
    with serve(address, "parent") as parent:
        ready, set_ready = os.pipe()
        child = os.fork()
        if not child:
            try:
                with serve(address, "child"):
                    os.write(set_ready, b"1")
                    time.sleep(LONG)
            finally:
                os._exit(0)
        try:
            assert os.read(ready, 1) == b"1"
            assert parent.stats()["members"] == 2
            clients = [Client(address, timeout=LONG) for _ in range(8)]
            assert {client.call("name") for client in clients} == {"parent", "child"}
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(ready)
            os.close(set_ready)
        assert parent.stats()["members"] == 1
        with Client(address, timeout=LONG) as client:
            assert client.call("name") == "parent"
