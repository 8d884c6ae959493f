# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Peers that lie: a session that breaks the protocol ends alone, and at once.

Goal    whatever a client writes into the socket or the control page, the server goes on, and so do all other clients
Method  a client written by hand from the format's description; the last tests are random
"""

import os
import threading
import time

import numpy as np
import pytest
from raw_client import MAGIC, RawClient

import memlift


@pytest.fixture
def bystander(shared_server):
    with memlift.ipc.Client(shared_server.address, timeout=60) as client:
        client.call("echo", b"x")
        yield client
        assert client.call("echo", b"still here") == b"still here"


@pytest.mark.parametrize(
    "lie, reason",
    [
        ({"version": 1}, "version 1"),
        ({"control_bytes": 4096}, "control segment of 4096"),
        ({"request_bytes": 1 << 20}, "holds 65536 bytes where 1048576"),
        ({"request_bytes": 0}, "segment of 0 bytes"),
        ({"response_bytes": 1 << 60}, "segment of"),
        ({"header": b"nonsense" * 2}, "wrong header"),
        ({"seal": False}, "not sealed"),
        ({"descriptors": 4}, "4 descriptors"),
    ],
    ids=str,
)
def test_false_greetings_are_refused_with_a_reason(shared_server, bystander, lie, reason):
    with RawClient(shared_server.address, **lie) as liar:
        refused, text = liar.welcome()
        assert refused and reason in text
        assert liar.hung_up()


@pytest.mark.parametrize("packet", [b"x", b"GET / HTTP/1.1\r\n\r\n", MAGIC, b"\0" * 40, b"z" * 300])
def test_strangers_are_hung_up_on(shared_server, bystander, packet):
    with RawClient(shared_server.address, packet=packet) as stranger:
        assert stranger.welcome() is None


def test_the_raw_client_can_be_honest(shared_server, bystander):
    with RawClient(shared_server.address) as client:
        assert client.welcome() == (0, "")
        client.entry(0, operation=123)
        client.publish(1)
        assert not client.hung_up(0.3)


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": 0},
        {"kind": 99},
        {"kind": 2},
        {"kind": 4, "segment": 0, "offset": 0},
        {"payload": 7},
        {"payload": 0, "bytes": 8},
        {"segment": 1},
        {"segment": 0xFFFF_FFFF},
        {"offset": 1 << 16},
        {"offset": (1 << 64) - 8},
        {"bytes": (1 << 16) + 1},
        {"bytes": (1 << 64) - 1},
        {"payload": 2, "element": b"O", "element_bytes": 8, "dimensions": 1, "shape": (1,)},
        {"payload": 2, "element": b"f", "element_bytes": 3, "dimensions": 1, "shape": (1,)},
        {"payload": 2, "element": b"f", "element_bytes": 8, "dimensions": 9},
        {"payload": 2, "element": b"f", "element_bytes": 8, "dimensions": 1, "shape": (2,)},
        {"payload": 2, "element": b"f", "element_bytes": 8, "dimensions": 2, "shape": (1 << 63, 2)},
    ],
    ids=str,
)
def test_false_messages_end_the_session(shared_server, bystander, entry):
    with RawClient(shared_server.address) as liar:
        assert liar.welcome() == (0, "")
        liar.entry(0, **entry)
        liar.publish(1)
        assert liar.hung_up()


@pytest.mark.parametrize("tail", [257, 0x8000_0000, 0xFFFF_FFFF])
def test_an_impossible_ring_ends_the_session(shared_server, bystander, tail):
    with RawClient(shared_server.address) as liar:
        assert liar.welcome() == (0, "")
        liar.publish(tail)
        assert liar.hung_up()


def test_an_impossible_response_head_ends_the_session(shared_server, bystander):
    with RawClient(shared_server.address) as liar:
        assert liar.welcome() == (0, "")
        liar.put(320, 0x1234_5678)
        # The head is looked at when the ring seems full: at the 257th answer.
        for sent in range(257):
            while liar.get(192) != sent:
                time.sleep(0)
            liar.entry(sent, kind=7, payload=0, bytes=0)
            liar.publish(sent + 1)
        assert liar.hung_up()


def test_more_calls_than_granted_end_the_session(start):
    server = start(outstanding=4)
    with memlift.ipc.Client(server.address) as bystander:
        with RawClient(server.address) as liar:
            assert liar.welcome() == (0, "")
            # An operation that takes long; the hash is FNV-1a of its name.
            operation = 0xCBF29CE484222325
            for byte in b"sleep":
                operation = (operation ^ byte) * 0x100000001B3 % (1 << 64)
            # How long: with nothing there, a call might be over before the server has looked at the fifth.
            os.pwrite(liar.request_fd, np.array([2.0]).tobytes(), 0)
            for i in range(6):
                liar.entry(i, operation=operation, job=i, payload=2, element=b"f", element_bytes=8, dimensions=1,
                           shape=(1,))
            liar.publish(6)
            assert liar.hung_up()
        assert bystander.call("echo", b"x") == b"x"


def test_ringing_all_the_time_costs_only_time(shared_server, bystander):
    with RawClient(shared_server.address) as nuisance:
        assert nuisance.welcome() == (0, "")
        for _ in range(2000):
            nuisance.ring()
        assert bystander.call("echo", b"x") == b"x"


@pytest.mark.parametrize("seed", range(30))
def test_random_messages(shared_server, bystander, seed):
    random = np.random.default_rng(seed)
    with RawClient(shared_server.address) as liar:
        assert liar.welcome() == (0, "")
        for i in range(20):
            entry = bytearray(random.bytes(128))
            entry[0] = random.choice([1, 1, 1, 4, 6])
            if i % 2:
                entry[1:8] = bytes([0, 1, 0, 0, 0, 0, 0])
                entry[24:48] = random.integers(0, 300, 3).astype("<u8").tobytes()
            liar.raw_entry(i, bytes(entry))
        liar.publish(20)
        for word in random.integers(0, 1024, 8):
            liar.put(int(word) * 4, int(random.integers(0, 1 << 32)))
        liar.ring()
        assert bystander.call("echo", b"x") == b"x"


def test_a_server_that_corrupts_the_page_fails_the_client_alone(shared_server, bystander):
    # Seen from the client: it reads in its own control page what cannot be.
    import ctypes
    import pathlib

    def pages():
        for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
            if "/memfd:memlift-control" in line:
                yield int(line.partition("-")[0], 16)

    known = set(pages())
    for where, what in [(192, 0x8000_0000), (256, 0x7FFF_FFFF)]:
        client = memlift.ipc.Client(shared_server.address, timeout=5)
        client.call("echo", b"x")
        # The first page lies there twice, once for the robust words.
        page = min(set(pages()) - known)
        with pytest.raises(memlift.PeerFaultError, match="impossible ring"):
            # The honest server overwrites its own counter with each reply, sometimes before the client looks.
            for _ in range(1000):
                ctypes.memmove(page + where, what.to_bytes(4, "little"), 4)
                client.call("echo", b"x")
        with pytest.raises(memlift.PeerFaultError):
            client.call("echo", b"x")
        del client
        known = set(pages())


@pytest.mark.parametrize("trust, seen", [("view", 2), ("copy", 1)])
def test_a_request_that_was_copied_can_no_longer_change(trust, seen):
    looked, changed = threading.Event(), threading.Event()
    with memlift.ipc.Server(f"trust-{os.getpid()}-{trust}", trust=trust) as server:

        @server.handler("look")
        def look(array):
            looked.set()
            assert changed.wait(60)
            return array[-1:].copy()

        server.start()
        with memlift.ipc.Client(server.address, timeout=60) as client:
            loan = client.loan(1000, "u1")
            loan[:] = 1
            answer = client.call_async("look", loan)
            assert looked.wait(60)
            loan[-1] = 2
            changed.set()
            assert answer.result()[0] == seen


def test_who_is_trusted_how_is_checked():
    with pytest.raises(ValueError, match="'view' or 'copy'"):
        memlift.ipc.Server("never", trust="blindly")
