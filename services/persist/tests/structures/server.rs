// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server as clients see it, over sockets.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlift_persist::kv::Kv;
use memlift_persist::kv::server::{ServerOptions, protocol::Limits, serve};
use memlift_persist::{Domain, Durability, Options, Pool};

fn with_server(server: &ServerOptions, work: impl FnOnce(SocketAddr, &Pool)) {
    let folder = tempfile::tempdir().expect("a folder");
    with_pool(&folder.path().join("kv.pool"), server, work);
}

fn with_pool(path: &Path, server: &ServerOptions, work: impl FnOnce(SocketAddr, &Pool)) {
    let options = Options { heap_bytes: 1 << 20, domain: Domain::Lines, sections: 4, ..Options::default() };
    let pool = Pool::create(path, &options).expect("created");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(listener, &pool, server, &stop));
        let stops = Stop(&stop);
        work(address, &pool);
        drop(stops);
        served.join().expect("no panic").expect("stopped in order");
    });
}

/// Stops the server even when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn two_threads() -> ServerOptions {
    ServerOptions { threads: 2, ..ServerOptions::default() }
}

struct Client(TcpStream);

impl Client {
    fn new(address: SocketAddr) -> Client {
        Client(TcpStream::connect(address).expect("connected"))
    }

    /// Sends an inline command and compares the reply.
    #[track_caller]
    fn says(&mut self, line: &str, reply: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).expect("sent");
        self.hears(reply.as_bytes());
    }

    #[track_caller]
    fn hears(&mut self, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        let read = self.0.read_exact(&mut bytes);
        assert!(
            read.is_ok() && bytes == expected,
            "{:?}, not {:?}",
            bytes.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
    }

    /// One reply line, without its end.
    fn line(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).expect("more");
            line.push(byte[0]);
        }
        String::from_utf8(line[..line.len() - 2].to_vec()).expect("text")
    }

    fn bulk(&mut self) -> Vec<u8> {
        let length: usize = self.line()[1..].parse().expect("a length");
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).expect("more");
        bytes.truncate(length);
        bytes
    }

    fn scan(&mut self, cursor: &str, options: &str) -> (String, Vec<String>) {
        self.0.write_all(format!("SCAN {cursor} {options}\r\n").as_bytes()).expect("sent");
        assert_eq!(self.line(), "*2");
        let next = String::from_utf8(self.bulk()).expect("text");
        let count: usize = self.line()[1..].parse().expect("a count");
        (next, (0..count).map(|_| String::from_utf8(self.bulk()).expect("text")).collect())
    }

    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_err() || rest.is_empty()
    }
}

