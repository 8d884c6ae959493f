// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of others as jobs: an interpreter full of objects, a sort, a data base in memory, a compiler.
//!
//! - **Flow** a line for the shell in a folder of its own ─▶ the checksum of what it prints ─▶ one JSON line
//! - **Rule** the same size prints the same
//! - **Needs** the program on the PATH ([`missing`])

use std::process::{Command, Stdio};

use crate::BenchError;

/// A program: its name in rows, the command that must be there, and a line in which `SIZE` is replaced.
struct Program {
    name: &'static str,
    needs: &'static [&'static str],
    package: &'static str,
    line: &'static str,
}

const PROGRAMS: [Program; 7] = [
    Program {
        name: "objects",
        needs: &["python3"],
        package: "python3",
        line: "PYTHONHASHSEED=0 python3 -c '
d = {i: (i, str(i)) for i in range(SIZE)}
for turn in range(3): d.update((i, (i + turn, str(i))) for i in range(turn, SIZE, 7))
print(sum(v[0] + len(v[1]) for v in d.values()))'",
    },
    Program {
        name: "sort",
        needs: &["sort"],
        package: "coreutils",
        line: "seq SIZE | LC_ALL=C sort -S 1G --parallel=1 -k1.3 -o sorted && cksum < sorted",
    },
    Program {
        name: "java",
        needs: &["java"],
        package: "default-jdk-headless",
        line: r#"printf 'import java.util.*; class T { public static void main(String[] a) { var m = new HashMap<Integer, String>(); long s = 0; for (int t = 0; t < 3; t++) for (int i = t; i < SIZE; i += t + 1) { m.put(i, "v" + (i + t)); s += m.get(i / 2 * 2 / (t + 1) * (t + 1)) == null ? 1 : 2; } System.out.println(m.size() + " " + s); } }' > T.java && java -XX:+UseSerialGC -Xmx1g T.java"#,
    },
    Program {
        name: "ocaml",
        needs: &["ocaml"],
        package: "ocaml-nox",
        line: r#"printf 'let h = Hashtbl.create 1000;; for t = 0 to 2 do for i = 0 to SIZE do Hashtbl.replace h (i * 7919 mod (SIZE + 1)) (string_of_int (i + t)) done done;; print_int (Hashtbl.fold (fun k v s -> s + k + String.length v) h 0);;' > t.ml && ocaml t.ml"#,
    },
    Program {
        name: "sqlite",
        needs: &["sqlite3"],
        package: "sqlite3",
        line: "sqlite3 :memory: \"create table t as with recursive n(i) as (select 1 union all select i + 1 from n where i < SIZE) select i, i * 7919 % 1000003 as k, 'text of row ' || i as s from n; create index a on t(k); create index b on t(s); select count(*), sum(x.k * y.i) from t x join t y on y.s = 'text of row ' || (x.k % SIZE + 1) where x.i % 5 = 0;\"",
    },
    Program {
        name: "perl",
        needs: &["perl"],
        package: "perl",
        line: r#"PERL_HASH_SEED=0 perl -e 'my %h; for my $t (0 .. 2) { $h{$_ * 7919 % SIZE} = "v$_" x 2 for 1 .. SIZE } my $s = 0; $s += $_ * length $h{$_} for sort { $a <=> $b } keys %h; print "$s\n"'"#,
    },
    Program {
        name: "g++",
        needs: &["g++"],
        package: "g++",
        line: r#"{ printf '#include <map>\n#include <regex>\n#include <string>\n#include <unordered_map>\n'; i=0; while [ $i -lt SIZE ]; do i=$((i + 1)); printf 'struct s%d { int v; bool operator<(s%d o) const { return v < o.v; } };\nint f%d() { std::map<s%d, std::string> m; m[{1}] = "a"; return int(m.size()); }\n' $i $i $i $i; done; } > t.cc && g++ -O1 -c t.cc && nm t.o | cut -c18- | cksum"#,
    },
];

fn program(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| program.name == name)
}

/// Returns what to install if the program of this name cannot be started.
pub(super) fn missing(name: &str) -> Option<String> {
    let program = program(name)?;
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let is_here = |need: &str| std::env::split_paths(&folders).any(|folder| folder.join(need).exists());
    let need = program.needs.iter().find(|need| !is_here(need))?;
    Some(format!("{need} is not here: apt install {}", program.package))
}

/// The program as a command that prints a report.
///
/// # Errors
///
/// When there is no such program.
pub(super) fn command(name: &str, size: u64) -> Result<Command, BenchError> {
    let program = program(name).ok_or_else(|| super::unknown(&["program", name]))?;
    let line = program.line.replace("SIZE", &size.to_string());
    let mut command = Command::new("/bin/sh");
    // A folder of its own, on the disk; the sum of what was printed is 0 where the program failed, and so is the exit code.
    let text = "folder=$(mktemp -d -p .) && cd \"$folder\" || exit 1; sh -c \"$0\" > ../\"${folder##*/}\".out; code=$?; cd ..; \
                sum=$(cksum < \"${folder##*/}\".out); rm -rf \"$folder\" \"${folder##*/}\".out; [ $code = 0 ] || exit $code; \
                printf '{\"checksum\":\"%s\",\"built_s\":0,\"worked_s\":0}\\n' \"${sum%% *}\"";
    command.args(["-c", text, &line]).stdin(Stdio::null());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn soak_what_is_here_prints_the_same_each_time() {
        let folder = tempfile::tempdir().expect("a folder");
        for program in &PROGRAMS {
            if let Some(what) = missing(program.name) {
                println!("{}: not run, {what}", program.name);
                continue;
            }
            let run = |size| {
                let mut command = command(program.name, size).expect("known");
                let output = command.current_dir(&folder).output().expect("it starts");
                assert!(output.status.success(), "{}: {output:?}", program.name);
                super::super::parse(&output.stdout, &[program.name]).expect("a report").checksum
            };
            assert_eq!(run(20), run(20), "{}", program.name);
            assert_ne!(run(20), run(21), "{}", program.name);
        }
        assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0, "nothing is left");
        assert!(command("emacs", 1).is_err() && missing("emacs").is_none());
    }
}
