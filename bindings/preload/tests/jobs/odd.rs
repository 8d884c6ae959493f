// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of others, as a distribution has them, beyond their budget. What is not installed is said and skipped.

use crate::job;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::job::{Job, MIB};
use memlift_zmem::block::{Counter, ENV_SPILL, OnOverflow};

fn is_there(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Runs a command of `sh` or `bash` in an empty folder, with and without the budget; both must say the same.
fn same(total: usize, shell: &str, text: &str) {
    let run = |prepare: &dyn Fn() -> Command| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = prepare();
        command
            .arg("-ec")
            .arg(text)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .env("HOME", folder.path());
        let output = command.output().expect("it starts");
        job::content(shell, &[text], &output)
    };
    let expected = run(&|| Command::new(shell));
    assert!(!expected.trim().is_empty(), "{text} says something");
    // As `memlift run` does: who finds no room waits for the others.
    let job = Job::with(total, OnOverflow::Pause { limit_s: 60 });
    let spill = tempfile::tempdir_in("/var/tmp").expect("a folder on a disk");
    let covered = || {
        let mut command = job.command(shell);
        command.env(ENV_SPILL, spill.path());
        command
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // As the supervisor does: what processes held that have ended comes back.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                job.registry.sweep_block(job.admission.block());
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&covered)));
        over.store(true, Ordering::Relaxed);
        assert_eq!(said.unwrap_or_else(|error| std::panic::resume_unwind(error)), expected);
    });
    let ledger = job.admission.ledger();
    // Pages that a fork shares are spilled and not stored.
    let ways = [Counter::PagesStored, Counter::PagesFilled, Counter::PagesSpilled];
    let away: u64 = ways.iter().map(|way| ledger.counted(*way)).sum();
    let faults = ledger.counted(Counter::Faults);
    println!("{faults} faults, {away} pages away, {} calls trapped", ledger.counted(Counter::TrappedCalls));
    assert!(faults > 100 && away > 100, "nothing was away: {faults} faults, {away} pages away");
}

#[test]
fn bash_with_a_large_array_and_pipes() {
    if is_there("bash") {
        same(
            10 * MIB,
            "bash",
            "for ((i = 0; i < 60000; i++)); do a+=(\"item $i $((i * i))\"); done; echo ${#a[@]} ${a[777]} ${a[59999]}; \
             printf '%s\\n' \"${a[@]}\" | sort -n -k3 | md5sum; (b=(\"${a[@]}\"); echo ${b[12345]}); \
             trap 'echo caught' USR1; kill -USR1 $$; echo $(echo ${a[40000]})",
        );
    }
}

/// A process that becomes another just when memory is short; and the descriptors that scripts choose are theirs. Each exec adds a
/// filter, and the kernel takes only so many instructions of filters for a process.
#[test]
fn bash_becomes_bash_again_and_again() {
    if is_there("bash") {
        same(
            10 * MIB,
            "bash",
            "for ((i = 0; i < 120000; i++)); do a+=(\"item $i $((i * i))\"); done; \
             exec 3< <(echo three); read -r line <&3; echo $line; \
             again='n=$((n + 1)); export n; [ $n -lt 60 ] && exec bash -c \"$0\" \"$0\"; echo $n'; \
             for k in 1 2 3; do n=0 bash -c \"$again\" \"$again\"; done; echo ${#a[@]} ${a[119999]}",
        );
    }
}

#[test]
fn sqlite_in_memory() {
    if is_there("sqlite3") {
        same(
            16 * MIB,
            "sh",
            "sqlite3 :memory: 'pragma cache_size=-200000; create table t(a integer primary key, b text, c real); \
             with recursive n(i) as (select 1 union all select i + 1 from n where i < 300000) \
             insert into t select i, \"row\" || i, i * 0.5 from n; create index x on t(b); \
             select count(*), sum(a), sum(c), min(b), max(b) from t; select * from t where b = \"row77777\"; \
             delete from t where a % 3 = 0; vacuum; select count(*), sum(length(b)) from t; pragma integrity_check;'",
        );
    }
}

#[test]
fn make_with_compilers_beside_each_other() {
    if is_there("make") && is_there("bash") {
        same(
            72 * MIB,
            "bash",
            "for i in 1 2 3 4; do { echo '#include <stdio.h>'; for j in $(seq 1 400); do \
             echo \"int f${i}_$j(int x) { int s = 0; for (int i = 0; i < x; i++) s += i * $j; return s; }\"; done; } > f$i.c; done; \
             echo 'int f1_7(int); int f4_9(int); int printf(const char *, ...); int main(void) { printf(\"%d %d\\n\", f1_7(9), f4_9(8)); }' > main.c; \
             printf 'p: main.o f1.o f2.o f3.o f4.o\\n\\tcc -o p $^\\n%%.o: %%.c\\n\\tcc -O1 -c -o $@ $<\\n' > Makefile; \
             make -s -j4; ./p; ls -l *.o | awk '{ s += $5 } END { print s }'",
        );
    }
}

#[test]
fn node_with_a_heap_of_objects() {
    if is_there("node") {
        same(
            160 * MIB,
            "sh",
            "node -e 'const a = []; for (let i = 0; i < 200000; i++) a.push({ id: i, name: \"item\" + i, list: [i, i + 1, i + 2] }); \
             const buffer = Buffer.alloc(48 << 20, \"abcdefgh\"); const text = JSON.stringify(a); const b = JSON.parse(text); \
             let s = 0; for (const x of b) s += x.list[2] + x.name.length; \
             console.log(text.length, s, buffer.readUInt32LE(47 << 20), require(\"crypto\").createHash(\"sha1\").update(buffer).digest(\"hex\"));'",
        );
    }
}