#[test]
fn commands_do_what_they_do_elsewhere() {
    with_server(&two_threads(), |address, _| {
        let mut c = Client::new(address);
        c.says("PING", "+PONG\r\n");
        c.says("ping hello", "$5\r\nhello\r\n");
        c.says("ECHO x", "$1\r\nx\r\n");
        c.says("GET a", "$-1\r\n");
        c.says("SET a 1", "+OK\r\n");
        c.says("GET a", "$1\r\n1\r\n");
        c.says("SET a 2 NX", "$-1\r\n");
        c.says("SET b 2 XX", "$-1\r\n");
        c.says("SET a 2 XX", "+OK\r\n");
        c.says("SET a 2 XX NX", "-ERR syntax error\r\n");
        c.says("SET a 2 EX 0", "-ERR invalid expire time in 'set' command\r\n");
        c.says("SET a 2 EX 9223372036854775807", "-ERR invalid expire time in 'set' command\r\n");
        c.says("SET a 2 EX", "-ERR syntax error\r\n");
        c.says("INCR a", ":3\r\n");
        c.says("INCR n", ":1\r\n");
        c.says("DECR n", ":0\r\n");
        c.says("INCRBY n -5", ":-5\r\n");
        c.says("SET s text", "+OK\r\n");
        c.says("INCR s", "-ERR value is not an integer or out of range\r\n");
        c.says("SET m 9223372036854775807", "+OK\r\n");
        c.says("INCR m", "-ERR increment or decrement would overflow\r\n");
        c.says("MSET x 1 y 2 z 3", "+OK\r\n");
        c.says("MSET x 1 y", "-ERR wrong number of arguments for 'mset' command\r\n");
        c.says("MGET x q z", "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n3\r\n");
        c.says("EXISTS x y q x", ":3\r\n");
        c.says("DEL x y q", ":2\r\n");
        c.says("TTL z", ":-1\r\n");
        c.says("TTL q", ":-2\r\n");
        c.says("EXPIRE z 100", ":1\r\n");
        c.says("TTL z", ":100\r\n");
        c.says("PERSIST z", ":1\r\n");
        c.says("PERSIST z", ":0\r\n");
        c.says("EXPIRE q 100", ":0\r\n");
        c.says("SET z 3 PX 100000", "+OK\r\n");
        c.says("TTL z", ":100\r\n");
        c.says("SET z 4 KEEPTTL", "+OK\r\n");
        c.says("TTL z", ":100\r\n");
        c.says("SET z 5", "+OK\r\n");
        c.says("TTL z", ":-1\r\n");
        c.says("PEXPIREAT z 1000", ":1\r\n");
        c.says("GET z", "$-1\r\n");
        c.says("DBSIZE", ":4\r\n");
        c.says("TYPE a", "+string\r\n");
        c.says("GET", "-ERR wrong number of arguments for 'get' command\r\n");
        c.says("NOSUCH thing", "-ERR unknown command 'NOSUCH', with args beginning with: 'thing' \r\n");
        c.says("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
        c.says("COMMAND COUNT", ":67\r\n");
        c.says("SELECT 0", "+OK\r\n");
        c.says("SELECT 1", "-ERR DB index is out of range\r\n");
        c.0.write_all(b"INFO\r\n").expect("sent");
        let info = String::from_utf8(c.bulk()).expect("text");
        assert!(info.contains("mechanism:redo") && info.contains("db0:keys=4"), "{info}");
        c.says("FLUSHALL", "+OK\r\n");
        c.says("DBSIZE", ":0\r\n");
        c.says("QUIT", "+OK\r\n");
        assert!(c.is_closed());
    });
}

#[test]
fn the_rest_of_strings_and_keys() {
    with_server(&two_threads(), |address, _| {
        let mut c = Client::new(address);
        c.says("APPEND a 12", ":2\r\n");
        c.says("APPEND a 3", ":3\r\n");
        c.says("DECRBY a 23", ":100\r\n");
        c.says("GETRANGE a 1 -1", "$2\r\n00\r\n");
        c.says("SETRANGE a 5 x", ":6\r\n");
        c.says("GET a", "$6\r\n100\0\0x\r\n");
        c.says("SETRANGE a 16777216 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n");
        c.says("INCRBYFLOAT f 0.1", "$3\r\n0.1\r\n");
        c.says("INCRBYFLOAT f 0.2", "$3\r\n0.3\r\n");
        c.says("GETDEL f", "$3\r\n0.3\r\n");
        c.says("EXISTS f", ":0\r\n");
        c.says("SETEX b 100 v", "+OK\r\n");
        c.says("GETEX b PERSIST", "$1\r\nv\r\n");
        c.says("TTL b", ":-1\r\n");
        c.says("EXPIRE b 100 XX", ":0\r\n");
        c.says("EXPIREAT b 33177117420", ":1\r\n");
        c.says("EXPIRETIME b", ":33177117420\r\n");
        c.says("MSETNX b 1 n 2", ":0\r\n");
        c.says("MSETNX m 1 n 2", ":1\r\n");
        c.says("KEYS [mn]", "*2\r\n$1\r\nm\r\n$1\r\nn\r\n");
        c.says("RENAME m moved", "+OK\r\n");
        c.says("RENAMENX n moved", ":0\r\n");
        c.says("RENAME m q", "-ERR no such key\r\n");
        c.says("COPY moved copied", ":1\r\n");
        c.says("OBJECT ENCODING copied", "$3\r\nint\r\n");
        c.says("SET a v GET", "$6\r\n100\0\0x\r\n");
        c.0.write_all(b"DUMP a\r\n").expect("sent");
        let dumped = c.bulk();
        let restore = |c: &mut Client, dumped: &[u8], more: &str, reply: &str| {
            let count = if more.is_empty() { 4 } else { 5 };
            let head = format!("*{count}\r\n$7\r\nRESTORE\r\n$1\r\na\r\n$1\r\n0\r\n${}\r\n", dumped.len());
            let tail = if more.is_empty() { String::new() } else { format!("${}\r\n{more}\r\n", more.len()) };
            c.0.write_all(&[head.as_bytes(), dumped, b"\r\n", tail.as_bytes()].concat()).expect("sent");
            c.hears(reply.as_bytes());
        };
        restore(&mut c, &dumped, "", "-BUSYKEY Target key name already exists.\r\n");
        c.says("DEL a", ":1\r\n");
        restore(&mut c, &dumped, "", "+OK\r\n");
        c.says("GET a", "$1\r\nv\r\n");
        for bit in 0..dumped.len() * 8 {
            let mut wrong = dumped.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            restore(&mut c, &wrong, "REPLACE", "-ERR DUMP payload version or checksum are wrong\r\n");
        }
        c.says("GET a", "$1\r\nv\r\n");
        c.says(
            "CONFIG GET MAXMEM*",
            "*4\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n",
        );
        c.says("LPUSH a x", "-ERR unknown command 'LPUSH', with args beginning with: 'a' 'x' \r\n");
        c.says("CLIENT KILL x", "-ERR unknown subcommand 'KILL'. Try COMMAND DOCS CLIENT.\r\n");
        c.says("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command\r\n");
        let key = "k".repeat(70_000);
        c.0.write_all(
            format!("*5\r\n$4\r\nMSET\r\n$1\r\nz\r\n$1\r\n1\r\n$70000\r\n{key}\r\n$1\r\n1\r\n").as_bytes(),
        )
        .expect("sent");
        c.hears(b"-ERR a key of 70000 bytes: the longest has 65536\r\n");
        c.says("EXISTS z", ":0\r\n");
        c.says("RANDOMKEY x", "-ERR wrong number of arguments for 'randomkey' command\r\n");
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..400 {
            c.0.write_all(b"RANDOMKEY\r\n").expect("sent");
            seen.insert(c.bulk());
        }
        assert_eq!(seen.len(), 5, "each key is drawn at some time");
    });
}

#[test]
fn version_3_of_the_protocol_has_maps_and_its_own_nothing() {
    with_server(&two_threads(), |address, _| {
        let mut c = Client::new(address);
        c.says("GET a", "$-1\r\n");
        c.says("HELLO 4", "-NOPROTO unsupported protocol version\r\n");
        c.says(
            "HELLO 3 AUTH somebody x",
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        );
        c.0.write_all(b"HELLO 3 AUTH default x SETNAME me\r\n").expect("sent");
        assert_eq!(c.line(), "%7");
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| line != "*0") {
            lines.push(c.line());
        }
        assert!(lines.contains(&"memlift".to_owned()) && lines.contains(&":3".to_owned()), "{lines:?}");
        c.says("GET a", "_\r\n");
        c.says("CLIENT GETNAME", "$2\r\nme\r\n");
        c.says("CONFIG GET databases", "%1\r\n$9\r\ndatabases\r\n$1\r\n1\r\n");
        c.0.write_all(b"CLIENT LIST\r\n").expect("sent");
        assert!(c.line().starts_with('='));
        let line = c.line();
        assert!(
            line.starts_with("txt:id=1 addr=127.0.0.1:")
                && line.contains(" name=me ")
                && line.contains("resp=3"),
            "{line}"
        );
        c.says("RESET", "+RESET\r\n");
        c.says("GET a", "$-1\r\n");
        c.says("CLIENT GETNAME", "$-1\r\n");
    });
}

