# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rivals that hand arrays over in shared memory.

Flow     as in transports.py, whose `Transport` each implements
Rule     every array is copied in once and read in place by the other side; nothing claims to be free of copies because
         nobody touches the bytes
Owner    whoever maps a file of /dev/shm removes its name at once, so that what is killed leaves at most one
Not here sockets and pipes (rivals.py, rivals_sockets.py)
"""

import ctypes
import itertools
import mmap
import os
import time

import numpy as np
from transports import STOP, Missing, Transport, pack, spawn, unpack, view


class _Area:
    """A file in /dev/shm and its mapping; what multiprocessing.shared_memory is, without its bookkeeping process."""

    _numbers = itertools.count()

    def __init__(self, name, size, make):
        self.name, self.path, self.size = name, f"/dev/shm/{name}", size
        handle = os.open(self.path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if make else 0), 0o600)
        try:
            if make:
                os.ftruncate(handle, size)
            else:
                os.unlink(self.path)
            self.map = mmap.mmap(handle, size)
        finally:
            os.close(handle)

    @classmethod
    def made(cls, size):
        return cls(f"bench-{os.getpid()}-{next(cls._numbers)}", size, True)


class ShmMemcpy(Transport):
    """What a careful user writes by hand: an area per direction that stays mapped, one memcpy, a pipe to say so."""

    name = "shm_memcpy"
    kept = True

    def __init__(self):
        super().__init__()
        self._ours, self._theirs = spawn.Pipe()

    def shared(self):
        return self._theirs

    def qualifies(self):
        return "one area of /dev/shm per direction, mapped once and prefaulted, one memcpy (numpy), a pipe to wake the other side"

    @classmethod
    def _send(cls, connection, areas, operation, payload):
        """`areas` holds what this side writes into: at most one that is kept, or the one of this call."""
        if type(payload) is bytes:
            connection.send_bytes(b"\0" + operation.encode() + b"\0" + payload)
            return
        if not (cls.kept and areas and areas[0].size >= payload.nbytes):
            areas[:] = [_Area.made(max(payload.nbytes, 1))]
        area = areas[0]
        np.copyto(view(memoryview(area.map)[: payload.nbytes], payload.dtype, payload.shape), payload)
        connection.send_bytes(f"\1{area.name}\0{area.size}\0".encode() + pack(operation, payload))

    @classmethod
    def _receive(cls, connection, areas):
        """`areas` holds what the other side writes into."""
        head = connection.recv_bytes()
        if head[0] == 0:
            operation, _, payload = head[1:].partition(b"\0")
            return operation.decode(), payload
        name, size, rest = head[1:].split(b"\0", 2)
        name, size = name.decode(), int(size)
        if not (areas and areas[0].name == name):
            areas[:] = [_Area(name, size, False)]
        area = areas[0] if cls.kept else areas.pop()
        operation, dtype, shape = unpack(rest)
        count = int(np.prod(shape, dtype=np.int64))
        return operation, np.frombuffer(area.map, dtype, count).reshape(shape)

    @classmethod
    def serve(cls, endpoint, operations, ready):
        requests, replies = [], []
        ready.send(True)
        while True:
            try:
                operation, payload = cls._receive(endpoint, requests)
            except EOFError:
                return
            cls._send(endpoint, replies, "", operations[operation](payload))
            del payload

    def launched(self):
        self._theirs.close()

    def connect(self):
        self._requests, self._replies = [], []

    def call(self, operation, payload):
        self._send(self._ours, self._requests, operation, payload)
        answer = self._receive(self._ours, self._replies)[1]
        if not self.kept:
            self._requests.clear()
        return answer

    def stop(self):
        self._ours.close()


class PerCall(ShmMemcpy):
    """A file of its own for each message, mapped by both sides for that call: how Nightcore hands over what does not fit its pipes."""

    name, kept = "percall", False

    def qualifies(self):
        return "per call a file in /dev/shm: made, mapped, one memcpy (numpy), mapped by the server, unmapped by both; a pipe to wake"


class Iceoryx2(Transport):
    """Request and response over iceoryx2. Each side polls as in its own benchmarks; who has been idle sleeps on an event."""

    name, package = "iceoryx2", "iceoryx2"
    _POLLS_S, _FRESH_S = 0.003, 0.001
    _HEAD = 256

    @classmethod
    def check(cls):
        try:
            import iceoryx2  # noqa: F401
        except ImportError as error:
            raise Missing("pip install iceoryx2") from error

    def qualifies(self):
        import importlib.metadata

        return (
            f"iceoryx2 {importlib.metadata.version('iceoryx2')}, request-response of byte slices, memory grown in powers of two, "
            "one memmove into the loaned slice, polled by both sides, an event to wake a server that was idle"
        )

    @staticmethod
    def _open(endpoint):
        import iceoryx2 as iox2

        iox2.set_log_level(iox2.LogLevel.Error)
        node = iox2.NodeBuilder.new().signal_handling_mode(iox2.SignalHandlingMode.Disabled).create(iox2.ServiceType.Ipc)
        slices = iox2.Slice[ctypes.c_uint8]
        calls = node.service_builder(iox2.ServiceName.new(endpoint)).request_response(slices, slices).open_or_create()
        wakes = node.service_builder(iox2.ServiceName.new(endpoint + "-wake")).event().open_or_create()
        return iox2, node, calls, wakes

    @classmethod
    def _write(cls, loaned, operation, payload):
        """The head (its length, then what `pack` says, up to byte 256) and the bytes, as an initialised sample."""
        head = pack(operation, payload)
        at = loaned.payload_ptr
        head = len(head).to_bytes(2, "little") + head
        ctypes.memmove(at, head, len(head))
        if type(payload) is bytes:
            ctypes.memmove(at + cls._HEAD, payload, len(payload))
        else:
            ctypes.memmove(at + cls._HEAD, payload.ctypes.data, payload.nbytes)
        return loaned.assume_init()

    @classmethod
    def _bytes(cls, payload):
        return cls._HEAD + (len(payload) if type(payload) is bytes else payload.nbytes)

    @classmethod
    def _read(cls, received):
        """The operation and the payload, in place; it is gone when `received` is."""
        slices = received.payload()
        area = memoryview((ctypes.c_uint8 * slices.len()).from_address(slices.data_ptr)).cast("B")
        size = int.from_bytes(area[:2], "little")
        operation, dtype, shape = unpack(area[2 : 2 + size])
        return operation, view(area[cls._HEAD :], dtype, shape)

    @classmethod
    def serve(cls, endpoint, operations, ready):
        iox2, node, calls, wakes = cls._open(endpoint)
        server = (
            calls.server_builder()
            .initial_max_slice_len(4096)
            .allocation_strategy(iox2.AllocationStrategy.PowerOfTwo)
            .create()
        )
        listener = wakes.listener_builder().create()
        ready.send(True)
        last, sleep_ms = time.monotonic(), 1
        while True:
            request = server.receive()
            if request is None:
                if time.monotonic() - last > cls._POLLS_S:
                    # Longer from time to time: a client that saw this side poll a moment ago does not notify.
                    listener.timed_wait(iox2.Duration.from_millis(sleep_ms))
                    sleep_ms = min(2 * sleep_ms, 64)
                continue
            operation, payload = cls._read(request)
            if operation == STOP:
                return
            answer = operations[operation](payload)
            cls._write(request.loan_slice_uninit(cls._bytes(answer)), "-", answer).send()
            del payload, answer, request
            last, sleep_ms = time.monotonic(), 1

    def connect(self):
        iox2, self._node, self._calls, self._wakes = self._open(self.endpoint)
        self._client = (
            self._calls.client_builder()
            .initial_max_slice_len(4096)
            .allocation_strategy(iox2.AllocationStrategy.PowerOfTwo)
            .create()
        )
        self._notifier = self._wakes.notifier_builder().create()
        self._last = 0.0

    def _post(self, operation, payload):
        pending = self._write(self._client.loan_slice_uninit(self._bytes(payload)), operation, payload).send()
        if time.monotonic() - self._last > self._FRESH_S:
            self._notifier.notify()
        return pending

    def call(self, operation, payload):
        pending = self._post(operation, payload)
        while (response := pending.receive()) is None:
            if not self.process.is_alive():
                raise RuntimeError("the iceoryx2 server has died; its error is above")
        _, answer = self._read(response)
        self._last = time.monotonic()
        # The answer lies in the response: whoever keeps it keeps that.
        return answer if type(answer) is bytes else _Held(answer, response).array

    def stop(self):
        if getattr(self, "_client", None) is not None:
            self._last = 0.0
            self._post(STOP, b"")
            self.process.join(2)
            del self._client, self._notifier, self._wakes, self._calls, self._node


class _Held:
    """An array that keeps the response in whose memory it lies."""

    def __init__(self, array, response):
        self.response, self.__array_interface__ = response, array.__array_interface__

    array = property(np.asarray)


class Ray(Transport):
    """An actor's method; arrays go through Ray's object store, and its processes count."""

    name, package, noisy = "ray", "ray", True

    @classmethod
    def check(cls):
        try:
            import ray  # noqa: F401
        except ImportError as error:
            raise Missing("pip install ray") from error

    def qualifies(self):
        import ray

        return f"ray {ray.__version__}, one node, one actor, arrays through its object store"

    def start_server(self, factory, arguments=()):
        import ray

        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        here = os.path.dirname(os.path.abspath(__file__))
        environment = {"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
        for left in (2, 1, 0):
            try:
                ray.init(
                    address="local",
                    num_cpus=2,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    object_store_memory=3 << 30,
                    runtime_env={"env_vars": environment},
                )
                break
            except Exception as error:
                # It gives its own processes some seconds, which a machine at work may not have.
                ray.shutdown()
                if left == 0:
                    raise Missing(f"ray does not start here: {error}") from error

        class Actor:
            def __init__(self):
                from transports import _resolve

                self.operations = _resolve(factory, arguments)

            def pid(self):
                return os.getpid()

            def call(self, operation, payload):
                return self.operations[operation](payload)

        self._actor = ray.remote(Actor).remote()
        self._pid = ray.get(self._actor.pid.remote())

    @property
    def server_pid(self):
        return self._pid

    @property
    def pids(self):
        import ray

        node = ray._private.worker._global_node
        return (self._pid, *(started.process.pid for kind in node.all_processes.values() for started in kind))

    def connect(self):
        pass

    def call(self, operation, payload):
        import ray

        return ray.get(self._actor.call.remote(operation, payload))

    def close(self):
        import ray

        ray.shutdown()


RIVALS = (ShmMemcpy, PerCall, Iceoryx2, Ray)
