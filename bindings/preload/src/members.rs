// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that this one starts are members of the job, also if it starts them with another `LD_PRELOAD` or environment.
//!
//! - **Flow** [`note`] keeps what the environment says about the job ──▶ a function of the exec family gets an environment without
//!   it ──▶ libc's function gets a copy of the list with what is missing
//! - **Layout** the copy lies in a mapping of the thread, which its next call uses again; the child of a vfork shares it
//! - **Not here** `execl` and its like, `system` and `popen`: they pass the environment of the process on. Trapped calls: `exec`

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

use memlift_zmem::block::ENV_FD;
use memlift_zmem::pager::{Pager, charge_start};

use crate::thread::{Quiet, current, inside};
use crate::wrappers::Next;
use crate::{exec, start};

const FILE_NAME: &str = "/libmemlift_preload.so";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const SEPARATORS: [char; 2] = [':', ' '];

type List = *const *const c_char;

/// The path of a program that the function itself searches for.
const NONE: *const c_char = std::ptr::null();

/// The parts of an environment that make a program a member of the job.
struct Needed {
    /// Path of this library.
    library: String,
    /// Variables that name the job, each as `NAME=value`.
    variables: Vec<CString>,
    /// Name of the variable that every member has, and `=`.
    first: String,
}

static NEEDED: OnceLock<Needed> = OnceLock::new();

unsafe extern "C" {
    static environ: List;
}

/// Notes the variables by which this process found its job, and this library's path.
pub fn note() {
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    let library = preloaded.split(SEPARATORS).find(|path| path.ends_with(FILE_NAME));
    let Some(library) = library.map(str::to_owned) else { return };
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("MEMLIFT_"))
        .filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok())
        .collect();
    let _ = NEEDED.set(Needed { library, variables, first: format!("{ENV_FD}=") });
}

/// Returns the entries of an environment.
fn entries<'a>(list: List) -> impl Iterator<Item = &'a CStr> {
    (0..).map_while(move |index| {
        // SAFETY: the program promises a list of strings that ends with null, which was not reached yet.
        unsafe {
            let text = if list.is_null() { std::ptr::null() } else { *list.add(index) };
            (!text.is_null()).then(|| CStr::from_ptr(text))
        }
    })
}