#[test]
fn commands_between_multi_and_exec_are_one_transaction() {
    let options = ServerOptions { durability: Durability::Sync, ..two_threads() };
    with_server(&options, |address, pool| {
        let (mut c, mut other) = (Client::new(address), Client::new(address));
        c.says("EXEC", "-ERR EXEC without MULTI\r\n");
        let before = pool.counters().hardens;
        c.says("SET text x", "+OK\r\n");
        let one = pool.counters().hardens - before;
        c.says("MULTI", "+OK\r\n");
        for line in ["SET a 1", "INCR a", "INCR text", "GET a", "MSET b 2 c 3", "DBSIZE", "KEYS *"] {
            c.says(line, "+QUEUED\r\n");
        }
        other.says("GET a", "$-1\r\n");
        let before = pool.counters().hardens;
        c.says(
            "EXEC",
            "*7\r\n+OK\r\n:2\r\n-ERR value is not an integer or out of range\r\n$1\r\n2\r\n+OK\r\n:4\r\n*4\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$4\r\ntext\r\n",
        );
        let all = pool.counters().hardens - before;
        assert!(all < 2 * one, "{all} fences, {one} for one SET");
        other.says("GET a", "$1\r\n2\r\n");

        c.says("MULTI", "+OK\r\n");
        c.says("MULTI", "-ERR MULTI calls can not be nested\r\n");
        c.says("SET a 9", "+QUEUED\r\n");
        c.says("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: \r\n");
        c.says("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n");
        c.says("MULTI", "+OK\r\n");
        c.says("SET a 9", "+QUEUED\r\n");
        c.says("DISCARD", "+OK\r\n");
        c.says("GET a", "$1\r\n2\r\n");

        for (change, reply) in
            [("SET a 5", "+OK\r\n"), ("EXPIRE a 100", ":1\r\n"), ("DEL a", ":1\r\n"), ("SET a 2", "+OK\r\n")]
        {
            c.says("WATCH a", "+OK\r\n");
            other.says(change, reply);
            c.says("MULTI", "+OK\r\n");
            c.says("SET a mine", "+QUEUED\r\n");
            c.says("EXEC", "*-1\r\n");
        }
        c.says("WATCH a b", "+OK\r\n");
        other.says("SET c other", "+OK\r\n");
        c.says("MULTI", "+OK\r\n");
        c.says("SET a mine", "+QUEUED\r\n");
        c.says("FLUSHALL", "+QUEUED\r\n");
        c.says("SET left alone", "+QUEUED\r\n");
        c.says("EXEC", "*3\r\n+OK\r\n+OK\r\n+OK\r\n");
        other.says("KEYS *", "*1\r\n$4\r\nleft\r\n");
    });
}

