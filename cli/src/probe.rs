// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures briefly if a drop-in would help on this machine: the program's library against ours, each in a process of its own.
//!
//! - **Flow** [`compare`] ─▶ children A B, B A, … ─▶ [`serve`]: dlopen the library, process some messages, print the microseconds per
//!   message as JSON ─▶ medians of both sides
//! - **Message** text of this crate's sources, by default 16 KiB. libz: deflateInit2, deflate(Z_FINISH), deflateEnd, level 6, gzip, per
//!   message, as in a web server, or as a [`Shape`] defines; the first message is inflated again by the same library and compared.
//!   libcrypto: AES-128-GCM through EVP, a new nonce per message, seal and tag, as for a TLS record; the first message is opened again and
//!   compared
//! - **Owner** a library that crashes only ends its own child process
//! - **Not here** a measurement with error bounds: `memlift bench transform`

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

use libloading::os::unix::Library;
use serde::{Deserialize, Serialize};

use crate::libraries::Dropin;
use crate::zlib_h::{
    DeflateInit2, End, InflateInit2, Run, Stream, Z_FINISH, Z_NO_FLUSH, Z_STREAM_END, Z_SYNC_FLUSH, stream,
};

const MESSAGE_BYTES: usize = 16 << 10;
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Calls per stream if its messages are flushed or in pieces.
const STREAM_CALLS: usize = 64;
const PAIRS: usize = 5;
const CHILD_MEASURES: Duration = Duration::from_millis(12);
/// Name of memlift's provider in OpenSSL.
const PROVIDER: &str = "memlift";
/// First argument of a process that measures one library; no command has this name.
const CHILD_ARGUMENT: &str = "--memlift-probe";

/// Time and output size of one library.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
struct ProbeResult {
    us: f64,
    bytes: usize,
}

/// Use of a stream of a libz.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Calls {
    /// Each call packs a message, in a stream of its own.
    Whole,
    /// A stream gets one message per call, and is flushed after each (Z_SYNC_FLUSH).
    Flushed,
    /// A stream gets pieces, and ends after 64 of them.
    Pieces,
}

/// Work to measure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Bytes of the message or piece in a call.
    pub bytes: usize,
    /// zlib's level, -1 to 9.
    pub level: i8,
    /// Use of a stream; AES-GCM only has messages.
    pub calls: Calls,
}

impl Shape {
    /// A message of 16 KiB at level 6, as a web server packs it.
    pub const SERVER: Shape = Shape { bytes: MESSAGE_BYTES, level: 6, calls: Calls::Whole };
}

/// Both sides of a comparison.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Compared {
    /// Microseconds per message with the drop-in.
    pub ours_us: f64,
    /// Microseconds per message with the program's library.
    pub theirs_us: f64,
    /// Bytes of output of the drop-in.
    pub ours_bytes: usize,
    /// Bytes of output of the program's library.
    pub theirs_bytes: usize,
}

impl Compared {
    /// Returns the speed-up; greater than 1: the drop-in is faster.
    pub fn ratio(&self) -> f64 {
        self.theirs_us / self.ours_us
    }
}

/// Compares `library`, a libz or a libcrypto, with the drop-in on this work, for about a tenth of a second.
///
/// # Errors
///
/// The reason as text: the drop-in is not built, or a library cannot be loaded, or gave wrong bytes.
pub fn compare(dropin: Dropin, library: &Path, shape: Shape) -> Result<Compared, String> {
    let ours = dropin.find().ok_or_else(|| dropin.advice())?;
    let configuration = std::env::temp_dir().join(format!("memlift-probe-{}.cnf", std::process::id()));
    if dropin == Dropin::OpenSsl {
        std::fs::write(&configuration, openssl_configuration(&ours))
            .map_err(|error| format!("{}: {error}", configuration.display()))?;
    }
    let side = |with_ours: bool| match dropin {
        Dropin::Libz => child("deflate", if with_ours { &ours } else { library }, shape, None),
        Dropin::OpenSsl => child("gcm", library, shape, Some(configuration.as_path()).filter(|_| with_ours)),
    };
    let mut pairs = Vec::new();
    let measured = (0..PAIRS).try_for_each(|index| {
        let first = side(index % 2 == 0)?;
        let second = side(index % 2 != 0)?;
        pairs.push(if index % 2 == 0 { (first, second) } else { (second, first) });
        Ok(())
    });
    let _ = std::fs::remove_file(&configuration);
    measured.map(|()| Compared {
        ours_us: median(pairs.iter().map(|pair| pair.0.us)),
        theirs_us: median(pairs.iter().map(|pair| pair.1.us)),
        ours_bytes: pairs[0].0.bytes,
        theirs_bytes: pairs[0].1.bytes,
    })
}

