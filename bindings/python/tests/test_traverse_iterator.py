# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Python functions as walks: the same answers as the shipped C on random chains, and refusals that name the line."""

import random
import struct

import pytest

from memlift import traverse
from memlift.errors import BadProgramError, WalkFailedError
from memlift.traverse import (
    Struct,
    at,
    compare_swap,
    done,
    emit,
    fetch_add,
    go_on,
    i32,
    i64,
    iterator,
    missing,
    retry,
    u8,
    u16,
    u32,
    u64,
)

REMOVED = 1


class ChainNode(Struct):
    next: u64
    key: u64
    value_bytes: u32
    key_bytes: u32
    word: u64


class ChainState(Struct):
    key: u64
    at: u64
    inside: u64
    fresh: u64
    value: u64
    next: u64
    value_bytes: u32


@iterator
def python_find(node: ChainNode, scratch: ChainState):
    """programs/collections/chain_find.h, in Python."""
    following = node.next
    if scratch.inside != 0 and not following & REMOVED and node.key == scratch.key:
        scratch.next = node.next
        scratch.value_bytes = node.value_bytes
        scratch.value = node.word
        return done()
    place = following & ~REMOVED
    if place == 0:
        return missing()
    scratch.at = place
    scratch.inside = 1
    return go_on(place)


@pytest.fixture(scope="module")
def client():
    with traverse.Node(memory="32M") as node, traverse.Client.connect(node) as client:
        yield client


def chain(client, draw, count):
    """A chain with some keys twice and some nodes removed; the address of its head."""
    base = client.allocate(64 * count + 64)
    memory = bytearray(64 * count + 64)
    order = list(range(1, count + 1))
    draw.shuffle(order)
    places = [0, *(64 * place for place in order)]
    for index, place in enumerate(places):
        following = base + places[index + 1] if index < count else 0
        removed = REMOVED if index and draw.random() < 0.2 else 0
        words = (following | removed, draw.randrange(count + 1), 8, 0, draw.getrandbits(64))
        memory[place : place + 32] = struct.pack("<QQIIQ", *words)
    client.write(base, memory)
    return base


def test_finds_what_the_shipped_program_finds(client):
    shipped = traverse.Program.shipped("hash_find")
    draw = random.Random(7)
    outcomes = set()
    for count in (0, 1, 2, 9, 40, 150):
        head = chain(client, draw, count)
        walks = [
            (program, head, ChainState.pack(key=key, at=head))
            for key in range(count + 2)
            for program in (shipped, python_find)
        ]
        walked = client.walk_many(walks)
        for theirs, ours in zip(walked[::2], walked[1::2], strict=True):
            assert (ours.outcome, ours.scratch) == (theirs.outcome, theirs.scratch)
            assert ours.iterations == theirs.iterations
            outcomes.add(ours.outcome)
    assert outcomes == {"done", "missing"}


def test_finds_in_a_real_map(client):
    entries = traverse.HashMap.create(client, expected=8, value="i8")
    for key in range(100):
        entries.insert(key, key * 7 - 300)
    for key in (0, 1, 50, 99, 100):
        start, _ = entries._native.find_walk(key)
        walked = client.walk(python_find, start, key=key, at=start)
        assert bool(walked) == (key < 100)
        if walked:
            assert walked.state.value == (key * 7 - 300) % 2**64


class Wide(Struct):
    count: u16
    kind: u8
    low: i32
    keys: u64[15]


class Sums(Struct):
    limit: i64
    sum: i64
    best: u64
    where: u64
    counts: u32[4]
    flag: u8


@iterator
def everything(node: Wide, scratch: Sums):
    """Every construct once."""
    best = 0
    where = 0
    n = node.count if node.count < 15 else 15
    for i in range(15):
        if i >= n:
            break
        key = node.keys[i]
        if key % 2 == 1:
            continue
        if key > best or (key == best and not i < where):
            best = key
            where = i
    scratch.best = best
    scratch.where = where
    scratch.counts[0] += 1
    slot = best & 3
    scratch.counts[slot] = scratch.counts[slot] + u32(best << 3)
    total = i64(0)
    j = 0
    while j < n:
        total = total + i64(node.keys[j]) - node.low
        j += 1
    if 0 < n <= 15 and total > scratch.limit:
        scratch.sum = -total
    elif total < -5:
        scratch.sum = total >> 1
    else:
        scratch.sum = ~total
    scratch.flag = u8((best > 10) + (n == 3) * 2 + (3 if node.kind else 0) * 4)
    return done()


