// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of Python and C in `dump` and `check`: by name, by field, followed and counted.
//!
//! - **Layout** `golden/foreign-1.txt`: a pool of the release that had no types of fields, as `golden_pools.rs` writes files.
//!   `golden/foreign-2.txt`: one with types, dicts and arrays
//! - **Write** `MEMLIFT_GOLDEN=write cargo test -p memlift-persist --test formats foreign_tools::`, for a new format only: what is there is a promise
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use memlift_persist::check::{Level, Report, check};
use memlift_persist::dump::{Filter, Object, dump};
use memlift_persist::raw::{ARRAY_PAD, ARRAY_TYPE, ForeignField, ForeignType, Table, root_or};
use memlift_persist::{Domain, Error, Options, Pool, Result};

fn options() -> Options {
    Options {
        heap_bytes: 256 << 10,
        max_bytes: 1 << 30,
        lanes: 2,
        lane_bytes: 64 << 10,
        domain: Domain::Pages,
        ..Options::default()
    }
}

fn described(name: &str, bytes: u64, fields: &[(&str, u64, u64, &str)]) -> ForeignType {
    let field = |(name, offset, bytes, kind): &(&str, u64, u64, &str)| ForeignField {
        name: (*name).to_owned(),
        offset: *offset,
        bytes: *bytes,
        kind: (*kind).to_owned(),
    };
    ForeignType { name: name.to_owned(), bytes, fields: fields.iter().map(field).collect() }
}

/// Writes descriptions to the pool, as the C library does.
fn describe(pool: &Pool, types: &[&ForeignType]) {
    pool.tx(|t| {
        let at = root_or(t)?;
        let table = Table::create(t)?;
        t.get_mut(at)?.types = table.offset();
        for kind in types {
            table.put(t, &kind.layout().to_le_bytes(), kind.text().as_bytes())?;
        }
        Ok::<_, Error>(())
    })
    .expect("described");
}

fn objects(path: &Path, name: Option<&str>) -> Vec<Object> {
    let mut found = Vec::new();
    let filter = Filter { name: name.map(str::to_owned), offset: None };
    dump(path, &filter, |object| {
        found.push(object);
        true
    })
    .expect("dumped");
    found
}

/// Values of objects of a type, as text.
fn values(path: &Path, name: &str) -> Vec<String> {
    objects(path, Some(name)).iter().map(|object| object.value.to_string()).collect()
}

fn notes(report: &Report) -> String {
    assert!(report.sound(), "{:?}", report.findings);
    report.findings.iter().map(|one| one.what.as_str()).collect::<Vec<_>>().join("; ")
}

fn node_type(typed: bool) -> ForeignType {
    let kind = |text| if typed { text } else { "" };
    described(
        "node",
        64,
        &[
            ("number", 0, 4, kind("int32_t")),
            ("next", 8, 8, kind("node *")),
            ("place", 16, 16, kind("struct point")),
            ("name", 32, 16, kind("char")),
            ("links", 48, 16, kind("memlift_object")),
        ],
    )
}

fn point_type() -> ForeignType {
    described("point", 16, &[("x", 0, 8, "double"), ("y", 8, 8, "double")])
}

fn node_bytes(number: i32, next: u64, links: [u64; 2]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&next.to_le_bytes());
    bytes[16..24].copy_from_slice(&1.5f64.to_le_bytes());
    bytes[24..32].copy_from_slice(&(-2.0f64).to_le_bytes());
    bytes[32..37].copy_from_slice(b"hello");
    bytes[48..56].copy_from_slice(&links[0].to_le_bytes());
    bytes[56..64].copy_from_slice(&links[1].to_le_bytes());
    bytes
}

