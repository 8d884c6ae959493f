# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Maps, lists, walks and loads through real nodes: sync, batched, pipelined, in an event loop, from Arrow, pandas and CSV."""

import asyncio
import json
import os
import pickle
import random
import shutil
import struct
import threading

import numpy as np
import pytest
from conftest import free_ports, interrupted

from memlift import errors, traverse
from memlift.traverse import AsyncClient, Client, HashMap, List, Node, OrderedMap, Program


@pytest.fixture(scope="module")
def node():
    with Node(memory="128M", listen=["127.0.0.1:0", f"shm:py-{os.getpid()}"]) as node:
        yield node


def test_a_client_that_accepts_old_data_reads_and_changes_nothing(node) -> None:
    with traverse.Client.connect(node) as client:
        words = traverse.HashMap.create(client)
        words[1] = b"one"
        with traverse.Client.connect(node, stale_ok=True) as stale:
            copy = traverse.HashMap.open(stale, words.handle)
            assert copy[1] == b"one" and len(copy) == 1
            for change in (lambda: copy.__setitem__(1, b"two"), lambda: stale.allocate(8)):
                with pytest.raises(errors.BadArgumentError, match="stale_ok"):
                    change()
            # It has no backup, so the node itself has answered.
            assert stale.stats()["from_backups"] == 0


@pytest.fixture(params=[0, 1], ids=["udp", "shm"])
def client(request, node):
    with Client.connect(node.places[request.param]) as client:
        yield client


def test_a_hash_map_is_a_dict(client):
    entries, model = HashMap.create(client, expected=64, value="i8"), {}
    draw = random.Random(3)
    for _ in range(600):
        key, value = draw.randrange(80), draw.randrange(-(1 << 62), 1 << 62)
        match draw.randrange(5):
            case 0 | 1:
                assert entries.insert(key, value) == (key not in model)
                model[key] = value
            case 2:
                assert entries.delete(key) == (model.pop(key, None) is not None)
            case 3:
                old = entries.add(key, -3)
                assert old == model.get(key)
                if old is not None:
                    model[key] = old - 3
            case _:
                assert entries.get(key) == model.get(key)
    assert dict(entries.items()) == model
    assert sorted(entries) == sorted(model)
    assert len(entries) == len(model)
    assert entries.get_many(range(80)) == [model.get(key) for key in range(80)]
    values, found = entries.get_array(np.arange(80))
    assert found.tolist() == [key in model for key in range(80)]
    assert values[found].tolist() == [model[key] for key in range(80) if key in model]
    with pytest.raises(KeyError):
        entries[1000]
    with pytest.raises(KeyError):
        del entries[1000]
    assert 1000 not in entries
    assert "x" not in entries


@pytest.mark.parametrize("size", [0, 1, 8, 9, 100, 5000, 70_000])
def test_values_of_any_length(client, size):
    entries = HashMap.create(client, key=str, value=bytes)
    value = random.Random(size).randbytes(size)
    entries["naïve"] = value
    entries["b"] = b"other"
    assert entries["naïve"] == value
    assert dict(entries.items()) == {"naïve": value, "b": b"other"}


def test_records_and_handles(client):
    kind = [("open", "f8"), ("volume", "u4"), ("code", "S4")]
    trades = OrderedMap.create(client, value=kind)
    trades[5] = (1.5, 7, b"ABCD")
    for handle in (pickle.loads(pickle.dumps(trades.handle)), json.loads(json.dumps(trades.handle))):
        again = OrderedMap.open(client, handle)
        assert again[5]["volume"] == 7
        assert again[5]["code"] == b"ABCD"
    words = HashMap.create(client, key=bytes, value=str)
    words[b"\0\xff"] = "zwölf"
    assert HashMap.open(client, json.loads(json.dumps(words.handle)))[b"\0\xff"] == "zwölf"