#[test]
fn java_with_a_heap_of_its_own() {
    if !is_there("java") || !is_there("javac") {
        return;
    }
    same(
        128 * MIB,
        "sh",
        "cat > M.java <<'END'
import java.util.*;
public class M {
    static int deep(int n) { return n == 0 ? 0 : 1 + deep(n - 1); }
    public static void main(String[] a) throws Exception {
        HashMap<String, long[]> map = new HashMap<>();
        for (int i = 0; i < 150000; i++) map.put(\"key\" + i, new long[] { i, i * 2L, i * 3L, 7, 7, 7, 7, 7 });
        long sum = 0;
        for (Map.Entry<String, long[]> e : map.entrySet()) sum += e.getValue()[2] + e.getKey().length();
        int caught = 0;
        try { deep(100000000); } catch (StackOverflowError e) { caught++; }
        try { Object o = null; o.hashCode(); } catch (NullPointerException e) { caught++; }
        Thread[] threads = new Thread[4];
        long[] sums = new long[4];
        for (int t = 0; t < 4; t++) { final int u = t; threads[t] = new Thread(() -> { long s = 0; for (int r = 0; r < 5; r++) for (int i = u; i < 150000; i += 4) s += map.get(\"key\" + i)[1]; sums[u] = s; }); threads[t].start(); }
        for (Thread t : threads) t.join();
        System.out.println(sum + \" \" + caught + \" \" + Arrays.stream(sums).sum());
    }
}
END
         javac -J-Xmx128m -J-XX:+UseSerialGC M.java; java -Xmx160m -Xms160m -XX:+UseSerialGC -XX:+AlwaysPreTouch M",
    );
}

#[test]
fn greenlets_switch_with_stacks_that_are_copied() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let python = if python.exists() { python } else { "python3".into() };
    let there = Command::new(&python).args(["-c", "import greenlet"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: greenlet is not installed for {}", python.display());
        return;
    }
    let text = format!(
        "{} -c 'import greenlet
kept = [bytes([i % 256]) * 3000 for i in range(16000)]
def body(n):
    mine = [n] * 500
    for i in range(20):
        greenlet.getcurrent().parent.switch()
        assert mine == [n] * 500 and kept[n * 7 + i][5] == (n * 7 + i) % 256
all = [greenlet.greenlet(lambda n=n: body(n)) for n in range(200)]
while any(not g.dead for g in all):
    for g in all:
        if not g.dead: g.switch()
print(\"right\", sum(map(len, kept)))'",
        python.display()
    );
    same(36 * MIB, "sh", &text);
}

#[test]
fn redis_saves_in_the_background_what_was_there_when_it_forked() {
    if !is_there("redis-server") || !is_there("redis-cli") || !is_there("bash") {
        return;
    }
    same(
        14 * MIB,
        "bash",
        r#"
redis-server --port 0 --unixsocket s --save '' --dbfilename d.rdb --loglevel warning --daemonize no --maxclients 50 > log 2>&1 & server=$!
until redis-cli -s s ping > pong 2>/dev/null; do sleep 0.05; done
cli() { redis-cli -s s "$@"; }
awk 'BEGIN { for (i = 0; i < 20000; i++) { v = ""; for (j = 0; j < 12; j++) v = v "value " i * j " of " i ", "; printf "SET key:%d \"%s\"\r\n", i, v } }' > load
cli --pipe < load | tail -1
cli bgsave > /dev/null
for i in $(seq 0 997 19999); do echo "SET key:$i changed$i"; echo "HSET h f$i $i"; done | cli > /dev/null
until [ "$(cli info persistence | tr -d '\r' | grep -c 'rdb_bgsave_in_progress:0')" = 1 ]; do sleep 0.05; done
cli info persistence | tr -d '\r' | grep rdb_last_bgsave_status
cli get key:777; cli get key:997; cli dbsize
cli --raw eval 'local s = 0; for i = 0, 19999 do s = s + #redis.call("get", "key:" .. i) end; return s' 0
cli shutdown nosave; wait $server || true
redis-server --port 0 --unixsocket s --save '' --dbfilename d.rdb --loglevel warning > log2 2>&1 & server=$!
until [ "$(cli ping 2>/dev/null)" = PONG ]; do sleep 0.05; done
cli get key:997; cli dbsize
cli --raw eval 'local s = 0; for i = 0, 19999 do s = s + #redis.call("get", "key:" .. i) end; return s' 0
cli shutdown nosave; wait $server || true
"#,
    );
}

#[test]
fn git_keeps_packs_and_diffs_a_history() {
    if is_there("git") {
        same(
            9 * MIB,
            "sh",
            r#"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
git init -q -b main r; cd r; git config gc.auto 0
for i in 1 2; do
  awk -v i=$i 'BEGIN { for (f = 0; f < 30; f++) { n = "f" f; for (l = 0; l < 2500; l++) print "line " l " of " f " at " (l % 97 == i ? i : l * f % 7919) > n; close(n) } }'
  git add .; git commit -q -m "round $i"
done
git log --stat --oneline | tail -3; git gc -q --prune=now; git fsck --strict 2>&1 | tail -1
git log -p | md5sum; git count-objects -v | grep in-pack; git clone -q --no-local . ../c; cd ../c; git rev-parse HEAD
"#,
        );
    }
}
