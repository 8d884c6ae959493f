// SPDX-License-Identifier: Apache-2.0 OR MIT
//! check, dump, convert and repair on sound pools: they say what is there and touch nothing.

use crate::sample;
use memlift_persist::check::{Level, Part, check, summary};
use memlift_persist::convert::{Conversion, convert};
use memlift_persist::dump::{Filter, Object, Value, dump};
use memlift_persist::repair::{repair, repair_in_place};
use memlift_persist::{Error, Mechanism, Options, PPtr, Pool, View};

fn open(path: &std::path::Path) -> Pool {
    Pool::open(path, &Options { max_bytes: 64 << 20, ..Options::default() }).expect("opened")
}

fn objects(path: &std::path::Path, filter: &Filter) -> Vec<Object> {
    let mut all = Vec::new();
    dump(path, filter, |object| {
        all.push(object);
        true
    })
    .expect("dumped");
    all
}

#[test]
fn a_sound_pool_is_described_and_not_touched() {
    for mechanism in Mechanism::ALL {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("a.pool"), folder.path().join("b.pool"));
        let pool = sample::build(&path, mechanism, Some(&copy)).expect("built");
        assert!(matches!(check(&path), Err(Error::InUse { .. })), "its owner has it");
        pool.close().expect("closed");
        for (file, waits) in [(&path, false), (&copy, true)] {
            let before = std::fs::read(file).expect("read");
            let report = check(file).expect("checked");
            assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
            assert_eq!(report.waiting.0 > 0, waits, "{mechanism:?}");
            let counts: Vec<(&str, u64)> =
                report.types.iter().map(|one| (one.name.as_str(), one.objects)).collect();
            assert_eq!(counts, [("Large", 1), ("Node", sample::KEYS), ("[u8]", sample::KEYS)]);
            assert_eq!(report.root.as_ref().map(|(_, name)| name.as_str()), Some("Node"));
            // Nothing points to the large one.
            let lost: Vec<&str> = report
                .findings
                .iter()
                .filter(|one| one.part == Part::Objects)
                .map(|one| one.what.as_str())
                .collect();
            assert!(lost.len() == 1 && lost[0].contains("1 of Large"), "{lost:?}");
            assert_eq!(summary(file).expect("looked at").types, report.types);
            assert_eq!(std::fs::read(file).expect("read"), before, "{mechanism:?}: check wrote");
        }
    }
}

#[test]
fn objects_are_decoded_by_the_catalog() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("a.pool"), folder.path().join("b.pool"));
    drop(sample::build(&path, Mechanism::Redo, Some(&copy)).expect("built"));
    for file in [&path, &copy] {
        let nodes = objects(file, &Filter { name: Some("Node".to_owned()), offset: None });
        assert_eq!(nodes.len() as u64, sample::KEYS);
        let Value::Struct(fields) = &nodes[3].value else { panic!("{:?}", nodes[3]) };
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["key", "name", "next", "other", "place", "label"]);
        assert_eq!(fields[0].1, Value::Unsigned(3));
        assert_eq!(fields[2].1, Value::Pointer { name: "Node".to_owned(), offset: nodes[2].offset });
        let Value::Slice { elements: 6, first, .. } = &fields[1].1 else { panic!("{:?}", fields[1]) };
        assert_eq!(*first, [Value::Bytes(b"node 3".to_vec())]);
        assert_eq!(fields[5].1.to_string(), "\"golden\"");
        let at = objects(file, &Filter { name: None, offset: Some(nodes[3].offset + 17) });
        assert_eq!(at, [nodes[3].clone()]);
    }
    let wrong = dump(&path, &Filter { name: Some("Nobody".to_owned()), offset: None }, |_| true);
    assert!(matches!(wrong, Err(Error::Argument { what }) if what.contains("it has: [u8], Node, Large")));
    let mut seen = 0;
    dump(&path, &Filter::default(), |_| {
        seen += 1;
        seen < 5
    })
    .expect("dumped");
    assert_eq!(seen, 5, "stops when it is told to");
}