/// Commands that go through the whole store, or describe it, may wait for EXEC as others do.
#[test]
fn the_whole_store_is_seen_between_multi_and_exec() {
    with_server(&two_threads(), |address, _| {
        let mut c = Client::new(address);
        for first in (0..11_000).step_by(1_000) {
            let pairs: String = (first..first + 1_000).map(|key| format!(" key:{key:05} v")).collect();
            c.says(&format!("MSET{pairs}"), "+OK\r\n");
        }
        c.says("MULTI", "+OK\r\n");
        for line in ["RANDOMKEY", "INFO", "DBSIZE", "OBJECT ENCODING key:00001", "DEL key:00001"] {
            c.says(line, "+QUEUED\r\n");
        }
        c.0.write_all(b"EXEC\r\n").expect("sent");
        assert_eq!(c.line(), "*5");
        assert!(c.bulk().starts_with(b"key:"));
        assert!(String::from_utf8(c.bulk()).expect("text").contains("db0:keys=11000"));
        c.hears(b":11000\r\n$6\r\nembstr\r\n:1\r\n");
    });
}

/// No command waits for something that EXEC holds: each is done there beside a change, with words that fit it and words that do not.
#[test]
fn every_command_ends_between_multi_and_exec() {
    with_server(&two_threads(), |address, _| {
        let mut c = Client::new(address);
        c.0.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        c.0.write_all(b"COMMAND LIST\r\n").expect("sent");
        let count: usize = c.line()[1..].parse().expect("a count");
        let names: Vec<String> = (0..count).map(|_| String::from_utf8(c.bulk()).expect("text")).collect();
        assert!(count > 60, "{names:?}");
        let verbs = [
            "a", "1", "0", "ENCODING", "GET", "*", "INFO", "LIST", "DOCS", "MEMORY", "ID", "GETKEYS", "ASYNC",
        ];
        for name in
            names.iter().filter(|name| !["quit", "reset", "multi", "exec", "discard"].contains(&&name[..]))
        {
            for first in verbs {
                for rest in ["", " a", " 1", " b 2", " get a", " 0 2", " b 2 c 3"] {
                    let line = format!("{name} {first}{rest}");
                    for waiting in ["MULTI", "SET a 1", "SET b 2", &line, name, "GET a", "EXEC"] {
                        c.0.write_all(format!("{waiting}\r\n").as_bytes()).expect("sent");
                    }
                    c.0.write_all(b"RESET\r\nPING here\r\n").expect("sent");
                    let (mut seen, mut chunk) = (Vec::new(), [0; 4096]);
                    while !seen.ends_with(b"+RESET\r\n$4\r\nhere\r\n") {
                        let read =
                            c.0.read(&mut chunk).unwrap_or_else(|error| panic!("after `{line}`: {error}"));
                        assert_ne!(read, 0, "closed after `{line}`");
                        seen.extend_from_slice(&chunk[..read]);
                    }
                }
            }
        }
    });
}