/// Returns an environment with what names the job: `list` itself, if it has all that, or if it cannot be copied. An entry of
/// the program's own for the job stays.
fn completed(list: List) -> List {
    let Some(needed) = NEEDED.get().filter(|_| start::covered() && !inside()) else { return list };
    let loads = |entry: &CStr| {
        let paths = entry.to_bytes().strip_prefix(PRELOAD)?;
        let paths = std::str::from_utf8(paths).ok()?;
        Some(paths.split(SEPARATORS).any(|path| path.ends_with(FILE_NAME)))
    };
    let preloaded = entries(list).find_map(loads);
    // Variables of the program's own may name another job, and then none is added.
    let named = entries(list).any(|entry| entry.to_bytes().starts_with(needed.first.as_bytes()));
    let variables = if named { &[][..] } else { &needed.variables[..] };
    if preloaded == Some(true) && named {
        return list;
    }
    let old = entries(list).find(|entry| loads(entry).is_some()).map_or(&b""[..], CStr::to_bytes);
    let paths = old.strip_prefix(PRELOAD).unwrap_or_default();
    let count = entries(list).count() + variables.len() + 2;
    let text_bytes = PRELOAD.len() + needed.library.len() + 1 + paths.len() + 1;
    let thread = current();
    let Ok(room) =
        exec::room(count * size_of::<usize>() + text_bytes, (&thread.list_address, &thread.list_bytes))
    else {
        return list;
    };
    let copy = room as *mut *const c_char;
    let text = (room + count * size_of::<usize>()) as *mut u8;
    let mut length = 0;
    let mut append = |bytes: &[u8]| {
        // SAFETY: the room has `text_bytes` bytes behind the list, which the parts and a zero fill.
        unsafe { text.add(length).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        length += bytes.len();
    };
    append(PRELOAD);
    append(needed.library.as_bytes());
    if !paths.is_empty() {
        append(b":");
        append(paths);
    }
    append(b"\0");
    let others = entries(list).filter(|entry| preloaded == Some(true) || loads(entry).is_none());
    let added = variables.iter().map(|variable| variable.as_ptr());
    let library = (preloaded != Some(true)).then_some(text.cast_const().cast());
    let all = others.map(CStr::as_ptr).chain(added).chain(library).chain([std::ptr::null()]);
    for (index, entry) in all.enumerate() {
        // SAFETY: the entries of the list, all variables, the library and the null are `count` at most.
        unsafe { copy.add(index).write(entry) };
    }
    copy
}

macro_rules! family {
    ($($name:ident = $called:ident [$path:expr, $begins:literal] ($($argument:ident: $type:ty),+) => ($($passed:expr),+);)+) => {$(
        /// Behaves as libc's function of this name; the new program is a member of the job.
        ///
        /// # Safety
        ///
        /// The promises of libc's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
            static NEXT: Next = Next::new({
                match CStr::from_bytes_with_nul(concat!(stringify!($called), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero"),
                }
            });
            let address = NEXT.address();
            charge($path, $begins);
            // SAFETY: libc's function takes these arguments, and the caller makes its promises.
            unsafe { call(address, &[$($passed as usize),+]) }
        }
    )+};
}

/// Calls a function of libc with up to six arguments.
///
/// # Safety
///
/// The address is that of a function that takes these arguments, whose promises the caller makes.
unsafe fn call(address: usize, arguments: &[usize]) -> c_int {
    let at = |index: usize| arguments.get(index).copied().unwrap_or(0);
    // SAFETY: as the caller promises; on x86-64 a function does not see arguments that it does not take.
    unsafe {
        let next: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int =
            std::mem::transmute(address);
        next(at(0), at(1), at(2), at(3), at(4), at(5))
    }
}

/// Charges what a program takes outside the arena until it is a member of the job itself. This waits for room where a process
/// begins; the child of a fork has begun, and the child of a vfork waits for its parent, in whose memory it makes no room.
/// `path` is null if the function searches for the program.
fn charge(path: *const c_char, begins: bool) {
    // SAFETY: the program promises a string that ends with a zero.
    let missing = || !path.is_null() && unsafe { libc::access(path, libc::X_OK) } != 0;
    let Some(pager) = Pager::get().filter(|_| start::covered() && !inside() && !missing()) else { return };
    let _quiet = Quiet::begin();
    if begins {
        charge_start(pager.job(), Some(pager), start::PROGRAM_BYTES);
    } else if start::in_vfork_child() {
        charge_start(pager.job(), None, start::PROGRAM_BYTES);
    } else {
        pager.job().charge_begun(start::PROGRAM_BYTES);
    }
}

/// Returns the environment of the process, with what names the job.
fn own() -> List {
    // SAFETY: libc's variable is always set; a program that changes it meanwhile races with libc's functions, too.
    completed(unsafe { environ })
}

family! {
    execve = execve [path, false] (path: *const c_char, argv: List, envp: List) => (path, argv, completed(envp));
    execv = execve [path, false] (path: *const c_char, argv: List) => (path, argv, own());
    execvpe = execvpe [NONE, false] (file: *const c_char, argv: List, envp: List) => (file, argv, completed(envp));
    execvp = execvpe [NONE, false] (file: *const c_char, argv: List) => (file, argv, own());
    fexecve = fexecve [NONE, false] (fd: c_int, argv: List, envp: List) => (fd, argv, completed(envp));
    execveat = execveat [NONE, false] (fd: c_int, path: *const c_char, argv: List, envp: List, flags: c_int) => (fd, path, argv, completed(envp), flags);
    posix_spawn = posix_spawn [NONE, true] (pid: *mut c_int, path: *const c_char, actions: usize, attributes: usize, argv: List, envp: List) => (pid, path, actions, attributes, argv, completed(envp));
    posix_spawnp = posix_spawnp [NONE, true] (pid: *mut c_int, file: *const c_char, actions: usize, attributes: usize, argv: List, envp: List) => (pid, file, actions, attributes, argv, completed(envp));
}