def test_an_ordered_map_ranges_and_adds(client):
    prices, model = OrderedMap.create(client), {}
    draw = random.Random(5)
    for _ in range(300):
        key, value = draw.randrange(500), draw.randrange(-1000, 1000)
        if draw.random() < 0.8:
            assert prices.insert(key, value) == (key not in model)
            model[key] = value
        else:
            assert prices.delete(key) == (model.pop(key, None) is not None)
    keys, values = prices.range(100, 300)
    inside = sorted(key for key in model if 100 <= key <= 300)
    assert keys.tolist() == inside
    assert values.tolist() == [model[key] for key in inside]
    assert not keys.flags.writeable
    assert keys.base is not None, "a view, not a copy"
    half_open, _ = prices[100:300]
    assert half_open.tolist() == [key for key in inside if key < 300]
    chosen = [model[key] for key in inside]
    assert prices.aggregate(100, 300) == (len(chosen), sum(chosen), min(chosen), max(chosen))
    assert prices.avg(100, 300) == pytest.approx(sum(chosen) / len(chosen))
    assert (prices.min(2000), prices.max(2000), prices.avg(2000), prices.sum(2000)) == (None, None, None, 0)
    assert list(prices.items()) == sorted(model.items())
    assert (len(prices), list(prices)) == (len(model), sorted(model))
    assert prices.range(limit=3)[0].tolist() == sorted(model)[:3]
    values, found = prices.get_array([inside[0], 10_000])
    assert (values[0], found.tolist()) == (model[inside[0]], [True, False])
    floats = OrderedMap.create(client, value="f8")
    floats[1] = 0.25
    assert floats.sum() == floats.aggregate().sum == sum(floats.values())
    records = OrderedMap.create(client, value=[("a", "i8"), ("b", "i8")])
    with pytest.raises(errors.UnsupportedValueError, match="no numbers"):
        records.sum()


def test_a_list_keeps_its_order(client):
    numbers = List.create(client, value="f8")
    for number in range(10):
        numbers.append(number, number / 2)
    numbers.prepend(99)
    assert list(numbers) == [(99, None), *((number, number / 2) for number in range(10))]
    assert numbers.find(4) == 2.0
    assert numbers.find(1234, "none") == "none"
    assert numbers.delete(4)
    assert not numbers.delete(4)
    assert (numbers.aggregate().count, numbers.sum(), len(numbers)) == (10, 99 + 45 - 4, 10)


def cells(client, count):
    """A chain of `count` cells (next, key); its first address."""
    base = client.allocate(64 * count + 64)
    memory = bytearray(64 * count + 64)
    for index in range(count):
        following = base + 64 * (index + 1) if index + 1 < count else 0
        struct.pack_into("<QQ", memory, 64 * index, following, index)
    client.write(base, memory)
    return base


LAST = """
    r4 = *(u64 *)(r1 + 0)
    r5 = *(u64 *)(r1 + 8)
    *(u64 *)(r2 + 0) = r5
    if r4 == 0 goto end
    *(u64 *)(r3 + 0) = r4
    r0 = 0
    exit
end:
    r0 = 1
    exit
"""


def test_walks_one_many_and_pipelined(client):
    last = Program.assemble("last", LAST)
    base = cells(client, 100)
    assert client.walk(last, base).scratch == bytes([99])
    walks = [(last, base + 64 * index) for index in range(100)]
    assert [walked.iterations for walked in client.walk_many(walks)] == list(range(99, -1, -1))
    pipeline = client.pipeline()
    for index in range(0, 600):
        pipeline.submit(last, base + 64 * (index % 100))
    assert len(pipeline) == 600
    assert [walked.iterations for walked in pipeline] == [99 - index % 100 for index in range(600)]
    with client.pipeline() as given_up:
        given_up.submit(last, base)
    assert client.walk(last, base)
    assert Program.assemble("again", last.listing()).bytecode == last.bytecode
    assert (last.window, last.writes) == ((0, 16), False)