/// BGSAVE makes a copy beside the others while clients write, and LASTSAVE and INFO tell of it.
#[test]
fn a_copy_is_made_when_a_client_asks() {
    let copies = tempfile::tempdir().expect("a folder");
    with_server(&two_threads(), |address, _| {
        let mut c = Client::new(address);
        c.says("BGSAVE", "-ERR no folder for copies was named: start the server with --copies FOLDER\r\n");
    });
    let options = ServerOptions { copies: Some(copies.path().to_owned()), ..two_threads() };
    with_server(&options, |address, _| {
        let (mut c, mut other) = (Client::new(address), Client::new(address));
        for copy in 1..=2u64 {
            c.says(&format!("SET told {copy}"), "+OK\r\n");
            c.says("BGSAVE NONSENSE", "-ERR syntax error\r\n");
            c.says("BGSAVE", "+Background saving started\r\n");
            let until = std::time::Instant::now() + Duration::from_secs(60);
            loop {
                other.0.write_all(b"INCR count\r\n").expect("sent");
                assert!(other.line().starts_with(':'));
                c.0.write_all(b"INFO persistence\r\n").expect("sent");
                let info = String::from_utf8(c.bulk()).expect("text");
                assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
                if info.contains("rdb_bgsave_in_progress:0") {
                    break;
                }
                assert!(std::time::Instant::now() < until, "the copy does not end");
            }
            c.0.write_all(b"LASTSAVE\r\n").expect("sent");
            assert!(c.line()[1..].parse::<u64>().expect("a time") > 1_700_000_000);
            let mut made: Vec<_> = std::fs::read_dir(copies.path())
                .expect("read")
                .map(|one| one.expect("there").path())
                .collect();
            made.sort();
            assert_eq!(made.len() as u64, copy, "{made:?}");
            let pool = Pool::open(made.last().expect("one"), &Options::default()).expect("opened");
            let store = Kv::open(&pool, Durability::Sync).expect("a store");
            assert_eq!(store.get(b"told").expect("read"), Some(copy.to_string().into_bytes()));
        }
    });
}

/// Counters that move between two keys by WATCH and EXEC from several clients lose nothing.
#[test]
fn watched_transactions_of_many_clients_lose_nothing() {
    with_server(&two_threads(), |address, _| {
        Client::new(address).says("MSET from 400 to 0", "+OK\r\n");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let (mut c, mut done) = (Client::new(address), 0);
                    while done < 100 {
                        c.says("WATCH from to", "+OK\r\n");
                        c.0.write_all(b"MGET from to\r\n").expect("sent");
                        c.hears(b"*2\r\n");
                        let mut number = || -> i64 {
                            String::from_utf8(c.bulk()).expect("text").parse().expect("a number")
                        };
                        let (from, to) = (number(), number());
                        assert_eq!(from + to, 400, "nobody sees half of a transaction");
                        c.says("MULTI", "+OK\r\n");
                        c.says(&format!("SET from {}", from - 1), "+QUEUED\r\n");
                        c.says(&format!("SET to {}", to + 1), "+QUEUED\r\n");
                        c.0.write_all(b"EXEC\r\n").expect("sent");
                        match &c.line()[..] {
                            "*-1" => {}
                            "*2" => {
                                c.hears(b"+OK\r\n+OK\r\n");
                                done += 1;
                            }
                            other => panic!("{other}"),
                        }
                    }
                });
            }
        });
        Client::new(address).says("MGET from to", "*2\r\n$1\r\n0\r\n$3\r\n400\r\n");
    });
}

