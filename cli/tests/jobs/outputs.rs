// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every option that names a file to write: what is there already stays, and what is no plain file is refused and untouched.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;

use crate::place::{Place, text};

/// A command line that writes to the path `@`.
struct Writer {
    name: &'static str,
    arguments: &'static [&'static str],
}

const WRITERS: [Writer; 4] = [
    Writer { name: "record -o", arguments: &["record", "-q", "--limit", "1M", "-o", "@", "--", "true"] },
    Writer { name: "run --report", arguments: &["run", "--memory", "64M", "--report", "@", "--", "true"] },
    Writer {
        name: "run --plot",
        arguments: &["run", "--memory", "64M", "--profile=100", "--plot", "@", "--", "true"],
    },
    Writer { name: "whatif --export", arguments: &["whatif", "--export", "@", "%"] },
];

impl Writer {
    /// Runs it; `%` stands for a recorded trace.
    fn write_to(&self, place: &Place, path: &Path, force: bool) -> Output {
        let trace = place.folder.path().join("sound.trace");
        let (path, sound) = (path.to_str().expect("UTF-8"), trace.to_str().expect("UTF-8"));
        if self.arguments.contains(&"%") && !trace.exists() {
            let recorded = place.run(&["record", "-q", "--limit", "1M", "-o", sound, "--", "true"]);
            assert!(recorded.status.success(), "{}", text(&recorded.stderr));
        }
        let mut arguments: Vec<&str> = self
            .arguments
            .iter()
            .map(|one| {
                if *one == "@" {
                    path
                } else if *one == "%" {
                    sound
                } else {
                    one
                }
            })
            .collect();
        if force {
            arguments.insert(1, "--force");
        }
        place.run(&arguments)
    }
}

fn hidden_files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder").flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".part"))
        .collect()
}

#[test]
fn a_new_file_is_written_and_one_that_is_there_is_kept_without_force() {
    let place = Place::new();
    let target = place.folder.path().join("target");
    for writer in WRITERS {
        let written = writer.write_to(&place, &target, false);
        assert!(written.status.success(), "{}: {}", writer.name, text(&written.stderr));
        fs::write(&target, "mine").expect("writable");
        let kept = writer.write_to(&place, &target, false);
        let words = text(&kept.stderr);
        assert!(kept.status.code() == Some(2) && words.contains("--force"), "{}: {words}", writer.name);
        assert_eq!(fs::read_to_string(&target).expect("there"), "mine", "{}", writer.name);
        let forced = writer.write_to(&place, &target, true);
        assert!(forced.status.success(), "{}: {}", writer.name, text(&forced.stderr));
        assert_ne!(fs::read(&target).expect("there"), b"mine", "{}", writer.name);
        fs::remove_file(&target).expect("there");
        assert_eq!(hidden_files(place.folder.path()), [""; 0], "{}", writer.name);
    }
}

#[test]
fn what_is_no_plain_file_is_refused_and_untouched_even_with_force() {
    let place = Place::new();
    let at = |name: &str| place.folder.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).expect("a named pipe");
    let _listener = UnixListener::bind(at("socket")).expect("a socket");
    fs::create_dir(at("folder")).expect("a folder");
    symlink(at("pipe"), at("link")).expect("a link");
    symlink(at("nowhere"), at("dangling")).expect("a link");
    symlink("/dev/null", at("null")).expect("a link");
    for writer in WRITERS {
        for name in ["pipe", "socket", "folder", "link", "dangling", "null"] {
            for force in [false, true] {
                let output = writer.write_to(&place, &at(name), force);
                let words = text(&output.stderr);
                let said =
                    words.contains("name a plain file") || words.contains("name a file that can be written");
                assert!(output.status.code() == Some(2) && said, "{} {name} {force}: {words}", writer.name);
            }
        }
        let kind = |name: &str| fs::symlink_metadata(at(name)).expect("still there").file_type();
        assert!(
            kind("pipe").is_fifo() && kind("socket").is_socket() && kind("folder").is_dir(),
            "{}",
            writer.name
        );
        assert!(kind("link").is_symlink() && kind("dangling").is_symlink(), "{}", writer.name);
        assert!(
            !at("nowhere").exists() && fs::metadata("/dev/null").expect("there").file_type().is_char_device()
        );
        assert_eq!(hidden_files(place.folder.path()), [""; 0], "{}", writer.name);
    }
}

#[test]
fn a_link_to_a_plain_file_stays_a_link_and_its_file_is_replaced() {
    let place = Place::new();
    let at = |name: &str| place.folder.path().join(name);
    fs::write(at("file"), "mine").expect("writable");
    symlink(at("file"), at("link")).expect("a link");
    for writer in WRITERS {
        assert_eq!(writer.write_to(&place, &at("link"), false).status.code(), Some(2), "{}", writer.name);
        assert!(writer.write_to(&place, &at("link"), true).status.success(), "{}", writer.name);
        assert!(fs::symlink_metadata(at("link")).expect("there").is_symlink(), "{}", writer.name);
        assert_ne!(fs::read(at("file")).expect("there"), b"mine", "{}", writer.name);
    }
}

#[test]
fn drawings_and_pages_in_a_folder_are_kept_too() {
    let place = Place::new();
    let folder = place.folder.path().join("figures");
    let path = folder.to_str().expect("UTF-8");
    let draw = |force: &[&str]| {
        place.run(&[&["reproduce", "pulse-fig10", "--svg", path, "--html", path], force].concat())
    };
    assert!(draw(&[]).status.success());
    let page = folder.join("reproduce.html");
    fs::write(&page, "mine").expect("writable");
    assert_eq!(draw(&[]).status.code(), Some(2));
    assert_eq!(fs::read_to_string(&page).expect("there"), "mine");
    assert!(draw(&["--force"]).status.success());
    assert_ne!(fs::read(&page).expect("there"), b"mine");
}