/// A list of three nodes, whose last one links to a text; gives their places.
fn list(pool: &Pool, node: &ForeignType, text: &ForeignType) -> [u64; 4] {
    let made = pool.tx(|t| {
        let words = t.alloc_raw(text.layout(), &[b"a text of any length"])?;
        let last = t.alloc_raw(node.layout(), &[&node_bytes(-3, 0, [words, 0])])?;
        let middle = t.alloc_raw(node.layout(), &[&node_bytes(2, last, [0; 2])])?;
        let first = t.alloc_raw(node.layout(), &[&node_bytes(1, middle, [last, words])])?;
        let at = root_or(t)?;
        let root = t.get_mut(at)?;
        (root.object, root.object_type) = (first, node.layout());
        Ok::<_, Error>([first, middle, last, words])
    });
    made.expect("made")
}

fn text_type() -> ForeignType {
    described("text", 0, &[("words", 0, 1, "char")])
}

#[test]
fn objects_of_c_are_shown_by_field_and_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    let pool = Pool::create(&path, &options()).expect("created");
    let (node, point, text) = (node_type(true), point_type(), text_type());
    describe(&pool, &[&node, &point, &text]);
    let [first, middle, last, words] = list(&pool, &node, &text);
    pool.close().expect("closed");
    let place = "place: { x: 1.5, y: -2.0 }, name: \"hello\"";
    assert_eq!(
        values(&path, "node"),
        [
            format!("{{ number: -3, next: null, {place}, links: [object {words:#x}, null] }}"),
            format!("{{ number: 2, next: node {last:#x}, {place}, links: [null, null] }}"),
            format!(
                "{{ number: 1, next: node {middle:#x}, {place}, links: [object {last:#x}, object {words:#x}] }}"
            ),
        ]
    );
    assert_eq!(values(&path, "text"), ["{ words: \"a text of any length\" }"]);
    let root = values(&path, "ForeignRoot");
    assert!(root[0].contains(&format!("object: node {first:#x}")), "{root:?}");
    // Its own tables are named; everything that is there is met.
    let tables: Vec<String> = values(&path, "dict");
    assert_eq!(tables, ["{ table: \"types\", entries: 3 }"]);
    assert_eq!(notes(&check(&*path).expect("checked")), "");
    let missing = dump(&*path, &Filter { name: Some("edge".to_owned()), offset: None }, |_| true);
    assert!(
        matches!(&missing, Err(Error::Argument { what }) if what.contains("node") && what.contains("dict entry"))
    );
    // An object that nothing leads to, one that is led to and freed, and one of another type.
    let pool = Pool::open(&path, &options()).expect("opened");
    let lost = pool.tx(|t| {
        t.free_raw(last, node.layout())?;
        t.write_raw(first, node.layout(), 8, &words.to_le_bytes())?;
        t.alloc_raw(node.layout(), &[&node_bytes(9, 0, [0; 2])])
    });
    let lost = lost.expect("done");
    pool.close().expect("closed");
    let said = notes(&check(&*path).expect("checked"));
    for wanted in [
        format!("node.next points to a node at {words:#x} of the heap, which is of the type text"),
        format!("node.links points to an object at {last:#x} of the heap, which is free"),
        "nothing that the root leads to points to 2 of node".to_owned(),
    ] {
        // The freed slot may have been taken by the object that nothing leads to.
        assert!(
            said.contains(&wanted) || (lost == last && wanted.contains("which is free")),
            "{wanted}: {said}"
        );
    }
}

#[test]
fn a_type_without_fields_may_lead_anywhere_and_that_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    let pool = Pool::create(&path, &options()).expect("created");
    let (node, text) = (node_type(false), text_type());
    describe(&pool, &[&node, &text]);
    list(&pool, &node, &text);
    pool.close().expect("closed");
    let said = notes(&check(&*path).expect("checked"));
    assert!(said.contains("2 of node") && said.contains("1 of text"), "{said}");
    assert!(said.contains("but node may have pointers that the list of types does not show"), "{said}");
    // Numbers are shown as far as their size says what they are.
    let shown = values(&path, "node").remove(0);
    assert!(
        shown.contains("number: 4294967293, next: 0, place: 0x") && shown.contains("name: \"hello\""),
        "{shown}"
    );
}

