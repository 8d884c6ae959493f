// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests to etcd's JSON gateway, over HTTP or HTTPS.
//!
//! - **Flow** POST, JSON ─▶ one JSON value, or [`Stream`]: one JSON value per line, for at most [`WATCH_LASTS`]
//! - **Owner** one connection per request; every wait has a limit, every answer a largest size. The bytes from the other side may
//!   be hostile: lengths and JSON are checked, and any fault is an error
//! - **Not here** redirects, proxies, cookies: a password is only sent to hosts that the source names
//!
//! A gRPC client was not used because it builds its messages with `protoc`, which users would have to install. The gateway is part
//! of every etcd server since 3.0 and offers the same API (etcd's documentation, "gRPC gateway"; RFC 9112).

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use memlift_ground::input_file;
use serde_json::{Value, json};
use ureq::http::Response;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::map::etcd_address::EtcdAddress;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for an answer, unless a request has less time.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A watch ends after this time, so that a dead connection is noticed.
pub(super) const WATCH_LASTS: Duration = Duration::from_secs(5);
/// Most bytes of an answer: a map is at most 4 MiB, in base64 a third more.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of a certificate, key or password file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Characters of an answer that an error message quotes.
const SAID_MAX: usize = 200;
/// Events that wait for their reader; when there are more, the thread that reads waits.
const EVENTS_MAX: usize = 16;

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Connections to the hosts of one etcd.
pub(super) struct Http {
    address: EtcdAddress,
    agent: Option<Agent>,
    /// Token that etcd gave in exchange for user and password.
    token: Option<String>,
}

impl Http {
    pub(super) fn new(address: EtcdAddress) -> Http {
        Http { address, agent: None, token: None }
    }

    pub(super) fn address(&self) -> &EtcdAddress {
        &self.address
    }

    /// Sends one request to one of the hosts, and returns the answer, which must come within `patience`.
    pub(super) fn ask(
        &mut self,
        host: usize,
        path: &str,
        body: &Value,
        patience: Duration,
    ) -> io::Result<Value> {
        answer(self.send(host, path, body, Some(patience))?)
    }

    /// Sends a request whose answer is a stream of values.
    pub(super) fn stream(&mut self, host: usize, path: &str, body: &Value) -> io::Result<Stream> {
        let response = self.send(host, path, body, None)?;
        if response.status() == 200 {
            return Stream::start(response);
        }
        Err(answer(response).err().unwrap_or_else(|| broken("etcd does not watch")))
    }

    /// Sends a request; a token that etcd no longer accepts is replaced once. Without `patience` the answer is a stream.
    fn send(
        &mut self,
        host: usize,
        path: &str,
        body: &Value,
        patience: Option<Duration>,
    ) -> io::Result<Response<Body>> {
        if self.address.login.is_some() && self.token.is_none() {
            self.log_in(host)?;
        }
        let response = self.post(host, path, body, patience)?;
        if response.status() != 401 || self.address.login.is_none() {
            return Ok(response);
        }
        self.log_in(host)?;
        self.post(host, path, body, patience)
    }

    fn post(
        &mut self,
        host: usize,
        path: &str,
        body: &Value,
        patience: Option<Duration>,
    ) -> io::Result<Response<Body>> {
        let agent = self.agent()?;
        let mut request = agent
            .post(format!("{}{path}", self.address.hosts[host]))
            .header("Content-Type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", token);
        }
        let request = match patience {
            Some(patience) => request.config().timeout_global(Some(patience)).build(),
            None => {
                let config =
                    request.config().timeout_global(None).timeout_recv_response(Some(ANSWER_TIMEOUT));
                config.timeout_recv_body(Some(WATCH_LASTS)).build()
            }
        };
        request.send(body.to_string()).map_err(ureq::Error::into_io)
    }

    /// Exchanges user and password for a token.
    fn log_in(&mut self, host: usize) -> io::Result<()> {
        let Some((user, file)) = self.address.login.clone() else { return Ok(()) };
        let password = input_file::text(&file, FILE_BYTES_MAX).map_err(|error| at(&file, error))?;
        let question = json!({"name": user, "password": password.trim_end_matches(['\r', '\n'])});
        self.token = None;
        let said = answer(self.post(host, "/v3/auth/authenticate", &question, Some(ANSWER_TIMEOUT))?)?;
        let token = said["token"].as_str().ok_or_else(|| broken("etcd gave no token"))?;
        self.token = Some(token.to_owned());
        Ok(())
    }

    /// Returns the HTTP agent. It is made at its first use, because certificates are read then: an unreadable
    /// one is an error of the request.
    fn agent(&mut self) -> io::Result<Agent> {
        if let Some(agent) = &self.agent {
            return Ok(agent.clone());
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
        tls = match &self.address.ca {
            None => tls.root_certs(RootCerts::PlatformVerifier),
            Some(file) => tls.root_certs(RootCerts::Specific(Arc::new(certificates(file)?))),
        };
        if let Some((certificate, key)) = &self.address.identity {
            let pem = input_file::bytes(key, FILE_BYTES_MAX).map_err(|error| at(key, error))?;
            let secret = PrivateKey::from_pem(&pem).map_err(|error| at(key, error.into_io()))?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&certificates(certificate)?, secret)));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_idle_connections(0)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(ANSWER_TIMEOUT))
            .tls_config(tls.build());
        let agent = Agent::new_with_config(config.build());
        self.agent = Some(agent.clone());
        Ok(agent)
    }
}