def expected(count, kind, low, keys, limit):
    best = where = 0
    n = count if count < 15 else 15
    for i in range(n):
        key = keys[i]
        if key % 2 == 1:
            continue
        if key > best or (key == best and not i < where):
            best, where = key, i
    counts = [1, 0, 0, 0]
    counts[best & 3] += (best << 3) & 0xFFFFFFFF
    total = sum(keys[:n]) - low * n
    wrapped = i64(total)
    if 0 < n <= 15 and wrapped > limit:
        result = -wrapped
    elif wrapped < -5:
        result = wrapped >> 1
    else:
        result = ~wrapped
    flag = (best > 10) + (n == 3) * 2 + (3 if kind else 0) * 4
    return best, where, [count & 0xFFFFFFFF for count in counts], i64(result), flag & 0xFF


def test_computes_as_python_does(client):
    draw = random.Random(11)
    address = client.allocate(256)
    for _ in range(200):
        count, kind, low = draw.randrange(18), draw.randrange(3), draw.randrange(-(1 << 31), 1 << 31)
        keys = [draw.getrandbits(draw.choice([2, 5, 40])) for _ in range(15)]
        limit = draw.randrange(-(1 << 40), 1 << 40)
        client.write(address, Wide.pack(count=count, kind=kind, low=low, keys=keys).ljust(256, b"\0"))
        state = client.walk(everything, address, limit=limit).state
        found = (state.best, state.where, state.counts, state.sum, state.flag)
        assert found == expected(count, kind, low, keys, limit), (count, kind, low, keys, limit)


LIMIT = -1


class Signs(Struct):
    found: u64


@iterator
def constants(node: Wide, scratch: Signs):
    if LIMIT < 0:
        scratch.found += 1
    if 0 > LIMIT:
        scratch.found += 2
    if LIMIT >= 0:
        scratch.found += 4
    if -2 < LIMIT <= -1:
        scratch.found += 8
    if not LIMIT < -1:
        scratch.found += 16
    if node.low > LIMIT:
        scratch.found += 32
    return done()


def test_constants_below_zero_are_compared_with_their_sign(client):
    address = client.allocate(256)
    client.write(address, Wide.pack(count=0, kind=0, low=3, keys=[0] * 15).ljust(256, b"\0"))
    assert client.walk(constants, address, found=0).state.found == 1 + 2 + 8 + 16 + 32


class Cell(Struct):
    next: u64
    value: u64
    before: u64 = at(-8)


class Pad(Struct):
    left: u64
    out: u64[2]


@iterator
def gather(node: Cell, scratch: Pad):
    scratch.out[0] = node.value
    scratch.out[1] = node.before
    if node.next == 0:
        return done()
    return emit(scratch.out, node.next)


@iterator
def bump(node: Cell, scratch: Pad):
    return fetch_add(scratch.left, 5)


@iterator
def swap(node: Cell, scratch: Pad):
    if node.value == 99:
        return retry()
    return compare_swap(scratch.left, expected=node.value, new=node.value + 1)


def test_emits_and_changes(client):
    base = client.allocate(4096) + 64
    for index in range(3):
        following = base + 64 * (index + 1) if index < 2 else 0
        client.write(base + 64 * index - 8, struct.pack("<QQQ", 1000 + index, following, index))
    walked = client.walk(gather, base)
    assert struct.unpack("<4Q", walked.result) == (0, 1000, 1, 1001)
    assert walked.state.out == [2, 1002]
    added = client.walk(bump, base, left=base + 8)
    assert (added.outcome, added.value) == ("applied", 0)
    assert client.read(base + 8, 8) == struct.pack("<Q", 5)
    assert client.walk(swap, base, left=base + 8).outcome == "applied"
    assert not client.walk(swap, base, left=base + 16 + 56), "the word there is another one"
    assert client.walk(swap, base, left=base + 8).value == 6


@iterator
def outside(node: Wide, scratch: Sums):
    scratch.best = node.keys[node.count]
    return done()


@iterator
def endless(node: Wide, scratch: Sums):
    while True:
        scratch.best += 1


@iterator
def deep(node: Wide, scratch: Sums):
    a = node.keys[0]
    b = node.keys[1]
    c = node.keys[2]
    d = node.keys[3]
    e = node.keys[4]
    f = node.keys[5]
    scratch.best = (a + (b - (c + (d - (e + (f - (a ^ (b | (c & (d + (e - f)))))))))))
    scratch.where = (a * b + c * d) - (e * f + (a + b) * (c + d)) * ((e - f) * (a - (b - (c - d))))
    return done()


