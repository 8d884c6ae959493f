// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mirror's memory is given back: what was written is the file's page cache again, with the same bytes.

use memlift_persist::{Domain, Error, Options, PPtr, Persist, Pool, View};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Block {
    words: [u64; 512],
}

/// Anonymous memory of this process that is resident, bytes: private copies of file pages are.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("RssAnon");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
}

fn write(pool: &Pool, blocks: u64) -> Vec<PPtr<Block>> {
    let put = |at| pool.tx(|t| t.alloc(Block { words: [at; 512] })).expect("committed");
    (0..blocks).map(put).collect()
}

fn verify(pool: &Pool, blocks: &[PPtr<Block>]) {
    pool.read(|r| {
        for (at, block) in blocks.iter().enumerate() {
            assert!(r.get(*block)?.words.iter().all(|word| *word == at as u64));
        }
        Ok::<_, Error>(())
    })
    .expect("read");
}

#[test]
fn the_mirror_stays_below_its_limit_and_nothing_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options {
        heap_bytes: 8 << 20,
        max_bytes: 1 << 30,
        lanes: 2,
        domain: Domain::Lines,
        mirror_bytes: Some(8 << 20),
        ..Options::default()
    };
    let pool = Pool::create(folder.path().join("a.pool"), &options).expect("created");
    let before = anonymous();
    let blocks = write(&pool, 30_000);
    let grown = anonymous().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes of memory for 120 MB of objects");
    verify(&pool, &blocks);
    pool.tx(|t| {
        t.get_mut(blocks[7])?.words[3] = 1;
        t.get_mut(blocks[7])?.words[3] = 7;
        Ok::<_, Error>(())
    })
    .expect("committed");
    pool.trim().expect("trimmed");
    assert_eq!(pool.private_bytes(), Some(0));
    verify(&pool, &blocks);
    pool.close().expect("closed");
    let pool = Pool::open(folder.path().join("a.pool"), &options).expect("opened");
    verify(&pool, &blocks);
}
