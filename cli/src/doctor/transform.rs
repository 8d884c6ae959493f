// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the needs of sealing and packing: the CPU's instructions, the system's libraries, the speed of the drop-ins,
//! and the kernel's facilities for watching a program or replacing its library.
//!
//! - **Cost** two measurements of about a tenth of a second each, if the drop-ins are built

use std::path::{Path, PathBuf};

use memlift_cli::libraries::Dropin;
use memlift_cli::probe::Shape;

use super::Check;
use crate::dropin::check;

/// Checks CPU, libraries and kernel.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![units()];
    checks.extend([
        library(Dropin::Libz, "libz.so.1", "zlib1g"),
        library(Dropin::OpenSsl, "libcrypto.so.3", "libssl3"),
    ]);
    checks.extend([ktls(), resctrl()]);
    checks
}

fn units() -> Check {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
    let has = |name: &str| flags.contains(&name);
    let wide = has("vaes") && has("vpclmulqdq");
    match (wide && has("avx512f"), wide, has("aes")) {
        (true, ..) => {
            Check::usable("AES-GCM", "VAES and VPCLMULQDQ over 512 bits: four blocks an instruction")
        }
        (_, true, _) => {
            Check::usable("AES-GCM", "VAES and VPCLMULQDQ over 256 bits: two blocks an instruction")
        }
        (_, _, true) => {
            Check::usable("AES-GCM", "AES instructions, one block each; OpenSSL is as fast with them")
        }
        _ => Check::absent("AES-GCM", "no AES instructions: tables or bit slices, several times slower"),
    }
}

/// Checks the library that the loader gives programs, and measures if the drop-in is faster here.
fn library(dropin: Dropin, name: &str, package: &str) -> Check {
    let Some(path) = place(name) else {
        return Check::absent(name, "not on this system").advise(format!("apt install {package}"));
    };
    if dropin.find().is_none() {
        return Check::absent(name, format!("{}; the drop-in is not built", path.display()))
            .advise(dropin.advice());
    }
    let measured =
        memlift_cli::probe::compare(dropin, &path, Shape::SERVER).map_err(|error| error.to_string());
    let found =
        format!("{}; {} {}", path.display(), dropin.file(), check::verdict(dropin, Shape::SERVER, &measured));
    match measured {
        Ok(one) if one.ratio() >= check::HELPS => {
            Check::usable(name, found).advise("memlift dropin check PROGRAM says who uses it")
        }
        _ => Check::absent(name, found).extra(),
    }
}

fn place(name: &str) -> Option<PathBuf> {
    let machine = std::env::consts::ARCH;
    let folders = [format!("/lib/{machine}-linux-gnu"), format!("/usr/lib/{machine}-linux-gnu")];
    let others = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(str::to_owned);
    folders.iter().chain(&others).map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

fn ktls() -> Check {
    let offered = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    if offered.split_whitespace().any(|name| name == "tls") {
        return Check::usable(
            "kTLS",
            "the kernel seals TLS records; a server that uses it does not come past OpenSSL",
        );
    }
    Check::absent(
        "kTLS",
        "not in this kernel, or its module `tls` is not loaded: records are sealed by OpenSSL",
    )
    .extra()
}

fn resctrl() -> Check {
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    match (Path::new("/sys/fs/resctrl/info").is_dir(), filesystems.contains("resctrl")) {
        (true, _) => Check::usable("resctrl", "the kernel tells how much of the cache is used"),
        (false, true) => Check::absent("resctrl", "offered and not mounted: the cache is sampled instead")
            .extra()
            .advise("mount -t resctrl resctrl /sys/fs/resctrl, as root"),
        (false, false) => {
            Check::absent("resctrl", "not in this kernel: the cache is sampled instead").extra()
        }
    }
}
