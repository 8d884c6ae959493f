// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server beside a real Redis: the same commands get the same bytes back.
//!
//! - **Goal** replies, errors and state are Redis's, for the strings, keys, connections and transactions that the server has
//! - **Method** random commands, some of them malformed, to both; then every entry is compared
//! - **Not here** sums of floats such as 0.1, which Redis shows with the error of its C compiler's numbers; times that pass meanwhile, the order of keys, texts about the server itself; WATCH of an entry that is written with
//!   the value that it had (Redis counts that as a change)
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlift_persist::kv::server::{ServerOptions, serve};
use memlift_persist::{Domain, Options, Pool};

const ROUNDS: u64 = 12;
const COMMANDS: usize = 2_500;

/// A Redis of our own, ended with the test; None: there is none on this machine.
struct Redis(Child);

impl Redis {
    fn start(folder: &std::path::Path) -> Option<(Redis, UnixStream)> {
        let socket = folder.join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--databases", "1", "--unixsocket"])
            .arg(&socket)
            .current_dir(folder)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let redis = Redis(child);
        for _ in 0..500 {
            if let Ok(stream) = UnixStream::connect(&socket) {
                return Some((redis, stream));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("a redis-server that does not listen");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection that gives back whole replies as they came.
struct Speaker<S: Read + Write>(BufReader<S>);

impl<S: Read + Write> Speaker<S> {
    fn new(stream: S) -> Self {
        Speaker(BufReader::new(stream))
    }

    fn ask(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request).expect("sent");
        let mut reply = Vec::new();
        self.read(&mut reply);
        reply
    }

    fn ask_in_a_line(&mut self, line: &str) -> Vec<u8> {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("sent");
        let mut reply = Vec::new();
        self.read(&mut reply);
        reply
    }

    fn read(&mut self, reply: &mut Vec<u8>) {
        let start = reply.len();
        self.0.read_until(b'\n', reply).expect("a reply");
        let line = String::from_utf8_lossy(&reply[start..]).into_owned();
        let count = || line[1..].trim_end().parse::<i64>().expect("a number");
        match line.as_bytes().first() {
            Some(b'$' | b'=') if count() >= 0 => {
                let mut rest = vec![0; count() as usize + 2];
                self.0.read_exact(&mut rest).expect("the rest");
                reply.extend_from_slice(&rest);
            }
            Some(b'*') => (0..count()).for_each(|_| self.read(reply)),
            Some(b'%') => (0..2 * count()).for_each(|_| self.read(reply)),
            Some(_) => {}
            None => panic!("the connection was closed"),
        }
    }
}

/// Numbers that look random, the same in each run.
struct Dice {
    state: u64,
    /// Lives that [`Dice::life`] gave.
    lives: u64,
}

impl Dice {
    fn next(&mut self, below: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % below
    }

    /// Seconds that no other command of this seed gives, by at least 20: `GT` and `LT` compare milliseconds, and the two servers are asked in different ones.
    fn life(&mut self) -> u64 {
        self.lives += 1;
        660 + 60 * (37 * self.lives % 499)
    }

    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.next(of.len())]
    }
}

/// Inline commands, the last of them refused.
const LINES: &[&str] = &[
    "FLUSHALL",
    r#"SET "a b" 'c "d"'"#,
    r#"GET "a b""#,
    r#"GET 'a b'"#,
    r#"SET a "\x00\x7f\xFf\n\r\t\b\a\\\"\q""#,
    "GET a",
    r"SET a 'it\'s \n'",
    "GET   a  ",
    r#"SET a """#,
    "STRLEN a",
    r#"SET a x"y z""#,
    "GET a",
    r#"SET a "x"y"#,
];

/// Commands: `K` a key, `V` a value, `N` a whole number, `B` no number of seconds, `F` a number, `S` seconds, `T` seconds of [`Dice::life`], `A` a time far ahead; the rest is as it stands.
const SHAPES: &[&str] = &[
    "GET K",
    "SET K V",
    "SET K V NX",
    "SET K V XX",
    "SET K V GET",
    "SET K V NX GET",
    "SET K V KEEPTTL",
    "SET K V EX S",
    "SET K V PXAT A",
    "SET K V EX B",
    "SET K V EX S KEEPTTL",
    "SET K V NX XX",
    "SET K V NONSENSE",
    "SETNX K V",
    "SETEX K S V",
    "PSETEX K A V",
    "SETEX K B V",
    "GETSET K V",
    "GETDEL K",
    "GETEX K",
    "GETEX K EX S",
    "GETEX K PERSIST",
    "GETEX K EX B",
    "GETEX K EX S PERSIST",
    "APPEND K V",
    "STRLEN K",
    "SETRANGE K N V",
    "SETRANGE K 3 V",
    "GETRANGE K N N",
    "SUBSTR K N N",
    "GETRANGE K 0 -1",
    "INCR K",
    "DECR K",
    "INCRBY K N",
    "DECRBY K N",
    "INCRBYFLOAT floats F",
    "MGET K K K",
    "MSET K V K V",
    "MSET K V K",
    "MSETNX K V K V",
    "LCS K K",
    "LCS K K LEN",
    "LCS K K IDX",
    "LCS K K IDX MINMATCHLEN 2 WITHMATCHLEN",
    "LCS K K LEN IDX",
    "DEL K",
    "DEL K K",
    "UNLINK K",
    "EXISTS K K K",
    "TOUCH K K",
    "TYPE K",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K",
    "COPY K K REPLACE",
    "COPY K K DB 0",
    "EXPIRE K S",
    "EXPIRE K S NX",
    "EXPIRE K S XX",
    "EXPIRE K T GT",
    "EXPIRE K T LT",
    "EXPIRE K S GT LT",
    "EXPIRE K S NX XX",
    "EXPIRE K S WHAT",
    "PEXPIREAT K A",
    "EXPIREAT K N",
    "PEXPIRE K B",
    "EXPIRE K B",
    "TTL K",
    "PERSIST K",
    "DBSIZE",
    "PING",
    "PING V",
    "ECHO V",
    "SELECT 0",
    "SELECT N",
    "CLIENT SETNAME V",
    "CLIENT GETNAME",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "EXEC",
    "DISCARD",
    "UNWATCH",
    "AUTH V",
    "HELLO 9 AUTH x",
    "QUIT2 K V",
];
const KEYS: &[&str] = &["a", "b", "c", "d", "key with blanks", "\u{7f}\u{0}binary"];
const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "10",
    "007",
    "-0",
    "3.5",
    "abc",
    "ohmytext",
    "mynewtext",
    "123456789",
    " 1",
    "a value that is longer than forty-four bytes, so that Redis keeps it elsewhere",
    "x\r\ny",
];
const NUMBERS: &[&str] =
    &["0", "1", "-1", "2", "5", "-3", "100", "x", "", "9223372036854775807", "-9223372036854775808", "1.5"];
