// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Result codes: they replace errors and panics in C.
//!
//! - **Flow** [`run`] runs the body of a function and returns a code for its `Result<(), Fault>` or its panic; the text is kept for
//!   `memlift_last_error` of the thread.
//! - **Layout** 0: success; 1: call again; below 0: nothing was done. A test compares `CODES` with the header.

use memlift::persist::Error as PersistError;
use memlift::transform::Error;
use memlift::traverse::client::ClientError;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        $($(#[$doc])* pub const $name: c_int = $code;)*
        /// Every code with its name in the header.
        pub const CODES: &[(&str, c_int)] = &[$((concat!("MEMLIFT_", stringify!($name)), $code)),*];
        fn text(code: c_int) -> &'static CStr {
            match code {
                $($code => $text,)*
                _ => c"no code of memlift",
            }
        }
    };
}

codes! {
    /// The call succeeded.
    OK = 0, c"done";
    /// A packer has more to write.
    MORE = 1, c"there is more to write: call again with new room";
    /// See [`Error::WrongTag`].
    WRONG_TAG = -1, c"the tag does not match: wrong key, nonce or additional data, or changed bytes; the target is zeroed";
    /// See [`Error::Corrupt`].
    CORRUPT = -2, c"the packed stream is corrupt, cut off or of another format: get it again";
    /// See [`Error::Checksum`].
    CHECKSUM = -3, c"a block does not have the checksum that its frame says: get it again";
    /// See [`Error::TargetTooSmall`].
    TARGET_TOO_SMALL = -4, c"the result does not fit into the target: give it memlift_bound bytes, or more to unpack";
    /// See [`Error::Incompressible`].
    INCOMPRESSIBLE = -5, c"the bytes do not get smaller and the target has no room for more: send them as they are";
    /// See [`Error::Overlap`].
    OVERLAP = -6, c"source and target overlap: keep them apart, or make them equal to seal, open or copy in place";
    /// See [`Error::NotAligned`].
    NOT_ALIGNED = -7, c"Not Aligned: memlift_compcpy takes addresses of whole pages; memlift_transform takes any";
    /// See [`Error::TooLong`].
    TOO_LONG = -8, c"too many bytes for one message: send several, or a chain in frames";
    /// See [`Error::Busy`].
    BUSY = -9, c"all scratch memory is in use: try again, wait for it, or raise transform.scratch_bytes";
    /// See [`Error::Key`].
    BAD_KEY = -10, c"an AES key has 16 or 32 bytes";
    /// See [`Error::Chain`].
    BAD_CHAIN = -11, c"these steps do not make a chain";
    /// See [`Error::Order`]; also a nonce that was used.
    BAD_ORDER = -12, c"the call does not fit what was called before";
    /// See [`Error::Unsupported`].
    UNSUPPORTED = -13, c"not a format of this build, or not in pieces: take deflate, zlib or gzip";
    /// A pointer is null, a number is unknown, or a size is larger than memory.
    BAD_ARGUMENT = -14, c"a pointer is NULL, a size is larger than memory, or a number has no meaning";
    /// A panic was caught.
    INTERNAL = -15, c"a fault inside memlift: please report it; the target's contents are undefined";
    /// See [`PersistError::InUse`].
    POOL_IN_USE = -16, c"the pool is open in another process, or twice in this one: close it there first";
    /// The file has another kind, version, or root.
    NOT_A_POOL = -17, c"the file is no pool, or one of another version or another program";
    /// See [`PersistError::Corrupt`].
    POOL_DAMAGED = -18, c"the pool is damaged: memlift pool check says more";
    /// See [`PersistError::Full`].
    POOL_FULL = -19, c"the pool has no room: free something, or open it with larger max_bytes";
    /// See [`PersistError::TooLarge`].
    TX_TOO_LARGE = -20, c"the transaction changed more than a lane of the log takes: split it";
    /// See [`PersistError::Pointer`].
    NO_OBJECT = -21, c"there is no object of this type, or not so many bytes of it";
    /// See [`PersistError::Stopped`].
    POOL_STOPPED = -22, c"the disk failed to make something durable: close the pool, look at the disk, open it again";
    /// See [`PersistError::ReadOnly`].
    READ_ONLY = -23, c"the pool is open for reading only";
    /// See [`PersistError::File`].
    FILE_FAILED = -24, c"a call of the system failed: memlift_last_error says which";
    /// See [`PersistError::Exists`].
    FILE_EXISTS = -25, c"the file exists: open it, or remove it first";
    /// See [`ClientError::Silent`].
    NO_ANSWER = -26, c"a node did not answer in time: see whether it runs; it is not known what it did";
    /// See [`ClientError::Nowhere`].
    NO_ADDRESS = -27, c"no node has the address, or it cannot be reached from here";
    /// See [`ClientError::Forbidden`].
    FORBIDDEN = -28, c"the address is not allocated (any more), another tenant's, or only to be read; or the tenant's key is wrong";
    /// See [`ClientError::Full`].
    NODE_FULL = -29, c"no memory is left on the nodes: free something, or add a node";
    /// See [`ClientError::Fault`].
    WALK_FAILED = -30, c"the walk was ended: its program failed on what it found, or made more steps than it may";
    /// See [`ClientError::Contended`].
    CONTENDED = -31, c"others changed the same place each time: try again, with fewer writers";
    /// The bytes are no program, or the verifier refused it.
    BAD_PROGRAM = -32, c"the program was refused: memlift_last_error names the instruction and the reason";
    /// See [`ClientError::Transport`].
    NOT_CONNECTED = -33, c"there is no way to a node: memlift_last_error says why";
    /// See [`ClientError::Corrupt`].
    WRONG_STRUCTURE = -34, c"at the address lies something else than the handle says";
    /// The machine, the job or the arena has too little memory.
    NO_MEMORY = -35, c"there is no memory for it: ask for less, or give the job more";
    /// No server listens at the address, or it refused this client.
    NO_SERVER = -36, c"no server at that address, or it refused this client: memlift_last_error says which";
    /// The server has ended or closed the connection.
    PEER_DIED = -37, c"the server died or closed the connection: connect again when it is back";
    /// The server broke the protocol.
    PEER_FAULT = -38, c"the server broke the protocol; the session is closed: connect again";
    /// There was no answer within the time limit.
    LATE = -39, c"no answer in time: the server may still be working on it";
    /// The handler failed, or the operation has none.
    CALL_FAILED = -40, c"the server failed the call: memlift_last_error has what it said";
    /// This process does not have the device.
    NO_DEVICE = -41, c"this process has no such device: take another, or MEMLIFT_DEVICE_AUTO";
    /// Another server listens at the address.
    ADDRESS_IN_USE = -42, c"another server listens at that address: take another address, or end it";
    /// See [`PersistError::SnapshotGone`].
    SNAPSHOT_GONE = -43, c"what was not read yet of the snapshot is not to be had any more: memlift_pool_refresh, or open the pool again";
    /// See [`PersistError::Replica`], [`PersistError::ReplicaStore`], [`PersistError::NoReplica`].
    REPLICA_FAILED = -44, c"the replica is damaged, or its store is not to be had: memlift_last_error says which";
    /// See [`PersistError::NotReplicated`].
    NOT_REPLICATED = -45, c"the change is durable in the pool's file, but the replica does not have it: memlift_last_error says why";
}

