# SPDX-License-Identifier: Apache-2.0 OR MIT
"""memlift lifts memory work off the core.

    import memlift

    with memlift.ipc.Server("doubler") as server:        # in one process
        server.register("double", lambda x: x * 2)
        server.serve_forever()

    with memlift.ipc.Client("doubler") as client:         # in another
        y = client.call("double", x)                      # numpy in, numpy out

    from memlift import Queue                             # in place of multiprocessing's: arrays are not pickled

    sealed, tag = memlift.transform.seal(key, nonce, data)    # AES-GCM; see memlift.transform for packing and chains

    with memlift.persist.open("state.pool") as pool:      # dicts and arrays that survive a crash
        pool.dict("settings")["rate"] = 0.1

    with memlift.traverse.Client.connect("127.0.0.1:7700") as client:     # maps on memory nodes; see memlift.traverse
        prices = memlift.traverse.OrderedMap.create(client)
        prices[1_700_000_000] = 12

    with memlift.zmem.job("4G"):                          # numpy's arrays under an exact budget; see memlift.zmem
        table = np.zeros((1_000_000, 1000))

Each service is a module; what they raise is in memlift.errors.
"""

import importlib
from typing import TYPE_CHECKING, Any

from memlift import errors
from memlift.errors import (
    AddressInUseError,
    ArenaFullError,
    BadArgumentError,
    BadChainError,
    BadChunkError,
    BadInputError,
    BadKeyError,
    BadProgramError,
    ClientTakenError,
    ClosedError,
    ContendedError,
    CorruptMessageError,
    CorruptStreamError,
    DeadlineExceededError,
    DeviceUnavailableError,
    DrainingError,
    Error,
    ExpiredError,
    FencedError,
    ForbiddenError,
    ForkedError,
    GoneError,
    IncompressibleError,
    MemliftFallbackWarning,
    MessageTooLargeError,
    NoReplicaError,
    NoSuchAddressError,
    NodeBusyError,
    NodeFailedError,
    NodeFullError,
    NodeLogFullError,
    NodeRestingError,
    NodeUnreachableError,
    NotAPoolError,
    NotPicklableError,
    NotReplicatedError,
    OtherLoopError,
    OutOfMemoryError,
    OutOfOrderError,
    OutdatedError,
    OverlapError,
    PayloadPoolFullError,
    PeerDiedError,
    PeerFaultError,
    PeerTooOldError,
    PoolDamagedError,
    PoolFullError,
    PoolInUseError,
    PoolLayoutError,
    PoolStoppedError,
    PoolVersionError,
    ReadOnlyError,
    RemoteError,
    ReplicaError,
    ReplicaStoreError,
    ScratchBusyError,
    ServerRefusedError,
    ServerUnavailableError,
    SessionOverError,
    SnapshotGoneError,
    TargetTooSmallError,
    TooManyCallsError,
    TransactionAbortedError,
    TransactionTooLargeError,
    UnknownOperationError,
    UnsupportedFormatError,
    UnsupportedTypeError,
    UnsupportedValueError,
    VersionMismatchError,
    WalkFailedError,
    WalkTooLongError,
    WrongKeyError,
    WrongStructureError,
    WrongTagError,
)

from memlift import _whole

_whole.take()
try:
    from memlift._native import __version__
except ModuleNotFoundError as missing:
    # A wheel without a native part, for systems that have none.
    if missing.name != "memlift._native":
        raise
    from importlib.metadata import version

    from memlift import _elsewhere

    __version__ = version("memlift")
else:
    _elsewhere = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from memlift import gzip, ipc, persist, transform, traverse, zlib, zmem
    from memlift._libraries import libraries
    from memlift._values import register
    from memlift.arena import Arena, Ref, Subscription
    from memlift.executor import Executor
    from memlift.pool import Pool
    from memlift.queue import JoinableQueue, Queue

__all__ = [
    "AddressInUseError",
    "Arena",
    "ArenaFullError",
    "BadArgumentError",
    "BadChainError",
    "BadChunkError",
    "BadInputError",
    "BadKeyError",
    "BadProgramError",
    "ClientTakenError",
    "ClosedError",
    "ContendedError",
    "CorruptMessageError",
    "CorruptStreamError",
    "DeadlineExceededError",
    "DeviceUnavailableError",
    "DrainingError",
    "Error",
    "Executor",
    "ExpiredError",
    "FencedError",
    "ForbiddenError",
    "ForkedError",
    "GoneError",
    "IncompressibleError",
    "JoinableQueue",
    "MemliftFallbackWarning",
    "MessageTooLargeError",
    "NoReplicaError",
    "NoSuchAddressError",
    "NodeBusyError",
    "NodeFailedError",
    "NodeFullError",
    "NodeLogFullError",
    "NodeRestingError",
    "NodeUnreachableError",
    "NotAPoolError",
    "NotPicklableError",
    "NotReplicatedError",
    "OtherLoopError",
    "OutOfMemoryError",
    "OutOfOrderError",
    "OutdatedError",
    "OverlapError",
    "PayloadPoolFullError",
    "PeerDiedError",
    "PeerFaultError",
    "PeerTooOldError",
    "Pool",
    "PoolDamagedError",
    "PoolFullError",
    "PoolInUseError",
    "PoolLayoutError",
    "PoolStoppedError",
    "PoolVersionError",
    "Queue",
    "ReadOnlyError",
    "Ref",
    "RemoteError",
    "ReplicaError",
    "ReplicaStoreError",
    "ScratchBusyError",
    "ServerRefusedError",
    "ServerUnavailableError",
    "SessionOverError",
    "SnapshotGoneError",
    "Subscription",
    "TargetTooSmallError",
    "TooManyCallsError",
    "TransactionAbortedError",
    "TransactionTooLargeError",
    "UnknownOperationError",
    "UnsupportedFormatError",
    "UnsupportedTypeError",
    "UnsupportedValueError",
    "VersionMismatchError",
    "WalkFailedError",
    "WalkTooLongError",
    "WrongKeyError",
    "WrongStructureError",
    "WrongTagError",
    "__version__",
    "errors",
    "ipc",
    "libraries",
    "persist",
    "register",
    "transform",
    "traverse",
    "zmem",
]


# What is loaded when it is first used: importing memlift costs little more than numpy.
_MODULES = frozenset(
    ("aio", "arena", "executor", "gzip", "ipc", "persist", "pool", "queue", "transform", "traverse", "zlib", "zmem")
)
_MODULE_OF = {
    "Arena": "arena",
    "Executor": "executor",
    "JoinableQueue": "queue",
    "Pool": "pool",
    "Queue": "queue",
    "Ref": "arena",
    "Subscription": "arena",
    "libraries": "_libraries",
    "register": "_values",
}


def __getattr__(name: str) -> Any:
    if _elsewhere is not None and (name in _MODULES or name in _MODULE_OF):
        if name not in _elsewhere.NAMES:
            raise _elsewhere.needs(name)
        _elsewhere.warn()
        return getattr(_elsewhere, name)
    if name in _MODULES:
        return importlib.import_module(f"memlift.{name}")
    if (module := _MODULE_OF.get(name)) is not None:
        value = globals()[name] = getattr(importlib.import_module(f"memlift.{module}"), name)
        return value
    return errors._former(name, "memlift")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