/// No lives that end within the test.
const BAD: &[&str] = &["0", "-1", "x", "", "1.5", "9223372036854775807", "-9223372036854775808"];
const FLOATS: &[&str] = &["0.5", "-1.25", "5.0e3", "3", "inf", "x"];
const SECONDS: &[&str] = &["1000", "2000", "5000"];
const LATER: &[&str] = &["4102444800000", "4102444900000"];

fn command(dice: &mut Dice) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = dice
        .one(SHAPES)
        .split(' ')
        .enumerate()
        .map(|(at, word)| match word {
            _ if at == 0 => word.as_bytes().to_vec(),
            "K" => dice.one(KEYS).as_bytes().to_vec(),
            "V" => dice.one(VALUES).as_bytes().to_vec(),
            "N" => dice.one(NUMBERS).as_bytes().to_vec(),
            "B" => dice.one(BAD).as_bytes().to_vec(),
            "F" => dice.one(FLOATS).as_bytes().to_vec(),
            "S" => dice.one(SECONDS).as_bytes().to_vec(),
            "T" => dice.life().to_string().into_bytes(),
            "A" => dice.one(LATER).as_bytes().to_vec(),
            word => word.as_bytes().to_vec(),
        })
        .collect();
    if dice.next(4) == 0 {
        words[0].make_ascii_lowercase();
    }
    match dice.next(60) {
        0 if words.len() > 1 => drop(words.pop()),
        1 => words.push(b"more".to_vec()),
        _ => {}
    }
    words
}

