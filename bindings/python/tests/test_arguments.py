# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Several arguments of one call, by position and by name.

Goal    the handler gets what the caller gave, in type and value; a call with one argument or none is what it was
Method  a real server; values made by hand for what no caller can send
"""

import asyncio

import numpy as np
import pytest

import memlift
from memlift._kind import Kind
from memlift.ipc import AsyncClient, Client, Server


@pytest.fixture
def server():
    with Server("pytest-arguments") as server:
        server.register("one", lambda value: value)
        server.register("all", lambda *positional, **named: {"positional": positional, "named": named})
        server.register("types", lambda *positional, **named: [type(value).__name__ for value in (*positional, *named.values())])

        @server.handler("blend")
        def blend(a, b, *, weight=0.5):
            assert not a.flags.writeable and not b.flags.owndata
            return a * weight + b * (1 - weight)

        server.start()
        yield server


def called(client, *arguments, **named):
    return client.call(*arguments, **named)


def by_future(client, *arguments, **named):
    return client.call_async(*arguments, **named).result()


def piped(client, *arguments, **named):
    with client.pipeline() as pipeline:
        pipeline.submit(*arguments, **named)
        return pipeline.next()[1]


def on_a_loop(client, *arguments, **named):
    async def body():
        async with AsyncClient(client.address, timeout=60) as other:
            return await other.call(*arguments, **named)

    return asyncio.run(body())


@pytest.fixture(params=[called, by_future, piped, on_a_loop], ids=lambda mode: mode.__name__)
def call(request, server):
    with Client(server.address, timeout=60) as client:
        yield lambda *arguments, **named: request.param(client, *arguments, **named)


def test_arguments_arrive_as_they_were_given(call):
    everything = call("all", 1, "two", [3.0, None], {"4": (5, 6)}, key=b"7", other={8})
    assert everything == {"positional": (1, "two", [3.0, None], {"4": (5, 6)}), "named": {"key": b"7", "other": {8}}}
    assert list(everything["named"]) == ["key", "other"]
    assert call("all", 1, None) == {"positional": (1, None), "named": {}}
    assert call("all", None, key=None) == {"positional": (None,), "named": {"key": None}}
    assert call("all", key=1) == {"positional": (), "named": {"key": 1}}
    assert call("types", b"a", bytearray(b"b"), np.float32(1), np.zeros(3), x=(), y=True) == [
        "bytes", "bytearray", "float32", "ndarray", "tuple", "bool",
    ]  # fmt: skip


def test_arrays_are_views_in_the_handler(call):
    a, b = np.arange(100_000.0), np.arange(100_000.0)[::-1]
    np.testing.assert_allclose(call("blend", a, b, weight=0.25), a * 0.25 + b * 0.75)
    np.testing.assert_allclose(call("blend", a, b), (a + b) / 2)


def test_one_argument_and_none_are_what_they_were(call):
    assert call("all") == call("all", None) == {"positional": (None,), "named": {}}
    assert call("all", (1, 2)) == {"positional": ((1, 2),), "named": {}}
    assert call("all", data=5) == {"positional": (5,), "named": {}}
    assert call("all", data=5, key=6) == {"positional": (5,), "named": {"key": 6}}
    assert call("one", {"key": 1}) == {"key": 1}


def test_what_the_handler_does_not_take_is_said(call):
    for arguments, named, said in (((1, 2), {}, "positional argument"), ((1,), {"key": 2}, "unexpected keyword"), ((), {"key": 2}, "keyword")):
        with pytest.raises(memlift.RemoteError, match=said):
            call("one", *arguments, **named)
    assert call("one", 1) == 1


def test_what_cannot_be_sent_is_refused_before_it_is(call):
    with pytest.raises(memlift.UnsupportedTypeError, match="cannot send"):
        call("all", 1, object())
    with pytest.raises(memlift.UnsupportedTypeError, match="cannot send"):
        call("all", 1, key=range(3))
    assert call("one", 1) == 1


def test_options_stay_options(server):
    with Client(server.address, timeout=60) as client:
        out = np.empty(3)
        assert client.call("blend", np.ones(3), np.zeros(3), out=out, timeout=60, crc=True, weight=1.0) is out and (out == 1).all()


@pytest.mark.parametrize(
    "lie",
    [
        [Kind("arguments", ((1,), {}))],
        {"x": Kind("arguments", ((1,), {}))},
        Kind("arguments", (Kind("arguments", ((1,), {})), {})),
        Kind("arguments", ([1], {})),
        Kind("arguments", ((1,), {1: 2})),
        Kind("arguments", ((1,), None)),
        Kind("arguments", (1,)),
        Kind("arguments", None),
    ],
    ids=range(8),
)
def test_only_a_whole_request_is_arguments(server, lie):
    with Client(server.address, timeout=60) as client:
        with pytest.raises(memlift.RemoteError, match="CorruptMessageError"):
            client.call("one", lie)
        assert client.call("one", 1) == 1


def test_an_answer_is_never_arguments(server):
    server.register("liar", lambda _: Kind("arguments", ((1,), {})))
    with Client(server.address, timeout=60) as client:
        with pytest.raises(memlift.CorruptMessageError, match="arguments of a call where none can be"):
            client.call("liar")
