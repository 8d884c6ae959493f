# SPDX-License-Identifier: Apache-2.0 OR MIT
"""PyTorch beside memlift: workers that load batches, tensors between processes, and weights that many processes share.

    from memlift.torch import DataLoader                   # in place of torch.utils.data's

    arena = memlift.Arena()
    ref = memlift.torch.put_state(arena, model)            # once
    memlift.torch.load_state(model, ref)                   # in each process: the same memory, and no copy

- **Flow** DataLoader: a worker collates into its own memory ─▶ one copy into a `memlift.Queue` ─▶ the batch lies there, in place
- **Owner** tensors that come out are this process's: a page that is written becomes its own, or was its own before
- **Rule** nothing has a name in /dev/shm, and no tensor costs a descriptor
- **Not here** memory of a GPU: copy with `.cpu()` before, and with `.to(device)` afterwards
"""

import inspect
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
import torch.utils.data
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from memlift import _tensors, queue
from memlift.arena import Arena
from memlift._native import Ref
from memlift.errors import UnsupportedTypeError

__all__ = ["DataLoader", "collate", "context", "load_state", "put_state", "reduce_by_torch", "reduce_through"]


def context(method: str | BaseContext | None = None) -> BaseContext:
    """Returns the multiprocessing context of a start method ("fork", "spawn", "forkserver"; the default one, unless given) with
    `memlift.Queue` and `memlift.JoinableQueue` in place of its queues.

    For `torch.utils.data.DataLoader(multiprocessing_context=…)`. The queues pickle what is no plain data, as multiprocessing's do.
    """
    base = method if isinstance(method, BaseContext) else multiprocessing.get_context(method)

    class Context(type(base)):  # type: ignore[misc]
        def Queue(self, maxsize: int = 0) -> Any:
            return queue.Queue(maxsize, allow_pickle=True)

        def JoinableQueue(self, maxsize: int = 0) -> Any:
            return queue.JoinableQueue(maxsize, allow_pickle=True)

    return Context()


def _stacked(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    if type(first) is not torch.Tensor or first.layout is not torch.strided or first.is_nested:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(list(batch), 0)


_COLLATE = {**default_collate_fn_map, torch.Tensor: _stacked}


def collate(batch: Sequence[Any]) -> Any:
    """As `torch.utils.data.default_collate`, without memory in /dev/shm: PyTorch's makes a file there for each tensor in a worker."""
    return _collate(batch, collate_fn_map=_COLLATE)


class DataLoader(torch.utils.data.DataLoader[Any]):
    """`torch.utils.data.DataLoader`, whose workers hand batches over in memory of memlift. Its arguments are the same.

    Samples and batches may be of any type that can be pickled. Tensors and arrays are copied once, and lie writable in the queue's memory,
    which goes back when they do. A `collate_fn` of your own should not call `default_collate`, which makes a file in /dev/shm for each
    tensor: `memlift.torch.collate` does the same without. `multiprocessing_context` says how workers start, as before.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(torch.utils.data.DataLoader.__init__).bind(self, *args, **kwargs).arguments
        if given.get("num_workers", 0) > 0:
            kwargs["multiprocessing_context"] = context(given.get("multiprocessing_context"))
            is_batched = given.get("batch_size", 1) is not None or given.get("batch_sampler") is not None
            if given.get("collate_fn") is None and is_batched:
                kwargs["collate_fn"] = collate
        super().__init__(*args, **kwargs)


def put_state(arena: Arena, state: torch.nn.Module | Mapping[str, Any], **options: Any) -> Ref:
    """Writes a module's `state_dict()` (or one that is given) into an arena, once. `options` are those of `Arena.put`.

    Tensors must lie in host memory. UnsupportedTypeError names what cannot be written.
    """
    if isinstance(state, torch.nn.Module):
        state = state.state_dict()
    return arena.put({name: _plain(value, name) for name, value in state.items()}, **options)


def _plain(value: Any, name: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    bare = value.detach()
    if bare.device.type != "cpu":
        raise UnsupportedTypeError(f"{name} lies in the memory of a device ({bare.device}): pass a state_dict of host tensors, {{k: v.cpu()}}")
    return bare


def load_state(module: torch.nn.Module, state: Ref | Mapping[str, Any], *, strict: bool = True, timeout: float | None = 10.0) -> Any:
    """Gives a module the tensors of `put_state`, in place: however many processes do it, the weights are there once.

    What a process trains becomes its own, page by page. `strict` and what is returned are those of `Module.load_state_dict`. A mapping of
    tensors is taken as it is; values of a `memlift.Subscription` must be made with `writable=True`, or are copied.
    """
    values = state.get(timeout=timeout, writable=True) if isinstance(state, Ref) else state
    return module.load_state_dict(values, strict=strict, assign=True)


def _take(ref: Ref) -> Any:
    return ref.get(writable=True)


def reduce_through(arena: Arena) -> None:
    """Tensors that this process sends by torch.multiprocessing's queues, pipes and pools go through an arena from now on.

    The receiver has a tensor of its own, in place: nothing that either side writes later is seen by the other. PyTorch's own way shares
    the memory, so tensors in shared memory (`share_memory_()`, parameters that several processes train) still go that way, and so does what
    is more than its elements. A tensor is given up when it was received once: one that is pickled once and unpickled twice is an
    ExpiredError. `reduce_by_torch()` ends it. Forked children have to call it with an arena of their own.
    """

    def reduce(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if tensor.is_shared() or tensor.requires_grad or _tensors._reduce_torch(tensor) is None:
            return reduce_tensor(tensor)  # type: ignore[no-any-return]
        return _take, (arena.put(tensor, reads=1),)

    ForkingPickler.register(torch.Tensor, reduce)


def reduce_by_torch() -> None:
    """Tensors are sent as PyTorch sends them again."""
    ForkingPickler.register(torch.Tensor, reduce_tensor)