/// A client that sends all of a value that is too large before it reads hears why, and is not cut off in the middle.
#[test]
fn what_is_too_large_is_told_to_who_still_sends() {
    with_server(&ServerOptions { threads: 1, ..ServerOptions::default() }, |address, _| {
        let mut c = Client::new(address);
        let bytes = 40 << 20;
        c.0.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${bytes}\r\n").as_bytes()).expect("sent");
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..40 {
            c.0.write_all(&piece).expect("taken in");
        }
        let why = "-ERR Protocol error: invalid bulk length, an argument has 16777216 bytes at most";
        assert_eq!(c.line(), why);
        assert!(c.is_closed());
        Client::new(address).says("PING", "+PONG\r\n");
    });
}

#[test]
fn one_command_removes_any_number_of_keys() {
    const KEYS: usize = 70_000;
    with_server(&two_threads(), |address, pool| {
        let mut c = Client::new(address);
        for command in ["MSET", "DEL"] {
            let (each, first) = if command == "MSET" { (2, "+OK\r\n") } else { (1, ":70000\r\n") };
            let mut request = format!("*{}\r\n${}\r\n{command}\r\n", 1 + KEYS * each, command.len());
            for number in 0..KEYS {
                let key = format!("{number:08}");
                (0..each).for_each(|_| request.push_str(&format!("$8\r\n{key}\r\n")));
            }
            c.0.write_all(request.as_bytes()).expect("sent");
            c.hears(first.as_bytes());
        }
        assert!(Kv::open(pool, Durability::Sync).expect("a store").is_empty().expect("read"));
        c.0.write_all(b"*5000000\r\n").expect("sent");
        assert_eq!(
            c.line(),
            "-ERR Protocol error: invalid multibulk length, a request has 4194304 arguments at most"
        );
        assert!(c.is_closed());
    });
}

/// A browser that a web page has send commands in the body of a request, or anywhere else in it, changes nothing.
#[test]
fn requests_of_http_end_at_their_first_words() {
    with_server(&two_threads(), |address, _| {
        for request in [
            "POST / HTTP/1.1\r\nContent-Type: text/plain\r\n\r\nSET a 1\r\n",
            "GET / HTTP/1.1\r\nHost: localhost:6379\r\n\r\nSET a 1\r\n",
            "post x\r\nSET a 1\r\n",
        ] {
            let mut c = Client::new(address);
            c.0.write_all(request.as_bytes()).expect("sent");
            let mut said = String::new();
            c.0.read_to_string(&mut said).expect("a reply, and the end");
            assert!(said.ends_with("-ERR this is no server of HTTP: the connection closes\r\n"), "{said}");
            Client::new(address).says("GET a", "$-1\r\n");
        }
    });
}

#[test]
fn a_walk_sees_every_key_once_while_others_come_and_go() {
    with_server(&two_threads(), |address, _| {
        let mut c = Client::new(address);
        for number in 0..500 {
            c.says(&format!("SET key:{number:04} v"), "+OK\r\n");
        }
        c.says("SET other v", "+OK\r\n");
        for (options, expected) in [
            ("COUNT 7", 501),
            ("MATCH key:* COUNT 64", 500),
            ("MATCH key:00* COUNT 9", 100),
            ("MATCH *9", 50),
        ] {
            let (mut cursor, mut all, mut rounds) = ("0".to_owned(), Vec::new(), 0);
            loop {
                let (next, keys) = c.scan(&cursor, options);
                assert_eq!(c.scan(&cursor, options).1, keys, "a cursor can be used again");
                all.extend(keys.into_iter().filter(|key| !key.starts_with("new")));
                c.says(&format!("SET new:{rounds} v"), "+OK\r\n");
                c.says(&format!("DEL new:{}", rounds - 1), if rounds == 0 { ":0\r\n" } else { ":1\r\n" });
                (cursor, rounds) = (next, rounds + 1);
                if cursor == "0" {
                    break;
                }
            }
            c.says(&format!("DEL new:{}", rounds - 1), ":1\r\n");
            assert!(all.is_sorted());
            all.dedup();
            assert_eq!(all.len(), expected, "{options}");
        }
        c.says("SCAN 999999", "-ERR this cursor is too old or was never given: start again at 0\r\n");
        c.says("SCAN x", "-ERR invalid cursor\r\n");
    });
}

