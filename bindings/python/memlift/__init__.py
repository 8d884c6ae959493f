# SPDX-License-Identifier: Apache-2.0 OR MIT
"""memlift lifts memory work off the core.

    import memlift

    with memlift.ipc.Server("doubler") as server:        # in one process
        server.register("double", lambda x: x * 2)
        server.serve_forever()

    with memlift.ipc.Client("doubler") as client:         # in another
        y = client.call("double", x)                      # numpy in, numpy out

    sealed, tag = memlift.transform.seal(key, nonce, data)    # AES-GCM; see memlift.transform for packing and chains
"""

from memlift import errors, ipc, transform
from memlift._native import __version__
from memlift.errors import (
    BadChain,
    BadKey,
    Busy,
    Closed,
    Corrupt,
    DeadlineExceeded,
    Error,
    Incompressible,
    MessageTooLarge,
    OutOfMemory,
    OutOfOrder,
    Overlap,
    PeerDied,
    PeerFault,
    PoolFull,
    RemoteError,
    ServerUnavailable,
    TargetTooSmall,
    UnknownOperation,
    UnsupportedFormat,
    UnsupportedType,
    WrongTag,
)

__all__ = [
    "BadChain",
    "BadKey",
    "Busy",
    "Closed",
    "Corrupt",
    "DeadlineExceeded",
    "Error",
    "Incompressible",
    "MessageTooLarge",
    "OutOfMemory",
    "OutOfOrder",
    "Overlap",
    "PeerDied",
    "PeerFault",
    "PoolFull",
    "RemoteError",
    "ServerUnavailable",
    "TargetTooSmall",
    "UnknownOperation",
    "UnsupportedFormat",
    "UnsupportedType",
    "WrongTag",
    "__version__",
    "errors",
    "ipc",
    "transform",
]
