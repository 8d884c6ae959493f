// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The address of an etcd, with the options of the connection, as one text.
//!
//! - **Layout** `https://HOST:PORT[,https://HOST:PORT…][/PREFIX][?OPTION=VALUE&…]`, the options `user`, `password-file`, `ca`,
//!   `cert`, `key`, `lease`
//! - **Not here** the password itself: every user of a machine can read command lines

use std::path::PathBuf;

/// An etcd, and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdAddress {
    /// `http://HOST:PORT` or `https://HOST:PORT` of each member.
    pub hosts: Vec<String>,
    /// Key prefix below which all keys of the cluster lie.
    pub prefix: String,
    /// User, and the file that holds the password.
    pub login: Option<(String, PathBuf)>,
    /// PEM file of the authorities that may certify etcd; `None`: those that this machine trusts.
    pub ca: Option<PathBuf>,
    /// PEM files of this client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Length of a node's lease in seconds; `None`: the default.
    pub lease_s: Option<u64>,
}

/// Default length of a lease in seconds, etcd's unit.
pub const LEASE_S: u64 = 5;

/// Text for an error that shows the syntax.
pub(super) const FORM: &str = "after etcd: comes http://HOST:PORT or https://HOST:PORT, more of them after commas, /PREFIX, and \
     ?user=NAME&password-file=FILE&ca=FILE&cert=FILE&key=FILE&lease=SECONDS (user with password-file; cert with key; files need https \
     or a user; a lease of 1 to 3600 seconds)";

impl EtcdAddress {
    /// Parses the text; returns `None` if it does not match [`FORM`].
    pub(super) fn parse(text: &str) -> Option<EtcdAddress> {
        let (places, options) =
            text.split_once('?').map_or((text, None), |(places, options)| (places, Some(options)));
        let mut address = EtcdAddress { prefix: "memlift".to_owned(), ..EtcdAddress::default() };
        let parts: Vec<&str> = places.split(',').collect();
        for (index, part) in parts.iter().enumerate() {
            let (scheme, rest) =
                part.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            let (name, port) = host.rsplit_once(':')?;
            // Refuses `user:password@host`, because a password must not be written here.
            if name.is_empty()
                || name.contains('@')
                || port.parse::<u16>().ok().filter(|port| *port != 0).is_none()
            {
                return None;
            }
            let path = path.trim_end_matches('/');
            if !path.is_empty() {
                let good = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
                if index + 1 != parts.len() || !good {
                    return None;
                }
                path.clone_into(&mut address.prefix);
            }
            address.hosts.push(format!("{scheme}://{host}"));
        }
        address.options(options)
    }

    fn options(mut self, options: Option<&str>) -> Option<EtcdAddress> {
        let (mut user, mut password, mut certificate, mut key) = (None, None, None, None);
        for option in options.into_iter().flat_map(|options| options.split('&')) {
            let (name, value) = option.split_once('=').filter(|(_, value)| !value.is_empty())?;
            let before = match name {
                "user" => user.replace(value.to_owned()).map(PathBuf::from),
                "password-file" => password.replace(PathBuf::from(value)),
                "ca" => self.ca.replace(PathBuf::from(value)),
                "cert" => certificate.replace(PathBuf::from(value)),
                "key" => key.replace(PathBuf::from(value)),
                "lease" => {
                    let seconds = value.parse().ok().filter(|seconds| (1..=3600).contains(seconds))?;
                    self.lease_s.replace(seconds).map(|_| PathBuf::new())
                }
                _ => return None,
            };
            if before.is_some() {
                return None;
            }
        }
        self.login = both(user, password)?;
        self.identity = both(certificate, key)?;
        let tls = self.hosts.iter().all(|host| host.starts_with("https://"));
        // Without TLS certificates would not be checked, so they are refused.
        (tls || (self.ca.is_none() && self.identity.is_none())).then_some(self)
    }
}

/// Returns two options that are only valid together; the outer `None`: one of them is missing.
fn both<A, B>(one: Option<A>, other: Option<B>) -> Option<Option<(A, B)>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Some((one, other))),
        (None, None) => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_a_number_of_seconds() {
        let lease = |text: &str| EtcdAddress::parse(&format!("http://h:1/p{text}")).map(|one| one.lease_s);
        assert_eq!((lease(""), lease("?lease=2")), (Some(None), Some(Some(2))));
        for wrong in ["?lease=0", "?lease=", "?lease=3601", "?lease=1s", "?lease=2&lease=2"] {
            assert_eq!(lease(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn options_go_together_or_are_refused() {
        let read =
            EtcdAddress::parse("https://h:1,https://i:2/a?user=u&password-file=/p&ca=/c&cert=/e&key=/k")
                .expect("read");
        assert_eq!(read.hosts, ["https://h:1", "https://i:2"]);
        assert_eq!(read.prefix, "a");
        assert_eq!(read.login, Some(("u".to_owned(), PathBuf::from("/p"))));
        assert_eq!(read.ca, Some(PathBuf::from("/c")));
        assert_eq!(read.identity, Some((PathBuf::from("/e"), PathBuf::from("/k"))));
        assert!(EtcdAddress::parse("http://h:1?user=u&password-file=/p").is_some());
        for text in [
            "https://h:1?",
            "https://h:1?user=u",
            "https://h:1?password-file=/p",
            "https://h:1?cert=/e",
            "https://h:1?key=/k",
            "https://h:1?ca=",
            "https://h:1?ca=/a&ca=/b",
            "https://h:1?password=secret",
            "https://user:word@h:1",
            "http://h:1?ca=/c",
            "https://h:1,http://i:2?ca=/c",
        ] {
            assert_eq!(EtcdAddress::parse(text), None, "{text}");
        }
    }
}
