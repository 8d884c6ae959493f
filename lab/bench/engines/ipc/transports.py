# SPDX-License-Identifier: Apache-2.0 OR MIT
"""memlift and its rivals behind one interface: a server in another process, and a client here.

Flow     start_server(factory, arguments) ─spawn─▶ server process: operations = factory(*arguments)
         connect() · call(operation, payload) · submit/collect where the transport can have several
         requests outstanding · close()
Order    payloads are C-contiguous numpy arrays or bytes; a reply is one of the two
Owner    a transport owns its server process. The server also dies with its parent (PR_SET_PDEATHSIG)
Not here the rivals (rivals.py, rivals_memory.py, rivals_sockets.py) and what is measured (ipc_bench.py, ipc_chapter.py)

Endpoints are abstract sockets, so nothing is left in the file system whatever dies first; the rivals that cannot do
with one say so.
"""

import asyncio
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import time

import numpy as np

spawn = multiprocessing.get_context("spawn")
_PR_SET_PDEATHSIG = 1
STOP = ""


class Missing(Exception):
    """The package of a transport is not installed; the text says what to install."""


def _resolve(factory, arguments):
    module, name = factory.split(":")
    return getattr(importlib.import_module(module), name)(*arguments)


def bind_to_parent(parent):
    """The calling process dies with its parent, also if that is dead already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_orderly():
    """Makes SIGTERM an exception, so that every `finally` runs and no server process is left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def _server_main(parent, transport, endpoint, factory, arguments, ready):
    bind_to_parent(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    transport.serve(endpoint, _resolve(factory, arguments), ready)


def _endpoint(name):
    return f"memlift-bench-{name}-{os.getpid()}-{time.monotonic_ns()}"


def pack(operation, payload):
    """What travels before an array: operation, dtype, shape."""
    if isinstance(payload, (bytes, memoryview)):
        return operation.encode() + b"\0"
    return f"{operation}\0{payload.dtype.str}\0{','.join(map(str, payload.shape))}".encode()


def unpack(header):
    operation, _, rest = bytes(header).decode().partition("\0")
    if not rest:
        return operation, None, None
    dtype, _, shape = rest.partition("\0")
    return operation, np.dtype(dtype), tuple(int(n) for n in shape.split(",") if n)


def view(buffer, dtype, shape):
    if dtype is None:
        return bytes(buffer)
    return np.frombuffer(buffer, dtype).reshape(shape)


class Transport:
    """One way to call a function in another process. Subclasses say how."""

    name = ""
    package = ""
    """What pip calls it; empty when it is part of Python."""
    outstanding = 1
    """Most requests that can be under way at once."""
    noisy = False
    """Works also while nobody calls, so that it must not run beside what else is measured."""

    @classmethod
    def check(cls):
        """Raises `Missing` unless the transport can be used here."""

    def __init__(self):
        self.endpoint = _endpoint(self.name)
        self.process = None

    def qualifies(self):
        """The configuration, as it stands in a row."""
        raise NotImplementedError

    def launch(self, factory, arguments=()):
        """Starts the server process without waiting for it."""
        self._ready, theirs = spawn.Pipe(duplex=False)
        self.process = spawn.Process(
            target=_server_main,
            args=(os.getpid(), type(self), self.shared(), factory, arguments, theirs),
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.launched()

    def launched(self):
        """Lets go of what only the server process needs."""

    def wait_ready(self):
        """Returns when the server listens."""
        try:
            if not self._ready.poll(60):
                raise RuntimeError(f"the {self.name} server did not come up within 60 s")
            self._ready.recv()
        except EOFError:
            self.process.join(5)
            raise RuntimeError(f"the {self.name} server ended before it listened; its error is above") from None
        finally:
            self._ready.close()

    def start_server(self, factory, arguments=()):
        """Starts the server process; returns when it listens."""
        self.launch(factory, arguments)
        self.wait_ready()

    def shared(self):
        """What the server process is given to find its client."""
        return self.endpoint

    @property
    def server_pid(self):
        return self.process.pid

    @property
    def pids(self):
        """The processes that serve."""
        return (self.server_pid,)

    @classmethod
    def client_of(cls, endpoint):
        """A client in another process than the one that started the server; only where the endpoint is a name."""
        transport = cls.__new__(cls)
        transport.endpoint, transport.process, transport._futures = endpoint, None, []
        transport.connect()
        return transport

    def connect(self):
        raise NotImplementedError

    def call(self, operation, payload):
        raise NotImplementedError

    def submit(self, operation, payload):
        """Starts a call; `collect` gives the replies in the order of submission."""
        raise NotImplementedError

    def collect(self):
        raise NotImplementedError

    def stop(self):
        """Asks the server to end and disconnects."""

    def close(self):
        """Ends client and server; at once while an interruption is on its way up."""
        hurry = sys.exc_info()[0] in (KeyboardInterrupt, SystemExit)
        try:
            if hurry and self.process is not None:
                self.process.kill()
            else:
                self.stop()
        finally:
            if self.process is not None:
                self.process.join(2)
                if self.process.is_alive():
                    self.process.kill()
                    self.process.join()
                self.process.close()
                self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Memlift(Transport):
    name, package, outstanding = "memlift", "memlift", 64
    wait = "auto"

    @classmethod
    def check(cls):
        try:
            import memlift  # noqa: F401
        except ImportError as error:
            raise Missing(f"memlift is not importable ({error}): run make build, or pip install memlift") from error

    def __init__(self):
        super().__init__()
        self._control, self._theirs = spawn.Pipe(duplex=False)[::-1]
        self.client, self._futures = None, []

    def shared(self):
        return (self.endpoint, self._theirs)

    def qualifies(self):
        import memlift

        return f"memlift {getattr(memlift, '__version__', '?')}, one handler thread, waiting: {self.wait}"

    @classmethod
    def serve(cls, endpoint, operations, ready):
        import memlift

        name, control = endpoint
        with memlift.ipc.Server(name, handlers=1, wait=cls.wait) as server:  # rivals have one serving thread too
            for operation, function in operations.items():
                server.register(operation, function)
            server.start()
            ready.send(True)
            try:
                control.recv_bytes()
            except EOFError:
                pass
            server.stop()

    def launched(self):
        self._theirs.close()

    def connect(self):
        import memlift

        self.client = memlift.ipc.Client(self.endpoint, timeout=60, wait=self.wait)

    def another(self):
        """A fresh client of the same server; the caller closes it."""
        import memlift

        return memlift.ipc.Client(self.endpoint, timeout=60)

    def call(self, operation, payload):
        return self.client.call(operation, payload)

    def submit(self, operation, payload):
        self._futures.append(self.client.call_async(operation, payload))

    def collect(self):
        return self._futures.pop(0).result()

    def stop(self):
        self._futures.clear()
        if self.client is not None:
            self.client.close()
            self.client = None
        self._control.close()


class MemliftBlocking(Memlift):
    name, wait = "memlift_block", "block"


class Queues(Transport):
    """A queue for each direction, whoever makes them."""

    outstanding = 2

    def __init__(self, make):
        super().__init__()
        self._requests, self._replies = make(), make()

    def shared(self):
        return (self._requests, self._replies)

    @staticmethod
    def serve(endpoint, operations, ready):
        requests, replies = endpoint
        ready.send(True)
        while True:
            operation, payload = requests.get()
            if operation == STOP:
                return
            replies.put(operations[operation](payload))
            del payload

    def connect(self):
        pass

    def call(self, operation, payload):
        self._requests.put((operation, payload))
        return self._replies.get()

    def submit(self, operation, payload):
        self._requests.put((operation, payload))

    def collect(self):
        return self._replies.get()

    def stop(self):
        if self.process is not None and self.process.is_alive():
            self._requests.put((STOP, None))


class MemliftQueue(Queues):
    """memlift.Queue where rivals.Queue has multiprocessing's."""

    name, package = "memlift_queue", "memlift"
    check = Memlift.check

    def __init__(self):
        import memlift

        super().__init__(memlift.Queue)

    def qualifies(self):
        import memlift

        return f"memlift.Queue {memlift.__version__}, one per direction, spawn, default memory"


class MemliftAsyncio(Memlift):
    """Tasks of one event loop that await their calls."""

    name, outstanding = "memlift_asyncio", 100

    def qualifies(self):
        return super().qualifies() + "; AsyncClient, one task per call under way, asyncio's own loop"

    def connect(self):
        import memlift

        self.loop = asyncio.new_event_loop()
        self.client = memlift.ipc.AsyncClient(self.endpoint, timeout=60, outstanding=128)
        self.loop.run_until_complete(self.client.connect())

    def many(self, payloads, calls, depth):
        """The answers of `calls` calls, `depth` under way."""
        client, answers = self.client, [None] * calls

        async def caller(first):
            for at in range(first, calls, depth):
                answers[at] = await client.call("xor64", payloads[at % len(payloads)])

        async def all_callers():
            await asyncio.gather(*(caller(first) for first in range(depth)))

        self.loop.run_until_complete(all_callers())
        return answers

    def stop(self):
        super().stop()
        self.loop.close()


def transport(name):
    """The class of a transport."""
    import rivals
    import rivals_memory
    import rivals_sockets

    ours = (Memlift, MemliftBlocking, MemliftQueue, MemliftAsyncio)
    theirs = (*rivals.RIVALS, *rivals_memory.RIVALS, *rivals_sockets.RIVALS)
    return {kind.name: kind for kind in (*ours, *theirs)}[name]


def cpu_seconds(*pids):
    """CPU time of all threads of these processes, living and ended, seconds."""
    total = 0.0
    for pid in pids:
        if pid == os.getpid():
            total += time.process_time()
        else:
            total += time.clock_gettime((~pid << 3) | 2)  # the kernel's encoding of another process's clock
    return total


def reading():
    """The operations of the measuring server: read every byte with a reference routine, answer 8 bytes."""
    import zlib

    import reference

    def xor64(payload):
        return reference.xor64(payload).to_bytes(8, "little")

    def checksum(payload):
        return reference.checksum(payload).to_bytes(8, "little")

    def checksum_twice(payload):
        first = checksum(payload)
        if checksum(payload) != first:
            raise RuntimeError("the bytes changed while they were read")
        return first

    def xor64_of_zlib(payload):
        return xor64(zlib.decompress(payload))

    return {"xor64": xor64, "checksum": checksum, "checksum_twice": checksum_twice, "xor64_of_zlib": xor64_of_zlib}
