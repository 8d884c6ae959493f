// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tools/install`, which `make install` and `make deb` run: programs link to what it leaves, manuals and units are whole, and removing
//! takes away what it brought and nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::place::{Place, text};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a program to its end, which must be a good one; `None` if this machine does not have it.
fn runs(command: &mut Command) -> Option<String> {
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not run: {:?} is not here", command.get_program());
            return None;
        }
        other => other.expect("it starts"),
    };
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    Some(text(&output.stdout))
}

fn said(output: &Output) -> String {
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            all.extend(files(&entry.path()));
        } else {
            all.insert(entry.path());
        }
    }
    all
}

/// A program that asks the library for its version.
const PROGRAM: &str = r#"
#include <memlift.h>
#include <stdio.h>
int main(void) { return puts(memlift_version()) < 0; }
"#;

#[test]
fn what_is_installed_works_and_can_be_removed() {
    let place = Place::new();
    let prefix = place.folder.path().join("prefix");
    let built = place.built();
    let shown = |path: &Path| path.to_str().expect("a plain name").to_owned();
    let stranger = prefix.join("lib/stranger");
    std::fs::create_dir_all(prefix.join("lib")).expect("made");
    std::fs::write(&stranger, "mine").expect("written");

    let mut install = Command::new(root().join("tools/install"));
    let Some(told) = runs(install.args([&shown(&built), &shown(&prefix), VERSION])) else { return };
    assert!(told.contains("installed"), "{told}");
    let installed = std::fs::read_to_string(prefix.join("share/memlift/installed")).expect("a list");
    for file in installed.lines() {
        assert!(Path::new(file).exists(), "{file}");
    }

    // The command, from there.
    let command = prefix.join("bin/memlift");
    assert_eq!(
        runs(Command::new(&command).arg("--version")).expect("it is there").trim(),
        format!("memlift {VERSION}")
    );
    let library =
        runs(Command::new(&command).args(["run", "-q", "--memory", "256M", "--", "echo", "covered"]));
    assert_eq!(library.as_deref(), Some("covered\n"));

    // C, by pkg-config and by CMake.
    let source = place.folder.path().join("program.c");
    std::fs::write(&source, PROGRAM).expect("written");
    let pkg_config = |what: &str| {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args([what, "memlift"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        runs(&mut pkg_config).map(|flags| flags.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    if let (Some(cflags), Some(libs)) = (pkg_config("--cflags"), pkg_config("--libs")) {
        let program = place.folder.path().join("program");
        let mut cc = Command::new("cc");
        cc.args(cflags).arg(&source).args(libs).arg("-o").arg(&program);
        runs(&mut cc).expect("a C compiler");
        let mut program = Command::new(&program);
        assert_eq!(
            runs(program.env("LD_LIBRARY_PATH", prefix.join("lib"))).expect("built"),
            format!("{VERSION}\n")
        );
    }
    let project = place.folder.path().join("project");
    std::fs::create_dir(&project).expect("made");
    std::fs::write(project.join("program.c"), PROGRAM).expect("written");
    std::fs::write(
        project.join("CMakeLists.txt"),
        format!(
            "cmake_minimum_required(VERSION 3.13)\nproject(p C)\nfind_package(memlift {VERSION} EXACT REQUIRED)\nadd_executable(p \
             program.c)\ntarget_link_libraries(p memlift::memlift)\n"
        ),
    )
    .expect("written");
    let build = place.folder.path().join("build");
    let mut cmake = Command::new("cmake");
    cmake
        .arg("-S")
        .arg(&project)
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    if runs(&mut cmake).is_some() {
        runs(Command::new("cmake").arg("--build").arg(&build));
        assert_eq!(runs(&mut Command::new(build.join("p"))).expect("built"), format!("{VERSION}\n"));
    }
    // No symbol but the interface, under a name of its version.
    let library = prefix.join("lib/libmemlift.so");
    if let Some(symbols) = runs(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)) {
        let names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
        assert!(names.len() > 50 && names.iter().all(|name| name.starts_with("memlift_")), "{names:?}");
    }
    if let Some(dynamic) = runs(Command::new("readelf").arg("-d").arg(&library)) {
        let major = VERSION.split('.').next().expect("a number");
        assert!(dynamic.contains(&format!("[libmemlift.so.{major}]")), "{dynamic}");
    }

    // Manuals and units.
    let page = prefix.join("share/man/man1/memlift-run.1.gz");
    let mut man = Command::new("man");
    man.arg("--warnings").arg("-l").arg(&page).env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8");
    if let Ok(output) = man.output() {
        assert!(output.status.success() && text(&output.stdout).contains("--memory"), "{}", said(&output));
    }
    for unit in ["memlift-node@", "memlift-pool@"] {
        let file = prefix.join(format!("lib/systemd/system/{unit}.service"));
        let unit = place.folder.path().join(format!("{unit}one.service"));
        std::fs::copy(&file, &unit).expect("copied");
        let mut verify = Command::new("systemd-analyze");
        runs(verify.args(["verify", "--man=no"]).arg(&unit));
    }

    let mut remove = Command::new(root().join("tools/install"));
    runs(remove.args(["--remove", &shown(&prefix)]));
    assert_eq!(files(&prefix), BTreeSet::from([stranger]), "nothing else is left, and nothing else is gone");
    let again = Command::new(root().join("tools/install"))
        .args(["--remove", &shown(&prefix)])
        .output()
        .expect("it starts");
    assert_eq!(again.status.code(), Some(3), "{}", said(&again));
}
