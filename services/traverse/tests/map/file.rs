// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Map files: what is read, and what is said of a file that is wrong.

use std::path::Path;

use memlift_traverse::map::{MapError, Place, Secret, Source, file};

const GOOD: &str = r#"epoch = 4

[[node]]
name = "a"
addresses = ["127.0.0.1:7700", "shm:/run/memlift/a"]

[[node]]
name = "b"
addresses = ["udp:[::1]:7701"]

[[range]]
base = "0x100000000"
bytes = "1G"
node = "b"
permissions = "r"
tenant = 3

[[range]]
base = 4096
bytes = "64K"
node = "a"
"#;

fn fault(text: &str) -> (usize, String) {
    match file::parse(text, Path::new("map.toml")) {
        Err(MapError::Text { line, what, .. }) => (line, what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_is_read_and_printed_as_the_same_map() {
    let map = file::parse(GOOD, Path::new("map.toml")).expect("a map");
    assert_eq!((map.epoch(), map.nodes().len(), map.ranges().len()), (4, 2, 2));
    assert!(
        matches!(map.place(0x1_3fff_ffff), Place::Owned(range, node) if node.name == "b" && range.tenant == 3)
    );
    assert!(!map.ranges()[1].permissions.write() && map.ranges()[0].permissions.write());
    assert_eq!(file::parse(&file::print(&map), Path::new("map.toml")).expect("a map"), map);
}

#[test]
fn each_fault_is_said_with_its_line() {
    let cases = [
        (GOOD.replace("epoch = 4", "epoch = 0"), 1, "count from 1"),
        (GOOD.replace("epoch = 4", "epoch = "), 1, ""),
        (GOOD.replace("name = \"b\"", "name = \"a\""), 8, "another node called a"),
        (GOOD.replace("name = \"b\"", "name = \"b b\""), 8, "letters"),
        (GOOD.replace("[::1]:7701", "somewhere"), 9, "no address"),
        (GOOD.replace("[::1]:7701", "127.0.0.1:7700"), 9, "given twice"),
        (GOOD.replace("node = \"b\"", "node = \"c\""), 14, "no [[node]] called"),
        (GOOD.replace("permissions = \"r\"", "permissions = \"x\""), 15, "\"r\" or \"rw\""),
        (GOOD.replace("tenant = 3", "tenant = -3"), 16, "tenant"),
        (GOOD.replace("tenant = 3", "owner = 3"), 16, "unknown field"),
        (GOOD.replace("base = 4096", "base = 4097"), 19, "multiples"),
        (GOOD.replace("base = 4096", "base = 0"), 19, "address 0"),
        (GOOD.replace("base = 4096", "base = \"0x1_3fff_f000\""), 19, "overlaps the one of line 12"),
        (GOOD.replace("64K", "18446744073709547520"), 19, "past"),
        (GOOD.replace("64K", "99999999T"), 20, "such as"),
        (GOOD.replace("64K", "many"), 20, "such as"),
        (GOOD.replace("bytes = \"64K\"\n", ""), 18, "missing field"),
    ];
    for (text, line, part) in cases {
        let (at, what) = fault(&text);
        assert!(at == line && what.contains(part), "line {line} {part:?}, got line {at}: {what}\n{text}");
    }
}

#[test]
fn sources_are_parsed_or_refused() {
    for text in [
        "map.toml",
        "file:map.toml",
        "coordinator:127.0.0.1:7600",
        "coordinator:unix:/run/c",
        "etcd:http://h:2379",
        "etcd:http://h:2379,http://i:2379/a/b",
        "etcd:https://h:2379/a?ca=/c&user=u&password-file=/p",
    ] {
        Source::parse(text).expect(text);
    }
    for text in [
        "",
        "file:",
        "coordinator:",
        "coordinator:host",
        "coordinator:unix:",
        "etcd:h:2379",
        "etcd:https://h:2379?user=u",
        "etcd:https://h:2379?pass=u",
        "coordinator:h:1?key=",
        "etcd:http://h",
        "etcd:http://h:0",
        "etcd:http://h:1/a b",
        "http://h:1",
        "etcd:http://h:1/p,http://i:1",
    ] {
        let error = Source::parse(text).expect_err(text).to_string();
        assert!(error.contains("names no map"), "{error}");
    }
}

#[test]
fn a_changed_file_is_taken_when_its_epoch_was_raised() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("map.toml");
    std::fs::write(&path, GOOD).expect("written");
    let mut authority = Source::File(path.clone()).connect().expect("a file");
    assert_eq!(authority.read().expect("read").epoch(), 4);
    let write = |text: String| {
        std::fs::write(&path, text).expect("written");
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
        std::fs::File::options().write(true).open(&path).expect("open").set_modified(later).expect("set");
    };
    write(GOOD.replace("1G", "2G"));
    assert!(authority.read().expect_err("the same epoch").to_string().contains("raise it"));
    assert_eq!(authority.read().expect("the one before").epoch(), 4);
    write(GOOD.replace("1G", "2G").replace("epoch = 4", "epoch = 15"));
    assert_eq!(authority.read().expect("read").epoch(), 15);
    let missing = Source::File(folder.path().join("none")).connect().expect("opened later").read();
    assert!(matches!(missing, Err(MapError::File { .. })));
}

#[test]
fn a_coordinators_key_is_read_with_its_address() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    let text = format!("coordinator:unix:/run/c?key={}", path.display());
    assert!(matches!(Source::parse(&text), Err(MapError::File { .. })));
    std::fs::write(&path, "07".repeat(32)).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
    assert!(Source::parse(&text).expect_err("readable").to_string().contains("chmod 600"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
    let bare = Source::parse("coordinator:unix:/run/c").expect("a source");
    assert_eq!(Source::parse(&text).expect("a source"), bare.with_secret(Secret::new([7; 32])));
}
