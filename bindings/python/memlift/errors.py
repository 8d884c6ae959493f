# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Everything that memlift raises, and its warning. All errors derive from `Error`; each text says what to do next."""

import warnings
from pickle import PicklingError


class Error(Exception):
    """Base of all errors of memlift."""


class MemliftFallbackWarning(RuntimeWarning):
    """The standard library's queues and processes stand in for memlift's, which are not there on this system."""


class ServerUnavailableError(Error, ConnectionError):
    """No server at that address."""


class ServerRefusedError(ServerUnavailableError):
    """The server at that address refused this client."""


class VersionMismatchError(ServerUnavailableError):
    """The memory node and this client speak different versions of the protocol. Nothing was done."""


class DrainingError(ServerUnavailableError):
    """The server ends: it has not begun this call, and begins no others. Another server may have its address already."""


class AddressInUseError(Error, OSError):
    """Something lies at the address that a server would listen at: another server, or a file that memlift leaves alone."""


class PeerDiedError(Error, ConnectionError):
    """The other process died or closed the session."""


class PeerFaultError(Error, ConnectionError):
    """The other process broke the protocol; the session is closed."""


class PeerTooOldError(Error):
    """The server is of an earlier version of memlift, which cannot do this. Nothing was sent."""


class ClosedError(Error):
    """The client, server, pipeline or file was closed."""


class ForkedError(ClosedError):
    """The client, arena or file belongs to the process that this one was forked from: open it again here."""


class OtherLoopError(ClosedError):
    """The client belongs to another event loop: connect one for each."""


class DeadlineExceededError(Error, TimeoutError):
    """No answer in time. The server may still be working on it."""


class TooManyCallsError(DeadlineExceededError):
    """The client has as many unanswered calls as it may. Nothing was sent: collect results first."""


class SessionOverError(DeadlineExceededError):
    """The memory node has forgotten this client's session, so nobody knows whether the change was made before. It is not made now."""


class UnknownOperationError(Error, LookupError):
    """The server has no operation of that name."""


class DeviceUnavailableError(Error, ValueError):
    """This process has no such device to copy with."""


class MessageTooLargeError(Error, ValueError):
    """The data is over the limit for one message."""


class _PoolFull(Error):
    """Base of the errors that were one class, `PoolFull`."""


class PayloadPoolFullError(_PoolFull):
    """Loans and unanswered calls fill the memory for calls."""


class PoolFullError(_PoolFull):
    """A pool of persistent objects has no room."""


class ArenaFullError(Error):
    """An arena has no room for a value, or a subscriber of its topic has none, and it did not come in time."""


class ExpiredError(Error, LookupError):
    """The value of a `Ref` is gone: released, taken as often as was said, or evicted; or its arena has ended."""


class OutOfMemoryError(Error, MemoryError):
    """The memory cgroup or the machine has too little left. Nothing was touched."""


class UnsupportedTypeError(Error, TypeError):
    """The object cannot be sent: it is neither bytes nor an array of numbers."""


class NotPicklableError(UnsupportedTypeError, PicklingError):
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


class WrongTagError(Error, ValueError):
    """Not what was sealed with this key, nonce and additional data. Nothing of it was given out."""


class _Corrupt(Error, ValueError):
    """Base of the errors that were one class, `Corrupt`."""


class CorruptStreamError(_Corrupt):
    """The packed stream is corrupt, cut off or of another format, or a block does not have its checksum."""


class CorruptMessageError(_Corrupt):
    """What arrived is no valid value, or what a call with `crc=True` sent or got did not arrive as it was sent."""


class TargetTooSmallError(Error, ValueError):
    """The result does not fit into `out`, or into `bytes_max`. Nothing behind its end was written."""


class IncompressibleError(TargetTooSmallError):
    """The bytes do not get smaller, and `out` has no room for what they get to: send them as they are."""


class OverlapError(Error, ValueError):
    """Source and target share bytes without being the same."""


class _Busy(Error):
    """Base of the errors that were one class, `Busy`."""


class ScratchBusyError(_Busy):
    """All scratch memory of the process is in use."""


class NodeBusyError(_Busy):
    """The queues of a memory node stayed full."""


class BadKeyError(Error, ValueError):
    """An AES key has 16 or 32 bytes."""


class BadChainError(Error, ValueError):
    """The steps do not follow each other."""


class OutOfOrderError(Error, RuntimeError):
    """The call does not fit what was called before: the message is finished, or its nonce was used."""


class UnsupportedFormatError(Error, ValueError):
    """This build has no such format, or not for messages in pieces."""


class PoolInUseError(Error):
    """Another process, or another object of this one, has the pool of persistent objects open."""


class NotAPoolError(Error, ValueError):
    """The file is no pool."""


class PoolVersionError(NotAPoolError):
    """The pool is one of another version of memlift."""


class PoolLayoutError(NotAPoolError):
    """The pool's root has another type: the type changed, or the pool is another program's or another language's."""


class PoolDamagedError(Error, ValueError):
    """Something other than memlift changed the file, or a device lost what it had promised."""


class PoolStoppedError(Error):
    """The disk failed to make something durable. What was acknowledged is safe; open the pool again."""


class SnapshotGoneError(Error):
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


class _ReadOnly(Error):
    """Base of the errors that were one class, `ReadOnly`."""


class ReadOnlyError(_ReadOnly):
    """The pool is open for reading only."""


class NodeLogFullError(_ReadOnly):
    """The disk of a memory node's log is full, and the node takes no changes."""


