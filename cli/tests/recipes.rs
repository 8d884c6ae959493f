// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recipes of the guide for places where jobs run: systemd's unit, and the manifest for Kubernetes.
//!
//! - **Method** each is checked by the program that reads it. Where that program is not installed, or systemd does not run, the test
//!   says so and is skipped

mod place;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use place::{Place, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the output of a program; `None` if this machine does not have it.
fn output(command: &mut Command) -> Option<Output> {
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {:?} is not installed", command.get_program());
            None
        }
        other => Some(other.expect("it starts")),
    }
}

#[test]
fn the_unit_of_the_guide_is_one_that_systemd_takes() {
    let place = Place::new();
    let guide = std::fs::read_to_string(root().join("docs/guides/zmem.md")).expect("the guide");
    let unit = guide.split("```ini\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a unit");
    let memlift = place.memlift(&[]).get_program().to_str().expect("UTF-8").to_owned();
    let program = place.folder.path().join("train.py");
    std::fs::write(&program, "print(sum(len(bytes([i])) for i in range(7)))\n").expect("written");
    let program = program.to_str().expect("UTF-8");
    let unit = unit.replace("/usr/bin/memlift", &memlift).replace("/srv/train.py", program);
    assert!(unit.contains(&memlift) && unit.contains(program), "{unit}");
    let file = place.folder.path().join("memlift-test.service");
    std::fs::write(&file, &unit).expect("written");
    let Some(checked) = output(Command::new("systemd-analyze").arg("verify").arg(&file)) else { return };
    let said = format!("{}{}", text(&checked.stdout), text(&checked.stderr));
    assert!(checked.status.success() && !said.contains("memlift-test.service"), "{said}");
    if !Path::new("/run/systemd/system").is_dir() {
        eprintln!("skipped in part: systemd does not run here");
        return;
    }
    let library = place.library("libmemlift_preload.so");
    let mut run = Command::new("systemd-run");
    run.args(["--wait", "--pipe", "--quiet", "-p", "MemoryMax=200M", "-p", "MemorySwapMax=0"]);
    run.arg(format!("--setenv=MEMLIFT_DROPINS={}", library.parent().expect("a folder").display()));
    run.args([&memlift, "run", "--", "python3", program]);
    let ran = output(&mut run).expect("it is there");
    assert_eq!(text(&ran.stdout), "7\n", "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).contains("peak"), "{}", text(&ran.stderr));
}

#[test]
fn the_manifest_is_one_that_kubernetes_takes() {
    let manifest = root().join("packaging/kubernetes/job.yaml");
    let mut kubeconform = Command::new("kubeconform");
    let Some(checked) = output(kubeconform.args(["-strict", "-summary"]).arg(&manifest)) else { return };
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
}
