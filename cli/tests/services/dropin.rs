// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift dropin` as its users meet it: units below a temporary root, commands and processes of this machine.
//!
//! - **Method** MEMLIFT_DROPINS names a folder with stand-ins: attaching needs the files only, and measures nothing
//! - **Not here** how much faster anything is: `bench transform`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A root with one unit, and a folder of drop-ins.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(service: &str) -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        let units = folder.path().join("root/usr/lib/systemd/system");
        fs::create_dir_all(&units).expect("made");
        fs::write(units.join("web.service"), format!("[Unit]\nDescription=x\n[Service]\n{service}"))
            .expect("written");
        let dropins = folder.path().join("dropins");
        fs::create_dir_all(&dropins).expect("made");
        for name in ["libmemlift_z.so", "libmemlift_openssl.so"] {
            fs::write(dropins.join(name), "stand-in").expect("written");
        }
        Place { folder }
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside)
    }

    fn settings(&self) -> PathBuf {
        self.path("root/etc/systemd/system/web.service.d")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_memlift"))
            .arg("dropin")
            .args(arguments)
            .env("MEMLIFT_DROPINS", self.path("dropins"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env_remove("LD_PRELOAD")
            .env_remove("OPENSSL_CONF")
            .stdin(Stdio::null())
            .output()
            .expect("the command starts")
    }

    /// With the root of this place.
    fn unit(&self, arguments: &[&str]) -> Output {
        let root = self.path("root");
        let mut all = arguments.to_vec();
        all.extend(["--root", root.to_str().expect("UTF-8")]);
        self.run(&all)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn succeeds(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Ends a process when the test does.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn enable_and_disable_leave_a_unit_as_it_was() {
    let place = Place::new("ExecStart=/bin/true\nEnvironment=LD_PRELOAD=/opt/first.so OTHER=1\n");
    let base = place.path("openssl.cnf");
    fs::write(&base, "openssl_conf = own\n[own]\nssl_conf = s\n").expect("written");
    let base = base.to_str().expect("UTF-8");
    let wanted = ["enable", "web", "--only", "libz", "--only", "openssl", "--openssl-conf", base];

    let said = succeeds(place.unit(&[&wanted[..], &["--dry-run"]].concat()));
    assert!(said.contains("would write") && said.contains("LD_PRELOAD="), "{said}");
    assert!(!place.settings().exists(), "--dry-run writes nothing");

    let said = succeeds(place.unit(&wanted));
    assert!(said.contains("systemctl daemon-reload && systemctl restart web.service"), "{said}");
    let settings = fs::read_to_string(place.settings().join("memlift.conf")).expect("written");
    let library = place.path("dropins/libmemlift_z.so").canonicalize().expect("there");
    let preload = format!("Environment=\"LD_PRELOAD={}:/opt/first.so\"", library.display());
    assert!(
        settings.contains(&preload) && settings.contains("MEMLIFT_STATS=1") && !settings.contains("OTHER"),
        "{settings}"
    );
    let merged = fs::read_to_string(place.settings().join("memlift-openssl.cnf")).expect("written");
    assert!(
        merged.contains("ssl_conf = s")
            && merged.contains("libmemlift_openssl.so")
            && merged.contains("activate = 1"),
        "{merged}"
    );
    assert!(settings.contains("memlift-openssl.cnf"), "{settings}");

    // The original lies outside of the root, and is found there.
    fs::create_dir_all(place.path("root/bin")).expect("made");
    fs::copy("/bin/true", place.path("root/bin/true")).expect("copied");
    let checked = || succeeds(place.unit(&["check", "web", "--no-measure"]));
    assert!(!checked().contains("has changed"), "{}", checked());

    // A second time changes nothing, although the first is in force.
    succeeds(place.unit(&wanted));
    assert_eq!(fs::read_to_string(place.settings().join("memlift.conf")).expect("there"), settings);

    let document: Value =
        serde_json::from_str(&succeeds(place.unit(&["disable", "web", "--json"]))).expect("JSON");
    assert_eq!(document["removed"].as_array().map(Vec::len), Some(2), "{document}");
    assert!(!place.settings().exists(), "the folder was ours alone");
    assert!(succeeds(place.unit(&["disable", "web"])).contains("nothing to undo"));
}

#[test]
fn foreign_and_edited_files_are_refused_and_stay() {
    let place = Place::new("ExecStart=/bin/true\n");
    let file = place.settings().join("memlift.conf");
    fs::create_dir_all(place.settings()).expect("made");
    fs::write(&file, "[Service]\nEnvironment=A=1\n").expect("written");
    for verb in [&["enable", "web", "--only", "libz"][..], &["disable", "web"]] {
        let output = place.unit(verb);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("was not written by memlift"), "{}", text(&output.stderr));
    }
    fs::remove_file(&file).expect("removed");
    succeeds(place.unit(&["enable", "web", "--only", "libz"]));
    fs::write(place.settings().join("other.conf"), "[Service]\n").expect("written");
    let ours = fs::read_to_string(&file).expect("there");
    fs::write(&file, format!("{ours}Environment=B=2\n")).expect("written");
    let output = place.unit(&["disable", "web"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("was edited"), "{}", text(&output.stderr));
    fs::write(&file, ours).expect("written");
    succeeds(place.unit(&["disable", "web"]));
    assert!(!file.exists() && place.settings().join("other.conf").exists());
}

#[test]
fn a_command_gets_its_environment() {
    let place = Place::new("");
    let line = succeeds(place.run(&["enable", "/bin/true", "--only", "libz"]));
    let library = place.path("dropins/libmemlift_z.so").canonicalize().expect("there");
    assert_eq!(line.trim(), format!("LD_PRELOAD={} MEMLIFT_STATS=1 /bin/true", library.display()));
    let document: Value =
        serde_json::from_str(&succeeds(place.run(&["enable", "/bin/true", "--only", "openssl", "--json"])))
            .expect("JSON");
    let file = PathBuf::from(document["environment"]["OPENSSL_CONF"].as_str().expect("a path"));
    assert!(file.starts_with(place.path("config/memlift/dropin")) && file.is_file());
    // Another command has another file: taking one back leaves the other.
    let document: Value =
        serde_json::from_str(&succeeds(place.run(&["enable", "/bin/false", "--only", "openssl", "--json"])))
            .expect("JSON");
    let other = PathBuf::from(document["environment"]["OPENSSL_CONF"].as_str().expect("a path"));
    succeeds(place.run(&["disable", "/bin/true"]));
    assert!(!file.exists() && other.is_file(), "{}", other.display());
    succeeds(place.run(&["disable", "/bin/false"]));
    assert!(!other.exists());
}

#[test]
fn specifiers_of_the_operator_stay_and_paths_are_those_inside() {
    let place = Place::new("");
    let inside = |path: &str| place.path(&format!("root/{path}"));
    fs::create_dir_all(inside("opt/one")).expect("made");
    fs::create_dir_all(inside("usr/local/lib/memlift")).expect("made");
    for name in ["libmemlift_z.so", "libmemlift_openssl.so"] {
        fs::copy(place.path("dropins").join(name), inside("usr/local/lib/memlift").join(name))
            .expect("copied");
    }
    fs::write(inside("opt/one/openssl.cnf"), "openssl_conf = i\n.include /opt/one/more.cnf\n")
        .expect("written");
    fs::write(inside("opt/one/more.cnf"), "[i]\nproviders = theirs\n").expect("written");
    fs::write(
        inside("usr/lib/systemd/system/app@.service"),
        "[Service]\nExecStart=/opt/%i/app\nEnvironment=LD_PRELOAD=/opt/%i/own.so OPENSSL_CONF=/opt/%i/openssl.cnf\n",
    )
    .expect("written");
    succeeds(place.unit(&["enable", "app@one", "--only", "libz", "--only", "openssl"]));
    let folder = inside("etc/systemd/system/app@one.service.d");
    let settings = fs::read_to_string(folder.join("memlift.conf")).expect("written");
    assert!(
        settings.contains("\"LD_PRELOAD=/usr/local/lib/memlift/libmemlift_z.so:/opt/%i/own.so\"")
            && settings
                .contains("\"OPENSSL_CONF=/etc/systemd/system/app@one.service.d/memlift-openssl.cnf\""),
        "{settings}"
    );
    let merged = fs::read_to_string(folder.join("memlift-openssl.cnf")).expect("written");
    assert!(
        merged.contains("[theirs]\nmemlift = memlift_provider")
            && merged.contains("module = /usr/local/lib/memlift/libmemlift_openssl.so"),
        "what the image includes is read: {merged}"
    );
    let root = place.path("root").display().to_string();
    assert!(!settings.contains(&root) && !merged.contains(&root), "{settings}{merged}");

    // A template has no instance, so its file of OpenSSL is not known.
    let output = place.unit(&["enable", "app@", "--only", "openssl"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("names no instance"), "{}", text(&output.stderr));
}

#[test]
fn environment_files_and_later_settings_do_not_undo_it() {
    let place =
        Place::new("ExecStart=/bin/true\nEnvironmentFile=-/etc/default/web\nEnvironment=LD_PRELOAD=/a.so\n");
    fs::create_dir_all(place.path("root/etc/default")).expect("made");
    fs::write(place.path("root/etc/default/web"), "# own\nLD_PRELOAD='/opt/of file.so'\n").expect("written");
    succeeds(place.unit(&["enable", "web", "--only", "libz"]));
    let settings = fs::read_to_string(place.settings().join("memlift.conf")).expect("written");
    assert!(
        settings.contains("EnvironmentFile=/etc/systemd/system/web.service.d/memlift.env")
            && !settings.contains("LD_PRELOAD"),
        "{settings}"
    );
    let file = fs::read_to_string(place.settings().join("memlift.env")).expect("written");
    let library = place.path("dropins/libmemlift_z.so").canonicalize().expect("there");
    assert!(file.contains(&format!("LD_PRELOAD=\"{}:/opt/of:file.so\"", library.display())), "{file}");
    let said = succeeds(place.unit(&["disable", "web"]));
    assert!(said.contains("memlift.env") && !place.settings().exists(), "{said}");

    fs::create_dir_all(place.settings()).expect("made");
    fs::write(place.settings().join("z.conf"), "[Service]\nEnvironment=MEMLIFT_STATS=0\n").expect("written");
    let output = place.unit(&["enable", "web", "--only", "libz"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("z.conf sets MEMLIFT_STATS"), "{}", text(&output.stderr));
    assert!(!place.settings().join("memlift.conf").exists());
}

/// Copies a program that is to be started, by a process of its own: a child that another test forks here would hold the file open
/// for writing, and it could not start.
fn copy_program(from: &str, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().expect("cp starts").success());
}

#[test]
fn a_changed_original_is_noticed() {
    let place = Place::new("");
    // A program of our own: its processes are no others'.
    let program = place.path("server");
    copy_program("/bin/sleep", &program);
    let (program, base) = (program.to_str().expect("UTF-8"), place.path("openssl.cnf"));
    fs::write(&base, "openssl_conf = own\n").expect("written");
    let enable = ["enable", program, "--only", "openssl", "--openssl-conf", base.to_str().expect("UTF-8")];
    succeeds(place.run(&enable));
    let server = Ended(Command::new(program).arg("60").spawn().expect("it starts"));
    let remarks = |verb: &[&str]| {
        let output = place.run(&[verb, &["--json"]].concat());
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["remarks"].to_string()
    };
    while !Path::new(&format!("/proc/{}/exe", server.0.id()))
        .canonicalize()
        .is_ok_and(|exe| exe.ends_with("server"))
    {}
    let check = ["check", program, "--no-measure"];
    assert!(
        !remarks(&check).contains("has changed") && !remarks(&["status", program]).contains("has changed")
    );
    fs::write(&base, "openssl_conf = own\n[own]\nssl_conf = s\n").expect("written");
    for verb in [&check[..], &["status", program]] {
        assert!(remarks(verb).contains("has changed since it was copied"), "{}", remarks(verb));
    }
    succeeds(place.run(&enable));
    assert!(!remarks(&check).contains("has changed"));
    let output = place.run(&["status", &server.0.id().to_string(), "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        document["processes"][0]["reason"],
        "neither LD_PRELOAD nor OPENSSL_CONF is in its environment"
    );
}

#[test]
fn check_finds_what_openssl_uses_and_says_where_it_comes_from() {
    let place = Place::new("");
    let document: Value =
        serde_json::from_str(&succeeds(place.run(&["check", "openssl", "--no-measure", "--json"])))
            .expect("JSON");
    let copies = document["copies"].as_array().expect("copies");
    let copy =
        copies.iter().find(|copy| copy["dropin"] == "libmemlift_openssl.so").expect("openssl uses OpenSSL");
    assert!(copy["version"].as_str().is_some_and(|version| version.starts_with("OpenSSL ")), "{copy}");
    assert!(matches!(copy["kind"].as_str(), Some("system" | "bundled" | "static")), "{copy}");
    assert_eq!(copy["measured"], Value::Null);
    let nothing = succeeds(place.run(&["check", "/bin/true", "--no-measure"]));
    assert!(nothing.contains("no zlib and no OpenSSL"), "{nothing}");
}

#[test]
fn a_program_with_more_rights_and_a_bundled_java_are_told() {
    let place = Place::new("");
    let program = place.path("privileged");
    fs::copy("/bin/true", &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("set");
    let said = succeeds(place.run(&["check", program.to_str().expect("UTF-8"), "--no-measure"]));
    assert!(said.contains("(set-uid): it ignores LD_PRELOAD"), "{said}");
    // As Temurin is laid out: its zlib is compiled into libzip.so, which Java loads by itself.
    let home = place.path("jdk");
    fs::create_dir_all(home.join("bin")).expect("made");
    fs::create_dir_all(home.join("lib")).expect("made");
    fs::copy("/bin/true", home.join("bin/java")).expect("copied");
    let mut library = fs::read("/bin/true").expect("an ELF file");
    fs::write(home.join("lib/libjava.so"), &library).expect("written");
    library.extend(b"\0deflate 1.3.1 Copyright 1995-2024\0");
    fs::write(home.join("lib/libzip.so"), library).expect("written");
    let java = home.join("bin/java");
    let said = succeeds(place.run(&["check", java.to_str().expect("UTF-8"), "--no-measure"]));
    assert!(said.contains("zlib 1.3.1 (static)") && said.contains("lib/libzip.so"), "{said}");
}

#[test]
fn a_drop_in_that_cannot_be_loaded_is_said() {
    let place = Place::new("");
    let document: Value =
        serde_json::from_str(&succeeds(place.run(&["check", "openssl", "--json"]))).expect("JSON");
    for copy in document["copies"].as_array().expect("copies").iter().filter(|copy| copy["reached"] == true) {
        assert!(copy["measured"]["error"].is_string(), "{copy}");
    }
}

#[test]
fn status_tells_who_runs_without() {
    let place = Place::new("ExecStart=/bin/true\n");
    let sleeper = Ended(Command::new("sleep").arg("60").spawn().expect("sleep starts"));
    let pid = sleeper.0.id().to_string();
    let output = place.run(&["status", &pid, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["processes"][0]["attached"].as_array().map(Vec::len), Some(0));
    assert_eq!(place.unit(&["status", "web"]).status.code(), Some(3), "it does not run");
}

#[test]
fn a_bare_name_is_the_program_where_it_runs_without_its_unit() {
    let place = Place::new("");
    // A program of our own: its processes are no others'.
    let program = place.path("server");
    copy_program("/bin/sleep", &program);
    let units = place.path("config/systemd/user");
    fs::create_dir_all(&units).expect("made");
    fs::write(units.join("web.service"), format!("[Service]\nExecStart={}\n", program.display()))
        .expect("written");
    assert_eq!(place.run(&["status", "web", "--user"]).status.code(), Some(3), "nothing runs");
    let server = Ended(Command::new(&program).arg("60").spawn().expect("it starts"));
    let seen = || place.run(&["status", "web", "--user", "--json"]);
    // Between fork and exec it is this test's own program.
    let mut output = seen();
    while output.status.code() == Some(3) && Path::new(&format!("/proc/{}/exe", server.0.id())).exists() {
        output = seen();
    }
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["processes"][0]["pid"], server.0.id());
    assert_eq!(document["kind"], "command");
    assert_eq!(
        place.run(&["status", "web.service", "--user"]).status.code(),
        Some(3),
        "that is the unit only"
    );
}

#[test]
fn enable_says_what_nginx_needs_for_an_upgrade() {
    let place = Place::new("ExecStart=/usr/sbin/nginx -g 'daemon on;'\n");
    let output = place.unit(&["enable", "web", "--only", "libz", "--dry-run"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("`env LD_PRELOAD; env MEMLIFT_STATS;`"), "{said}");
    let place = Place::new("ExecStart=/bin/true\n");
    let output = place.unit(&["enable", "web", "--only", "libz", "--dry-run"]);
    assert!(!text(&output.stderr).contains("nginx"));
}

#[test]
fn status_sees_a_library_in_the_maps() {
    let place = Place::new("");
    // Any shared library will do: the system's libc under the name of a drop-in.
    let own = fs::read_to_string("/proc/self/maps").expect("maps");
    let libc = own
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|path| path.contains("/libc.so"))
        .expect("libc");
    let library = place.path("dropins/libmemlift_z.so");
    fs::copy(libc, &library).expect("copied");
    let mut command = Command::new("sleep");
    command.arg("60").env("LD_PRELOAD", &library);
    let sleeper = Ended(command.spawn().expect("sleep starts"));
    let seen = || {
        let output = place.run(&["status", &sleeper.0.id().to_string(), "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["processes"][0]["attached"][0].clone()
    };
    // It is attached once the loader has come that far.
    let mut attached = seen();
    while attached.is_null() && Path::new(&format!("/proc/{}/exe", sleeper.0.id())).exists() {
        attached = seen();
    }
    assert_eq!(attached, library.to_str().expect("UTF-8"));
}

#[test]
fn who_cannot_be_meant_is_said() {
    let place = Place::new("");
    for (arguments, code) in [
        (&["check", "no-such-command-here"][..], 3),
        (&["enable", "no-such.service"], 3),
        (&["status", "4194305"], 3),
        (&["enable"], 2),
        (&["enable", "web", "--only", "libpng"], 2),
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("memlift: error: "), "{arguments:?}");
    }
    let own = std::process::id().to_string();
    let output = place.run(&["enable", &own]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
