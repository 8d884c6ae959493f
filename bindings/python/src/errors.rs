// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Converts errors of the services to the exception classes in `memlift/errors.py`.

use memlift::ground::region::RegionError;
use memlift::ipc::{Error, RemoteFailure};
use memlift::persist::Error as PersistError;
use memlift::transform::Error as TransformError;
use memlift::traverse::client::ClientError;
use pyo3::exceptions::{PyFileExistsError, PyOSError};
use pyo3::prelude::*;

/// Returns the Python exception for an error of a call.
pub fn raise(py: Python<'_>, error: Error) -> PyErr {
    let class = match &error {
        Error::ServerUnavailable { .. } | Error::Refused { .. } => "ServerUnavailable",
        Error::AddressInUse { .. } => "AddressInUse",
        Error::PeerDied { .. } => "PeerDied",
        Error::PeerFault { .. } => "PeerFault",
        Error::PeerTooOld { .. } => "PeerTooOld",
        Error::DeadlineExceeded { .. } | Error::Busy { .. } => "DeadlineExceeded",
        Error::Remote(failure) => match failure {
            RemoteFailure::UnknownOperation { .. } => "UnknownOperation",
            RemoteFailure::Deadline { .. } => "DeadlineExceeded",
            RemoteFailure::OutOfMemory { .. } => "OutOfMemory",
            RemoteFailure::Corrupted { .. } => "Corrupt",
            RemoteFailure::Draining { .. } => "Draining",
            RemoteFailure::Handler { operation, message } => return remote(py, operation, message),
            _ => "Error",
        },
        Error::Corrupted { .. } => "Corrupt",
        Error::DeviceUnavailable { .. } => "DeviceUnavailable",
        Error::MessageTooLarge { .. } => "MessageTooLarge",
        Error::PoolFull { .. } => "PoolFull",
        Error::Memory(RegionError::Headroom { .. }) => "OutOfMemory",
        Error::UnsupportedType(_) => "UnsupportedType",
        Error::Closed { .. } | Error::Forked { .. } | Error::NotWriter => "Closed",
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
        TransformError::WrongTag => "WrongTag",
        TransformError::Corrupt | TransformError::Checksum { .. } => "Corrupt",
        TransformError::TargetTooSmall { .. } | TransformError::UnpackedTooLarge { .. } => "TargetTooSmall",
        TransformError::Incompressible { .. } => "Incompressible",
        TransformError::Overlap => "Overlap",
        TransformError::TooLong { .. } => "MessageTooLarge",
        TransformError::Busy { .. } => "Busy",
        TransformError::Key(_) => "BadKey",
        TransformError::Chain(_) => "BadChain",
        TransformError::Order(_) => "OutOfOrder",
        TransformError::Unsupported { .. } => "UnsupportedFormat",
        _ => "Error",
    };
    new(py, class, (error.to_string(),))
}

/// Returns the Python exception for an error of a pool of persistent objects. An error of the system becomes an `OSError`.
pub fn persist_error(py: Python<'_>, error: PersistError) -> PyErr {
    let text = error.to_string();
    let class = match error {
        PersistError::File { source, .. } => {
            return match source.raw_os_error() {
                Some(number) => PyOSError::new_err((number, text)),
                None => PyOSError::new_err(text),
            };
        }
        PersistError::Exists { .. } => return PyFileExistsError::new_err(text),
        PersistError::InUse { .. } => "PoolInUse",
        PersistError::NotAPool
        | PersistError::Version { .. }
        | PersistError::Feature { .. }
        | PersistError::Layout { .. } => "NotAPool",
        PersistError::Corrupt { .. } | PersistError::LogDamaged { .. } => "PoolDamaged",
        PersistError::Full { .. } => "PoolFull",
        PersistError::TooLarge { .. } => "TransactionTooLarge",
        PersistError::Pointer { .. } | PersistError::Section { .. } => "Gone",
        PersistError::Stopped { .. } => "PoolStopped",
        PersistError::SnapshotGone { .. } => "SnapshotGone",
        PersistError::Replica { .. } => "ReplicaError",
        PersistError::ReplicaStore { .. } => "ReplicaStoreError",
        PersistError::NoReplica { .. } => "NoReplicaError",
        PersistError::Fenced { .. } => "FencedError",
        PersistError::NotReplicated { .. } => "NotReplicatedError",
        PersistError::ReadOnly => "ReadOnly",
        PersistError::Aborted(_) => "TransactionAborted",
        PersistError::Argument { .. } => "BadArgument",
        _ => "Error",
    };
    new(py, class, (text,))
}

/// Returns the Python exception for an error of a walk or of a collection on memory nodes.
pub fn walk_error(py: Python<'_>, error: ClientError) -> PyErr {
    let text = error.to_string();
    let class = match error {
        ClientError::Silent { .. } => "DeadlineExceeded",
        ClientError::Nowhere { .. } | ClientError::Unreachable { .. } => "NoSuchAddress",
        ClientError::Forbidden { .. } | ClientError::WrongKey { .. } => "Forbidden",
        ClientError::Full { .. } | ClientError::Resting { .. } => "NodeFull",
        ClientError::ReadOnly => "ReadOnly",
        ClientError::Budget { .. } | ClientError::Hops { .. } | ClientError::Fault { .. } => "WalkFailed",
        ClientError::Contended { .. } => "Contended",
        ClientError::Busy(_) => "Busy",
        ClientError::Refused { .. } => "BadProgram",
        ClientError::Corrupt { .. } => "WrongStructure",
        ClientError::TooLong { .. } | ClientError::Place(_) | ClientError::NotUnderWay(_) => "BadArgument",
        ClientError::Input { .. } => "BadInput",
        ClientError::Transport(_) | ClientError::Map(_) | ClientError::OtherVersion { .. } => {
            "ServerUnavailable"
        }
        ClientError::Forked => "Closed",
        ClientError::OtherMemory { .. } => "NoSuchAddress",
        ClientError::SessionOver { .. } => "DeadlineExceeded",
        ClientError::Outdated => "Contended",
        ClientError::Taken { .. } => "BadArgument",
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
    new(py, "Corrupt", (format!("the message is {how}: nothing of it was used"),))
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