#[test]
fn a_length_that_contradicts_the_type_is_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, odd) = (folder.path().join("a.pool"), folder.path().join("odd.pool"));
    // Without checksums of pages, which would see it first.
    let plain = Options { checksums: false, ..options() };
    let pool = Pool::create(&path, &plain).expect("created");
    let (node, point, text) = (node_type(true), point_type(), text_type());
    describe(&pool, &[&node, &point, &text]);
    let [first, ..] = list(&pool, &node, &text);
    let start = pool.header().heap_start + first + 8;
    pool.close().expect("closed");
    for (bytes, wanted) in [(63u64, "its type node has 64"), (1 << 20, "its place has fewer")] {
        let mut file = std::fs::read(&path).expect("read");
        file[start as usize..][..8].copy_from_slice(&bytes.to_le_bytes());
        std::fs::write(&odd, file).expect("written");
        let report = check(&*odd).expect("checked");
        let damage: Vec<&str> = report.damage().map(|one| one.what.as_str()).collect();
        assert!(damage.len() == 1 && damage[0].contains(wanted), "{damage:?}");
        assert!(values(&odd, "node").iter().any(|value| !value.starts_with('{')), "it is shown as bytes");
    }
}

#[test]
fn an_object_of_c_in_a_damaged_page_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    let pool = Pool::create(&path, &options()).expect("created");
    let (node, point, text) = (node_type(true), point_type(), text_type());
    describe(&pool, &[&node, &point, &text]);
    let [first, ..] = list(&pool, &node, &text);
    let start = pool.header().heap_start + first + 16;
    pool.close().expect("closed");
    let mut file = std::fs::read(&path).expect("read");
    file[start as usize] ^= 4;
    std::fs::write(&path, file).expect("written");
    let report = check(&*path).expect("checked");
    let keys: Vec<&str> = report
        .findings
        .iter()
        .filter(|one| one.level == Level::Damage)
        .map(|one| one.what.as_str())
        .collect();
    assert!(keys.contains(&&*format!("the node at {first:#x} of the heap is lost")), "{keys:?}");
}

fn value(bytes: &[&[u8]]) -> Vec<u8> {
    bytes.concat()
}

/// A dict and an array as Python writes them, and objects of C with types.
fn mixed(pool: &Pool) -> Result<()> {
    let (node, point, text) = (node_type(true), point_type(), text_type());
    describe(pool, &[&node, &point, &text]);
    list(pool, &node, &text);
    pool.tx(|t| {
        let at = root_or(t)?;
        let (names, settings) = (Table::create(t)?, Table::create(t)?);
        t.get_mut(at)?.names = names.offset();
        let elements: Vec<u8> = [1.0f64, 2.5, -3.0].iter().flat_map(|one| one.to_le_bytes()).collect();
        let array = t.alloc_raw(ARRAY_TYPE, &[&[0; ARRAY_PAD], &elements])?;
        names.put(t, b"settings", &value(&[&[1], &settings.offset().to_le_bytes()]))?;
        let shape = value(&[&[2], &array.to_le_bytes(), b"f\x08\x01", &3u64.to_le_bytes()]);
        names.put(t, b"weights", &shape)?;
        for (key, kept) in [
            (&b"\x05\x04rate"[..], &b"\x04\x00\x00\x00\x00\x00\x00\xd0\x3f"[..]),
            (b"\x03\x01\x07", b"\x07\x02\x02\x05\x01a"),
            (b"\x06\x01\xff", b"\x09\x01\x05\x01k\x08\x01\x00"),
            (b"\x05\x03now", b"\x0b\x03<i4\x04\x09\x00\x00\x00"),
        ] {
            settings.put(t, key, kept)?;
        }
        Ok::<_, Error>(())
    })
}

