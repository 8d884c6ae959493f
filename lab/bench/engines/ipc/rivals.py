# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The rivals: what Python users pick today to hand arrays to another process.

Flow     as in transports.py, whose `Transport` each implements
Rule     each in the configuration that was fastest for it here; `qualifies` names it. A Queue cannot but pickle; a
         Pipe need not, so arrays go over it unpickled; zmq sends arrays without a copy and receives into a frame;
         gRPC knows only bytes, so an array is copied into its message once
Not here memlift, and what is measured
"""

import struct

from transports import STOP, Missing, Queues, Transport, pack, spawn, unpack, view


class Queue(Queues):
    name = "mp_queue"

    def __init__(self):
        super().__init__(spawn.Queue)

    def qualifies(self):
        return "multiprocessing.Queue, one per direction, pickled by the queue, spawn"

    def stop(self):
        super().stop()
        for queue in (self._requests, self._replies):
            queue.close()
            queue.join_thread()


class Ends(Transport):
    """Two ends made by the client, one of them inherited by the server; `_send` and `_receive` put a message on one."""

    def shared(self):
        return self._theirs

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


class Pipe(Ends):
    name = "mp_pipe"

    def __init__(self):
        super().__init__()
        self._ours, self._theirs = spawn.Pipe()

    def qualifies(self):
        return "multiprocessing.Pipe, send_bytes; arrays unpickled: header, then recv_bytes_into a kept array"

    @staticmethod
    def _send(connection, operation, payload):
        if type(payload) is bytes:
            connection.send_bytes(b"\0" + operation.encode() + b"\0" + payload)
            return
        connection.send_bytes(b"\1" + struct.pack("<Q", payload.nbytes) + pack(operation, payload))
        connection.send_bytes(memoryview(payload).cast("B"))

    @staticmethod
    def _receive(connection, kept):
        head = connection.recv_bytes()
        if head[0] == 0:
            operation, _, payload = head[1:].partition(b"\0")
            return operation.decode(), payload
        (size,) = struct.unpack_from("<Q", head, 1)
        operation, dtype, shape = unpack(head[9:])
        if len(kept[0]) < size:
            kept[0] = bytearray(size)
        connection.recv_bytes_into(kept[0])
        return operation, view(memoryview(kept[0])[:size], dtype, shape)


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
            socket.send_multipart([*prefix, pack(operation, payload), body])
            return
        for part in (*prefix, pack(operation, payload)):
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
            operation, dtype, shape = unpack(header)
            if operation == STOP:
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
        return view(socket.recv(copy=False).buffer, dtype, shape)

    def connect(self):
        import zmq

        self._context = zmq.Context()
        self._socket = self._configure(self._context.socket(zmq.DEALER))
        self._socket.connect(f"ipc://@{self.endpoint}")

    def submit(self, operation, payload):
        self._send(self._socket, (), operation, payload)

    def collect(self):
        _, dtype, shape = unpack(self._socket.recv())
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


class ZmqAsyncio(Zmq):
    """As Zmq; the client awaits. A window of calls and no task per call, which is the fastest way to use it."""

    name, outstanding = "zmq_asyncio", 100

    def qualifies(self):
        return super().qualifies() + "; client on zmq.asyncio, asyncio's own loop, a window of calls without tasks"

    def connect(self):
        import asyncio

        import zmq.asyncio

        self.loop = asyncio.new_event_loop()
        self._context = zmq.asyncio.Context()

        async def opened():
            socket = self._configure(self._context.socket(zmq.DEALER))
            socket.connect(f"ipc://@{self.endpoint}")
            return socket

        self._socket = self.loop.run_until_complete(opened())

    def many(self, payloads, calls, depth):
        socket, header, answers = self._socket, [pack("xor64", payload) for payload in payloads], []

        async def window():
            sent = 0
            while len(answers) < calls:
                while sent < calls and sent - len(answers) < depth:
                    at = sent % len(payloads)
                    await socket.send_multipart([header[at], payloads[at]])
                    sent += 1
                answers.append((await socket.recv_multipart())[1])

        self.loop.run_until_complete(window())
        return answers

    def stop(self):
        if getattr(self, "_socket", None) is not None:

            async def ended():
                await self._socket.send_multipart([b"\0", b""])
                self._socket.close(1000)

            self.loop.run_until_complete(ended())
            self._context.term()
            self.loop.close()
            self._socket = None


class Grpc(Transport):
    name, package, outstanding = "grpc_uds", "grpcio", 64
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
        header = pack(operation, payload)
        body = payload if type(payload) is bytes else memoryview(payload).cast("B")
        return b"".join((struct.pack("<I", len(header)), header, body))

    @staticmethod
    def _decode(message):
        (size,) = struct.unpack_from("<I", message)
        operation, dtype, shape = unpack(message[4 : 4 + size])
        return operation, view(memoryview(message)[4 + size :], dtype, shape)

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
        self._control, self._theirs = spawn.Pipe(duplex=False)[::-1]
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


RIVALS = (Queue, Pipe, Zmq, ZmqAsyncio, Grpc)
