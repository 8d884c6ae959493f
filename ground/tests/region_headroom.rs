// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Headroom on made-up /proc and /sys/fs/cgroup trees: v1, v2, both, containers, ancestors, no limit at all.

use std::path::Path;

use memlift_ground::region::{Headroom, RegionError};

const MIB: u64 = 1 << 20;
const UNLIMITED_V1: u64 = 9_223_372_036_854_771_712;

struct Tree {
    root: tempfile::TempDir,
}

impl Tree {
    /// A machine with `available` of 64 GiB.
    fn new(available: u64, cgroup: &str, mountinfo: &str) -> Tree {
        let tree = Tree { root: tempfile::tempdir().unwrap() };
        let kib = available / 1024;
        tree.write(
            "proc/meminfo",
            &format!("MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: {kib} kB\n"),
        );
        tree.write("proc/self/cgroup", cgroup);
        tree.write("proc/self/mountinfo", mountinfo);
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn v2(&self, group: &str, max: &str, current: u64, inactive_file: u64) {
        self.write(&format!("{group}/memory.max"), &format!("{max}\n"));
        self.write(&format!("{group}/memory.current"), &format!("{current}\n"));
        self.write(
            &format!("{group}/memory.stat"),
            &format!("anon 1\ninactive_file {inactive_file}\nfile 9\n"),
        );
    }

    fn v1(&self, group: &str, limit: u64, usage: u64, inactive_file: u64) {
        self.write(&format!("{group}/memory.limit_in_bytes"), &format!("{limit}\n"));
        self.write(&format!("{group}/memory.usage_in_bytes"), &format!("{usage}\n"));
        let stat = format!("cache 1\ninactive_file 1\ntotal_inactive_file {inactive_file}\n");
        self.write(&format!("{group}/memory.stat"), &stat);
    }

    fn read(&self) -> Headroom {
        Headroom::read_from(self.root.path())
    }
}

const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";

#[test]
fn without_cgroups_the_machine_is_the_limit() {
    let headroom = Tree::new(5 * MIB, "", "").read();
    assert_eq!(headroom.bytes, 5 * MIB);
    assert_eq!(headroom.limit_bytes, 64 << 30);
    assert!(headroom.source.contains("MemAvailable"));
}

#[test]
fn without_any_source_nothing_is_refused() {
    let headroom = Headroom::read_from(Path::new("/nonexistent"));
    assert_eq!(headroom.bytes, u64::MAX);
    headroom.check(1 << 40).unwrap();
}

#[test]
fn v2_counts_inactive_file_cache_as_free() {
    let tree = Tree::new(32 << 30, "0::/app.slice/job\n", V2_MOUNT);
    tree.v2("sys/fs/cgroup/app.slice/job", "1073741824", 900 * MIB, 300 * MIB);
    let headroom = tree.read();
    assert_eq!(headroom.bytes, (1024 - 900 + 300) * MIB);
    assert_eq!(headroom.limit_bytes, 1024 * MIB);
    assert_eq!(headroom.source, "/sys/fs/cgroup/app.slice/job/memory.max");
}

#[test]
fn v2_ancestors_limit_too_and_max_means_none() {
    let tree = Tree::new(32 << 30, "0::/a/b/c\n", V2_MOUNT);
    tree.v2("sys/fs/cgroup/a/b/c", "max", 10 * MIB, 0);
    tree.v2("sys/fs/cgroup/a/b", "536870912", 412 * MIB, 0);
    tree.v2("sys/fs/cgroup/a", "1073741824", 500 * MIB, 0);
    let headroom = tree.read();
    assert_eq!(headroom.bytes, 100 * MIB);
    assert_eq!(headroom.source, "/sys/fs/cgroup/a/b/memory.max");
}

#[test]
fn v1_with_parents() {
    let tree = Tree::new(32 << 30, "5:cpu,cpuacct:/x\n4:memory:/pods/one\n1:name=systemd:/\n", V1_MOUNT);
    tree.v1("sys/fs/cgroup/memory/pods/one", UNLIMITED_V1, 10 * MIB, 0);
    tree.v1("sys/fs/cgroup/memory/pods", 256 * MIB, 250 * MIB, 50 * MIB);
    tree.v1("sys/fs/cgroup/memory", UNLIMITED_V1, 9 << 30, 0);
    let headroom = tree.read();
    assert_eq!(headroom.bytes, 56 * MIB);
    assert_eq!(headroom.source, "/sys/fs/cgroup/memory/pods/memory.limit_in_bytes");
}

#[test]
fn hybrid_takes_memory_from_v1() {
    let both = format!("41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n{V1_MOUNT}");
    let tree = Tree::new(32 << 30, "4:memory:/job\n0::/user.slice\n", &both);
    tree.write("sys/fs/cgroup/unified/user.slice/cgroup.procs", "");
    tree.v1("sys/fs/cgroup/memory/job", 128 * MIB, 28 * MIB, 0);
    assert_eq!(tree.read().bytes, 100 * MIB);
}

#[test]
fn a_container_sees_its_group_as_the_root_of_the_mount() {
    // Without a cgroup namespace the path is the host's, and so is the root of the bind mount.
    let mount = "35 31 0:32 /docker/f00 /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory\n";
    let tree = Tree::new(32 << 30, "4:memory:/docker/f00\n", mount);
    tree.v1("sys/fs/cgroup/memory", 64 * MIB, 60 * MIB, 0);
    assert_eq!(tree.read().bytes, 4 * MIB);
    // With one, the group lies outside of what is mounted.
    for group in ["0::/../../sibling\n", "0::/\n"] {
        let tree = Tree::new(32 << 30, group, V2_MOUNT);
        tree.v2("sys/fs/cgroup", "67108864", 60 * MIB, 0);
        assert_eq!(tree.read().bytes, 4 * MIB, "{group}");
    }
}

#[test]
fn a_mount_point_with_a_blank_is_found() {
    let mount = "30 23 0:26 / /cg\\040roups rw - cgroup2 cgroup2 rw\n";
    let tree = Tree::new(32 << 30, "0::/job\n", mount);
    tree.v2("cg roups/job", "67108864", 0, 0);
    assert_eq!(tree.read().bytes, 64 * MIB);
}

#[test]
fn use_above_the_limit_leaves_nothing() {
    let tree = Tree::new(32 << 30, "0::/job\n", V2_MOUNT);
    tree.v2("sys/fs/cgroup/job", "67108864", 80 * MIB, 0);
    assert_eq!(tree.read().bytes, 0);
}

#[test]
fn nonsense_in_the_files_is_no_limit() {
    let tree = Tree::new(MIB, "0::/job\nrubbish\n::::\n", &format!("short\n - \n1 2 - x\n{V2_MOUNT}"));
    tree.write("sys/fs/cgroup/job/memory.max", "lots\n");
    tree.write("sys/fs/cgroup/job/memory.current", "\u{0}");
    assert_eq!(tree.read().bytes, MIB);
}

#[test]
fn the_check_keeps_a_margin_and_says_what_to_do() {
    let headroom = Headroom { bytes: 20 * MIB, limit_bytes: 64 * MIB, source: "/x/memory.max".into() };
    headroom.check(4 * MIB).unwrap();
    headroom.check(0).unwrap();
    let error = headroom.check(4 * MIB + 1).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, RegionError::Headroom { available, .. } if available == 20 * MIB));
    assert!(text.contains("/x/memory.max") && text.contains("raise that limit"), "{text}");
    assert!(headroom.check(u64::MAX).is_err());
    let nothing = Headroom { bytes: 0, ..headroom };
    nothing.check(0).unwrap();
}

#[test]
fn this_machine_has_an_answer() {
    let headroom = Headroom::read();
    assert!(headroom.bytes > 0 && headroom.bytes < u64::MAX);
    assert!(headroom.bytes <= headroom.limit_bytes);
}