#[test]
fn a_pipeline_shares_its_fences_and_is_answered_in_order() {
    with_server(&ServerOptions { threads: 1, ..ServerOptions::default() }, |address, pool| {
        let mut c = Client::new(address);
        c.says("PING", "+PONG\r\n");
        let before = pool.counters().hardens;
        let (mut request, mut expected) = (Vec::new(), Vec::new());
        for number in 0..1000 {
            request.extend_from_slice(
                format!("*3\r\n$3\r\nSET\r\n$5\r\nk{number:04}\r\n$4\r\n{number:04}\r\n").as_bytes(),
            );
            request.extend_from_slice(format!("*2\r\n$3\r\nGET\r\n$5\r\nk{number:04}\r\n").as_bytes());
            expected.extend_from_slice(format!("+OK\r\n$4\r\n{number:04}\r\n").as_bytes());
        }
        c.0.write_all(&request).expect("sent");
        c.hears(&expected);
        let fences = pool.counters().hardens - before;
        assert!((1..=50).contains(&fences), "{fences} for 1000 writes");
    });
}

impl Client {
    /// Stores a value of 300,000 bytes and asks for it forty times, which is more than a socket takes. Returns the value.
    fn asks_for_large_replies(&mut self) -> Vec<u8> {
        let value = vec![b'x'; 300_000];
        let start = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len());
        self.0.write_all(start.as_bytes()).expect("sent");
        self.0.write_all(&[&value[..], b"\r\n"].concat()).expect("sent");
        self.hears(b"+OK\r\n");
        self.0.write_all(&b"GET k\r\n".repeat(40)).expect("sent");
        value
    }
}

/// Replies of 12 MB wait in the server when the client has ended its side.
#[test]
fn who_has_ended_its_side_gets_all_replies() {
    with_server(&ServerOptions { threads: 1, ..ServerOptions::default() }, |address, _| {
        let mut c = Client::new(address);
        let value = c.asks_for_large_replies();
        c.0.write_all(b"INCR n\r\nGET").expect("sent");
        c.0.shutdown(std::net::Shutdown::Write).expect("ended");
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..40 {
            assert_eq!(c.bulk(), value);
        }
        c.hears(b":1\r\n");
        assert!(c.is_closed(), "the half of a request that is left is none");
        Client::new(address).says("GET n", "$1\r\n1\r\n");
    });
}

#[test]
fn large_replies_do_not_stop_the_requests_behind_them() {
    with_server(&ServerOptions { threads: 1, ..ServerOptions::default() }, |address, _| {
        let mut c = Client::new(address);
        let value = c.asks_for_large_replies();
        for _ in 0..40 {
            assert_eq!(c.bulk(), value);
        }
        c.says("PING", "+PONG\r\n");
    });
}

#[test]
fn nonsense_is_told_so_and_closed_and_others_go_on() {
    let limits = Limits { bulk_bytes: 1000, ..Limits::default() };
    with_server(&ServerOptions { threads: 1, limits, ..ServerOptions::default() }, |address, _| {
        let mut other = Client::new(address);
        for bytes in ["*1\r\n$1001\r\n", "*9999999\r\n", "*2\r\n$3\r\nGETx\r\n", "*1\r\n:3\r\n"] {
            let mut c = Client::new(address);
            c.0.write_all(bytes.as_bytes()).expect("sent");
            let reply = c.line();
            assert!(reply.starts_with("-ERR Protocol error"), "{reply}");
            assert!(c.is_closed());
            other.says("PING", "+PONG\r\n");
        }
        let mut half = Client::new(address);
        half.0.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\n").expect("sent");
        drop(half);
        other.says("PING", "+PONG\r\n");
    });
}

