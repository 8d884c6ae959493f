# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Everything that memlift raises. All of it derives from `Error`; each text says what to do next."""

from pickle import PicklingError


class Error(Exception):
    """Base of all errors of memlift."""


class ServerUnavailable(Error, ConnectionError):
    """No server at that address, or it refused this client."""


class Draining(ServerUnavailable):
    """The server ends: it has not begun this call, and begins no others. Another server may have its address already."""


class AddressInUse(Error, OSError):
    """Something lies at the address that a server would listen at: another server, or a file that memlift leaves alone."""


class PeerDied(Error, ConnectionError):
    """The other process died or closed the session."""


class PeerFault(Error, ConnectionError):
    """The other process broke the protocol; the session is closed."""


class PeerTooOld(Error):
    """The server is of an earlier version of memlift, which cannot do this. Nothing was sent."""


class Closed(Error):
    """The client, server or pipeline was closed, or belongs to the process this one was forked from."""


class DeadlineExceeded(Error, TimeoutError):
    """No answer in time. The server may still be working on it."""


class UnknownOperation(Error, LookupError):
    """The server has no operation of that name."""


class DeviceUnavailable(Error, ValueError):
    """This process has no such device to copy with."""


class MessageTooLarge(Error, ValueError):
    """The data is over the limit for one message."""


class PoolFull(Error):
    """Loans and unanswered calls fill the pool; or a pool of persistent objects has no room."""


class ArenaFullError(Error):
    """An arena has no room for a value, or a subscriber of its topic has none, and it did not come in time."""


class ExpiredError(Error, LookupError):
    """The value of a `Ref` is gone: released, taken as often as was said, or evicted; or its arena has ended."""


class OutOfMemory(Error, MemoryError):
    """The memory cgroup or the machine has too little left. Nothing was touched."""


class UnsupportedType(Error, TypeError):
    """The object cannot be sent: it is neither bytes nor an array of numbers."""


class NotPicklable(UnsupportedType, PicklingError):
    """The object cannot be sent: it has no encoding, and pickle refuses it."""


class RemoteError(Error):
    """The handler at the server raised."""

    operation: str
    """Name of the operation."""
    traceback: str
    """What the server's Python would have printed, or what a handler in another language said."""

    def __init__(self, operation: str, traceback: str) -> None:
        super().__init__(operation, traceback)
        self.operation = operation
        self.traceback = traceback

    def __str__(self) -> str:
        return f"the handler of {self.operation!r} failed:\n{self.traceback.rstrip()}"


class WrongTag(Error, ValueError):
    """Not what was sealed with this key, nonce and additional data. Nothing of it was given out."""


class Corrupt(Error, ValueError):
    """The packed stream is corrupt, cut off or of another format, or a block does not have its checksum; or what a call with
    `crc=True` sent or got did not arrive as it was sent."""


class TargetTooSmall(Error, ValueError):
    """The result does not fit into `out`, or into `bytes_max`. Nothing behind its end was written."""


class Incompressible(TargetTooSmall):
    """The bytes do not get smaller, and `out` has no room for what they get to: send them as they are."""


class Overlap(Error, ValueError):
    """Source and target share bytes without being the same."""


class Busy(Error):
    """All scratch memory of the process is in use."""


class BadKey(Error, ValueError):
    """An AES key has 16 or 32 bytes."""


class BadChain(Error, ValueError):
    """The steps do not follow each other."""


class OutOfOrder(Error, RuntimeError):
    """The call does not fit what was called before: the message is finished, or its nonce was used."""


class UnsupportedFormat(Error, ValueError):
    """This build has no such format, or not for messages in pieces."""


class PoolInUse(Error):
    """Another process, or another object of this one, has the pool of persistent objects open."""


class NotAPool(Error, ValueError):
    """The file is no pool, or one of another version, another program or another language's types."""


class PoolDamaged(Error, ValueError):
    """Something other than memlift changed the file, or a device lost what it had promised."""


class PoolStopped(Error):
    """The disk failed to make something durable. What was acknowledged is safe; open the pool again."""


class SnapshotGone(Error):
    """A pool that another process writes: what was not read yet of its snapshot is not to be had any more. `refresh` it, or open it again."""


class ReplicaError(Error, ValueError):
    """An object of a pool's replica is missing or damaged. The text gives the last time to which a restore is possible."""


class ReplicaStoreError(Error, ConnectionError):
    """The store of a pool's replica cannot be reached, or refuses what is asked."""


class NoReplicaError(Error, LookupError):
    """No pool was replicated to this place."""


class NotReplicatedError(Error, TimeoutError):
    """The change is durable in the pool's file, but its replica did not get it in time, or will not."""


class FencedError(Error):
    """Another process writes the replica now. The text names it."""


class ReadOnly(Error):
    """The pool is open for reading only; or the disk of a memory node's log is full, and the node takes no changes."""


class TransactionTooLarge(Error, ValueError):
    """The transaction changed more than the log takes. Nothing of it happened: split it."""


class TransactionAborted(Error):
    """The transaction could not be committed, because something in it had failed before. Nothing of it happened."""


class Gone(Error, LookupError):
    """The dict or array is not there any more: it was removed, or the transaction that made it was rolled back."""


class BadArgument(Error, ValueError):
    """A number, name or combination that makes no sense, or an object larger than a pool can hold."""


class UnsupportedValue(Error, TypeError):
    """Not a kind of key or value that a persistent dict keeps."""


class BadProgram(Error, ValueError):
    """A walk's program was refused: by the subset of Python, or by the verifier. The text names the line or the instruction."""

    line: int | None = None
    """Of the Python file, if the program is a Python function."""
    at: int | None
    """The instruction, in units of eight bytes."""

    def __init__(self, text: str, at: int | None = None) -> None:
        super().__init__(text)
        self.at = at


class WalkFailed(Error, RuntimeError):
    """A walk was ended: its program failed on what it found, or it made more steps than it may."""


class NoSuchAddress(Error, LookupError):
    """No node has the address, or this client cannot reach the node that has it."""


class Forbidden(Error, PermissionError):
    """The address is not allocated (any more), another tenant's, or only to be read; or the tenant's key is wrong."""


class NodeFull(Error, MemoryError):
    """No memory is left on the nodes."""


class Contended(Error):
    """Others changed the same place each time it was tried."""


class WrongStructure(Error, ValueError):
    """At the address lies something else than the handle says."""


class BadInput(Error, ValueError):
    """A row of what is to be loaded cannot be taken. Nothing of it was loaded."""


class NodeFailed(Error, RuntimeError):
    """A memory node could not start or go on."""