def test_many_threads_share_a_client(client):
    entries = HashMap.create(client, expected=64, value="i8")
    entries[0] = 0

    def work():
        for _ in range(50):
            entries.add(0, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entries[0] == 200


@pytest.mark.parametrize("way", [0, 1], ids=["udp", "shm"])
def test_coroutines_share_one_descriptor(node, way):
    with Client.connect(node) as client:
        base = cells(client, 50)
        words = HashMap.create(client, key=str, value=str)
        prices = OrderedMap.load(client, (np.arange(1000), np.arange(1000) * 2), sorted=True)

        async def work():
            last = Program.assemble("last", LAST)
            async with AsyncClient.connect(node.places[way], window=16) as remote:
                walks = [remote.walk(last, base + 64 * (index % 50)) for index in range(300)]
                walked = await asyncio.gather(*walks)
                assert [one.iterations for one in walked] == [49 - index % 50 for index in range(300)]
                many = await remote.walk_many([(last, base), (last, base + 64)])
                assert [one.iterations for one in many] == [49, 48]
                assert await remote.change(words, "insert", "a", "b")
                assert await remote.get(words, "a") == "b"
                assert await remote.get_many(words, ["a", "z"], "no") == ["b", "no"]
                assert await remote.get(prices, 7) == 14
                keys, values = await remote.range(prices, 10, 12)
                assert (keys.tolist(), values.tolist()) == ([10, 11, 12], [20, 22, 24])
                await asyncio.gather(*(remote.change(prices, "insert", 5000 + index, index) for index in range(20)))
                assert prices.count(5000) == 20
                # Cancelled walks leave nothing behind, and do not disturb the others.
                tasks = [asyncio.ensure_future(remote.walk(last, base)) for _ in range(60)]
                await asyncio.sleep(0)
                for task in tasks[::2]:
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(one, asyncio.CancelledError) for one in done[::2])
                assert all(one.iterations == 49 for one in done[1::2])
                assert not remote._waiting
                with pytest.raises(errors.NoSuchAddressError):
                    await remote.walk(last, 1 << 60)
                pending = asyncio.ensure_future(remote.walk(last, base))
                await asyncio.sleep(0)
            with pytest.raises(errors.ClosedError):
                await pending

        asyncio.run(work())
        asyncio.run(work_again(node.places[way], base))


async def work_again(place, base):
    """A loop of its own, and a client that belongs to it."""
    remote = AsyncClient.connect(place)
    assert (await remote.walk(Program.assemble("last", LAST), base)).iterations == 49
    await remote.aclose()


def test_a_sleeping_loop_is_woken(node):
    """Answers wake the loop; it does not turn while nothing comes."""

    async def work():
        async with AsyncClient.connect(node.places[1]) as remote:
            turns = 0
            turn = remote._turn

            def counted():
                nonlocal turns
                turns += 1
                turn()

            remote._turn = counted
            loop = asyncio.get_running_loop()
            loop.remove_reader(remote._fd)
            loop.add_reader(remote._fd, counted)
            assert (await remote.walk(Program.assemble("last", LAST), base)).iterations == 8
            before = turns
            await asyncio.sleep(0.2)
            assert turns <= before + 2

    with Client.connect(node) as client:
        base = cells(client, 9)
        asyncio.run(work())


def test_loads(client, tmp_path):
    told = []
    keys = np.random.default_rng(1).permutation(200_000).astype(np.uint64)
    unsorted = OrderedMap.load(client, (keys, keys * 3), progress=told.append)
    assert told[-1] == 200_000
    assert len(told) > 3
    assert unsorted.range(5, 7)[1].tolist() == [15, 18, 21]
    assert unsorted.count() == 200_000
    ordered = OrderedMap.load(client, (np.arange(1000), np.arange(1000) / 4), sorted=True)
    assert ordered[3] == 0.75
    mapped = HashMap.load(client, (keys, keys.astype("f4")))
    assert mapped[17] == 17.0
    assert HashMap.load(client, {"a": "x", "b": "y"})["b"] == "y"
    assert dict(HashMap.load(client, [(1, 2), (1, 3)]).items()) == {1: 3}, "the last one counts"
    path = tmp_path / "prices.csv"
    path.write_text("# a comment\ntime,price\n10,1.25\n20,2.5\n")
    from_file = OrderedMap.load(client, path, key="time", value="price", scale=100, sorted=True)
    assert list(from_file.items()) == [(10, 125), (20, 250)]
    assert HashMap.load(client, str(path), key=0, value=1)[10] == 1.25
    assert list(traverse.bulk_load(client, []).items()) == []
    with pytest.raises(errors.BadInputError, match="line 4"):
        path.write_text("time,price\n10,1\n20,2\nx,3\n")
        OrderedMap.load(client, path, key="time", value="price")
    with pytest.raises(errors.BadInputError, match="no column 'when'"):
        OrderedMap.load(client, path, key="when", value="price")
    with pytest.raises(errors.BadInputError, match="not greater"):
        OrderedMap.load(client, ([2, 1], [0, 0]), sorted=True)
    with pytest.raises(errors.BadInputError, match="several kinds"):
        HashMap.load(client, [(1, 2), ("a", 3)])