/// Returns a configuration that loads our provider and the default one, and nothing else.
fn openssl_configuration(module: &Path) -> String {
    format!(
        "openssl_conf = init\n[init]\nproviders = providers\nalg_section = algorithms\n[providers]\ndefault = default_provider\n\
         memlift = memlift_provider\n[default_provider]\nactivate = 1\n[memlift_provider]\nmodule = {}\nactivate = 1\n\
         [algorithms]\ndefault_properties = ?provider=memlift\n",
        module.display()
    )
}

fn child(
    what: &str,
    library: &Path,
    shape: Shape,
    configuration: Option<&Path>,
) -> Result<ProbeResult, String> {
    let program = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
    let mut command = Command::new(&program);
    let shape = serde_json::to_string(&shape).map_err(|error| error.to_string())?;
    command.arg(CHILD_ARGUMENT).arg(what).arg(library).arg(shape);
    command.env_remove("LD_PRELOAD").env_remove("OPENSSL_CONF").env_remove("MEMLIFT_STATS");
    command.stdin(Stdio::null());
    if let Some(path) = configuration {
        // The provider must work even if it would decline on this machine, because its speed is to be measured.
        command.arg(PROVIDER).env("OPENSSL_CONF", path).env("MEMLIFT_OPENSSL", "force");
    } else {
        command.env("OPENSSL_CONF", "/dev/null");
    }
    // The child ends within milliseconds.
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said.lines().last().map_or_else(|| output.status.to_string(), str::to_owned));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("{}: {}", library.display(), String::from_utf8_lossy(&output.stdout)))
}