#[test]
fn one_client_too_many_is_told_so() {
    with_server(&ServerOptions { threads: 1, clients: 2, ..ServerOptions::default() }, |address, _| {
        let mut pair = [Client::new(address), Client::new(address)];
        pair.iter_mut().for_each(|client| client.says("PING", "+PONG\r\n"));
        let mut third = Client::new(address);
        assert_eq!(third.line(), "-ERR max number of clients reached");
        assert!(third.is_closed());
        pair[0].says("QUIT", "+OK\r\n");
        assert!(pair[0].is_closed());
        let again = (0..1000).any(|_| {
            let mut client = Client::new(address);
            client.0.write_all(b"PING\r\n").expect("sent");
            let mut byte = [0];
            let there = matches!(client.0.read(&mut byte), Ok(1)) && byte == *b"+";
            if !there {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            there
        });
        assert!(again, "the place of who left is free");
    });
}

#[test]
fn counters_add_up_over_many_clients_and_each_durability() {
    for durability in [Durability::Sync, Durability::Group, Durability::Buffered] {
        with_server(&ServerOptions { durability, ..two_threads() }, |address, _| {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(move || {
                        let mut c = Client::new(address);
                        for _ in 0..100 {
                            c.0.write_all(b"INCR total\r\n").expect("sent");
                            assert!(c.line().starts_with(':'));
                        }
                    });
                }
            });
            Client::new(address).says("GET total", "$3\r\n400\r\n");
        });
    }
}

/// Much is removed while clients read and write: the file gets holes, without a command, and what is left is as it was.
#[test]
fn room_goes_back_to_the_disk_by_itself() {
    use std::os::unix::fs::MetadataExt;
    const KEYS: usize = 6_000;
    let options = ServerOptions { tidy: std::time::Duration::from_millis(20), ..two_threads() };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kv.pool");
    with_pool(&path, &options, |address, _| {
        let disk = || -> u64 { std::fs::metadata(&path).expect("a file").blocks() * 512 };
        let value = |key: usize| vec![b'a' + (key % 26) as u8; 1_000 + key % 2_000];
        let set = |client: &mut Client, key: usize, value: &[u8]| {
            let head = format!("*3\r\n$3\r\nSET\r\n$5\r\n{key:05}\r\n${}\r\n", value.len());
            client.0.write_all(&[head.as_bytes(), value, b"\r\n"].concat()).expect("sent");
            client.hears(b"+OK\r\n");
        };
        let mut client = Client::new(address);
        (0..KEYS).for_each(|key| set(&mut client, key, &value(key)));
        let full = disk();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Another client goes on with keys of its own.
            let other = scope.spawn(|| {
                let (mut client, mut round) = (Client::new(address), 0);
                while !stop.load(Ordering::Acquire) {
                    let key = KEYS + round % 50;
                    set(&mut client, key, &value(key + round));
                    client.0.write_all(format!("GET {key:05}\r\n").as_bytes()).expect("sent");
                    assert_eq!(client.bulk(), value(key + round));
                    round += 1;
                }
                round
            });
            for key in (0..KEYS).filter(|key| key % 10 != 7) {
                client.says(&format!("DEL {key:05}"), ":1\r\n");
            }
            // A tenth is left: a third of the blocks would be enough.
            let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
            while disk() > full / 2 {
                assert!(
                    std::time::Instant::now() < until,
                    "{} of {full} bytes are still on the disk",
                    disk()
                );
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            stop.store(true, Ordering::Release);
            assert!(other.join().expect("no panic") > 0);
        });
        for key in 0..KEYS {
            client.0.write_all(format!("GET {key:05}\r\n").as_bytes()).expect("sent");
            match key % 10 {
                7 => assert_eq!(client.bulk(), value(key), "{key}"),
                _ => client.hears(b"$-1\r\n"),
            }
        }
        // The disk has the room before the compaction is done and counts.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
        loop {
            client.0.write_all(b"INFO\r\n").expect("sent");
            let text = String::from_utf8(client.bulk()).expect("text");
            if text.contains("compactions:") && !text.contains("compactions:0") {
                break;
            }
            assert!(std::time::Instant::now() < until, "{text}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
}
