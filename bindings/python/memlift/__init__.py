# SPDX-License-Identifier: Apache-2.0 OR MIT
"""memlift lifts memory work off the core.

    import memlift

    with memlift.ipc.Server("doubler") as server:        # in one process
        server.register("double", lambda x: x * 2)
        server.serve_forever()

    with memlift.ipc.Client("doubler") as client:         # in another
        y = client.call("double", x)                      # numpy in, numpy out
"""

from memlift import errors, ipc
from memlift._native import __version__
from memlift.errors import (
    Closed,
    DeadlineExceeded,
    Error,
    MessageTooLarge,
    OutOfMemory,
    PeerDied,
    PeerFault,
    PoolFull,
    RemoteError,
    ServerUnavailable,
    UnknownOperation,
    UnsupportedType,
)

__all__ = [
    "Closed",
    "DeadlineExceeded",
    "Error",
    "MessageTooLarge",
    "OutOfMemory",
    "PeerDied",
    "PeerFault",
    "PoolFull",
    "RemoteError",
    "ServerUnavailable",
    "UnknownOperation",
    "UnsupportedType",
    "__version__",
    "errors",
    "ipc",
]
