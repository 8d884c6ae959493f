# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Ray's tensors through memory of memlift: an actor's result is written once, and actors of the same machine read it in place.

    memlift.ray.register()                                  # before classes of actors that use it

    @ray.remote
    class Maker:
        @ray.method(tensor_transport="memlift")
        def batch(self): return torch.ones(25_000_000)

    @ray.remote(enable_tensor_transport=True)               # for actors that only read
    class Reader:
        def total(self, tensor): return tensor.sum()

- **Flow** a result's tensors ─▶ one copy into the arena of the actor's process ─▶ a handle in Ray's metadata ─▶ the reader's tensors, in
  place. Between machines: Ray's object store, by itself
- **Owner** the actor's process, until Ray says that nobody needs the object. It dies: `ServerUnavailableError`, unless it was read from before
- **Source** Ray's interface for tensor transports, `ray.experimental.rdt.TensorTransportManager` (alpha in Ray 2.60)
- **Not here** memory of a GPU: Ray has NCCL, NIXL and CUDA IPC for that
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.experimental import CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata, register_tensor_transport

from memlift.arena import Arena, Ref
from memlift.errors import UnsupportedTypeError

__all__ = ["Transport", "register"]

NAME = "MEMLIFT"
_registered = False


def register() -> None:
    """Makes "memlift" a tensor transport of Ray, for tensors of torch in host memory. Call it before classes whose methods name it are
    defined, in the process that makes the actors; the actors' environments need memlift. A second call does nothing."""
    global _registered
    if not _registered:
        register_tensor_transport(NAME, ["cpu"], Transport, torch.Tensor)
        _registered = True


def _machine() -> str:
    """Equal in processes that reach each other's arenas: one running kernel, one network namespace, one user. MEMLIFT_RAY_MACHINE
    stands for another one, in tests."""
    if named := os.environ.get("MEMLIFT_RAY_MACHINE"):
        return named
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino} {os.getuid()}"


@dataclass
class Written(TensorTransportMetadata):
    """Metadata of an object: where its tensors lie, and who can send them elsewhere."""

    ref: bytes = b""
    machine: str = ""
    source: Any = None


def _read_again(_: Any, object_id: str) -> Any:
    """Runs on the source's actor: gives the tensors to Ray's object store."""
    from ray.experimental.rdt.rdt_store import __ray_fetch_rdt_object__

    return __ray_fetch_rdt_object__(None, object_id)


class Transport(TensorTransportManager):
    """Ray makes one of it per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arena: Arena | None = None
        self._machine = _machine()

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[torch.Tensor]) -> Written:
        tensors = [tensor.detach() for tensor in rdt_object]
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise UnsupportedTypeError(f"a tensor lies in the memory of a device ({tensor.device}): return tensor.cpu(), or use another transport")
        with self._lock:
            if self._arena is None:
                self._arena = Arena()
        context = ray.get_runtime_context()
        return Written(
            tensor_meta=[(tensor.shape, tensor.dtype) for tensor in tensors],
            tensor_device="cpu",
            ref=bytes(self._arena.put(tensors)),
            machine=self._machine,
            source=context.current_actor if context.get_actor_id() else None,
        )

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        assert isinstance(tensor_transport_metadata, Written)
        tensors = self._read(obj_id, tensor_transport_metadata)
        if not target_buffers:
            return tensors
        for target, tensor in zip(target_buffers, tensors, strict=True):
            target.copy_(tensor)
        return target_buffers

    def _read(self, obj_id: str, written: Written) -> list[Any]:
        if written.machine == self._machine:
            return list(Ref(written.ref).get(writable=True))
        if written.source is None:
            raise UnsupportedTypeError("tensors that the driver put are on another machine: let an actor make them, or put them without a transport")
        call = written.source.__ray_call__.options(concurrency_group="_ray_system")
        return list(ray.get(call.remote(_read_again, obj_id)))

    def send_multiple_tensors(self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError("the receiver reads")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Any]) -> None:
        assert isinstance(tensor_transport_meta, Written)
        if self._arena is not None:
            self._arena.release(Ref(tensor_transport_meta.ref))

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Nothing is under way: a reader reads by itself."""