/// Where the two say the same in other words.
fn plain(reply: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(reply);
    let unknown = text.strip_prefix("-ERR unknown subcommand");
    unknown.map_or_else(|| reply.to_vec(), |_| b"-ERR unknown subcommand\r\n".to_vec())
}

/// True if two replies are the same, except for remaining seconds that were rounded on different sides of a half.
fn alike(mine: &str, yours: &str) -> bool {
    let seconds = |line: &str| {
        line.strip_prefix(':')?.parse::<u64>().ok().filter(|seconds| (600..40_000).contains(seconds))
    };
    let (mine, yours): (Vec<_>, Vec<_>) = (mine.split("\\r\\n").collect(), yours.split("\\r\\n").collect());
    mine.len() == yours.len()
        && mine.iter().zip(&yours).all(|(mine, yours)| {
            mine == yours
                || seconds(mine).zip(seconds(yours)).is_some_and(|(mine, yours)| mine.abs_diff(yours) == 1)
        })
}

fn words(line: &[&str]) -> Vec<Vec<u8>> {
    line.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn random_commands_get_the_replies_of_redis() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((_redis, stream)) = Redis::start(folder.path()) else {
        println!("skipped: there is no redis-server here");
        return;
    };
    let mut theirs = Speaker::new(stream);
    let options = Options { domain: Domain::Lines, sections: 4, ..Options::default() };
    let pool = Pool::create(folder.path().join("kv.pool"), &options).expect("created");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(listener, &pool, &ServerOptions::default(), &stop));
        let ours = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut ours = Speaker::new(TcpStream::connect(address).expect("connected"));
            for seed in 1..=ROUNDS {
                compare(&mut ours, &mut theirs, seed);
            }
            for line in LINES {
                let mine = ours.ask_in_a_line(line).escape_ascii().to_string();
                let yours = theirs.ask_in_a_line(line).escape_ascii().to_string();
                assert_eq!(mine, yours, "{line}");
            }
        }));
        stop.store(true, Ordering::Release);
        server.join().expect("no panic").expect("stopped in order");
        ours.unwrap();
    });
}

fn compare(ours: &mut Speaker<TcpStream>, theirs: &mut Speaker<UnixStream>, seed: u64) {
    let mut dice = Dice { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), lives: 0 };
    let mut last = Vec::new();
    let mut same = |command: &[Vec<u8>], last: &mut Vec<String>| {
        let shown: Vec<String> = command.iter().map(|word| word.escape_ascii().to_string()).collect();
        last.push(shown.join(" "));
        let (mine, yours) = (ours.ask(command), theirs.ask(command));
        let before = &last[last.len().saturating_sub(12)..];
        let (mine, yours) =
            (plain(&mine).escape_ascii().to_string(), plain(&yours).escape_ascii().to_string());
        assert!(alike(&mine, &yours), "seed {seed}, after {before:#?}\n  ours: {mine:?}\n  redis: {yours:?}");
    };
    same(&words(&["FLUSHALL"]), &mut last);
    for _ in 0..COMMANDS {
        same(&command(&mut dice), &mut last);
    }
    // An open MULTI would keep what follows.
    same(&words(&["RESET"]), &mut last);
    for key in KEYS {
        for verb in ["GET", "TTL", "STRLEN"] {
            same(&words(&[verb, key]), &mut last);
        }
    }
}