#[test]
fn conversion_keeps_every_object_where_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    for source in Mechanism::ALL {
        let (path, copy) = (folder.path().join("a.pool"), folder.path().join("b.pool"));
        drop(sample::build(&path, source, Some(&copy)).expect("built"));
        for target in Mechanism::ALL {
            let made = folder.path().join("c.pool");
            let wish = Conversion {
                mechanism: Some(target),
                lanes: Some(3),
                lane_bytes: Some(64 << 10),
                sections: Some(4),
                heap_bytes: Some(1 << 20),
            };
            let converted = convert(&copy, &made, &wish).expect("converted");
            assert!(converted.replayed > 0);
            let report = check(&made).expect("checked");
            assert!(report.sound(), "{source:?} → {target:?}: {:?}", report.findings);
            let (before, after) = (objects(&copy, &Filter::default()), objects(&made, &Filter::default()));
            assert_eq!(before, after, "{source:?} → {target:?}");
            let pool = open(&made);
            assert_eq!((pool.mechanism(), pool.header().sections), (target, 4));
            assert_eq!(sample::keys(&pool).expect("read"), sample::all());
            pool.tx(|t| t.alloc(7u64)).expect("it can be written to");
            drop(pool);
            assert!(matches!(convert(&copy, &made, &wish), Err(Error::Exists { .. })));
            std::fs::remove_file(&made).expect("removed");
        }
        let small = Conversion { heap_bytes: Some(96 << 10), ..Conversion::default() };
        let refused = convert(&path, folder.path().join("d.pool"), &small);
        assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
        std::fs::remove_file(&path).expect("removed");
        std::fs::remove_file(&copy).expect("removed");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0, "nothing is left behind");
}

#[test]
fn sections_in_use_are_not_converted_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    let options = Options { sections: 8, ..sample::options(Mechanism::Redo) };
    let pool = Pool::create(&path, &options).expect("created");
    pool.tx(|t| t.alloc_in(5, 1u64)).expect("made");
    drop(pool);
    let to = |sections| Conversion { sections: Some(sections), ..Conversion::default() };
    let refused = convert(&path, folder.path().join("b.pool"), &to(5));
    assert!(matches!(refused, Err(Error::Argument { what }) if what.contains("6 sections are the fewest")));
    convert(&path, folder.path().join("b.pool"), &to(6)).expect("converted");
}

#[test]
fn a_sound_pool_is_repaired_by_changing_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in Mechanism::ALL {
        let (path, copy) = (folder.path().join("a.pool"), folder.path().join("b.pool"));
        drop(sample::build(&path, mechanism, Some(&copy)).expect("built"));
        let before = std::fs::read(&path).expect("read");
        let target = folder.path().join("c.pool");
        let repaired = repair(&path, &target).expect("repaired");
        assert!(repaired.changes.is_empty(), "{mechanism:?}: {:?}", repaired.changes);
        assert!(repaired.report.sound());
        assert_eq!(std::fs::read(&path).expect("read"), before, "the source is as it was");
        assert!(matches!(repair(&path, &target), Err(Error::Exists { .. })));
        assert_eq!(sample::keys(&open(&target)).expect("read"), sample::all());
        let repaired = repair_in_place(&copy).expect("repaired");
        assert!(repaired.changes.iter().all(|one| one.part == Part::Log), "{:?}", repaired.changes);
        assert_eq!(repaired.changes.len(), 1, "the log is replayed");
        assert_eq!(sample::keys(&open(&copy)).expect("read"), sample::all());
        for file in [path, copy, target] {
            std::fs::remove_file(file).expect("removed");
        }
    }
}

#[test]
fn pointers_to_what_was_freed_are_notes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    let pool = sample::build(&path, Mechanism::Redo, None).expect("built");
    pool.tx(|t| {
        let first = t.root::<sample::Node>()?.expect("there");
        let gone = t.alloc(*t.get(first)?)?;
        t.get_mut(first)?.other[0] = gone;
        t.get_mut(first)?.other[1] = PPtr::from_offset(0xdead_0000);
        t.free(gone)
    })
    .expect("committed");
    drop(pool);
    let report = check(&path).expect("checked");
    assert!(report.sound(), "a program's mistake is no damage");
    let notes: Vec<&str> =
        report.findings.iter().filter(|one| one.level == Level::Note).map(|one| one.what.as_str()).collect();
    assert!(
        notes
            .iter()
            .any(|one| one.contains("Node.other[0] points to a Node") && one.contains("which is free"))
    );
    assert!(
        notes.iter().any(|one| one.contains("Node.other[1] points to a Node at 0xdead0000")),
        "{notes:?}"
    );
}