/// Failure of an exported function: its code, and its text.
pub(crate) struct Fault {
    pub code: c_int,
    /// Text of the failure; `None` means the code's own text.
    pub text: Option<String>,
}

impl Fault {
    pub fn argument(what: &str) -> Fault {
        Fault { code: BAD_ARGUMENT, text: Some(what.to_owned()) }
    }

    pub fn order(what: &str) -> Fault {
        Fault { code: BAD_ORDER, text: Some(what.to_owned()) }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let code = match error {
            Error::WrongTag => WRONG_TAG,
            Error::Corrupt => CORRUPT,
            Error::Checksum { .. } => CHECKSUM,
            Error::TargetTooSmall { .. } | Error::UnpackedTooLarge { .. } => TARGET_TOO_SMALL,
            Error::Incompressible { .. } => INCOMPRESSIBLE,
            Error::Overlap => OVERLAP,
            Error::NotAligned { .. } => NOT_ALIGNED,
            Error::TooLong { .. } => TOO_LONG,
            Error::Busy { .. } => BUSY,
            Error::Key(_) => BAD_KEY,
            Error::Chain(_) => BAD_CHAIN,
            Error::Order(_) => BAD_ORDER,
            Error::Unsupported { .. } => UNSUPPORTED,
            _ => INTERNAL,
        };
        Fault { code, text: Some(error.to_string()) }
    }
}

