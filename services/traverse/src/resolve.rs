// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resolves addresses as people write them, including host names.
//!
//! - **Flow** `HOST:PORT` ─▶ the system's resolver ─▶ one socket address
//! - **Rule** only names given by the user (on a command line, in a file) are resolved, never names from a packet, a peer or a
//!   coordinator's map
//! - **Not here** `shm:` and `unix:`, which are no network addresses

use std::net::{SocketAddr, ToSocketAddrs};

/// Returns the address of `ADDRESS:PORT` or `HOST:PORT`. If a name has several addresses, the first IPv4 one is used,
/// otherwise the first: so a node that listens at a name and a client that connects to it use the same one. May wait for the
/// network.
///
/// # Errors
///
/// A text that describes the fault: there is no port, or the name has no address.
pub fn resolve(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let good = |host: &str, port: &str| {
        !host.is_empty() && !host.contains([':', '[', ' ']) && port.parse::<u16>().is_ok()
    };
    if !text.rsplit_once(':').is_some_and(|(host, port)| good(host, port)) {
        return Err(format!("{text:?} is no address: write HOST:PORT, 127.0.0.1:7700 or [::1]:7700"));
    }
    let found =
        text.to_socket_addrs().map_err(|error| format!("{text:?}: the name was not found: {error}"))?;
    let found: Vec<SocketAddr> = found.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| format!("{text:?}: the name has no address"))
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn names_and_addresses_are_found_and_nonsense_is_named() {
        assert_eq!(resolve("127.0.0.1:7700"), Ok("127.0.0.1:7700".parse().unwrap()));
        assert_eq!(resolve("[::1]:7700"), Ok("[::1]:7700".parse().unwrap()));
        assert_eq!(resolve("localhost:7700").map(|address| address.ip().is_loopback()), Ok(true));
        for wrong in [
            "",
            "7700",
            "localhost",
            ":7700",
            "localhost:",
            "localhost:70000",
            "::1:7700",
            "[::1:7700",
            "a b:1",
        ] {
            assert!(resolve(wrong).is_err_and(|reason| reason.contains("HOST:PORT")), "{wrong}");
        }
        assert!(resolve("no-such-host.invalid:1").is_err_and(|reason| reason.contains("not found")));
    }
}
