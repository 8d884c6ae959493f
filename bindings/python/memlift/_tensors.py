# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tensors of other libraries: torch's arrive as they are, others by DLPack as numpy arrays, with a warning.

- **Flow** `reduce(value)` is asked for every object that numpy does not know; it never imports a library that is not there yet
- **Rule** a tensor that is more than its elements (a subclass, a graph behind it, names) is refused
- **Not here** memory of a GPU: refused, with what to do about it
"""

import sys
import warnings
from typing import Any

import numpy as np

from memlift.errors import UnsupportedTypeError

_CPU = (1, 3, 11)
"""kDLCPU, kDLCUDAHost, kDLROCMHost: memory that this processor reads."""

_TORCH_AS = {"bfloat16": "int16"} | {
    f"float8_{form}": "uint8" for form in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
}
"""Types of torch that numpy does not have, and those as which their memory travels."""


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def refuse_device(value: Any) -> None:
    """Raises UnsupportedTypeError if the value lies in the memory of a device."""
    cls = type(value)
    away = hasattr(cls, "__cuda_array_interface__") and hasattr(value, "__cuda_array_interface__")
    if away or hasattr(cls, "__dlpack_device__") and value.__dlpack_device__()[0] not in _CPU:
        raise UnsupportedTypeError(
            f"cannot send an object of type {_name(value)}: it lies in the memory of a GPU; copy it to the host first, with .cpu() or "
            "cupy.asnumpy()"
        )


def reduce(value: Any, allow_pickle: bool) -> tuple[str, Any] | None:
    """Returns kind and plain data of a tensor; None for what is none. Raises UnsupportedTypeError for one that would lose something."""
    made = _reduce_torch(value)
    if made is not None:
        return made
    cls = type(value)
    if not hasattr(cls, "__dlpack__"):
        return None
    # A class that inherits the protocol is a tensor and something else.
    if "__dlpack__" not in vars(cls) or cls.__module__.partition(".")[0] == "torch" or allow_pickle:
        raise UnsupportedTypeError(
            f"cannot send an object of type {_name(value)}: only its bare elements would arrive; send an array of them, such as "
            "numpy.from_dlpack() of it, or pass allow_pickle=True"
        )
    try:
        array = np.from_dlpack(value)
    except Exception as error:
        raise UnsupportedTypeError(
            f"cannot send an object of type {_name(value)}: numpy cannot read it ({error}); send a numpy array"
        ) from error
    changes(value, "a numpy array", "numpy.from_dlpack() of it", stacklevel=5)
    return "", array


def changes(value: Any, into: str, advice: str, stacklevel: int) -> None:
    """Warns that a value arrives as something else, which a later version refuses."""
    text = f"an object of type {_name(value)} arrives as {into}; a later version of memlift refuses it: send {advice}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def _reduce_torch(value: Any) -> tuple[str, Any] | None:
    """Returns kind and plain data of a `torch.Tensor` in host memory that is no more than its elements; else None."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return None
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized or value.grad_fn is not None:
        return None
    named = any(name is not None for name in getattr(value, "names", ()))
    if named or value.is_conj() or value.is_neg() or value.is_nested or vars(value):
        return None
    name = str(value.dtype).removeprefix("torch.")
    bare = value.detach()
    if name in _TORCH_AS:
        bare = bare.view(getattr(torch, _TORCH_AS[name]))
    try:
        return "torch", (name, bare.numpy(), bool(value.requires_grad))
    except (RuntimeError, TypeError):
        return None


def _make_torch(value: Any, _: bool) -> Any:
    name, array, grad = value
    if type(array) is not np.ndarray or type(name) is not str:
        raise ValueError("no tensor")
    try:
        import torch
    except ImportError:
        raise UnsupportedTypeError("a torch.Tensor came, but torch is not installed here: send tensor.numpy(), or install torch") from None
    # Tensors are always writable; memory of a peer must not be.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    if name in _TORCH_AS:
        tensor = tensor.view(getattr(torch, name))
    if str(tensor.dtype) != f"torch.{name}":
        raise ValueError("elements of another type")
    return tensor.requires_grad_(grad) if grad else tensor


MAKERS = {"torch": _make_torch}