/// Measures a library if this process was started for that. `main` calls this first; `Some` means that the work is done.
pub fn child_main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != CHILD_ARGUMENT {
        return None;
    }
    Some(match serve(arguments) {
        Ok(taken) => {
            println!("{}", serde_json::to_string(&taken).expect("plain data"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

fn serve(mut arguments: impl Iterator<Item = OsString>) -> Result<ProbeResult, String> {
    let what = arguments.next().unwrap_or_default();
    let path: OsString = arguments.next().unwrap_or_default();
    let shape: OsString = arguments.next().unwrap_or_default();
    let shape: Shape = serde_json::from_slice(shape.as_encoded_bytes()).map_err(|error| error.to_string())?;
    let message = message(shape.bytes.clamp(1, MESSAGE_BYTES_MAX));
    let provider = arguments.next();
    let taken = if what == "deflate" {
        deflate(&path, &message, shape)
    } else {
        gcm(&path, &message, provider.as_deref().and_then(|name| name.to_str()))
    };
    taken.map_err(|reason| format!("{}: {reason}", path.to_string_lossy()))
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns text of this crate's own sources, truncated to the message's size.
fn message(bytes: usize) -> Vec<u8> {
    let text = concat!(include_str!("probe.rs"), include_str!("print.rs"), include_str!("output.rs"),);
    text.bytes().cycle().take(bytes).collect()
}

/// Returns the median microseconds of `work` over some milliseconds, after a first run.
fn time(mut work: impl FnMut() -> Result<usize, String>) -> Result<ProbeResult, String> {
    let bytes = work()?;
    let begin = Instant::now();
    let mut samples = Vec::new();
    while begin.elapsed() < CHILD_MEASURES || samples.len() < 3 {
        let start = Instant::now();
        work()?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(ProbeResult { us: median(samples), bytes })
}

const GZIP_BITS: c_int = 15 + 16;
const ZLIB_VERSION: &CStr = c"1.2.11";
const Z_BYTES: c_int = size_of::<Stream>() as c_int;

fn open(path: &OsString) -> Result<&'static Library, String> {
    // SAFETY: the file is a shared library of this machine that the user's own program loads too. This process was started
    // only for that, and never unloads it.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    Ok(Box::leak(Box::new(library)))
}

fn deflate(path: &OsString, message: &[u8], shape: Shape) -> Result<ProbeResult, String> {
    let library = open(path)?;
    let wanting = |error: libloading::Error| error.to_string();
    // SAFETY: the types are those that zlib.h declares for these names.
    let (init, run, end, open, unpack, close) = unsafe {
        (
            library.get::<DeflateInit2>(b"deflateInit2_").map_err(wanting)?,
            library.get::<Run>(b"deflate").map_err(wanting)?,
            library.get::<End>(b"deflateEnd").map_err(wanting)?,
            library.get::<InflateInit2>(b"inflateInit2_").map_err(wanting)?,
            library.get::<Run>(b"inflate").map_err(wanting)?,
            library.get::<End>(b"inflateEnd").map_err(wanting)?,
        )
    };
    let calls = if shape.calls == Calls::Whole { 1 } else { STREAM_CALLS };
    let mut packed = vec![0; calls * (message.len() + message.len() / 8 + 64) + 64];
    let mut pack = || {
        let mut stream = stream(message, &mut packed);
        // SAFETY: the stream has the layout of zlib.h and describes buffers that live until deflateEnd.
        let result = unsafe {
            match init(&mut stream, shape.level.into(), 8, GZIP_BITS, 8, 0, ZLIB_VERSION.as_ptr(), Z_BYTES) {
                0 => {
                    let flush = if shape.calls == Calls::Flushed { Z_SYNC_FLUSH } else { Z_NO_FLUSH };
                    for _ in 1..calls {
                        (stream.next_in, stream.avail_in) = (message.as_ptr(), message.len() as c_uint);
                        run(&mut stream, flush);
                    }
                    (stream.next_in, stream.avail_in) = (message.as_ptr(), message.len() as c_uint);
                    let result = run(&mut stream, Z_FINISH);
                    end(&mut stream);
                    result
                }
                refused => refused,
            }
        };
        if result == Z_STREAM_END {
            Ok(stream.total_out as usize)
        } else {
            Err(format!("deflate gave {result}"))
        }
    };
    let taken = time(&mut pack)?;
    let mut whole = vec![0; calls * message.len()];
    let mut stream = stream(&packed[..taken.bytes], &mut whole);
    // SAFETY: the stream has the layout of zlib.h, and `packed` and `whole`, which it describes, live until inflateEnd.
    let result = unsafe {
        let opened = open(&mut stream, GZIP_BITS, ZLIB_VERSION.as_ptr(), Z_BYTES);
        let result = if opened == 0 { unpack(&mut stream, Z_FINISH) } else { opened };
        close(&mut stream);
        result
    };
    if result != Z_STREAM_END || whole.chunks(message.len()).any(|part| part != message) {
        return Err("what it packed does not unpack to the message".to_owned());
    }
    Ok(ProbeResult { us: taken.us / calls as f64, bytes: taken.bytes.div_ceil(calls) })
}

type Handle = *mut c_void;

const GET_TAG: c_int = 0x10;
const SET_TAG: c_int = 0x11;
const TAG_BYTES: usize = 16;
const LOAD_CONFIG: u64 = 0x40;

/// Measures AES-GCM. `provider` names the provider that must do the work, because libcrypto reports no error if it could not
/// load one.
fn gcm(path: &OsString, message: &[u8], provider: Option<&str>) -> Result<ProbeResult, String> {
    let library = open(path)?;
    let wanting = |error: libloading::Error| format!("{error} (OpenSSL 3 has it)");
    // SAFETY: the types are those that the headers of OpenSSL 3 declare for these names.
    let (start, fetch, provider_of, provider_name, new, init, update, end, ctrl) = unsafe {
        (
            library
                .get::<unsafe extern "C" fn(u64, Handle) -> c_int>(b"OPENSSL_init_crypto")
                .map_err(wanting)?,
            library
                .get::<unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> Handle>(
                    b"EVP_CIPHER_fetch",
                )
                .map_err(wanting)?,
            library
                .get::<unsafe extern "C" fn(Handle) -> Handle>(b"EVP_CIPHER_get0_provider")
                .map_err(wanting)?,
            library
                .get::<unsafe extern "C" fn(Handle) -> *const c_char>(b"OSSL_PROVIDER_get0_name")
                .map_err(wanting)?,
            library.get::<unsafe extern "C" fn() -> Handle>(b"EVP_CIPHER_CTX_new").map_err(wanting)?,
            library
                .get::<unsafe extern "C" fn(Handle, Handle, Handle, *const u8, *const u8, c_int) -> c_int>(
                    b"EVP_CipherInit_ex",
                )
                .map_err(wanting)?,
            library
                .get::<unsafe extern "C" fn(Handle, *mut u8, *mut c_int, *const u8, c_int) -> c_int>(
                    b"EVP_CipherUpdate",
                )
                .map_err(wanting)?,
            library
                .get::<unsafe extern "C" fn(Handle, *mut u8, *mut c_int) -> c_int>(b"EVP_CipherFinal_ex")
                .map_err(wanting)?,
            library
                .get::<unsafe extern "C" fn(Handle, c_int, c_int, *mut c_void) -> c_int>(
                    b"EVP_CIPHER_CTX_ctrl",
                )
                .map_err(wanting)?,
        )
    };
    let key = [7_u8; 16];
    // SAFETY: all calls follow libcrypto's API, with handles that it returned and that are not null; all buffers outlive
    // them.
    let context = unsafe {
        start(LOAD_CONFIG, ptr::null_mut());
        let cipher = fetch(ptr::null_mut(), c"AES-128-GCM".as_ptr(), ptr::null());
        let context = new();
        if cipher.is_null() || context.is_null() {
            return Err("it has no AES-128-GCM".to_owned());
        }
        let serving = CStr::from_ptr(provider_name(provider_of(cipher))).to_string_lossy();
        if provider.is_some_and(|wanted| wanted != serving) {
            return Err(format!(
                "it does not load the drop-in: AES-128-GCM is served by its provider `{serving}`"
            ));
        }
        if init(context, cipher, ptr::null_mut(), key.as_ptr(), ptr::null(), 1) != 1 {
            return Err("it takes no AES-128-GCM key".to_owned());
        }
        context
    };
    let mut sealed = vec![0; message.len()];
    let mut tag = [0_u8; TAG_BYTES];
    let mut number = 0_u64;
    let nonce = |number: u64| {
        let mut nonce = [0_u8; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        nonce
    };
    let crypt = |seals: bool, number: u64, source: &[u8], target: &mut [u8], tag: &mut [u8; TAG_BYTES]| {
        let nonce = nonce(number);
        let mut count: c_int = 0;
        let mut rest = [0_u8; 16];
        // SAFETY: `context` was made above and is not null; `target` is as long as `source`, and GCM's final call writes no
        // bytes.
        let right = unsafe {
            init(context, ptr::null_mut(), ptr::null_mut(), ptr::null(), nonce.as_ptr(), c_int::from(seals))
                == 1
                && (seals || ctrl(context, SET_TAG, TAG_BYTES as c_int, tag.as_mut_ptr().cast()) == 1)
                && update(context, target.as_mut_ptr(), &mut count, source.as_ptr(), source.len() as c_int)
                    == 1
                && end(context, rest.as_mut_ptr(), &mut count) == 1
                && (!seals || ctrl(context, GET_TAG, TAG_BYTES as c_int, tag.as_mut_ptr().cast()) == 1)
        };
        right.then_some(()).ok_or_else(|| "a call of EVP failed".to_owned())
    };
    let taken = time(|| {
        number += 1;
        crypt(true, number, message, &mut sealed, &mut tag).map(|()| message.len() + TAG_BYTES)
    })?;
    let mut whole = vec![0; message.len()];
    crypt(false, number, &sealed, &mut whole, &mut tag)?;
    if whole != message { Err("what it sealed does not open to the message".to_owned()) } else { Ok(taken) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_libraries_are_measured_and_verified() {
        let message = message(MESSAGE_BYTES);
        for calls in [Calls::Flushed, Calls::Pieces] {
            let shape = Shape { bytes: 1000, level: 1, calls };
            assert!(
                deflate(&"libz.so.1".into(), &message[..1000], shape).expect("the system has a libz").us
                    > 0.0
            );
        }
        let packed = deflate(&"libz.so.1".into(), &message, Shape::SERVER).expect("the system has a libz");
        assert!(packed.us > 0.0 && packed.bytes < MESSAGE_BYTES / 2, "{packed:?}");
        let sealed = gcm(&"libcrypto.so.3".into(), &message, None).expect("the system has an OpenSSL 3");
        assert!(sealed.us > 0.0 && sealed.bytes == MESSAGE_BYTES + TAG_BYTES, "{sealed:?}");
    }

    #[test]
    fn what_is_no_library_is_said() {
        assert!(deflate(&"/dev/null".into(), &message(99), Shape::SERVER).is_err());
        assert!(gcm(&"libz.so.1".into(), &message(99), None).is_err_and(|said| said.contains("OpenSSL 3")));
    }
}
