# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of a call's options: what `auto` costs beside the best fixed choice, what packed transfer costs and saves.

Flow     auto:    every fixed way alone ─▶ the fastest by its median ─▶ pairs of auto and that way, through clients of their own
         packed:  a column that packs, through one client ─▶ pairs of pack=True and the rival's way
Rows     auto/sync/SIZE, auto/pipelined/SIZE    the array is written anew in the window, as whoever sends arrays does; DEPTH under way
         packed/SIZE                            `plain`: as it is; `zlib1`: zlib at level 1 by the sender, undone by the server
Count    packed: KiB of the request pool that one request holds, on either side
"""

import itertools
import statistics
import zlib

import numpy as np
import reference
from method import Call, Window, cores, expect, interleave

DEPTH = 4
WARM_CALLS = 64
"""So many calls give auto the measurements that it decides by (at most one call in 16 tries another way)."""
WAYS = [dict(zip(("device", "cache"), way)) for way in itertools.product(("inline", "worker"), ("on", "off"))]


class _Way:
    """One way to hand arrays over, with a client of its own."""

    def __init__(self, transport, size, options, pipelined):
        self.client, self.options, self.pipelined = transport.another(), options, pipelined
        self.pids = Call(transport).pids
        self.ring = [np.empty(size // 8, np.uint64) for _ in range(DEPTH + 1)]
        for array in self.ring:
            reference.pattern(array, 0)

    def measure(self, calls):
        def sample(_, seed):
            window = Window(self)
            with window:
                answers, expected = (self._pipelined if self.pipelined else self._sync)(calls, seed)
            for answer, array in zip(answers, expected, strict=True):
                expect(answer, array)
            return window.per_call(calls)

        return sample

    def _written(self, index, seed):
        array = self.ring[index % len(self.ring)]
        reference.pattern(array, seed)
        array[index % array.shape[0]] ^= np.uint64(index)
        return array

    def _sync(self, calls, seed):
        answers, last = [], None
        for index in range(calls):
            last = self._written(index, seed)
            answers.append(self.client.call("xor64", last, **self.options))
        return answers[-1:], [reference.xor64(last).to_bytes(8, "little")]

    def _pipelined(self, calls, seed):
        answers, last = {}, None
        with self.client.pipeline(depth=DEPTH) as pipe:
            for index in range(calls):
                last = self._written(index, seed)
                if pipe.outstanding == DEPTH:
                    answers.update([pipe.next()])
                job = pipe.submit("xor64", last, **self.options)
            answers.update(pipe)
        return [answers[job]], [reference.xor64(last).to_bytes(8, "little")]

    def close(self):
        self.client.close()


def _row_auto(fleet, plan, size, pipelined):
    import memlift

    transport, size = fleet.get(fleet.ours), plan.size(size)
    calls = 4 if plan.quick else max(8, (64 << 20) // size)
    ways = []
    try:
        fixed, skipped = [], []
        for options in WAYS:
            way = _Way(transport, size, options, pipelined)
            ways.append(way)
            try:
                way.measure(calls)(way, 0)
            except memlift.DeviceUnavailableError:
                skipped.append(options["device"])
                continue
            times = [way.measure(calls)(way, seed)[0] for seed in range(1 if plan.quick else 9)]
            fixed.append((statistics.median(times), len(fixed), way))
        best = min(fixed)[2]
        ours = _Way(transport, size, {}, pipelined)
        ways.append(ours)
        ours.measure(4 if plan.quick else WARM_CALLS)(ours, 0)
        pairs, cpu = interleave(2 if plan.quick else 31, (ours, ours.measure(calls)), (best, best.measure(calls)))
        chosen = ours.client.explain("xor64", size, mode="pipelined" if pipelined else "sync")
    finally:
        for way in ways:
            way.close()
    took = ", ".join(f"{way.options['device']}/{way.options['cache']} {seconds * 1e3:.2f} ms" for seconds, _, way in fixed)
    return {
        "unit": "s",
        "pairs": pairs,
        "cpu": cpu,
        "qualifies": f"{calls} calls per sample, {DEPTH if pipelined else 1} under way, each array written anew in the window, every byte read by the server; "
        f"{cores()} cores, not pinned; ours: auto, which took {chosen['device']}/{chosen['cache']} ({chosen['reason']}); "
        f"theirs: {best.options['device']}/{best.options['cache']}, the fastest of {took}"
        + "".join(f"; {device} not possible with this engine" for device in sorted(set(skipped))),
    }


def row_auto_sync(fleet, plan, size, _):
    return _row_auto(fleet, plan, size, pipelined=False)


def row_auto_pipelined(fleet, plan, size, _):
    return _row_auto(fleet, plan, size, pipelined=True)


def _column(words):
    """Times in nanoseconds, about a microsecond apart, as an event log has them."""
    return np.cumsum(np.random.default_rng(7).integers(900, 1100, words))


class _Request:
    """One way to send the column."""

    def __init__(self, transport, operation="xor64", prepare=lambda array: array, **options):
        self.client, self.pids = transport.client, Call(transport).pids
        self.operation, self.prepare, self.options = operation, prepare, options

    def run(self, array):
        return self.client.call(self.operation, self.prepare(array), **self.options)

    def held(self, array):
        """Bytes of the request pool while a call is under way."""
        future = self.client.call_async(self.operation, self.prepare(array), **self.options)
        held = self.client.stats()["request_used_bytes"]
        future.result()
        return held


def row_packed(fleet, plan, size, rival):
    transport, size = fleet.get(fleet.ours), plan.size(size)
    array, ours = _column(size // 8), _Request(transport, pack=True)
    theirs = _Request(transport) if rival == "plain" else _Request(transport, "xor64_of_zlib", lambda array: zlib.compress(array, 1))
    sides = ours, theirs

    def measure(side, seed):
        array[0] = seed
        expected = reference.xor64(array).to_bytes(8, "little")
        window = Window(side)
        with window:
            expect(side.run(array), expected)
        return window.per_call(1)

    for side in sides:
        measure(side, 0)
    pairs, cpu = interleave(2 if plan.quick else 21, *((side, measure) for side in sides))
    held = [side.held(array) >> 10 for side in sides]
    return {
        "unit": "s",
        "pairs": pairs,
        "cpu": cpu,
        "count": {"ours_kib": held[0], "theirs_kib": held[1]},
        "qualifies": f"a column of {size // 8} times (int64) per call, every byte read by the server; {cores()} cores, not pinned; "
        f"ours: pack=True; theirs: {rival}; KiB: of the request pool that a request holds",
    }
