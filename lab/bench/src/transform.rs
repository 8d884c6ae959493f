// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift bench transform`: copies that seal, open, pack, unpack and check, against what programs do today.
//!
//! - **Flow** definitions ─▶ a kind by the row's name ─▶ messages ─▶ interleaved pairs on one thread ─▶ rows
//! - **Rivals** the system's libcrypto, zlib and ISA-L by dlopen, aws-lc linked; each in its best honest configuration, which
//!   `qualifies` names
//! - **Check** every output of both sides is opened or unpacked with the rival's library and compared before a pair counts
//! - **Missing** a corpus or rival that is neither installed nor fetched makes its rows `missing`; they say what to install
//! - **Not here** rows of nginx and of Python's modules, which Python measures

mod adaptive;
#[expect(unsafe_code, reason = "calls aws-lc, a C library")]
mod awslc;
mod corpus;
#[expect(unsafe_code, reason = "lets the rival copy and seal raw memory")]
mod corunner;
mod evp;
#[expect(unsafe_code, reason = "lets the rival copy and seal raw memory")]
mod fused;
#[expect(unsafe_code, reason = "calls ISA-L, a C library")]
mod isal;
mod levels;
#[expect(unsafe_code, reason = "calls two libz, C libraries")]
mod libz;
mod neighbour;
#[expect(unsafe_code, reason = "calls libcrypto, a C library")]
mod openssl;
#[expect(unsafe_code, reason = "calls memlift on raw memory")]
mod ours;
mod pack;
#[expect(unsafe_code, reason = "steps a child process through a call")]
mod steps;
#[expect(unsafe_code, reason = "calls zlib, a C library")]
mod zlib;

use self::adaptive::Phase;
use self::levels::Levels;
use self::pack::Pack;
use crate::definition::Definition;
use crate::row::{self, Sink, Stop};
use memlift_cli::libraries;

use crate::{BenchError, Options, scripted};

/// Kind of row that a name asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Evp { seals: bool, bytes: usize },
    Pack(Pack),
    Unpack { bytes: usize },
    CopySeal { bytes: usize },
    CopyCrcSeal { bytes: usize },
    Levels(Levels),
    Corunner,
    Adaptive(Phase),
}

impl Kind {
    fn parse(name: &str) -> Option<Kind> {
        let parts: Vec<&str> = name.split('/').collect();
        let bytes = |text: &str| text.parse::<usize>().ok().filter(|bytes| *bytes > 0);
        let corpus = |text: &str| match text {
            "html" => Some(corpus::Kind::Html),
            "js" => Some(corpus::Kind::Js),
            "random" => Some(corpus::Kind::Random),
            "xml" => Some(corpus::Kind::Xml),
            "json" => Some(corpus::Kind::Json),
            "chat" => Some(corpus::Kind::Chat),
            name => corpus::SNAPPY.iter().find(|file| **file == name).map(|file| corpus::Kind::Snappy(file)),
        };
        let level = |text: &str| text.parse().ok().filter(|level| (1..=9).contains(level));
        let flushed = |text: &str| match text {
            "60B" => Some(60),
            "1KiB" => Some(1024),
            "4KiB" => Some(4096),
            _ => None,
        };
        Some(match parts[..] {
            ["evp", "seal", size] => Kind::Evp { seals: true, bytes: bytes(size)? },
            ["evp", "open", size] => Kind::Evp { seals: false, bytes: bytes(size)? },
            ["pack", size, kind] => {
                Kind::Pack(Pack { bytes: bytes(size)?, kind: corpus(kind)?, fast: false })
            }
            ["pack", size, kind, "fast"] => {
                Kind::Pack(Pack { bytes: bytes(size)?, kind: corpus(kind)?, fast: true })
            }
            ["copy_seal", size, "cold"] => Kind::CopySeal { bytes: bytes(size)? },
            ["copy_crc_seal", size] => Kind::CopyCrcSeal { bytes: bytes(size)? },
            ["flush", size, kind, at] => {
                Kind::Levels(Levels { kind: corpus(kind)?, level: level(at)?, flushed: Some(flushed(size)?) })
            }
            ["level", at, kind] => {
                Kind::Levels(Levels { kind: corpus(kind)?, level: level(at)?, flushed: None })
            }
            ["corunner", "slowdown"] | ["corunner", "slowdown", "apart"] => Kind::Corunner,
            ["adaptive", phase] => Kind::Adaptive(Phase::parse(phase)?),
            ["unpack", size, "html"] => Kind::Unpack { bytes: bytes(size)? },
            _ => return None,
        })
    }
}

const NGINX: &str = "engines/nginx/nginx_bench.py";
const PYTHON: &str = "engines/zlib/zlib_bench.py";

/// The script that measures a row; none where it is measured here.
fn script(name: &str) -> Option<&'static str> {
    match name.split('/').next() {
        Some("nginx") => Some(NGINX),
        Some("python" | "gz" | "asgi" | "arrays") => Some(PYTHON),
        _ => None,
    }
}

/// Measures the rows; gives how many failed.
pub(crate) fn run(
    definitions: &[Definition],
    options: &Options,
    sink: &mut Sink,
) -> Result<usize, BenchError> {
    let of = |engine: Option<&'static str>| -> Vec<Definition> {
        definitions.iter().filter(|row| script(&row.name) == engine).cloned().collect()
    };
    let row = |definition: &Definition| match Kind::parse(&definition.name) {
        Some(Kind::Evp { seals, bytes }) => evp::row(definition, seals, bytes, options.quick),
        Some(Kind::Pack(pack)) => pack::row(definition, pack, options.quick),
        Some(Kind::Unpack { bytes }) => pack::unpack_row(definition, bytes, options.quick),
        Some(Kind::CopySeal { bytes }) => fused::copy_seal(definition, bytes, options.quick),
        Some(Kind::CopyCrcSeal { bytes }) => fused::copy_crc_seal(definition, bytes, options.quick),
        Some(Kind::Levels(levels)) => levels::row(definition, levels, options.quick),
        Some(Kind::Corunner) => corunner::row(definition, options.quick),
        Some(Kind::Adaptive(phase)) => adaptive::row(definition, phase, options.quick),
        None => Err(Stop::Failed(BenchError::Engine {
            reason: format!("{} is no transform; see lab/bench/src/transform.rs", definition.name),
        })),
    };
    let mut failed = row::each(&of(None), sink, row);
    for (engine, arguments) in [(NGINX, libraries::arguments()), (PYTHON, Vec::new())] {
        let rows = of(Some(engine));
        if !rows.is_empty() {
            failed += scripted::run(engine, arguments, &rows, options, sink)?;
        }
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_a_kind_or_belongs_to_a_script() {
        for row in crate::definition::all("transform").expect("parses") {
            assert!(script(&row.name).is_some() || Kind::parse(&row.name).is_some(), "{}", row.name);
        }
        assert_eq!(Kind::parse("evp/seal/0"), None);
        assert_eq!(Kind::parse("pack/4096/prose"), None);
    }
}
