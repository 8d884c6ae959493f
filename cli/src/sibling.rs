// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that `memlift` starts, as git starts its subcommands: `memlift-lab` and `memlift-server`.

use std::env;
use std::path::PathBuf;

/// Finds a program: beside this one, otherwise the first in PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = env::current_exe().ok().map(|program| program.with_file_name(name));
    let path = env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        // Empty or relative entries are skipped: they mean the current folder, where a stranger may have put
        // a program.
        .chain(env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)))
        .find(|file| file.is_file())
}