fn at(file: &std::path::Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// Reads the certificates of a PEM file.
fn certificates(file: &std::path::Path) -> io::Result<Vec<Certificate<'static>>> {
    let pem = input_file::bytes(file, FILE_BYTES_MAX).map_err(|error| at(file, error))?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        if let ureq::tls::PemItem::Certificate(one) = item.map_err(|error| at(file, error.into_io()))? {
            found.push(one);
        }
    }
    if found.is_empty() {
        return Err(at(file, broken("no certificate in it (PEM)")));
    }
    Ok(found)
}

/// Returns the JSON of an answer; a refusal by etcd is an error.
fn answer(response: Response<Body>) -> io::Result<Value> {
    let code = response.status().as_u16();
    let body = response.into_body().into_with_config().limit(ANSWER_BYTES_MAX);
    let bytes = body.read_to_vec().map_err(ureq::Error::into_io)?;
    let value: Option<Value> = serde_json::from_slice(&bytes).ok();
    match value {
        Some(value) if code == 200 => Ok(value),
        Some(value) => {
            let why = value.get("message").or_else(|| value.get("error")).and_then(Value::as_str);
            Err(io::Error::other(format!("etcd says {code}: {}", why.unwrap_or("no reason given"))))
        }
        None => {
            let said = String::from_utf8_lossy(&bytes);
            let said: String = said.trim().chars().filter(|one| !one.is_control()).take(SAID_MAX).collect();
            Err(broken(format!("an answer that is no JSON, status {code}: {said}")))
        }
    }
}

/// A stream of answers, read by a thread that ends with the stream.
pub(super) struct Stream {
    events: Receiver<io::Result<Value>>,
}

/// Outcome of waiting for a stream.
pub(super) enum Next {
    Event(Value),
    Nothing,
    /// The stream has reached its longest duration.
    Ended,
}

impl Stream {
    fn start(response: Response<Body>) -> io::Result<Stream> {
        let body = response.into_body().into_with_config().limit(2 * ANSWER_BYTES_MAX).reader();
        let (told, events) = sync_channel(EVENTS_MAX);
        let read = move || {
            let mut lines = BufReader::new(body);
            loop {
                let event = match event(&mut lines) {
                    Ok(Some(event)) => Ok(event),
                    // A timeout is the regular end of a stream: the dropped sender tells the reader so.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => return,
                    Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(error) => Err(error),
                };
                let ended = event.is_err();
                if told.send(event).is_err() || ended {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("etcd watch".to_owned()).spawn(read)?;
        Ok(Stream { events })
    }

    /// Returns the next value, if one arrives in time.
    pub(super) fn next(&mut self, timeout: Duration) -> io::Result<Next> {
        match self.events.recv_timeout(timeout) {
            Ok(event) => Ok(Next::Event(event?)),
            Err(RecvTimeoutError::Timeout) => Ok(Next::Nothing),
            Err(RecvTimeoutError::Disconnected) => Ok(Next::Ended),
        }
    }
}

/// Returns the value of the next line that is not empty; `None` at the end.
fn event(lines: &mut impl BufRead) -> io::Result<Option<Value>> {
    loop {
        let mut line = Vec::new();
        if lines.take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            return Err(broken("an event that is too long, or cut off"));
        }
        if !line.trim_ascii().is_empty() {
            return serde_json::from_slice(&line).map(Some).map_err(|_| broken("an event that is no JSON"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_far_as_they_are_good() {
        let mut lines = &b"{\"a\":1}\n\r\n[2]\nnone\n{\"cut\""[..];
        assert_eq!(event(&mut lines).expect("an event"), Some(json!({"a": 1})));
        assert_eq!(event(&mut lines).expect("an event"), Some(json!([2])));
        assert!(event(&mut lines).is_err());
        assert!(event(&mut lines).is_err());
        assert_eq!(event(&mut lines).expect("the end"), None);
    }
}