def test_a_load_that_is_ended_gives_its_memory_back():
    with Node(memory="8M") as node, Client.connect(node) as client:
        HashMap.create(client)
        free = node.stats()["free_bytes"]

        def enough(count):
            raise RuntimeError(f"enough at {count}")

        for _ in range(20):
            with pytest.raises(RuntimeError, match="enough at"):
                OrderedMap.load(client, (np.arange(200_000), np.arange(200_000)), sorted=True, progress=enough)
        with pytest.raises(errors.NodeFullError):
            OrderedMap.load(client, (np.arange(2_000_000), np.arange(2_000_000)), sorted=True)
        assert node.stats()["free_bytes"] > free - (2 << 20)
        assert OrderedMap.load(client, (np.arange(1000), np.arange(1000)), sorted=True).count() == 1000


def test_loads_tables(client):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(
        {
            "key": arrow.chunked_array([arrow.array([3, 1], arrow.int32()), arrow.array([2], arrow.int32())]),
            "price": arrow.chunked_array([arrow.array([0.5, 1.5]), arrow.array([2.5])]),
            "count": arrow.chunked_array([arrow.array([7, 8, 9], arrow.uint16())]),
            "name": ["three", "one", "zwei"],
        }
    )
    prices = OrderedMap.load(client, table, value="price")
    assert list(prices.items()) == [(1, 1.5), (2, 2.5), (3, 0.5)]
    both = OrderedMap.load(client, table, value=["price", "count"])
    assert (both[3]["price"], both[3]["count"]) == (0.5, 7)
    assert HashMap.load(client, table, value="name")[2] == "zwei"
    by_name = HashMap.load(client, table, key="name", value="key")
    assert by_name["three"] == 3
    sliced = table.slice(1, 2)
    assert dict(HashMap.load(client, sliced, value="name").items()) == {1: "one", 2: "zwei"}
    stamps = arrow.table({"key": arrow.array([1, 2], arrow.timestamp("ns")), "v": arrow.array([b"abc", b"def"], arrow.binary(3))})
    assert OrderedMap.load(client, stamps)[2] == np.void(b"def")
    for wrong, text in [
        (arrow.table({"key": [1, None], "v": [1, 2]}), "is null"),
        (arrow.table({"key": [-1], "v": [1]}), "less than 0"),
        (arrow.table({"key": [1.5], "v": [1]}), "float"),
        (arrow.table({"key": [1], "v": [[1]]}), "cast it"),
        (arrow.table({"key": [1], "v": ["a"]}), "one length"),
        (arrow.table({"k": [1], "v": [1]}), "no column"),
    ]:
        with pytest.raises(errors.BadInputError, match=text):
            OrderedMap.load(client, wrong, key_type="u8")
    reader = table.to_reader(max_chunksize=1)
    assert OrderedMap.load(client, reader, value="count")[1] == 8
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"key": [5, 6], "v": [1.5, 2.5]})
    assert OrderedMap.load(client, frame)[6] == 2.5
    names = pandas.DataFrame({"key": ["x", "y"], "v": [1, 2]})
    assert HashMap.load(client, names)["y"] == 2


def test_frames_without_arrow(client):
    pandas = pytest.importorskip("pandas")

    class Frame(pandas.DataFrame):
        def __arrow_c_stream__(self, requested_schema=None):
            raise ImportError("no pyarrow")

    frame = Frame({"key": [5, 6], "v": [1.5, 2.5], "w": [1, 2]})
    assert OrderedMap.load(client, frame, value="v")[6] == 2.5
    assert OrderedMap.load(client, frame)[6]["w"] == 2
    with pytest.raises(errors.BadInputError, match="null"):
        OrderedMap.load(client, Frame({"key": [1, 2], "v": [1.0, None]}))


