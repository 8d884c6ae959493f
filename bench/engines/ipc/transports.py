# SPDX-License-Identifier: Apache-2.0 OR MIT
"""memlift and its rivals behind one interface: a server in another process, and a client here.

Flow     start_server(factory, arguments) ─spawn─▶ server process: operations = factory(*arguments)
         connect() · call(operation, payload) · submit/collect where the transport can have several
         requests outstanding · close()
Order    payloads are C-contiguous numpy arrays or bytes; a reply is one of the two
Owner    a transport owns its server process. The server also dies with its parent (PR_SET_PDEATHSIG)
Not here what is measured (ipc_bench.py, ipc_chapter.py)

Each rival runs in the configuration that was fastest for it here; `qualifies` names it. Endpoints are
abstract sockets, so nothing is left in the file system whatever dies first.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import struct
import sys
import time

import numpy as np

_spawn = multiprocessing.get_context("spawn")
_PR_SET_PDEATHSIG = 1
_STOP = ""


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


def _pack(operation, payload):
    """What travels before an array: operation, dtype, shape."""
    if isinstance(payload, (bytes, memoryview)):
        return operation.encode() + b"\0"
    return f"{operation}\0{payload.dtype.str}\0{','.join(map(str, payload.shape))}".encode()


def _unpack(header):
    operation, _, rest = bytes(header).decode().partition("\0")
    if not rest:
        return operation, None, None
    dtype, _, shape = rest.partition("\0")
    return operation, np.dtype(dtype), tuple(int(n) for n in shape.split(",") if n)


def _view(buffer, dtype, shape):
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
        self._ready, theirs = _spawn.Pipe(duplex=False)
        self.process = _spawn.Process(
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

    @classmethod
    def check(cls):
        try:
            import memlift  # noqa: F401
        except ImportError as error:
            raise Missing(f"memlift is not importable ({error}): run make build, or pip install memlift") from error

    def __init__(self):
        super().__init__()
        self._control, self._theirs = _spawn.Pipe(duplex=False)[::-1]
        self.client, self._futures = None, []

    def shared(self):
        return (self.endpoint, self._theirs)

    def qualifies(self):
        import memlift

        return f"memlift {getattr(memlift, '__version__', '?')}, default waiting"

    @staticmethod
    def serve(endpoint, operations, ready):
        import memlift

        name, control = endpoint
        with memlift.ipc.Server(name) as server:
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

        self.client = memlift.ipc.Client(self.endpoint, timeout=60)

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


class Queue(Transport):
    name, outstanding = "mp_queue", 2

    def __init__(self):
        super().__init__()
        self._requests, self._replies = _spawn.Queue(), _spawn.Queue()

    def shared(self):
        return (self._requests, self._replies)

    def qualifies(self):
        return "multiprocessing.Queue, one per direction, pickled by the queue, spawn"

    @staticmethod
    def serve(endpoint, operations, ready):
        requests, replies = endpoint
        ready.send(True)
        while True:
            operation, payload = requests.get()
            if operation == _STOP:
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
            self._requests.put((_STOP, None))
        for queue in (self._requests, self._replies):
            queue.close()
            queue.join_thread()


class Pipe(Transport):
    name = "mp_pipe"

    def __init__(self):
        super().__init__()
        self._ours, self._theirs = _spawn.Pipe()

    def shared(self):
        return self._theirs

    def qualifies(self):
        return "multiprocessing.Pipe, send_bytes; arrays unpickled: header, then recv_bytes_into a kept array"

    @staticmethod
    def _send(connection, operation, payload):
        if type(payload) is bytes:
            connection.send_bytes(b"\0" + operation.encode() + b"\0" + payload)
            return
        connection.send_bytes(b"\1" + struct.pack("<Q", payload.nbytes) + _pack(operation, payload))
        connection.send_bytes(memoryview(payload).cast("B"))

    @staticmethod
    def _receive(connection, kept):
        head = connection.recv_bytes()
        if head[0] == 0:
            operation, _, payload = head[1:].partition(b"\0")
            return operation.decode(), payload
        (size,) = struct.unpack_from("<Q", head, 1)
        operation, dtype, shape = _unpack(head[9:])
        if len(kept[0]) < size:
            kept[0] = bytearray(size)
        connection.recv_bytes_into(kept[0])
        return operation, _view(memoryview(kept[0])[:size], dtype, shape)

    @classmethod
    def serve(cls, endpoint, operations, ready):
        kept = [bytearray()]
        ready.send(True)
        while True:
            try:
                operation, payload = cls._receive(endpoint, kept)
            except EOFError:
                return
            cls._send(endpoint, "", operations[operation](payload))
            del payload

    def launched(self):
        self._theirs.close()

    def connect(self):
        self._kept = [bytearray()]

    def call(self, operation, payload):
        self._send(self._ours, operation, payload)
        return self._receive(self._ours, self._kept)[1]

    def stop(self):
        self._ours.close()


class Zmq(Transport):
    name, package, outstanding = "zmq", "pyzmq", 64

    @classmethod
    def check(cls):
        try:
            import zmq  # noqa: F401
        except ImportError as error:
            raise Missing("pip install pyzmq") from error

    def qualifies(self):
        import zmq

        return (
            f"pyzmq {zmq.__version__} (libzmq {zmq.zmq_version()}), ipc://, DEALER to ROUTER, copy=False from 64 KiB on, "
            "1 MiB socket buffers, no high-water mark"
        )

    @staticmethod
    def _configure(socket):
        import zmq

        for option, value in ((zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.SNDBUF, 1 << 20), (zmq.RCVBUF, 1 << 20)):
            socket.setsockopt(option, value)
        return socket

    @staticmethod
    def _send(socket, prefix, operation, payload):
        import zmq

        small = len(payload) < 65536 if type(payload) is bytes else payload.nbytes < 65536
        if small:
            body = payload if type(payload) is bytes else payload.tobytes()
            socket.send_multipart([*prefix, _pack(operation, payload), body])
            return
        for part in (*prefix, _pack(operation, payload)):
            socket.send(part, flags=zmq.SNDMORE)
        socket.send(payload, copy=False)

    @staticmethod
    def serve(endpoint, operations, ready):
        import zmq

        context = zmq.Context()
        socket = Zmq._configure(context.socket(zmq.ROUTER))
        socket.bind(f"ipc://@{endpoint}")
        ready.send(True)
        while True:
            prefix = [socket.recv()]
            header = socket.recv()
            operation, dtype, shape = _unpack(header)
            if operation == _STOP:
                break
            payload = Zmq._body(socket, dtype, shape)
            Zmq._send(socket, prefix, "-", operations[operation](payload))
            del payload
        socket.close(0)
        context.term()

    @staticmethod
    def _body(socket, dtype, shape):
        if dtype is None:
            return socket.recv()
        return _view(socket.recv(copy=False).buffer, dtype, shape)

    def connect(self):
        import zmq

        self._context = zmq.Context()
        self._socket = self._configure(self._context.socket(zmq.DEALER))
        self._socket.connect(f"ipc://@{self.endpoint}")

    def submit(self, operation, payload):
        self._send(self._socket, (), operation, payload)

    def collect(self):
        _, dtype, shape = _unpack(self._socket.recv())
        return self._body(self._socket, dtype, shape)

    def call(self, operation, payload):
        self.submit(operation, payload)
        return self.collect()

    def stop(self):
        if getattr(self, "_socket", None) is not None:
            self._socket.send_multipart([b"\0", b""])
            self._socket.close(1000)
            self._context.term()
            self._socket = None


class Grpc(Transport):
    name, package, outstanding = "grpc", "grpcio", 64
    _METHOD = "/memlift.Bench/Call"
    _OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))

    @classmethod
    def check(cls):
        try:
            import grpc  # noqa: F401
        except ImportError as error:
            raise Missing("pip install grpcio") from error

    def qualifies(self):
        import grpc

        return f"grpcio {grpc.__version__}, Unix socket, generic bytes handler, no message limit, one server thread"

    @staticmethod
    def _encode(operation, payload):
        header = _pack(operation, payload)
        body = payload if type(payload) is bytes else memoryview(payload).cast("B")
        return b"".join((struct.pack("<I", len(header)), header, body))

    @staticmethod
    def _decode(message):
        (size,) = struct.unpack_from("<I", message)
        operation, dtype, shape = _unpack(message[4 : 4 + size])
        return operation, _view(memoryview(message)[4 + size :], dtype, shape)

    @staticmethod
    def serve(endpoint, operations, ready):
        from concurrent import futures

        import grpc

        class Handler(grpc.GenericRpcHandler):
            def service(self, details):
                return grpc.unary_unary_rpc_method_handler(answer)

        def answer(request, _):
            operation, payload = Grpc._decode(request)
            return Grpc._encode("-", operations[operation](payload))

        name, control = endpoint
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=1), options=Grpc._OPTIONS)
        server.add_generic_rpc_handlers((Handler(),))
        server.add_insecure_port(f"unix-abstract:{name}")
        server.start()
        ready.send(True)
        try:
            control.recv_bytes()
        except EOFError:
            pass
        server.stop(1).wait()

    def __init__(self):
        super().__init__()
        self._control, self._theirs = _spawn.Pipe(duplex=False)[::-1]
        self._channel, self._futures = None, []

    def shared(self):
        return (self.endpoint, self._theirs)

    def launched(self):
        self._theirs.close()

    def connect(self):
        import grpc

        self._channel = grpc.insecure_channel(f"unix-abstract:{self.endpoint}", options=self._OPTIONS)
        grpc.channel_ready_future(self._channel).result(timeout=30)
        self._call = self._channel.unary_unary(self._METHOD)

    def call(self, operation, payload):
        return self._decode(self._call(self._encode(operation, payload)))[1]

    def submit(self, operation, payload):
        self._futures.append(self._call.future(self._encode(operation, payload)))

    def collect(self):
        return self._decode(self._futures.pop(0).result())[1]

    def stop(self):
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._control.close()


TRANSPORTS = {kind.name: kind for kind in (Memlift, Queue, Pipe, Zmq, Grpc)}


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
    """The operations of the measuring server: read every byte with the reference routine, answer 8 bytes."""
    import reference

    def xor64(payload):
        return reference.xor64(payload).to_bytes(8, "little")

    return {"xor64": xor64}
