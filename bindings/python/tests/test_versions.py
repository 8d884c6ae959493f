# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two versions of the protocol in one session.

Goal    this version and the one before talk to each other, both ways; what the older one cannot do is an error that says so; other
        versions are refused by name
Method  the other side is written by hand, with the bytes of version 4 as they were
"""

import asyncio
import os
import time

import pytest
from raw_client import RawClient
from raw_server import RawServer

import memlift
from memlift.ipc import AsyncClient, Client

LONG = 60.0
# magic · version 4 · reserved · control segment of 69,632 bytes · request and response segments of 65,536
HELLO_4 = bytes.fromhex("6d656d6c69667401 04000000 00000000 0010010000000000 0000010000000000 0000010000000000")
# magic · version · not refused
WELCOME_4 = bytes.fromhex("6d656d6c69667401 04000000 00000000")


def fnv(name):
    """FNV-1a of 64 bits, written from the format's page."""
    found = 0xCBF29CE484222325
    for byte in name.encode():
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return found


@pytest.fixture
def address():
    return f"pytest-versions-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def old_server(address):
    server = RawServer(address)
    yield server
    server.close()


def test_a_client_of_version_4_is_served(shared_server):
    with RawClient(shared_server.address, packet=HELLO_4) as client:
        welcome = client.socket.recv(256)
        assert len(welcome) == 192 and welcome[:16] == WELCOME_4 and welcome[32:] == bytes(160)
        # An echo of two bytes in the message itself: job 1, flag 128, payload 1.
        client.entry(0, flags=128, operation=fnv("echo"), bytes=2, shape=(0x6968,))
        client.publish(1)
        until = time.monotonic() + 10
        while client.get(256) == 0 and time.monotonic() < until:
            time.sleep(0.001)
        reply = client.page[36864 : 36864 + 128]
        assert (reply[0], reply[1], reply[2]) == (2, 128, 1) and reply[8:16] == bytes([1]) + bytes(7)
        assert reply[40] == 2 and reply[64:66] == b"hi"


def test_a_client_of_version_4_is_told_of_a_drain_in_words(address):
    with memlift.ipc.Server(address) as server:
        server.register("echo", lambda value: value)
        server.start()
        with RawClient(address, packet=HELLO_4) as client:
            assert client.socket.recv(256)[:16] == WELCOME_4
            server.begin_drain()
            client.entry(0, flags=128, operation=fnv("echo"), bytes=2, shape=(0x6968,))
            client.publish(1)
            until = time.monotonic() + 10
            while client.get(256) == 0 and time.monotonic() < until:
                time.sleep(0.001)
            reply = client.page[36864 : 36864 + 128]
            # A failure of the kind that version 4 knows: its clients take another code for a broken protocol.
            assert reply[0] == 3 and reply[6] == 1


def test_a_server_of_version_4_sees_the_greeting_that_it_knows(old_server, address):
    with Client(address, timeout=LONG) as client:
        # That server compares the first of the two versions with its own, in both places.
        assert old_server.hello[:12] == HELLO_4[:12] and len(old_server.hello) == len(HELLO_4)
        assert old_server.header == HELLO_4[:12] + bytes.fromhex("00010000")
        assert int.from_bytes(old_server.hello[12:16], "little") > 4
        for value in (b"hi", b"", None, b"x" * 64):
            assert client.call("echo", value or None) == (value or None)
        assert client.call_async("echo", b"y").result() == b"y"


def test_what_version_4_cannot_do_is_an_error_that_says_so(old_server, address):
    with Client(address, timeout=LONG) as client:
        with client.pipeline() as pipeline:
            for call in (client.call, client.call_async, pipeline.submit):
                with pytest.raises(memlift.PeerTooOldError, match="speaks version 4 .* takes several arguments speaks version 5"):
                    call("echo", 1, 2)
                with pytest.raises(memlift.PeerTooOldError):
                    call("echo", key=1)
        with pytest.raises(memlift.PeerTooOldError, match="streams its answers"):
            client.stream("echo")
        with pytest.raises(memlift.PeerTooOldError, match="says if it is ready"):
            client.ping()
        assert client.call("echo", b"still here") == b"still here"


def test_what_version_4_cannot_do_on_a_loop(old_server, address):
    async def body():
        async with AsyncClient(address, timeout=LONG) as client:
            assert await client.call("echo", b"hi") == b"hi"
            with pytest.raises(memlift.PeerTooOldError):
                await client.call("echo", 1, 2)
            with pytest.raises(memlift.PeerTooOldError):
                await client.ping()
            with pytest.raises(memlift.PeerTooOldError):
                async for _ in client.iterate("echo"):
                    pass

    asyncio.run(body())


@pytest.mark.parametrize("oldest, newest, agreed", [(4, 5, 5), (4, 9, 5), (5, 5, 5), (4, 4, 4), (3, 4, 4), (4, 0, 4), (1, 9, 5)])
def test_the_highest_version_that_both_speak_is_taken(shared_server, oldest, newest, agreed):
    packet = HELLO_4[:8] + oldest.to_bytes(4, "little") + newest.to_bytes(4, "little") + HELLO_4[16:]
    header = HELLO_4[:8] + oldest.to_bytes(4, "little") + (256).to_bytes(4, "little")
    with RawClient(shared_server.address, packet=packet, header=header) as client:
        welcome = client.socket.recv(256)
        assert welcome[8:16] == agreed.to_bytes(4, "little") + bytes(4)


@pytest.mark.parametrize("oldest, newest", [(3, 0), (1, 3), (6, 0), (6, 9), (0, 0)])
def test_versions_without_a_common_one_are_refused_by_name(shared_server, oldest, newest):
    packet = HELLO_4[:8] + oldest.to_bytes(4, "little") + newest.to_bytes(4, "little") + HELLO_4[16:]
    with RawClient(shared_server.address, packet=packet) as client:
        refused, reason = client.welcome()
        assert refused and f"{oldest}" in reason and "versions 4 to 5" in reason
        assert client.hung_up()


def test_another_major_version_is_refused_by_name(shared_server, address):
    with RawClient(shared_server.address, packet=HELLO_4[:7] + b"\x02" + HELLO_4[8:]) as client:
        refused, reason = client.welcome()
        assert refused and "major version 2" in reason and client.hung_up()
    server = RawServer(address, welcome=WELCOME_4[:7] + b"\x02" + WELCOME_4[8:] + bytes(176))
    with pytest.raises(memlift.ServerUnavailableError, match="major version 2"):
        Client(address, timeout=LONG)
    server.close()


@pytest.mark.parametrize("version", [0, 3, 6, 2**32 - 1])
def test_a_server_that_chooses_a_version_that_was_not_offered_is_refused(address, version):
    server = RawServer(address, version=version)
    with pytest.raises(memlift.ServerUnavailableError, match=f"speaks version {version} of the protocol"):
        Client(address, timeout=LONG)
    server.close()