def test_errors_say_what_to_do(node, client):
    last = Program.assemble("last", LAST)
    with pytest.raises(errors.NoSuchAddressError, match="no node has address"):
        client.walk(last, 0x1234)
    with pytest.raises(errors.BadArgumentError, match="no place of a node"):
        Client.connect("nowhere")
    with pytest.raises(errors.ServerUnavailableError):
        Client.connect("shm:no-such-ring-here")
    with pytest.raises(errors.BadArgumentError, match="map="):
        Client.connect()
    with pytest.raises(errors.BadArgumentError, match="32"):
        Client.connect(node, key=b"short")
    with pytest.raises(errors.BadArgumentError, match="less than 30"):
        Client.connect(node, deadline=31)
    with pytest.raises(errors.DeadlineExceededError, match="has not answered"):
        Client.connect("127.0.0.1:9", deadline=0.2)
    with pytest.raises(errors.NodeFullError):
        client.allocate(1 << 40)
    base = cells(client, 3)
    client.write(base + 128, struct.pack("<Q", base))
    with Client.connect(node, iterations=10_000) as short, pytest.raises(errors.WalkTooLongError, match="a cycle"):
        short.walk(last, base)
    with pytest.raises(errors.BadProgramError, match="instruction 0") as caught:
        Program("wrong", b"\xff" * 8)
    assert caught.value.at == 0
    with pytest.raises(errors.BadProgramError, match="line 1"):
        Program.assemble("wrong", "nonsense")
    with pytest.raises(errors.BadProgramError, match="there are"):
        Program.shipped("nothing")
    with pytest.raises(errors.BadArgumentError):
        client._native.result(1 << 40)
    numbers = HashMap.create(client, value="i8")
    for key in (-1, 1 << 64, "text", b"bytes", 1.5, True):
        with pytest.raises(errors.UnsupportedValueError):
            numbers[key] = 1
    with pytest.raises(errors.UnsupportedValueError):
        numbers[1] = "text"
    with pytest.raises(errors.BadArgumentError, match="240"):
        OrderedMap.create(client, value="V241")
    with pytest.raises(errors.BadArgumentError, match="TooLong|at most"):
        HashMap.create(client, key=str)["x" * 200] = b""
    client.close()
    with pytest.raises(errors.ClosedError):
        client.walk(last, base)


def test_tenants_have_keys():
    keys = {7: bytes(range(32))}
    with Node(memory="8M", keys=keys) as node:
        with Client.connect(node, tenant=7, key=keys[7]) as client:
            entries = HashMap.create(client, value="i8")
            entries[1] = 2
            assert entries[1] == 2
        with pytest.raises(errors.WrongKeyError, match="its key there is another"):
            Client.connect(node, tenant=7, key=bytes(32), deadline=0.2)
    with pytest.raises(errors.BadArgumentError, match=r"secrets\.token_bytes\(32\)"):
        Node(memory="8M", keys={7: b"short"})
    with pytest.raises(errors.NodeFailedError, match="keys"):
        Node(memory="8M", listen="0.0.0.0:0")


def test_a_log_brings_a_node_back(tmp_path):
    log = tmp_path / "node.log"
    with Node(memory="8M", log=log) as node, Client.connect(node) as client:
        entries = HashMap.create(client, value="i8")
        entries[1] = 2
        handle = entries.handle
    with Node(memory="8M", log=log) as node, Client.connect(node) as client:
        assert HashMap.open(client, handle)[1] == 2


