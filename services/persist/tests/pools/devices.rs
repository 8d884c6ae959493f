// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools over several files: one sync per commit, all files in step before the log forgets, and files that do not belong
//! together.

use std::path::PathBuf;

use memlift_persist::{Domain, Error, Mechanism, Options, PPtr, Persist, Pool, Survives, View};

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Block {
    words: [u64; 512],
}

fn options(mechanism: Mechanism) -> Options {
    Options {
        heap_bytes: 4 << 20,
        max_bytes: 64 << 20,
        lanes: 2,
        lane_bytes: 256 << 10,
        stripe_bytes: 64 << 10,
        domain: Domain::Pages,
        mechanism,
        ..Options::default()
    }
}

fn files(folder: &tempfile::TempDir, name: &str) -> Vec<PathBuf> {
    (0..3).map(|at| folder.path().join(format!("{name}{at}.pool"))).collect()
}

fn fill(pool: &Pool, blocks: u64) -> Vec<PPtr<Block>> {
    let put = |at| pool.tx(|t| t.alloc(Block { words: [at; 512] })).expect("committed");
    (0..blocks).map(put).collect()
}

fn verify(pool: &Pool, blocks: &[PPtr<Block>]) {
    pool.read(|r| {
        for (at, block) in blocks.iter().enumerate() {
            assert_eq!(r.get(*block)?.words, [at as u64; 512]);
        }
        Ok::<_, Error>(())
    })
    .expect("read");
}

#[test]
fn data_lies_in_all_files_and_comes_back_in_any_order_of_names() {
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut paths = files(&folder, "a");
        let pool = Pool::create_interleaved(&paths, &options(mechanism)).expect("created");
        assert!(pool.guarantee().survives >= Survives::Process);
        let blocks = fill(&pool, 500);
        pool.apply().expect("applied");
        for path in &paths {
            let bytes = std::fs::read(path).expect("read");
            let words = bytes.as_chunks::<8>().0;
            assert!(words.iter().filter(|word| **word != [0; 8]).count() > 512 * 100, "{}", path.display());
        }
        pool.close().expect("closed");
        paths.rotate_left(1);
        let pool = Pool::open_interleaved(&paths, &options(mechanism)).expect("opened");
        verify(&pool, &blocks);
        let more = fill(&pool, 600); // it grows
        verify(&pool, &more);
    }
}

#[test]
fn what_is_in_the_log_only_is_recovered_to_all_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = files(&folder, "a");
    let pool = Pool::create_interleaved(&paths, &options(Mechanism::Redo)).expect("created");
    let blocks = fill(&pool, 25);
    let copies = files(&folder, "copy");
    for (path, copy) in paths.iter().zip(&copies) {
        std::fs::copy(path, copy).expect("what a kill would leave");
    }
    let again = Pool::open_interleaved(&copies, &options(Mechanism::Redo)).expect("recovered");
    assert_eq!(again.recovered().transactions, 25);
    verify(&again, &blocks);
}

#[test]
fn a_commit_is_one_sync_and_the_other_files_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let syncs = |every: bool, name: &str| {
        let options = Options { sync_every_device: every, ..options(Mechanism::Redo) };
        let pool = Pool::create_interleaved(&files(&folder, name), &options).expect("created");
        let blocks = fill(&pool, 4);
        let before = pool.device_syncs();
        for turn in 0..8 {
            pool.tx(|t| {
                for block in &blocks {
                    t.get_mut(*block)?.words[0] = turn + 100;
                }
                Ok::<_, Error>(())
            })
            .expect("committed");
        }
        let after = pool.device_syncs();
        after.iter().zip(&before).map(|(after, before)| after - before).collect::<Vec<_>>()
    };
    assert_eq!(syncs(false, "delayed"), [8, 0, 0]);
    let every = syncs(true, "every");
    assert!(every[0] == 8 && every.iter().sum::<u64>() > 8, "{every:?}");
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (files(&folder, "one"), files(&folder, "two"));
    let made = options(Mechanism::Redo);
    drop(Pool::create_interleaved(&one, &made).expect("created"));
    drop(Pool::create_interleaved(&two, &made).expect("created"));
    let refused = |paths: &[PathBuf]| {
        let error = Pool::open_interleaved(paths, &made).expect_err("refused");
        let text = error.to_string();
        assert!(text.len() > 20, "{text}");
    };
    refused(&one[..2]);
    refused(&[one[0].clone(), one[1].clone(), one[1].clone()]);
    refused(&[one[0].clone(), one[1].clone(), two[2].clone()]);
    refused(&[one[0].clone(), one[1].clone(), folder.path().join("none")]);
    assert!(Pool::open(&one[0], &made).is_err(), "one of three");
    for mechanism in [Mechanism::Undo, Mechanism::Shadow] {
        let error =
            Pool::create_interleaved(&files(&folder, "no"), &options(mechanism)).expect_err("refused");
        assert!(matches!(error, Error::Argument { .. }), "{error}");
    }
    drop(Pool::open_interleaved(&one, &made).expect("nothing was harmed"));
}
