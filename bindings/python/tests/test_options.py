# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Options of a call, jobs that are asked about, and how busy a server says it is.

Goal    every option gives the same answers in every mode; what is not there is refused by name
Method  a real server process for answers; a server in this process where its handler has to wait for the test
"""

import asyncio
import os
import threading

import numpy as np
import pytest

import memlift
from memlift.ipc import AsyncClient, Client, Server

OPTIONS = [
    {"device": "auto", "cache": "auto", "crc": True},
    {"device": "auto", "cache": "off", "crc": False},
    {"device": "inline", "cache": "on", "crc": False},
    {"device": "worker", "cache": "auto", "crc": False},
    {"device": "worker", "cache": "off", "crc": True},
    {"pack": True},
    {"pack": True, "crc": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_every_option_gives_the_same_answer_in_every_mode(client, shared_server, options):
    arrays = [np.arange(n, dtype=np.int32)[:: 1 + n % 2] for n in (0, 1, 999, 300_000)]
    for array in arrays:
        assert np.array_equal(client.call("echo", array, defer=False, **options), array)
        assert np.array_equal(client.call_async("echo", array, **options).result(), array)
    assert client.call("echo", {"a": arrays[2], "b": "text"}, **options)["b"] == "text"
    with client.pipeline(3, batch=2) as pipeline:
        jobs = {pipeline.submit("echo", array, **options): array for array in arrays}
        pipeline.flush()
        assert all(np.array_equal(answer, jobs.pop(job)) for job, answer in pipeline.results()) and not jobs

    async def body():
        async with AsyncClient(shared_server.address, timeout=60) as awaited:
            answers = await asyncio.gather(*(awaited.call("echo", array, **options) for array in arrays * 20))
            assert all(np.array_equal(answer, array) for answer, array in zip(answers, arrays * 20, strict=True))

    asyncio.run(body())


def test_what_is_not_there_is_named(client):
    with pytest.raises(memlift.DeviceUnavailableError, match="take 'auto', 'inline' or 'worker'"):
        client.call("echo", b"x", device="dsa")
    with pytest.raises(ValueError, match='device="gpu": choose one of .auto.'):
        client.call("echo", b"x", device="gpu")
    with pytest.raises(ValueError, match='cache="maybe": choose one of'):
        client.call_async("echo", b"x", cache="maybe")
    with pytest.raises(ValueError, match="choose one of 'sync'"):
        client.explain("echo", 1, mode="later")
    with pytest.raises(RuntimeError, match="inside one"):
        memlift.ipc.progress(1, 2)


def test_jobs_and_load():
    go_on, begun = threading.Event(), threading.Event()

    def hold(_):
        memlift.ipc.progress(2, 5)
        begun.set()
        assert go_on.wait(60)

    with Server(f"pytest-options-{os.getpid()}", handlers=1) as server:
        server.register("hold", hold)
        server.start()
        with Client(server.address, timeout=60) as client, Client(server.address) as other:
            first, second, third = (client.call_async("hold") for _ in range(3))
            assert begun.wait(60)
            assert first.state() == {"state": "taken", "done": 2, "total": 5}
            assert second.state() == {"state": "queued", "ahead": 0}
            assert third.state() == {"state": "queued", "ahead": 1}
            assert other.load() == {"sessions": 2, "handlers": 1, "busy_handlers": 1, "queued": 2}
            go_on.set()
            assert [future.result() for future in (first, second, third)] == [None] * 3
            assert first.state() == {"state": "answered"}


def test_decisions_say_why(client):
    array = np.zeros(1 << 20, np.uint8)
    for _ in range(40):
        client.call("echo", array)
    said = client.explain("echo", array.nbytes)
    assert said["decisions"] >= 40 and said["explorations"] <= said["decisions"] // 16
    assert sum(candidate["samples"] for candidate in said["candidates"]) == said["decisions"]
    assert said["reason"] and said["placement_reason"] and said["expected_ns"] > 0
    fixed = client.explain("echo", array.nbytes, mode="pipelined", device="inline")
    assert (fixed["device"], fixed["cache"], fixed["decisions"]) == ("inline", "off", 0)
    assert client.explain("echo", 64)["decisions"] == 0
