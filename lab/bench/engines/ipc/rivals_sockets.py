# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rivals that send arrays through the kernel: a plain Unix socket, nng, Arrow Flight.

Flow     as in transports.py, whose `Transport` each implements
Rule     as in rivals.py: each in the configuration that was fastest for it here; `qualifies` names it
"""

import os
import socket
import struct
import tempfile

import numpy as np
from rivals import Ends
from transports import Missing, Transport, pack, spawn, unpack, view


class UnixSocket(Ends):
    """Lengths, header and bytes on a stream socket; received into an array that is kept."""

    name = "unix_socket"
    _LENGTHS = struct.Struct("<IQ")

    def __init__(self):
        super().__init__()
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (self._ours, self._theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

    def qualifies(self):
        return "socketpair, stream, 1 MiB send buffers, sendall of the array, recv_into a kept array"

    @classmethod
    def _send(cls, end, operation, payload):
        head, body = pack(operation, payload), memoryview(payload).cast("B")
        head = cls._LENGTHS.pack(len(head), len(body)) + head
        if len(body) < 65536:
            end.sendall(b"".join((head, body)))
        else:
            end.sendall(head, socket.MSG_MORE)
            end.sendall(body)

    @staticmethod
    def _fill(end, area):
        while len(area):
            received = end.recv_into(area)
            if received == 0:
                raise EOFError
            area = area[received:]

    @classmethod
    def _receive(cls, end, kept):
        head = bytearray(cls._LENGTHS.size)
        cls._fill(end, memoryview(head))
        head_bytes, size = cls._LENGTHS.unpack(head)
        head = bytearray(head_bytes)
        cls._fill(end, memoryview(head))
        if len(kept[0]) < size:
            kept[0] = bytearray(size)
        body = memoryview(kept[0])[:size]
        cls._fill(end, body)
        operation, dtype, shape = unpack(head)
        return operation, view(body, dtype, shape)


class Nng(Transport):
    """One message per call; nng knows only bytes, so an array is copied into its message once."""

    name, package = "pynng", "pynng"

    @classmethod
    def check(cls):
        try:
            import pynng  # noqa: F401
        except ImportError as error:
            raise Missing("pip install pynng") from error

    def qualifies(self):
        import pynng

        return f"pynng {pynng.__version__}, Pair0 on an abstract socket, no limit of messages"

    @staticmethod
    def _send(end, operation, payload):
        head = pack(operation, payload)
        end.send(b"".join((struct.pack("<I", len(head)), head, memoryview(payload).cast("B"))))

    @staticmethod
    def _receive(end):
        message = memoryview(end.recv())
        (size,) = struct.unpack_from("<I", message)
        operation, dtype, shape = unpack(message[4 : 4 + size])
        return operation, view(message[4 + size :], dtype, shape)

    @classmethod
    def serve(cls, endpoint, operations, ready):
        import pynng

        with pynng.Pair0(listen=f"abstract://{endpoint}", recv_max_size=0) as end:
            ready.send(True)
            while True:
                operation, payload = cls._receive(end)
                if operation == "":
                    return
                cls._send(end, "-", operations[operation](payload))
                del payload

    def connect(self):
        import pynng

        self._end = pynng.Pair0(dial=f"abstract://{self.endpoint}", recv_max_size=0, block_on_dial=True)

    def call(self, operation, payload):
        self._send(self._end, operation, payload)
        return self._receive(self._end)[1]

    def stop(self):
        if getattr(self, "_end", None) is not None:
            self._send(self._end, "", b"")
            self.process.join(2)
            self._end.close()


class Flight(Transport):
    """One exchange that stays open: a record batch of bytes per request, its header as the batch's metadata."""

    name, package = "flight", "pyarrow"

    @classmethod
    def check(cls):
        try:
            import pyarrow.flight  # noqa: F401
        except ImportError as error:
            raise Missing("pip install pyarrow") from error

    def qualifies(self):
        import pyarrow

        return f"pyarrow {pyarrow.__version__}, Flight on a Unix socket, one open exchange, one record batch per message"

    @staticmethod
    def _schema():
        import pyarrow

        return pyarrow.schema([("bytes", pyarrow.uint8())])

    @classmethod
    def _send(cls, writer, operation, payload):
        import pyarrow

        column = pyarrow.array(np.frombuffer(payload, np.uint8))
        batch = pyarrow.record_batch([column], schema=cls._schema())
        writer.write_with_metadata(batch, pack(operation, payload))

    @staticmethod
    def _receive(reader):
        chunk = reader.read_chunk()
        operation, dtype, shape = unpack(chunk.app_metadata.to_pybytes())
        return operation, view(chunk.data.column(0).buffers()[1], dtype, shape)

    @classmethod
    def serve(cls, endpoint, operations, ready):
        import pyarrow.flight

        path, control = endpoint

        class Server(pyarrow.flight.FlightServerBase):
            def do_exchange(self, context, descriptor, reader, writer):
                writer.begin(cls._schema())
                while True:
                    try:
                        operation, payload = cls._receive(reader)
                    except StopIteration:
                        return
                    cls._send(writer, "-", operations[operation](payload))
                    del payload

        server = Server(f"grpc+unix://{path}")
        ready.send(True)
        try:
            control.recv_bytes()
        except EOFError:
            pass
        server.shutdown()

    def __init__(self):
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="memlift-bench-")
        self._path = os.path.join(self._folder.name, "flight")
        self._control, self._theirs = spawn.Pipe(duplex=False)[::-1]
        self._client = None

    def shared(self):
        return (self._path, self._theirs)

    def launched(self):
        self._theirs.close()

    def connect(self):
        import pyarrow.flight

        self._client = pyarrow.flight.connect(f"grpc+unix://{self._path}")
        descriptor = pyarrow.flight.FlightDescriptor.for_command(b"call")
        self._writer, self._reader = self._client.do_exchange(descriptor)
        self._writer.begin(self._schema())

    def call(self, operation, payload):
        self._send(self._writer, operation, payload)
        return self._receive(self._reader)[1]

    def stop(self):
        if self._client is not None:
            self._writer.done_writing()
            self._writer.close()
            self._client.close()
            self._client = None
        self._control.close()

    def close(self):
        super().close()
        self._folder.cleanup()


RIVALS = (UnixSocket, Nng, Flight)
