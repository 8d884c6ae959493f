# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs that end while memlift's threads work: with the exit code that they gave, at once, and without a word.

Method  real programs. Handlers that run, sleep or call on; threads that read values from queues without a pause
"""

import subprocess
import sys
import time

import pytest

SERVER = """
import memlift, os, sys, threading, time
name = f"exit-{os.getpid()}"
begun = threading.Event()
server = memlift.ipc.Server(name, handlers=8)
queue = memlift.Queue(allow_pickle=True)

@server.handler("sleep")
def sleep(seconds):
    begun.set()
    time.sleep(seconds)
    return seconds

@server.handler("count")
def count(_):
    begun.set()
    return sum(i * i for i in range(10**9))

@server.handler("call")
def call(_):
    begun.set()
    while True:
        other.call("pass", [1])

@server.handler("wait")
def wait(_):
    begun.set()
    queue.get()

server.register("pass", lambda value: value)
server.start()
client, other = memlift.ipc.Client(name, timeout=60), memlift.ipc.Client(name, timeout=60)
"""

ENDS = {
    "runs out": ("", 0),
    "exit": ("sys.exit(5)", 5),
    "exception": ("raise SystemExit('x')", 1),
}

RUNNING = {
    "sleeping": "future = client.call_async('sleep', 1.0); begun.wait()",
    "sleeping shortly": "futures = [client.call_async('sleep', 0.001 * n) for n in range(60)]; begun.wait()",
    "counting": "future = client.call_async('count'); begun.wait()",
    "calling": "future = client.call_async('call'); begun.wait()",
    "waiting": "future = client.call_async('wait'); begun.wait()",
    "idle": "client.call('sleep', 0)",
    "asynchronous": "import asyncio\nasync def main():\n    async with memlift.ipc.AsyncClient(name) as c:\n"
    "        call = asyncio.ensure_future(c.call('sleep', 1.0)); call.add_done_callback(lambda call: call.exception())\n"
    "        await asyncio.to_thread(begun.wait)\nasyncio.run(main())",
}


def run(program, code):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("running", RUNNING)
def test_a_program_ends_while_handlers_run(running, end):
    statement, code = ENDS[end]
    assert run(f"{SERVER}\n{RUNNING[running]}\n{statement}\n", code).strip() in ("", "x")


CALLER = """
import memlift, sys, time
with memlift.ipc.Client(sys.argv[1]) as client:
    try:
        client.call_async("sleep", 0)
        time.sleep(1)
        for _ in range(9):
            client.call_async("sleep", 0)
        client.call("sleep", 0)
    except memlift.PeerDiedError:
        pass
"""


def test_calls_that_come_after_the_interpreters_end():
    """The C library still runs what was registered with it, and handlers' threads get calls meanwhile."""
    program = f"""
import ctypes, subprocess
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # called with the exit code, in seconds
{SERVER}
caller = subprocess.Popen([sys.executable, "-c", {CALLER!r}, name])
begun.wait()
sys.exit(2)
"""
    assert run(program, 2).strip() == ""


READERS = """
import dataclasses, memlift, os, sys, threading, time

@memlift.register
@dataclasses.dataclass
class Item:
    a: int = 1

queue = memlift.Queue(64, allow_pickle=True)
def work():
    while True:
        queue.put([Item(), range(3), {1: Item()}])
        queue.get()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""


@pytest.mark.parametrize("round", range(6))
def test_a_program_ends_while_threads_read_values(round):
    assert run(READERS, 0) == ""


def test_what_runs_at_exit_may_still_send_and_call():
    program = f"""
import atexit
atexit.register(lambda: (queue.put({{1: (2, range(3))}}), print(queue.get())))
{SERVER}
atexit.register(lambda: print(client.call("pass", [3])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "[3]\n{1: (2, range(0, 3))}\n", done


def test_a_forked_child_ends_at_once():
    program = f"""{SERVER}
future = client.call_async("sleep", 1.0); begun.wait()
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    started = time.monotonic()
    run(program, 0)
    assert time.monotonic() - started < 100, "it waited for threads that it does not have"