def test_an_older_copy_of_a_log_is_told(tmp_path):
    log, copy = tmp_path / "node.log", tmp_path / "copy.log"
    place = f"127.0.0.1:{free_ports(1)[0]}"
    with Node(memory="8M", log=log, listen=place), Client.connect(place) as client:
        handles = []
        for kind in (HashMap, OrderedMap, List):
            handles.append((kind, kind.create(client, value="i8").handle))
        HashMap.open(client, handles[0][1])[1] = 2
        shutil.copy(log, copy)
        later = [(kind, kind.create(client, value="i8").handle) for kind in (HashMap, OrderedMap, List)]
        stale = Client.connect(place)
        seen = HashMap.open(stale, later[0][1])
        seen[1] = 3
    shutil.copy(copy, log)
    with Node(memory="8M", log=log, listen=place), Client.connect(place) as client:
        secrets = [HashMap.create(client, value="i8") for _ in range(3)]
        secrets[0][1] = 77
        assert secrets[0].handle.heads == later[0][1].heads, "the address is given again"
        with stale:
            for wrong in (lambda: seen[1], lambda: seen.insert(1, 4), lambda: HashMap.create(stale, value="i8")):
                with pytest.raises(errors.NoSuchAddressError, match="older than what the node had acknowledged"):
                    wrong()
        for kind, handle in later:
            with pytest.raises(errors.NoSuchAddressError, match="older"):
                kind.open(client, handle)
        for kind, handle in handles:
            opened = kind.open(client, pickle.loads(pickle.dumps(handle)))
            assert opened.handle == handle, "it names the moment at which the collection was made"
        assert HashMap.open(client, handles[0][1])[1] == 2
        # A handle of an earlier release has no stamp.
        assert HashMap.open(client, handles[0][1][:6])[1] == 2
        assert secrets[0][1] == 77


def test_two_nodes_of_a_map_are_one_memory(tmp_path):
    places = [f"127.0.0.1:{port}" for port in free_ports(2)]
    path = tmp_path / "cluster.toml"
    text = "epoch = 1\n"
    for name, place in zip("ab", places, strict=True):
        text += f'[[node]]\nname = "{name}"\naddresses = ["udp:{place}"]\n'
    for name, base in (("a", 1 << 33), ("b", 1 << 34)):
        text += f'[[range]]\nbase = "{base:#x}"\nbytes = "8M"\nnode = "{name}"\n'
    path.write_text(text)
    with (
        Node(memory="8M", listen=places[0], map=path, name="a") as a,
        Node(memory="8M", listen=places[1], map=path, name="b") as b,
        Client.connect(map=path) as client,
    ):
        assert (a.range[0], b.range[0]) == (1 << 33, 1 << 34)
        entries = HashMap.create(client, expected=64, value="i8")
        for key in range(2000):
            entries.insert(key, key)
        assert entries.get_many(range(2000)) == list(range(2000))
        assert max(a.stats()["free_bytes"], b.stats()["free_bytes"]) < 8 << 20
        assert client.stats()["nodes"] == 2
    with pytest.raises(errors.BadArgumentError, match="no node called"):
        Node(map=path, name="c")
    with pytest.raises(errors.BadArgumentError, match="belong together"):
        Node(map=path)


def test_ctrl_c_ends_a_wait():
    node = Node(memory="8M")
    with Client.connect(node, deadline=20) as client:
        place = node.places[0]
        node.stop()
        interrupted(lambda: client.read(1 << 32, 8))
        interrupted(lambda: Client.connect(place, deadline=20))


def test_a_dead_node_is_told():
    node = Node(memory="8M", listen=f"shm:py-dead-{os.getpid()}")
    client = Client.connect(node, deadline=0.5)
    entries = HashMap.create(client)
    node.stop()
    with pytest.raises((errors.DeadlineExceededError, errors.ServerUnavailableError)):
        entries.get(1)


def test_a_forked_child_connects_for_itself(node):
    with Client.connect(node) as client:
        child = os.fork()
        if child == 0:
            try:
                client.read(1 << 32, 8)
            except errors.ClosedError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_handle_is_of_one_memory():
    with Node(memory="16M") as node:
        place = node.places[0]
        client = Client.connect(node)
        maps = HashMap.create(client, value="i8"), OrderedMap.create(client), List.create(client)
        client.close()
        handles = [one.handle for one in maps]
        assert all(handle.memory != 0 for handle in handles)
        with Client.connect(node) as again:
            for one, handle in zip(maps, handles, strict=True):
                assert len(type(one).open(again, json.loads(json.dumps(handle)))) == 0
    with Node(memory="16M", listen=place) as other, Client.connect(other) as client:
        for one, handle in zip(maps, handles, strict=True):
            with pytest.raises(errors.NoSuchAddressError, match="started again without its log"):
                type(one).open(client, handle)
            assert type(one).open(client, handle._replace(memory=0)) is not None, "without a memory it is not checked"
