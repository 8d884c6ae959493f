// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The smallest HTTP/1.1 that a scraper needs: `GET /metrics`, one answer, connection closed.
//!
//! - **Flow** accept ─▶ read until an empty line, at most [`REQUEST_BYTES_MAX`] and [`REQUEST_TIME_MAX`] ─▶ answer ─▶ close
//! - **Limits** [`THREADS`] connections at a time; the others wait in the listener's queue, whose length the kernel bounds
//! - **Not here** the contents of the page: see `exposition`.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const REQUEST_BYTES_MAX: usize = 8 * 1024;
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
const THREADS: usize = 4;
/// The content type of the text format that Prometheus reads.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An answer before it is written.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
    /// True for HEAD: the length is sent, but not the body.
    head_only: bool,
}

impl Answer {
    fn text(status: &'static str, body: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.to_owned(), head_only: false }
    }
}

/// Serves `page` until the process ends.
pub fn serve(listener: &TcpListener, page: impl Fn() -> String + Sync) -> std::io::Error {
    let page = &page;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            threads.push(scope.spawn(move || {
                loop {
                    match listener.accept() {
                        // A failure of one client does not affect the others.
                        Ok((stream, _)) => drop(converse(stream, page)),
                        Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return error,
                    }
                }
            }));
        }
        let mut last = std::io::Error::other("the listener has no thread");
        for thread in threads {
            if let Ok(error) = thread.join() {
                last = error;
            }
        }
        last
    })
}

fn converse(mut stream: TcpStream, page: &impl Fn() -> String) -> std::io::Result<()> {
    let answer = match read_request(&mut stream) {
        Ok(request) => respond(&request, page),
        Err(answer) => answer,
    };
    stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
    let mut message = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.status,
        answer.content_type,
        answer.body.len()
    );
    if !answer.head_only {
        message.push_str(&answer.body);
    }
    stream.write_all(message.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// Reads the request up to its empty line; returns an answer if the request is too long, too slow or cut off.
fn read_request(stream: &mut TcpStream) -> Result<Vec<u8>, Answer> {
    let deadline = Instant::now() + REQUEST_TIME_MAX;
    let mut request = Vec::new();
    let mut piece = [0_u8; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(Answer::text("408 Request Timeout", "send the whole request at once\n"));
        }
        match stream.read(&mut piece) {
            Ok(0) => {
                return Err(Answer::text("400 Bad Request", "the request ended before its empty line\n"));
            }
            Ok(count) => request.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(Answer::text("408 Request Timeout", "send the whole request at once\n")),
        }
        if request.windows(4).any(|window| window == b"\r\n\r\n") {
            return Ok(request);
        }
        if request.len() > REQUEST_BYTES_MAX {
            return Err(Answer::text("431 Request Header Fields Too Large", "at most 8 KiB of headers\n"));
        }
    }
}

fn respond(request: &[u8], page: &impl Fn() -> String) -> Answer {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else {
        return Answer::text("400 Bad Request", "the request line is not text\n");
    };
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else {
        return Answer::text("400 Bad Request", "a request line has three words\n");
    };
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Answer::text("505 HTTP Version Not Supported", "HTTP/1.0 or HTTP/1.1\n");
    }
    if !matches!(method, "GET" | "HEAD") {
        return Answer::text("405 Method Not Allowed", "GET or HEAD\n");
    }
    let mut answer = match target.split('?').next() {
        Some("/metrics") => {
            Answer { status: "200 OK", content_type: METRICS_TYPE, body: page(), head_only: false }
        }
        Some("/") => Answer::text("200 OK", "memlift: the metrics are at /metrics\n"),
        _ => Answer::text("404 Not Found", "the metrics are at /metrics\n"),
    };
    answer.head_only = method == "HEAD";
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> &'static str {
        respond(request.as_bytes(), &|| "page\n".to_owned()).status
    }

    #[test]
    fn requests_are_told_apart() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"), "200 OK");
        assert_eq!(status("GET /metrics?name=a HTTP/1.0\r\n\r\n"), "200 OK");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "200 OK");
        assert_eq!(status("GET /other HTTP/1.1\r\n\r\n"), "404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        assert_eq!(status("GET /metrics HTTP/2\r\n\r\n"), "505 HTTP Version Not Supported");
        assert_eq!(status("GET /metrics\r\n\r\n"), "400 Bad Request");
        assert_eq!(status("\r\n\r\n"), "400 Bad Request");
    }

    #[test]
    fn head_keeps_its_body() {
        let answer = respond(b"HEAD /metrics HTTP/1.1\r\n\r\n", &|| "page\n".to_owned());
        assert!(answer.head_only);
        assert_eq!(answer.body, "page\n");
    }

    fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            // A client may close the connection early.
            let _ = converse(stream, &|| "memlift_up 1\n".to_owned());
        });
        let mut stream = TcpStream::connect(address).expect("a server");
        stream.write_all(request).expect("sent");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        server.join().expect("no panic");
        answer
    }

    #[test]
    fn a_page_has_its_length() {
        let answer = ask(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("Content-Length: 13\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nmemlift_up 1\n"), "{answer}");
    }

    #[test]
    fn a_slow_request_is_cut_off() {
        let started = Instant::now();
        let answer = ask(b"GET /metrics HTTP/1.1\r\n");
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(started.elapsed() < REQUEST_TIME_MAX * 3);
    }

    #[test]
    fn a_long_request_is_refused() {
        let mut request = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        request.resize(REQUEST_BYTES_MAX + 1, b'x');
        let answer = ask(&request);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}