impl From<PersistError> for Fault {
    fn from(error: PersistError) -> Fault {
        let code = match error {
            PersistError::File { .. } => FILE_FAILED,
            PersistError::Exists { .. } => FILE_EXISTS,
            PersistError::InUse { .. } => POOL_IN_USE,
            PersistError::NotAPool
            | PersistError::Version { .. }
            | PersistError::Feature { .. }
            | PersistError::Layout { .. } => NOT_A_POOL,
            PersistError::Corrupt { .. } | PersistError::LogDamaged { .. } => POOL_DAMAGED,
            PersistError::Full { .. } => POOL_FULL,
            PersistError::TooLarge { .. } => TX_TOO_LARGE,
            PersistError::Pointer { .. } | PersistError::Section { .. } | PersistError::Same { .. } => {
                NO_OBJECT
            }
            PersistError::Stopped { .. } => POOL_STOPPED,
            PersistError::SnapshotGone { .. } => SNAPSHOT_GONE,
            PersistError::Replica { .. }
            | PersistError::ReplicaStore { .. }
            | PersistError::NoReplica { .. } => REPLICA_FAILED,
            PersistError::NotReplicated { .. } | PersistError::Fenced { .. } => NOT_REPLICATED,
            PersistError::ReadOnly => READ_ONLY,
            PersistError::Argument { .. } => BAD_ARGUMENT,
            PersistError::Aborted(_) => BAD_ORDER,
            _ => INTERNAL,
        };
        Fault { code, text: Some(error.to_string()) }
    }
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Fault {
        let code = match error {
            ClientError::Silent { .. } | ClientError::Interrupted | ClientError::SessionOver { .. } => {
                NO_ANSWER
            }
            ClientError::Nowhere { .. }
            | ClientError::Unreachable { .. }
            | ClientError::OtherMemory { .. }
            | ClientError::OlderLog { .. } => NO_ADDRESS,
            ClientError::Forbidden { .. } | ClientError::WrongKey { .. } => FORBIDDEN,
            ClientError::Full { .. } | ClientError::Resting { .. } => NODE_FULL,
            ClientError::Budget { .. } | ClientError::Hops { .. } | ClientError::Fault { .. } => WALK_FAILED,
            ClientError::Contended { .. } | ClientError::Outdated => CONTENDED,
            ClientError::Busy(_) => BUSY,
            ClientError::Refused { .. } => BAD_PROGRAM,
            ClientError::Corrupt { .. } => WRONG_STRUCTURE,
            ClientError::TooLong { .. }
            | ClientError::Overflow { .. }
            | ClientError::SumTooLarge { .. }
            | ClientError::Place(_)
            | ClientError::StaleClient
            | ClientError::NotUnderWay(_)
            | ClientError::Taken { .. } => BAD_ARGUMENT,
            ClientError::Transport(_)
            | ClientError::Map(_)
            | ClientError::Forked
            | ClientError::OtherVersion { .. } => NOT_CONNECTED,
            _ => INTERNAL,
        };
        Fault { code, text: Some(error.to_string()) }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function.
pub(crate) fn run(body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return OK,
        Ok(Err(fault)) => fault,
        Err(_) => Fault { code: INTERNAL, text: None },
    };
    let words = match fault.text {
        Some(words) => CString::new(words).unwrap_or_default(),
        None => text(fault.code).to_owned(),
    };
    // While a thread ends, there is no place for the text any more.
    let _ = LAST.try_with(|last| last.replace(words));
    fault.code
}

/// Runs the body of a function that returns an object; returns null if it fails.
pub(crate) fn make<T>(body: impl FnOnce() -> Result<T, Fault>) -> *mut T {
    let mut made = std::ptr::null_mut();
    run(|| {
        made = Box::into_raw(Box::new(body()?));
        Ok(())
    });
    made
}

/// Returns the failure for an argument that is null but must not be.
pub(crate) fn null(what: &str) -> Fault {
    Fault::argument(&format!("{what} is NULL"))
}

/// Boxes an object and writes its address to `to`; if `to` is null, drops the object and fails.
///
/// # Safety
///
/// `to` is null, or has room for a pointer.
pub(crate) unsafe fn write_boxed<T>(to: *mut *mut T, object: T, what: &str) -> Result<(), Fault> {
    if to.is_null() {
        return Err(null(what));
    }
    // SAFETY: `to` is not null, so the caller guarantees room for a pointer.
    unsafe { to.write(Box::into_raw(Box::new(object))) };
    Ok(())
}

/// Frees an object that [`make`] or [`write_boxed`] returned.
///
/// # Safety
///
/// `object` is null, or came from one of them; it is not used afterwards.
pub(crate) unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        run(|| {
            // SAFETY: not null, so `make` or `write_boxed` boxed it, and the caller gives it up.
            drop(unsafe { Box::from_raw(object) });
            Ok(())
        });
    }
}

/// Returns the meaning of a code as text.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_error(code: c_int) -> *const c_char {
    text(code).as_ptr()
}

/// Returns the text of this thread's last failure, with its numbers. Valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
