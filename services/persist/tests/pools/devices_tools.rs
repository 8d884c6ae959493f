// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Check, dump, repair and convert over pools of several files: one name is enough when the others lie beside it.

use std::path::{Path, PathBuf};

use memlift_persist::check::{check, summary};
use memlift_persist::convert::{Conversion, convert};
use memlift_persist::dump::{Filter, dump};
use memlift_persist::repair::{repair, repair_in_place};
use memlift_persist::{Domain, Error, Mechanism, Options, PPtr, Persist, Pool, View};

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Block {
    number: u64,
    next: PPtr<Block>,
    words: [u64; 510],
}

const BLOCKS: u64 = 200;

fn options(mechanism: Mechanism) -> Options {
    Options {
        heap_bytes: 2 << 20,
        max_bytes: 16 << 20,
        lanes: 2,
        lane_bytes: 256 << 10,
        stripe_bytes: 64 << 10,
        domain: Domain::Pages,
        mechanism,
        ..Options::default()
    }
}

/// A pool of three files: closed, or copied with transactions in its log.
fn made(folder: &Path, mechanism: Mechanism, closed: bool) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = (0..3).map(|at| folder.join(format!("part{at}.pool"))).collect();
    let pool = Pool::create_interleaved(&paths, &options(mechanism)).expect("created");
    for number in 0..BLOCKS {
        pool.tx(|t| {
            let next = t.root::<Block>()?.unwrap_or(PPtr::NULL);
            let block = t.alloc(Block { number, next, words: [number; 510] })?;
            t.set_root(block)
        })
        .expect("committed");
        if number == BLOCKS - 5 {
            pool.apply().expect("applied");
        }
    }
    if closed {
        pool.close().expect("closed");
        return paths;
    }
    let away = folder.join("away");
    std::fs::create_dir(&away).expect("made");
    let copies: Vec<PathBuf> =
        paths.iter().map(|path| away.join(path.file_name().expect("a name"))).collect();
    for (path, copy) in paths.iter().zip(&copies) {
        std::fs::copy(path, copy).expect("copied");
    }
    copies
}

fn verify(pool: &Pool) {
    let mut left = BLOCKS;
    pool.read(|r| {
        let mut at = r.root::<Block>()?.expect("a root");
        while !at.is_null() {
            let block = r.get(at)?;
            left -= 1;
            assert_eq!((block.number, block.words[509]), (left, left));
            at = block.next;
        }
        Ok::<_, Error>(())
    })
    .expect("read");
    assert_eq!(left, 0);
}

#[test]
fn each_file_leads_to_the_others() {
    for (mechanism, closed) in
        [(Mechanism::Redo, true), (Mechanism::Redo, false), (Mechanism::Checkpoint, false)]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = made(folder.path(), mechanism, closed);
        let before: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).expect("read")).collect();
        for path in &paths {
            let report = check(path).expect("checked");
            assert!(report.sound(), "{:?}", report.findings);
            assert_eq!(report.types.iter().map(|one| one.objects).sum::<u64>(), BLOCKS);
            assert_eq!(report.waiting.0 > 0, !closed, "{:?}", report.waiting);
            let mut found = 0;
            dump(path, &Filter::default(), |object| {
                found += u64::from(object.name == "Block");
                true
            })
            .expect("dumped");
            assert_eq!(found, BLOCKS);
        }
        // In any order, and by all their names.
        let turned: Vec<&PathBuf> = paths.iter().rev().collect();
        assert_eq!(summary(&turned).expect("looked at").header().map(|header| header.devices), Some(3));
        let after: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).expect("read")).collect();
        assert!(before == after, "nothing was written");

        let single = folder.path().join("single.pool");
        let wish = Conversion { mechanism: Some(Mechanism::Undo), ..Conversion::default() };
        let converted = convert(&paths[1], &single, &wish).expect("converted");
        assert_eq!((converted.source.devices, converted.target.devices), (3, 1));
        verify(&Pool::open(&single, &options(Mechanism::Undo)).expect("opened"));
        assert!(check(&single).expect("checked").sound());
    }
}

#[test]
fn files_that_are_missing_or_there_twice_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = made(folder.path(), Mechanism::Redo, true);
    let copy = folder.path().join("copy of 2");
    std::fs::copy(&paths[2], &copy).expect("copied");
    let error = check(&paths[0]).expect_err("which one?").to_string();
    assert!(
        error.contains("both say that they are device 2") && error.contains("name all of its 3"),
        "{error}"
    );
    assert!(check(&paths).expect("by name").sound());
    assert!(check([&paths[0], &paths[1], &copy]).expect("by name").sound());
    std::fs::remove_file(&copy).expect("removed");
    std::fs::remove_file(&paths[2]).expect("removed");
    let error = check(&paths[0]).expect_err("one is missing").to_string();
    assert!(error.contains("device 2 is not in its folder"), "{error}");
    let error = check(&paths[..2]).expect_err("one is missing").to_string();
    assert!(error.contains("device 2 is missing"), "{error}");
}

#[test]
fn repair_works_on_copies_of_all_files_or_in_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = made(folder.path(), Mechanism::Redo, false);
    // One header of a later device, and a byte of the directory, which is in the first stripe of device 0.
    let mut second = std::fs::read(&paths[1]).expect("read");
    second[4096 + 20] ^= 1;
    std::fs::write(&paths[1], &second).expect("written");
    let header = *check(&paths).expect("checked").header().expect("a header");
    let mut first = std::fs::read(&paths[0]).expect("read");
    let entry = header.heap_start as usize + 6 * 16;
    first[entry + 6] ^= 4;
    std::fs::write(&paths[0], &first).expect("written");
    assert!(!check(&paths[2]).expect("checked").sound());

    let target = folder.path().join("good");
    let repaired = repair(&paths[2], &target).expect("repaired");
    assert!(repaired.report.sound(), "{:?}", repaired.report.findings);
    assert!(repaired.changes.iter().any(|one| one.what.contains("slab 6")), "{:?}", repaired.changes);
    let copies = [target.clone(), folder.path().join("good.1"), folder.path().join("good.2")];
    verify(&Pool::open_interleaved(&copies, &options(Mechanism::Redo)).expect("opened"));
    assert_eq!(std::fs::read(&paths[0]).expect("read"), first, "the source is as it was");

    let repaired = repair_in_place(&paths[0]).expect("repaired");
    assert!(repaired.report.sound() && !repaired.changes.is_empty());
    verify(&Pool::open_interleaved(&paths, &options(Mechanism::Redo)).expect("opened"));

    // A file that was cut off is filled up, and said so.
    let file = std::fs::OpenOptions::new().write(true).open(&copies[1]).expect("opened");
    let bytes = file.metadata().expect("looked at").len();
    file.set_len(bytes - 4096).expect("cut");
    let error = check(&copies).expect_err("cut").to_string();
    assert!(error.contains("it was truncated"), "{error}");
    let repaired = repair_in_place(&copies).expect("repaired");
    assert!(repaired.changes[0].what.contains("4096 bytes were missing"), "{:?}", repaired.changes);
}
