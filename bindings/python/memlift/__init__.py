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

from memlift import errors, ipc, persist, transform, traverse, zmem
from memlift._libraries import libraries
from memlift._native import __version__
from memlift._values import register
from memlift.arena import Arena, Ref, Subscription
from memlift.errors import (
    AddressInUse,
    ArenaFullError,
    BadArgument,
    BadChain,
    BadInput,
    BadKey,
    BadProgram,
    Busy,
    Closed,
    Contended,
    Corrupt,
    DeadlineExceeded,
    DeviceUnavailable,
    Draining,
    Error,
    ExpiredError,
    Forbidden,
    Gone,
    Incompressible,
    MessageTooLarge,
    NoSuchAddress,
    NodeFailed,
    NodeFull,
    NotAPool,
    NotPicklable,
    OutOfMemory,
    OutOfOrder,
    Overlap,
    PeerDied,
    PeerFault,
    PeerTooOld,
    PoolDamaged,
    PoolFull,
    PoolInUse,
    PoolStopped,
    ReadOnly,
    RemoteError,
    ServerUnavailable,
    TargetTooSmall,
    TransactionAborted,
    TransactionTooLarge,
    UnknownOperation,
    UnsupportedFormat,
    UnsupportedType,
    UnsupportedValue,
    WalkFailed,
    WrongStructure,
    WrongTag,
)
from memlift.executor import Executor
from memlift.pool import Pool
from memlift.queue import JoinableQueue, Queue

__all__ = [
    "AddressInUse",
    "Arena",
    "ArenaFullError",
    "BadArgument",
    "BadChain",
    "BadInput",
    "BadKey",
    "BadProgram",
    "Busy",
    "Closed",
    "Contended",
    "Corrupt",
    "DeadlineExceeded",
    "DeviceUnavailable",
    "Draining",
    "Error",
    "Executor",
    "ExpiredError",
    "Forbidden",
    "Gone",
    "Incompressible",
    "JoinableQueue",
    "MessageTooLarge",
    "NoSuchAddress",
    "NodeFailed",
    "NodeFull",
    "NotAPool",
    "NotPicklable",
    "OutOfMemory",
    "OutOfOrder",
    "Overlap",
    "PeerDied",
    "PeerFault",
    "PeerTooOld",
    "Pool",
    "PoolDamaged",
    "PoolFull",
    "PoolInUse",
    "PoolStopped",
    "Queue",
    "ReadOnly",
    "Ref",
    "RemoteError",
    "ServerUnavailable",
    "Subscription",
    "TargetTooSmall",
    "TransactionAborted",
    "TransactionTooLarge",
    "UnknownOperation",
    "UnsupportedFormat",
    "UnsupportedType",
    "UnsupportedValue",
    "WalkFailed",
    "WrongStructure",
    "WrongTag",
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


def __getattr__(name: str) -> object:
    # They load a library, which programs that do not pack have no use for.
    if name in ("gzip", "zlib"):
        return importlib.import_module(f"memlift.{name}")
    raise AttributeError(f"module 'memlift' has no attribute {name!r}")
