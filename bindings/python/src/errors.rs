// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Converts errors of the services to the exception classes in `memlift/errors.py`.

use std::cell::Cell;
use std::path::Path;

use memlift::ground::region::RegionError;
use memlift::ipc::{Error, OnWait, RemoteFailure};
use memlift::persist::Error as PersistError;
use memlift::transform::Error as TransformError;
use memlift::traverse::client::ClientError;
use pyo3::exceptions::{PyFileExistsError, PyOSError};
use pyo3::prelude::*;

thread_local! {
    /// Exception of a signal's handler that ended a wait of this thread.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Returns a callback for waits: a signal's handler that raises ends them, and an event (`threading.Event`) that is set.
pub fn on_wait(ended: Option<Py<PyAny>>) -> OnWait {
    OnWait::new(move || {
        Python::attach(|py| {
            if let Err(error) = py.check_signals() {
                RAISED.set(Some(error));
                return false;
            }
            let is_set = |ended: &Py<PyAny>| ended.call_method0(py, "is_set")?.is_truthy(py);
            !ended.as_ref().is_some_and(|ended| is_set(ended).unwrap_or(true))
        })
    })
}

/// Returns what a signal's handler raised that ended this thread's wait.
pub fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Returns the Python exception for an error of a call.
pub fn raise(py: Python<'_>, error: Error) -> PyErr {
    let class = match &error {
        Error::Interrupted => {
            return raised().unwrap_or_else(|| new(py, "ClosedError", (error.to_string(),)));
        }
        Error::ServerUnavailable { .. } => "ServerUnavailableError",
        Error::Refused { .. } => "ServerRefusedError",
        Error::AddressInUse { .. } => "AddressInUseError",
        Error::PeerDied { .. } => "PeerDiedError",
        Error::PeerFault { .. } => "PeerFaultError",
        Error::PeerTooOld { .. } => "PeerTooOldError",
        Error::DeadlineExceeded { .. } => "DeadlineExceededError",
        Error::Busy { .. } => "TooManyCallsError",
        Error::Remote(failure) => match failure {
            RemoteFailure::UnknownOperation { .. } => "UnknownOperationError",
            RemoteFailure::Deadline { .. } => "DeadlineExceededError",
            RemoteFailure::OutOfMemory { .. } => "OutOfMemoryError",
            RemoteFailure::Corrupted { .. } => "CorruptMessageError",
            RemoteFailure::Draining { .. } => "DrainingError",
            RemoteFailure::Handler { operation, message } => return remote(py, operation, message),
            _ => "Error",
        },
        Error::Corrupted { .. } => "CorruptMessageError",
        Error::DeviceUnavailable { .. } => "DeviceUnavailableError",
        Error::MessageTooLarge { .. } => "MessageTooLargeError",
        Error::PoolFull { .. } => "PayloadPoolFullError",
        Error::Memory(RegionError::Headroom { .. }) => "OutOfMemoryError",
        Error::UnsupportedType(_) => "UnsupportedTypeError",
        Error::Closed { .. } => "ClosedError",
        Error::Forked { .. } | Error::NotWriter => "ForkedError",
        Error::Expired { .. } => "ExpiredError",
        _ => "Error",
    };
    new(py, class, (error.to_string(),))
}

/// Returns the exception for a handler that raised on the server; it contains the handler's traceback.
fn remote(py: Python<'_>, operation: &str, message: &str) -> PyErr {
    new(py, "RemoteError", (operation.to_owned(), message.to_owned()))
}

/// Returns the Python exception for an error of a transform.
pub fn transform_error(py: Python<'_>, error: TransformError) -> PyErr {
    let class = match &error {
        TransformError::WrongTag => "WrongTagError",
        TransformError::Corrupt | TransformError::Checksum { .. } => "CorruptStreamError",
        TransformError::TargetTooSmall { .. } | TransformError::UnpackedTooLarge { .. } => {
            "TargetTooSmallError"
        }
        TransformError::Incompressible { .. } => "IncompressibleError",
        TransformError::Overlap => "OverlapError",
        TransformError::TooLong { .. } => "MessageTooLargeError",
        TransformError::Busy { .. } => "ScratchBusyError",
        TransformError::Key(_) => "BadKeyError",
        TransformError::Chain(_) => "BadChainError",
        TransformError::Order(_) => "OutOfOrderError",
        TransformError::Unsupported { .. } => "UnsupportedFormatError",
        _ => "Error",
    };
    new(py, class, (error.to_string(),))
}

/// Returns the Python exception for an error of a pool of persistent objects. An error of the system becomes an `OSError`.
pub fn persist_error(py: Python<'_>, error: PersistError) -> PyErr {
    let text = error.to_string();
    persist_error_with(py, error, text)
}

/// Returns the Python exception for an error of opening the pool `path`, which it names.
pub fn open_error(py: Python<'_>, path: &Path, error: PersistError) -> PyErr {
    let text = error.to_string();
    let text = match &error {
        PersistError::NotAPool => format!("{}: {text}: use another file", path.display()),
        PersistError::Version { .. }
        | PersistError::Feature { .. }
        | PersistError::Layout { .. }
        | PersistError::Corrupt { .. } => format!("{}: {text}", path.display()),
        _ => text,
    };
    persist_error_with(py, error, text)
}

fn persist_error_with(py: Python<'_>, error: PersistError, text: String) -> PyErr {
    let class = match error {
        PersistError::File { source, .. } => {
            return match source.raw_os_error() {
                Some(number) => PyOSError::new_err((number, text)),
                None => PyOSError::new_err(text),
            };
        }
        PersistError::Exists { .. } => return PyFileExistsError::new_err(text),
        PersistError::InUse { .. } => "PoolInUseError",
        PersistError::NotAPool => "NotAPoolError",
        PersistError::Version { .. } | PersistError::Feature { .. } => "PoolVersionError",
        PersistError::Layout { .. } => "PoolLayoutError",
        PersistError::Corrupt { .. } | PersistError::LogDamaged { .. } => "PoolDamagedError",
        PersistError::Full { .. } => "PoolFullError",
        PersistError::TooLarge { .. } => "TransactionTooLargeError",
        PersistError::Pointer { .. } | PersistError::Section { .. } => "GoneError",
        PersistError::Stopped { .. } => "PoolStoppedError",
        PersistError::SnapshotGone { .. } => "SnapshotGoneError",
        PersistError::Replica { .. } => "ReplicaError",
        PersistError::ReplicaStore { .. } => "ReplicaStoreError",
        PersistError::NoReplica { .. } => "NoReplicaError",
        PersistError::Fenced { .. } => "FencedError",
        PersistError::NotReplicated { .. } => "NotReplicatedError",
        PersistError::ReadOnly => "ReadOnlyError",
        PersistError::Aborted(_) => "TransactionAbortedError",
        PersistError::Argument { .. } => "BadArgumentError",
        _ => "Error",
    };
    new(py, class, (text,))
}

/// Returns the Python exception for an error of a walk or of a collection on memory nodes.
pub fn walk_error(py: Python<'_>, error: ClientError) -> PyErr {
    let text = error.to_string();
    let class = match error {
        ClientError::Silent { .. } => "DeadlineExceededError",
        ClientError::Nowhere { .. } | ClientError::OtherMemory { .. } | ClientError::OlderLog { .. } => {
            "NoSuchAddressError"
        }
        ClientError::Unreachable { .. } => "NodeUnreachableError",
        ClientError::Forbidden { .. } => "ForbiddenError",
        ClientError::WrongKey { .. } => "WrongKeyError",
        ClientError::Full { .. } => "NodeFullError",
        ClientError::Resting { .. } => "NodeRestingError",
        ClientError::ReadOnly => "NodeLogFullError",
        ClientError::Budget { .. } | ClientError::Hops { .. } => "WalkTooLongError",
        ClientError::Fault { .. } => "WalkFailedError",
        ClientError::Contended { .. } => "ContendedError",
        ClientError::Outdated => "OutdatedError",
        ClientError::Busy(_) => "NodeBusyError",
        ClientError::Refused { .. } => "BadProgramError",
        ClientError::Corrupt { .. } => "WrongStructureError",
        ClientError::Overflow { .. } | ClientError::SumTooLarge { .. } => "UnsupportedValueError",
        ClientError::TooLong { .. }
        | ClientError::Place(_)
        | ClientError::StaleClient
        | ClientError::NotUnderWay(_) => "BadArgumentError",
        ClientError::Input { .. } => "BadInputError",
        ClientError::Transport(_) | ClientError::Map(_) => "ServerUnavailableError",
        ClientError::OtherVersion { .. } => "VersionMismatchError",
        ClientError::Forked => "ForkedError",
        ClientError::SessionOver { .. } => "SessionOverError",
        ClientError::Taken { .. } => "ClientTakenError",
        ClientError::Io(error) => return error.into(),
        _ => "Error",
    };
    new(py, class, (text,))
}

/// Returns the exception for data that cannot be sent.
pub fn unsupported(py: Python<'_>, what: &str) -> PyErr {
    raise(py, Error::UnsupportedType(what.to_owned()))
}

/// Returns the exception for received bytes that are no valid value.
pub fn corrupt(py: Python<'_>, how: &str) -> PyErr {
    new(py, "CorruptMessageError", (format!("the message is {how}: nothing of it was used"),))
}

/// Returns true if the exception is of a class in `memlift/errors.py`.
pub fn is(py: Python<'_>, error: &PyErr, class: &str) -> bool {
    let class = py.import("memlift.errors").and_then(|module| module.getattr(class));
    class.is_ok_and(|class| error.is_instance(py, &class))
}

/// Creates an exception of a class in `memlift/errors.py`.
pub fn new<'py>(py: Python<'py>, class: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    let made = py
        .import("memlift.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1(arguments));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Returns the text that Python would print for an exception.
pub fn traceback(py: Python<'_>, error: &PyErr) -> String {
    let lines = py
        .import("traceback")
        .and_then(|module| {
            module
                .call_method1("format_exception", (error.get_type(py), error.value(py), error.traceback(py)))
        })
        .and_then(|lines| lines.extract::<Vec<String>>());
    lines.map_or_else(|_| error.to_string(), |lines| lines.concat())
}
