// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Configuration: which source wins, where each value says it comes from, and what errors say.

use std::ffi::OsString;
use std::path::PathBuf;

use memlift_ground::config::{Candidate, Config, KEYS, Origin, Wait};

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        Files { folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn entry(config: &Config, key: &str) -> (String, Origin) {
    let entry = config.entries().into_iter().find(|entry| entry.key == key).unwrap();
    (entry.value, entry.origin)
}

#[test]
fn defaults_are_allowed_by_their_own_kinds() {
    let written: String = {
        let config = Config::defaults();
        let mut sections: std::collections::BTreeMap<&str, String> = Default::default();
        for entry in config.entries() {
            let (section, name) = entry.key.split_once('.').unwrap();
            *sections.entry(section).or_default() += &format!("{name} = \"{}\"\n", entry.value);
        }
        sections.iter().map(|(section, lines)| format!("[{section}]\n{lines}")).collect()
    };
    let files = Files::new();
    let path = files.write("memlift.toml", &written);
    let read = Config::load_from(&[Candidate::Named(path)], []).unwrap();
    assert_eq!(read.engine, Config::defaults().engine);
    assert_eq!(read.ipc, Config::defaults().ipc);
}

#[test]
fn promised_defaults() {
    let config = Config::defaults();
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(config.engine.workers, usize::from(cpus > 1));
    assert_eq!(config.engine.wait, Wait::Auto);
    assert_eq!(config.ipc.request_pool_bytes, 64 << 10);
    assert_eq!(config.ipc.response_pool_bytes, 64 << 10);
    assert_eq!(config.ipc.message_bytes_max, 4 << 30);
    assert_eq!(config.ipc.outstanding_max, 64);
    assert_eq!(config.ipc.timeout_s, None);
    assert_eq!(config.ipc.socket_dir, None);
}

#[test]
fn a_variable_beats_the_file_and_the_file_beats_the_default() {
    let files = Files::new();
    let path = files.write(
        "memlift.toml",
        "[engine]\nworkers = 3\nwait = \"block\"\nsplit = false\ndisable = [\"thp\", \"numa\"]\n\
         [ipc]\nrequest_pool_bytes = \"1G\"\nresponse_pool_bytes = 65536\ntimeout_s = 2.5\n",
    );
    let config = Config::load_from(
        &[Candidate::Customary(path.clone())],
        variables(&[("MEMLIFT_WORKERS", "0"), ("MEMLIFT_IPC_SOCKET_DIR", "/run/x"), ("MEMLIFT_WAIT", "")]),
    )
    .unwrap();
    assert_eq!(config.engine.workers, 0);
    assert_eq!(config.engine.wait, Wait::Block, "an empty variable counts as not set");
    assert!(!config.engine.split);
    assert_eq!(config.engine.disable, "thp,numa");
    assert_eq!(config.ipc.request_pool_bytes, 1 << 30);
    assert_eq!(config.ipc.response_pool_bytes, 65536);
    assert_eq!(config.ipc.timeout_s, Some(2.5));
    assert_eq!(entry(&config, "engine.workers").1, Origin::Environment("MEMLIFT_WORKERS".into()));
    assert_eq!(entry(&config, "ipc.request_pool_bytes"), ("1GiB".into(), Origin::File(path)));
    assert_eq!(entry(&config, "engine.isa"), ("auto".into(), Origin::Default));
    assert_eq!(config.ipc.socket_dir, Some("/run/x".into()));
}

#[test]
fn only_the_first_file_counts() {
    let files = Files::new();
    let first = files.write("a.toml", "[engine]\nworkers = 5\n");
    let second = files.write("b.toml", "[engine]\nspin_us_max = 7\n");
    let missing = files.folder.path().join("none.toml");
    let candidates = [missing, first, second].map(Candidate::Customary);
    let config = Config::load_from(&candidates, []).unwrap();
    assert_eq!(config.engine.workers, 5);
    assert_ne!(config.engine.spin_us_max, 7);
}

#[test]
fn errors_name_file_key_and_what_is_allowed() {
    let files = Files::new();
    let cases = [
        ("[engine]\nworkerz = 1\n", vec!["unknown key `engine.workerz`", "engine.workers"]),
        ("workers = 1\n", vec!["unknown key `workers`"]),
        ("[engine]\nwait = \"sleepy\"\n", vec!["`sleepy`", "engine.wait", "auto, spin, block"]),
        ("[engine]\nworkers = -1\n", vec!["`-1`", "engine.workers", "0 to 1024"]),
        ("[engine]\nsplit = 3\n", vec!["engine.split", "true or false"]),
        ("[engine]\ndisable = \"warp\"\n", vec!["engine.disable", "memfd_seal"]),
        ("[ipc]\nrequest_pool_bytes = \"32 apples\"\n", vec!["ipc.request_pool_bytes", "32MiB"]),
        ("[ipc]\nrequest_pool_bytes = 1\n", vec!["ipc.request_pool_bytes", "4KiB"]),
        ("[engine\n", vec!["not valid TOML"]),
    ];
    for (text, expected) in cases {
        let path = files.write("memlift.toml", text);
        let error = Config::load_from(&[Candidate::Named(path.clone())], []).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        for part in expected {
            assert!(error.contains(part), "{part:?} in {error:?}");
        }
    }
    let error =
        Config::load_from(&[], variables(&[("MEMLIFT_SPIN_US_MAX", "soon")])).unwrap_err().to_string();
    assert!(error.contains("MEMLIFT_SPIN_US_MAX") && error.contains("engine.spin_us_max"), "{error}");
}

#[test]
fn a_named_file_must_exist() {
    let missing = PathBuf::from("/nonexistent/memlift.toml");
    let error = Config::load_from(&[Candidate::Named(missing)], []).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/memlift.toml") && error.contains("MEMLIFT_CONFIG"), "{error}");
}

#[test]
fn a_misspelt_variable_is_reported_and_a_misspelt_facility_stops_nothing() {
    let set = variables(&[("MEMLIFT_WORKER", "1"), ("MEMLIFT_DISABLE", "warp,thp"), ("OTHER", "x")]);
    let config = Config::load_from(&[], set).unwrap();
    assert_eq!(config.unknown_variables(), ["MEMLIFT_WORKER"]);
    assert_eq!(config.engine.disable, "warp,thp");
}

#[test]
fn keys_and_variables_are_unique_and_documented() {
    let mut variables: Vec<String> = KEYS.iter().map(|key| key.variable()).collect();
    assert!(
        variables.contains(&"MEMLIFT_ISA".to_owned())
            && variables.contains(&"MEMLIFT_IPC_TIMEOUT_S".to_owned())
    );
    variables.sort();
    variables.dedup();
    assert_eq!(variables.len(), KEYS.len());
    for key in KEYS {
        assert!(key.doc.len() > 20 && !key.kind.allowed().is_empty(), "{}", key.name);
    }
}

/// A process that gave up its rights is left with a HOME that it may not look into.
#[test]
fn a_home_that_cannot_be_read_counts_as_empty() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new();
    let home = files.folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let inside = home.join("memlift.toml");
    std::fs::write(&inside, "[engine]\nworkers = 5\n").unwrap();
    let open = files.write("of-others.toml", "[engine]\nworkers = 6\n");
    let mode = std::fs::Permissions::from_mode;
    std::fs::set_permissions(files.folder.path(), mode(0o755)).unwrap();
    std::fs::set_permissions(&home, mode(0o000)).unwrap();
    std::fs::set_permissions(&open, mode(0o000)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let load = move || {
        if is_root {
            // Of this thread alone: the library's own function would change the process.
            const NOBODY: libc::c_long = 65_534;
            // SAFETY: no memory is involved.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) }, 0);
        }
        let customary = |path: &PathBuf| Config::load_from(&[Candidate::Customary(path.clone())], []);
        let by_default = Config::defaults().engine;
        assert_eq!(customary(&inside).unwrap().engine, by_default);
        if is_root {
            assert_eq!(customary(&open).unwrap().engine, by_default, "another user's");
        } else {
            assert!(customary(&open).is_err(), "one's own is meant to be read");
        }
        assert!(Config::load_from(&[Candidate::Named(inside)], []).is_err(), "what was named must be there");
    };
    std::thread::spawn(load).join().unwrap();
    std::fs::set_permissions(&home, mode(0o755)).unwrap();
}