def test_an_index_outside_ends_the_walk_and_a_loop_without_end_too(client):
    address = client.allocate(256)
    client.write(address, Wide.pack(count=14, keys=list(range(15))))
    assert client.walk(outside, address).state.best == 14
    client.write(address, Wide.pack(count=15))
    with pytest.raises(WalkFailedError, match="Guard"):
        client.walk(outside, address)
    with pytest.raises(WalkFailedError, match="OutOfFuel"):
        client.walk(endless, address)


def test_many_values_on_the_way(client):
    address = client.allocate(256)
    keys = [3, 1 << 40, 77, 12345, 9, 1 << 63, *[0] * 9]
    client.write(address, Wide.pack(keys=keys))
    a, b, c, d, e, f = keys[:6]
    state = client.walk(deep, address).state
    assert state.best == (a + (b - (c + (d - (e + (f - (a ^ (b | (c & (d + (e - f))))))))))) % 2**64
    assert state.where == ((a * b + c * d) - (e * f + (a + b) * (c + d)) * ((e - f) * (a - (b - (c - d))))) % 2**64


def refused(make):
    with pytest.raises(BadProgramError) as caught:
        make()
    return caught.value


def by_name():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        return go_on(node.nxt)


def by_write():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        node.value = 1
        return done()


def by_end():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        if node.value:
            return done()


def by_call():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        scratch.left = len(node.value)
        return done()


def by_sign():
    @iterator
    def wrong(node: Wide, scratch: Sums):
        scratch.sum = node.low + node.keys[0]
        return done()


def by_limit():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        if node.value > LIMIT:
            return missing()
        return done()


def by_index():
    @iterator
    def wrong(node: Wide, scratch: Sums):
        scratch.best = node.keys[15]
        return done()


def by_global():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        scratch.left = pytest
        return done()


def by_statement():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        with scratch:
            return done()


def by_verdict():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        return node.value


def by_unreached():
    @iterator
    def wrong(node: Cell, scratch: Pad):
        return done()
        scratch.left = 1


def by_round():
    @iterator
    def wrong(node: Wide, scratch: Sums):
        scratch.sum = i64(node.low) // 2
        return done()


@pytest.mark.parametrize(
    ("make", "line", "reason"),
    [
        (by_name, 3, "Cell has no field 'nxt': it has next, value, before"),
        (by_write, 3, "node is read only"),
        (by_end, 3, "without a verdict"),
        (by_call, 3, "calls nothing but"),
        (by_sign, 3, "a number with a sign meets one without"),
        (by_limit, 3, "LIMIT is below 0, and the other side has no sign"),
        (by_index, 3, "has 15 numbers, from 0 on"),
        (by_global, 3, "pytest is a module: only whole numbers"),
        (by_statement, 3, "has no `with`"),
        (by_verdict, 3, "return a verdict"),
        (by_unreached, 4, "never reached"),
        (by_round, 3, "rounds differently"),
    ],
)
def test_what_is_not_of_the_subset_is_refused_with_its_line(make, line, reason):
    error = refused(make)
    assert reason in str(error)
    assert error.line == make.__code__.co_firstlineno + line


def test_the_verifier_is_heard_with_the_line():
    def unset(node: Cell, scratch: Pad):
        if node.value:
            found = node.next
        scratch.left = found
        return done()

    error = refused(lambda: iterator(unset))
    assert "`found`" in str(error) and "before it is set" in str(error)
    assert error.line == unset.__code__.co_firstlineno + 3

    class Far(Struct):
        first: u64
        last: u64 = at(300)

    def far(node: Far, scratch: Pad):
        scratch.left = node.first
        scratch.left = node.last
        return done()

    error = refused(lambda: iterator(far))
    assert "test_traverse_iterator.py" in str(error) or "256" in str(error)


def test_structs_lie_as_in_c():
    assert [Wide.offset(name) for name in ("count", "kind", "low", "keys")] == [0, 2, 4, 8]
    assert Wide.size() == 128
    assert Sums.unpack(Sums.pack(limit=-2, counts=[1, 2])).counts == [1, 2, 0, 0]
    with pytest.raises(BadProgramError, match="no field"):
        Sums.pack(nothing=1)
    with pytest.raises(BadProgramError, match="at\\(offset\\)"):

        class Wrong(Struct):
            field: u64 = 3


def test_verdicts_and_iterators_are_not_called_here():
    with pytest.raises(BadProgramError, match="under @iterator"):
        done()
    with pytest.raises(BadProgramError, match="client.walk"):
        gather(None, None)