fn expected(path: &Path) {
    let entries = values(path, "dict entry");
    for wanted in [
        "{ key: \"rate\", value: 0.25 }",
        "{ key: 7, value: [true, \"a\"] }",
        "{ key: 0xff, value: {\"k\": tuple(None)} }",
        "{ key: \"now\", value: numpy <i4(9) }",
    ] {
        assert!(entries.iter().any(|entry| entry == wanted), "{wanted}: {entries:?}");
    }
    assert!(
        entries.iter().any(|entry| entry.starts_with("{ key: \"weights\", value: array f8[3] 0x")),
        "{entries:?}"
    );
    assert!(
        entries.iter().any(|entry| entry.starts_with("{ key: \"settings\", value: dict 0x")),
        "{entries:?}"
    );
    let dicts = values(path, "dict");
    assert!(dicts.contains(&"{ name: \"settings\", entries: 4 }".to_owned()), "{dicts:?}");
    assert_eq!(values(path, "array"), ["{ name: \"weights\", type: \"f8[3]\", elements: [1.0, 2.5, -3.0] }"]);
    assert!(values(path, "node")[0].starts_with("{ number: -3, next: null, place: { x: 1.5, y: -2.0 }"));
    assert_eq!(notes(&check(path).expect("checked")), "");
}

#[test]
fn dicts_and_arrays_of_python_are_shown_by_name_and_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    let pool = Pool::create(&path, &options()).expect("created");
    mixed(&pool).expect("made");
    pool.close().expect("closed");
    expected(&path);
}

/// A golden file: the file's bytes, then lines of 32 bytes in hexadecimal with their place; lines of zeros are left out.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn written(name: &str, build: impl FnOnce(&Pool)) {
    if std::env::var("MEMLIFT_GOLDEN").as_deref() != Ok("write") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    let pool = Pool::create(&path, &options()).expect("created");
    build(&pool);
    pool.close().expect("closed");
    let bytes = std::fs::read(&path).expect("read");
    let mut text = format!("{} bytes\n", bytes.len());
    for (at, line) in bytes.chunks(32).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0)) {
        let _ = write!(text, "{:x} ", at * 32);
        line.iter().for_each(|byte| write!(text, "{byte:02x}").expect("text"));
        text.push('\n');
    }
    std::fs::write(golden(name), text).expect("written");
}

fn kept(name: &str, target: &Path) {
    let text = std::fs::read_to_string(golden(name)).expect("the golden file");
    let mut lines = text.lines();
    let bytes = lines.next().and_then(|line| line.strip_suffix(" bytes")).expect("a length");
    let mut file = vec![0; bytes.parse().expect("a number")];
    for line in lines {
        let (at, digits) = line.split_once(' ').expect("a place and bytes");
        let at = usize::from_str_radix(at, 16).expect("hexadecimal");
        for (index, pair) in digits.as_bytes().chunks(2).enumerate() {
            let pair = std::str::from_utf8(pair).expect("digits");
            file[at + index] = u8::from_str_radix(pair, 16).expect("hexadecimal");
        }
    }
    std::fs::write(target, file).expect("written");
}

#[test]
fn pools_of_earlier_releases_are_shown_as_far_as_they_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    let text = || described("text", 0, &[]);
    written("foreign-1.txt", |pool| {
        let node = node_type(false);
        describe(pool, &[&node, &text()]);
        list(pool, &node, &text());
    });
    kept("foreign-1.txt", &path);
    let shown = values(&path, "node").remove(0);
    assert!(shown.starts_with("{ number: 4294967293, next: 0, place: 0x"), "{shown}");
    assert_eq!(values(&path, "text"), ["\"a text of any length\""]);
    assert!(notes(&check(&*path).expect("checked")).contains("but node may have pointers"));
    // A program that knows the types of its fields says them, and finds its objects as before.
    let pool = Pool::open(&path, &options()).expect("opened");
    describe(&pool, &[&node_type(true), &point_type(), &text_type()]);
    pool.close().expect("closed");
    let shown = values(&path, "node").remove(0);
    assert!(
        shown.starts_with("{ number: -3, next: null, place: { x: 1.5, y: -2.0 }, name: \"hello\""),
        "{shown}"
    );
}

#[test]
fn pools_with_types_stay_readable() {
    written("foreign-2.txt", |pool| mixed(pool).expect("made"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    kept("foreign-2.txt", &path);
    expected(&path);
}