class TransactionTooLargeError(Error, ValueError):
    """The transaction changed more than the log takes. Nothing of it happened: split it."""


class TransactionAbortedError(Error):
    """The transaction could not be committed, because something in it had failed before. Nothing of it happened."""


class GoneError(Error, LookupError):
    """The dict or array is not there any more: it was removed, or the transaction that made it was rolled back."""


class BadArgumentError(Error, ValueError):
    """A number, name or combination that makes no sense, or an object larger than a pool can hold."""


class ClientTakenError(BadArgumentError):
    """Another process has the client number at this memory node."""


class UnsupportedValueError(Error, TypeError):
    """Not a kind of key or value that a persistent dict keeps."""


class BadProgramError(Error, ValueError):
    """A walk's program was refused: by the subset of Python, or by the verifier. The text names the line or the instruction."""

    line: int | None = None
    """Of the Python file, if the program is a Python function."""
    at: int | None
    """The instruction, in units of eight bytes."""

    def __init__(self, text: str, at: int | None = None) -> None:
        super().__init__(text)
        self.at = at


class _WalkFailed(Error, RuntimeError):
    """Base of the errors that were one class, `WalkFailed`."""


class WalkFailedError(_WalkFailed):
    """A walk was ended: its program failed on what it found."""


class WalkTooLongError(_WalkFailed):
    """A walk was ended: it made more steps, or went from node to node more often, than it may."""


class _NoSuchAddress(Error, LookupError):
    """Base of the errors that were one class, `NoSuchAddress`."""


class NoSuchAddressError(_NoSuchAddress):
    """No node has the address, or the memory that it was of is gone."""


class NodeUnreachableError(_NoSuchAddress):
    """A node has the address, and this client cannot reach it."""


class _Forbidden(Error, PermissionError):
    """Base of the errors that were one class, `Forbidden`."""


class ForbiddenError(_Forbidden):
    """The address is not allocated (any more), another tenant's, or only to be read."""


class WrongKeyError(_Forbidden):
    """The tenant's key is wrong."""


class NodeFullError(Error, MemoryError):
    """No memory is left on the nodes."""


class NodeRestingError(NodeFullError):
    """No memory is left on the nodes now, but what was removed is free soon: ask again then."""


class ContendedError(Error):
    """Others changed the same place each time it was tried."""


class OutdatedError(ContendedError):
    """What was read before is too old to go on by, each time it was tried."""


class WrongStructureError(Error, ValueError):
    """At the address lies something else than the handle says."""


class _BadInput(Error, ValueError):
    """Base of the errors that were one class, `BadInput`."""


class BadInputError(_BadInput):
    """A row of what is to be loaded cannot be taken. Nothing of it was loaded."""


class BadChunkError(_BadInput):
    """A chunk of a codec is none of memlift's, is cut off, or does not fit into `out`."""


class NodeFailedError(Error, RuntimeError):
    """A memory node could not start or go on."""


# Former names, which work one version longer. One that named two conditions is the base of both classes now.
_FORMER: dict[str, type[Error]] = {
    "AddressInUse": AddressInUseError,
    "BadArgument": BadArgumentError,
    "BadChain": BadChainError,
    "BadInput": _BadInput,
    "BadKey": BadKeyError,
    "BadProgram": BadProgramError,
    "Busy": _Busy,
    "Closed": ClosedError,
    "Contended": ContendedError,
    "Corrupt": _Corrupt,
    "DeadlineExceeded": DeadlineExceededError,
    "DeviceUnavailable": DeviceUnavailableError,
    "Draining": DrainingError,
    "Forbidden": _Forbidden,
    "Gone": GoneError,
    "Incompressible": IncompressibleError,
    "MessageTooLarge": MessageTooLargeError,
    "NoSuchAddress": _NoSuchAddress,
    "NodeFailed": NodeFailedError,
    "NodeFull": NodeFullError,
    "NotAPool": NotAPoolError,
    "NotPicklable": NotPicklableError,
    "OutOfMemory": OutOfMemoryError,
    "OutOfOrder": OutOfOrderError,
    "Overlap": OverlapError,
    "PeerDied": PeerDiedError,
    "PeerFault": PeerFaultError,
    "PeerTooOld": PeerTooOldError,
    "PoolDamaged": PoolDamagedError,
    "PoolFull": _PoolFull,
    "PoolInUse": PoolInUseError,
    "PoolStopped": PoolStoppedError,
    "ReadOnly": _ReadOnly,
    "ServerUnavailable": ServerUnavailableError,
    "SnapshotGone": SnapshotGoneError,
    "TargetTooSmall": TargetTooSmallError,
    "TransactionAborted": TransactionAbortedError,
    "TransactionTooLarge": TransactionTooLargeError,
    "UnknownOperation": UnknownOperationError,
    "UnsupportedFormat": UnsupportedFormatError,
    "UnsupportedType": UnsupportedTypeError,
    "UnsupportedValue": UnsupportedValueError,
    "WalkFailed": _WalkFailed,
    "WrongStructure": WrongStructureError,
    "WrongTag": WrongTagError,
}


def _former(name: str, module: str) -> type[Error]:
    """The class with the name that it had before. `module` is the one that was asked, for the text."""
    found = _FORMER.get(name)
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    names = [found.__name__] if not found.__name__.startswith("_") else [one.__name__ for one in found.__subclasses__()]
    text = f"{module}.{name} is {' or '.join(names)} now; the old name goes with the next version"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return found


def __getattr__(name: str) -> type[Error]:
    return _former(name, __name__)
