# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One array through every service: a numpy array is a numpy array, whether its bytes lie in a zmem arena, in an ipc loan, in a reply's
pool, in a persistent pool or in what was packed and sealed, and whether or not its pages are away at that moment.

The process of the test becomes a zmem job, so it is one of its own; the server is another."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
import memlift
from memlift import persist, traverse, transform

address, path, leaving = sys.argv[1], sys.argv[2], sys.argv[3] == "leaving"
rows = 1 << 20                                                   # 8 MiB
want = np.random.default_rng(7).integers(0, 50, rows)            # what it has to be everywhere; outside the arena

with memlift.zmem.job("4G"):
    array = want.copy()                                          # zmem: from now on its pages may leave
    ballast = [np.random.default_rng(number).integers(0, 9, rows) for number in range(32)]
assert memlift.zmem.numbers()["mapped_bytes"] >= 33 * array.nbytes
if leaving:                                                      # less than there is by now, and more is to come
    resident = int(open("/proc/self/statm").read().split()[1]) * 4096
    with memlift.zmem.job(resident - (64 << 20)):
        pass

def same(other, label):
    assert other.dtype == want.dtype and other.shape == want.shape, label
    assert np.array_equal(other, want), label
    if other.flags.writeable:                                    # DLPack has read-only memory from its version 1.0 on
        assert np.shares_memory(np.from_dlpack(other), other), label

with memlift.ipc.Client(address, timeout=60) as client:
    answer = client.call("echo", array)                          # arena -> request pool -> reply pool
    same(answer, "reply")
    loan = client.loan(array.shape, array.dtype)
    loan[:] = array                                              # arena -> loan
    same(client.call("echo", loan), "loan")

    with persist.open(path, domain="pages", size=64 << 20) as pool:
        pool.put_array("kept", answer)                           # reply pool -> persistent pool
        del answer, loan
        same(pool.array("kept"), "pool")
        same(client.call("echo", pool.array("kept")), "reply to the pool's own memory")
        client.call("echo", pool.array("kept"), out=array)       # reply -> arena again
        same(array, "arena")

        key, nonce = bytes(range(16)), bytes(12)
        packed = transform.pack(pool.array("kept"), "lz4")
        sealed, tag = transform.seal(key, nonce, packed)
        array[:] = 0
        transform.unpack(transform.open(key, nonce, tag, sealed), "lz4", out=array)      # into the arena
        same(array, "unpacked")

    with persist.open(path) as pool:
        same(pool.array("kept"), "pool, opened again")
        with traverse.Node(memory="64M") as node, traverse.Client.connect(node) as walker:
            head = pool.array("kept")[:10_000]
            table = traverse.OrderedMap.load(walker, (np.arange(head.size), head))
            keys, values = table.range(0, head.size - 1)
            assert np.array_equal(keys, np.arange(head.size)) and np.array_equal(values, array[:10_000])

for number, other in enumerate(ballast):
    assert np.array_equal(other, np.random.default_rng(number).integers(0, 9, rows)), number
print(memlift.zmem.numbers()["pages_packed"])
"""


@pytest.mark.parametrize("pages", ["leaving", "staying"])
def test_one_array_through_every_service(shared_server, tmp_path, pages) -> None:
    arguments = [shared_server.address, str(tmp_path / "pool"), pages]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)
    if "handle faults" in done.stderr:
        pytest.skip("this kernel offers no way to handle faults")
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) > 0) == (pages == "leaving")
