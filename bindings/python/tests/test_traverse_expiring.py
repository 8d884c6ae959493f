# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Hash maps whose entries expire or are evicted: from Python, over one node and two, in other processes, and with a log."""

import asyncio
import datetime
import math
import pickle
import time

import numpy as np
import pytest
from conftest import free_ports

from memlift import errors
from memlift.traverse import AsyncClient, Client, HashMap, Limits, Node


def until(what, done, seconds=60):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.fixture(scope="module", params=["udp", "two nodes"])
def client(request, tmp_path_factory):
    if request.param == "udp":
        with Node(memory="64M") as node, Client.connect(node) as client:
            yield client
        return
    places = [f"127.0.0.1:{port}" for port in free_ports(2)]
    path = tmp_path_factory.mktemp("map") / "map.toml"
    text = "epoch = 1\n"
    for name, place, base in zip("ab", places, (1 << 33, 1 << 34), strict=True):
        text += f'[[node]]\nname = "{name}"\naddresses = ["udp:{place}"]\n'
        text += f'[[range]]\nbase = "{base:#x}"\nbytes = "32M"\nnode = "{name}"\n'
    path.write_text(text)
    with (
        Node(memory="32M", listen=places[0], map=path, name="a"),
        Node(memory="32M", listen=places[1], map=path, name="b"),
        Client.connect(map=path) as client,
    ):
        yield client


def test_an_entry_expires_and_another_does_not(client):
    entries = HashMap.create(client, key=str, value=str, ttl=1)
    assert entries.limits == Limits(1, None, None)
    entries["goes"] = "soon"
    entries.insert("stays", "always", ttl=math.inf)
    entries.insert("late", "later", ttl=datetime.timedelta(hours=1))
    assert entries["goes"] == "soon" and entries.ttl("goes") in (1, 2, 3)
    assert entries.ttl("stays") is None and 3590 <= entries.ttl("late") <= 3602
    until("it expires", lambda: "goes" not in entries)
    assert dict(entries) == {"stays": "always", "late": "later"} and len(entries) == 2 and entries.get("goes", "gone") == "gone"
    assert entries.get_many(["goes", "stays"]) == [None, "always"]
    with pytest.raises(KeyError):
        entries.ttl("goes")
    with pytest.raises(KeyError):
        del entries["goes"]
    assert entries.setdefault("goes", "back", ttl=500) == "back" and 490 <= entries.ttl("goes") <= 502
    entries.drop()


def test_arrays_expire_and_are_added_to(client):
    entries = HashMap.create(client, value="i8", ttl=math.inf)
    keys = np.arange(3000, dtype=np.uint64)
    assert entries.put_many(keys, keys, ttl=1) == 3000
    assert entries.put_many(keys[::2], keys[::2] + 1) == 0
    assert entries.add(2, 5) == 3 and entries[2] == 8
    until("they expire", lambda: 1 not in entries)
    values, found = entries.get_array(keys)
    assert not found[1::2].any() and found[::2].all() and values[4] == 5 and not values[1::2].any()
    assert entries.add(1, 5) is None
    entries.drop()


def test_the_handle_says_that_entries_expire(client):
    entries = HashMap.create(client, value="i8", ttl=1000, max_entries=50)
    entries[1] = 7
    again = HashMap.open(client, list(entries.handle))
    assert again.limits == Limits(1000, 50, None) and again[1] == 7 and 990 < again.ttl(1) <= 1002
    assert pickle.loads(pickle.dumps(entries))[1] == 7
    plain = HashMap.create(client, value="i8")
    plain[1] = 2
    assert plain.limits is None and plain.handle.terms == 0 and plain.ttl(1) is None
    for wrong in (lambda: plain.insert(1, 2, ttl=5), lambda: plain.put_many([1], [2], ttl=5), lambda: plain.setdefault(1, 2, ttl=5)):
        with pytest.raises(errors.BadArgumentError, match="create it with ttl"):
            wrong()
    entries.drop()
    with pytest.raises(errors.WrongStructureError, match="dropped"):
        HashMap.open(client, again.handle)
    plain.drop()


@pytest.mark.parametrize("wrong", [{"ttl": 0}, {"ttl": -1}, {"ttl": "9"}, {"ttl": True}, {"ttl": math.nan}, {"ttl": 1 << 40}, {"max_entries": 0},
                                   {"max_entries": 1.5}, {"max_bytes": 0}, {"max_bytes": "many"}])  # fmt: skip
def test_terms_that_cannot_be_are_refused(client, wrong):
    with pytest.raises(ValueError):
        HashMap.create(client, **wrong)


def test_a_bounded_map_evicts_and_never_refuses(client):
    entries = HashMap.create(client, value=bytes, max_entries=200, expected=200)
    for number in range(600):
        entries[number] = b"x" * 50
        assert entries[number] == b"x" * 50, "what was just put is not evicted"
    assert 190 <= len(entries) <= 200
    with pytest.raises(errors.BadArgumentError, match="an entry"):
        HashMap.create(client, max_bytes="64K")[1] = bytes(100_000)
    entries.drop()


def test_an_async_client_sees_what_has_not_expired():
    async def run(node, handle):
        async with AsyncClient.connect(node) as client:
            with Client.connect(node) as other:
                entries = HashMap.open(other, handle)
                assert await client.get(entries, 1) == b"one"
                assert await client.change(entries, "insert", 2, b"two", 1) is True
                while await client.get(entries, 1) is not None:
                    await asyncio.sleep(0.05)
                assert await client.get(entries, 3) == b"three"

    with Node(memory="16M") as node, Client.connect(node) as client:
        entries = HashMap.create(client, ttl=1)
        entries[1] = b"one"
        entries.insert(3, b"three", ttl=math.inf)
        asyncio.run(run(node, entries.handle))


def test_a_node_sweeps_and_keeps_terms_in_its_log(tmp_path):
    with Node(memory="16M", log=tmp_path / "log") as node, Client.connect(node) as client:
        entries = HashMap.create(client, ttl=2)
        entries.update({number: b"value" for number in range(100)})
        entries.insert(1000, b"stays", ttl=math.inf)
        handle = entries.handle
    with Node(memory="16M", log=tmp_path / "log") as node, Client.connect(node) as client:
        entries = HashMap.open(client, handle)
        assert entries.limits == Limits(2, None, None) and entries[1000] == b"stays"
        until("they expire", lambda: len(entries) == 1)
        # As many nodes of chains as entries: the others' memory went back.
        until("they are swept", lambda: _nodes(client, handle) == 1)


def _nodes(client, handle):
    """How many nodes the chains of a map have, expired ones too."""
    count = 0
    for index in range(0, 8 << handle.log2, 1024):
        heads = np.frombuffer(client.read(handle.heads + index, min(1024, (8 << handle.log2) - index)), np.uint64)
        for at in heads[heads != 0].tolist():
            while at & ~1:
                count += 1
                at = int(np.frombuffer(client.read(at & ~1, 8), np.uint64)[0])
    return count
