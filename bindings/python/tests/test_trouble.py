# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Everything that goes wrong: the caller gets a clear error in time, nobody else pays, nothing stays behind.

Goal    the issue's list of bad input and bad peers, from Python
Method  real processes, killed for real; memory of a session is found under /proc/self/fd and spoilt
Not covered here: kills at every step of the protocol
"""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time

import numpy as np
import pytest

import memlift


def test_nobody_there():
    with pytest.raises(memlift.ServerUnavailableError, match="start it first"):
        memlift.ipc.Client("nobody-listens-here")
    with pytest.raises(memlift.ServerUnavailableError):
        memlift.ipc.Client("/nonexistent/x.sock")


@pytest.mark.parametrize("name", ["", "a b", "x" * 65])
def test_odd_names(name):
    with pytest.raises(memlift.Error, match="not a server address"):
        memlift.ipc.Server(name)


def test_an_address_has_one_server(shared_server):
    with pytest.raises(memlift.AddressInUseError, match="a running program has bound"):
        memlift.ipc.Server(shared_server.address)


def test_a_handler_that_raises_gives_its_traceback(client):
    with pytest.raises(memlift.RemoteError) as failed:
        client.call("fail")
    assert failed.value.operation == "fail"
    assert "ValueError: no luck today" in failed.value.traceback and "in fail" in failed.value.traceback
    assert "no luck today" in str(failed.value)


def test_a_result_that_cannot_be_sent(client):
    with pytest.raises(memlift.RemoteError, match="object of type object"):
        client.call("nonsense")


def test_unknown_operations_name_the_known_ones(client):
    with pytest.raises(memlift.UnknownOperationError, match="double.*echo"):
        client.call("duoble", b"x")


def test_a_deadline_is_kept_and_the_session_goes_on(client):
    start = time.monotonic()
    with pytest.raises(memlift.DeadlineExceededError) as late:
        client.call("sleep", np.array([1.0]), timeout=0.1)
    assert isinstance(late.value, TimeoutError)
    assert time.monotonic() - start >= 0.1
    assert client.call("echo", b"x") == b"x"


@pytest.mark.parametrize("timeout", [-1, float("nan"), -float("inf")])
def test_odd_timeouts(client, timeout):
    with pytest.raises(ValueError, match="seconds"):
        client.call("echo", b"x", timeout=timeout)


def test_too_large_and_too_full(start):
    address = start(message_bytes_max=4 << 20).address
    client = memlift.ipc.Client(address, pool_bytes=1 << 20, pool_bytes_max=3 << 20)
    with pytest.raises(memlift.MessageTooLargeError, match="limit of 4194304"):
        client.call("echo", bytes(5 << 20))
    with pytest.raises(memlift.PayloadPoolFullError, match="drop loans"):
        client.call("echo", bytes(4 << 20))
    loans = [client.loan(900_000, "u1")]
    with pytest.raises(memlift.PayloadPoolFullError):
        while True:
            loans.append(client.loan(900_000, "u1"))
    loans.clear()
    assert client.call("echo", b"x") == b"x"


def test_a_server_killed_in_the_middle_is_noticed_at_once(start):
    server = start()
    client = memlift.ipc.Client(server.address)
    with pytest.raises(memlift.PeerDiedError):
        client.call("die")
    with pytest.raises(memlift.PeerDiedError):
        client.call("echo", b"x")

    server = start()
    client = memlift.ipc.Client(server.address)
    future = client.call_async("sleep", np.array([60.0]))
    time.sleep(0.2)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(memlift.PeerDiedError):
        future.result()


def kill_client(address, what):
    """A client process that is killed while it does `what`."""
    script = f"""
        import memlift, numpy as np, os, signal, sys
        client = memlift.ipc.Client({address!r})
        keep = client.call("double", np.ones(100_000))
        loan = client.loan(100_000, "f8")
        {what}
        print("ready", flush=True)
        signal.pause()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def mapped(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return sum("memlift-request" in line or "memlift-response" in line for line in maps)


def eventually(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_killed_clients_leave_nothing_in_the_server(start):
    server = start()
    with memlift.ipc.Client(server.address) as client:
        client.call("echo", b"x")
        before = descriptors(server.pid), mapped(server.pid)
        for what in ("pass", 'client.call_async("sleep", np.array([0.05]))', 'client.call("keep", loan)') * 2:
            kill_client(server.address, what)
        client.call("forget")

        def is_as_before():
            # Without a GIL, memory of what a handler received may come back only when its thread works again.
            if sysconfig.get_config_var("Py_GIL_DISABLED"):
                client.call("echo", b"x")
            return (descriptors(server.pid), mapped(server.pid)) == before

        eventually(is_as_before)
        assert client.call("echo", b"x") == b"x"
        assert client.stats()["server_sessions"] == 1


def test_nothing_stays_behind_when_both_are_killed(start, leftovers):
    before = leftovers()
    server = start()
    kill_client(server.address, 'client.call("keep", loan)')
    server.kill()
    assert leftovers() == before
    with open("/proc/net/unix") as sockets:
        assert server.address not in sockets.read()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_clients_in_workers_of_every_kind(shared_server, method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(double_in_worker, [(shared_server.address, i) for i in range(6)]) == [
            i * 2 * 1000 for i in range(6)
        ]


def double_in_worker(task):
    address, number = task
    with memlift.ipc.Client(address) as client:
        return int(client.call("double", np.full(1000, number)).sum())


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_servers_in_processes_of_every_kind(start, method):
    server = start(context=multiprocessing.get_context(method))
    with memlift.ipc.Client(server.address) as client:
        assert client.call("pid") == str(server.pid).encode()


def test_a_client_from_before_a_fork_is_refused_in_the_child(client):
    client.call("echo", b"x")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.call("echo", b"x")
            os.write(writer, b"worked")
        except memlift.ClosedError as refused:
            os.write(writer, str(refused).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"before a fork" in os.read(reader, 1000)
    os.close(reader)
    os.close(writer)
    assert client.call("echo", b"x") == b"x"


def test_a_fork_does_not_hide_the_death_of_its_parent(start):
    server = start()
    script = f"""
        import memlift, os, signal, time
        client = memlift.ipc.Client({server.address!r})
        client.call("echo", b"x")
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with memlift.ipc.Client(server.address) as client:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
        )
        # Not to the end of the pipe: the child holds it too.
        child = int(process.stdout.readline())
        try:
            assert process.wait() == -signal.SIGKILL
            eventually(lambda: client.call("echo", b"x") and client.stats()["server_sessions"] == 1, 5)
            assert pathlib.Path(f"/proc/{child}").exists(), "the child was to be there all the time"
        finally:
            os.kill(child, signal.SIGKILL)
            process.stdout.close()


def test_control_c_ends_a_call(shared_server):
    script = f"""
        import memlift, numpy as np
        client = memlift.ipc.Client({shared_server.address!r})
        print("ready", flush=True)
        try:
            client.call("sleep", np.array([3.0]))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait() == 0


def memory_cgroup(limit):
    """A memory cgroup of our own with that limit, or None where we may not make one."""
    name = f"memlift-test-{os.getpid()}"
    for root, file in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = pathlib.Path(root, name)
        try:
            group.mkdir()
            (group / file).write_text(str(limit))
            return group
        except OSError:
            if group.exists():
                group.rmdir()
    return None


def test_too_little_memory_is_an_error_and_not_a_kill(shared_server):
    group = memory_cgroup(300 << 20)
    if group is None:
        pytest.skip("no permission to make a memory cgroup")
    script = f"""
        import os, pathlib
        pathlib.Path({str(group / "cgroup.procs")!r}).write_text(str(os.getpid()))
        import memlift, numpy as np
        client = memlift.ipc.Client({shared_server.address!r}, pool_bytes=4 << 20, response_pool_bytes=4 << 20)
        try:
            client.loan(1 << 30, "u1")
        except memlift.OutOfMemoryError as short:
            assert isinstance(short, MemoryError)
            print(short)
        assert client.call("echo", b"x") == b"x"
        try:
            memlift.ipc.Client({shared_server.address!r}, pool_bytes=1 << 30)
        except memlift.OutOfMemoryError as short:
            print(short)
    """
    try:
        run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert run.stdout.count("left by") == 2, run.stdout
    finally:
        group.rmdir()


def test_few_descriptors(start):
    script = """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
        import memlift
        clients = []
        try:
            while True:
                clients.append(memlift.ipc.Client(sys.argv[1], pool_bytes=4096, response_pool_bytes=4096))
        except (memlift.Error, OSError) as error:
            print(type(error).__name__, error)
        assert clients and clients[0].call("echo", b"x") == b"x"
    """
    server = start()
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), server.address], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


@pytest.mark.soak
def test_many_random_kills(start):
    server = start()
    random = np.random.default_rng(1)
    with memlift.ipc.Client(server.address) as client:
        client.call("echo", b"x")
        before = descriptors(server.pid), mapped(server.pid)
        for _ in range(300):
            script = f"""
                import memlift, numpy as np
                client = memlift.ipc.Client({server.address!r})
                while True:
                    client.call("double", np.ones(10_000))
            """
            process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
            time.sleep(0.2 + random.random() * 0.1)
            process.kill()
            process.wait()
            assert client.call("echo", b"x") == b"x"
        eventually(lambda: (descriptors(server.pid), mapped(server.pid)) == before)


def test_control_c_ends_a_wait_for_room(start):
    server = start(outstanding=1)
    script = f"""
        import memlift, numpy as np
        client = memlift.ipc.Client({server.address!r})
        first = client.call_async("sleep", np.array([3.0]))
        print("ready", flush=True)
        try:
            client.call_async("echo", b"x")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait() == 0


def test_no_room_in_time(start):
    client = memlift.ipc.Client(start(outstanding=1).address)
    first = client.call_async("sleep", np.array([0.5]))
    with pytest.raises(memlift.DeadlineExceededError):
        client.call("echo", b"x", timeout=0.05)
    assert first.result()[0] == 0.5
    assert client.call("echo", b"x", timeout=5) == b"x"
