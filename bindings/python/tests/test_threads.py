# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Many threads of one process on the same objects of every service, with and without a GIL.

Goal    nothing crashes, is lost or mixed up; what one object cannot do from two threads at once is an error
Method  eight threads that begin together; each checks what it gets
"""

import threading

import numpy as np
import pytest

import memlift
from memlift import persist, transform, traverse, zlib

THREADS = 8


def together(work):
    """Runs `work(number)` in threads that begin together; raises what the first of them raised."""
    begin, raised = threading.Barrier(THREADS), []

    def body(number):
        try:
            begin.wait(60)
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


def test_calls_of_one_client(tmp_path):
    path = str(tmp_path / "s")
    with memlift.ipc.Server(path, handlers=4) as server:
        server.register("double", lambda x: x * 2)
        server.start()
        with memlift.ipc.Client(path) as client:

            def work(number):
                for at in range(100):
                    size = 1 + (number * 977 + at * 131) % 20_000
                    got = client.call("double", np.full(size, number, np.int64))
                    assert got.size == size and (got == 2 * number).all()

            together(work)


def test_items_of_one_queue():
    queue, each = memlift.Queue(bytes_max=64 << 20), 200
    got, lock = [], threading.Lock()

    def work(number):
        if number % 2:
            for at in range(each):
                queue.put({"from": number, "at": at, "data": np.full(1 + at * 7, number)})
            return
        for _ in range(each):
            item = queue.get(timeout=60)
            assert (item["data"] == item["from"]).all() and item["data"].size == 1 + item["at"] * 7
            with lock:
                got.append((item["from"], item["at"]))

    together(work)
    assert sorted(got) == [(number, at) for number in range(1, THREADS, 2) for at in range(each)]


def test_keys_of_one_pool(tmp_path):
    with persist.open(tmp_path / "p.pool", durability="buffered") as pool:
        table = pool.dict("table")

        def work(number):
            for at in range(100):
                table[f"{number}/{at}"] = {"number": number, "at": at}
                with pool.transaction():
                    table["sum"] = table.get("sum", 0) + 1
                assert table[f"{number}/{at}"] == {"number": number, "at": at}

        together(work)
        assert table["sum"] == THREADS * 100 and len(table) == THREADS * 100 + 1


def test_maps_of_one_client():
    with traverse.Node(memory="32M") as node, traverse.Client.connect(node) as client:
        table = traverse.HashMap.create(client, value="i8")

        def work(number):
            for at in range(60):
                table[number * 1000 + at] = at
                assert table[number * 1000 + at] == at

        together(work)
        assert len(table) == THREADS * 60


def test_whole_messages():
    key = bytes(range(16))

    def work(number):
        for at in range(60):
            text = (b"%d " % number) * (1 + at * 97)
            packed = transform.pack(text, format="gzip")
            assert transform.unpack(packed, format="gzip") == text
            assert zlib.decompress(zlib.compress(text)) == text
            nonce = number.to_bytes(4, "big") + at.to_bytes(8, "big")
            sealed, tag = transform.seal(key, nonce, text)
            assert bytes(transform.open(key, nonce, tag, sealed)) == text

    together(work)


@pytest.mark.parametrize("make", [memlift.Pool, memlift.Executor])
def test_calls_of_one_pool(make):
    with make(2) as workers:

        def work(number):
            for at in range(30):
                got = workers.apply(sum, ([number, at],)) if make is memlift.Pool else workers.submit(sum, [number, at]).result(60)
                assert got == number + at

        together(work)
