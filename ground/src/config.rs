// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration of everything: built-in defaults, then `memlift.toml`, then `MEMLIFT_*`.
//!
//! - **Flow** [`keys::KEYS`] (name, kind, default, doc) ──▶ defaults ──▶ replaced by values in the first file found of
//!   $MEMLIFT_CONFIG, ./memlift.toml, $XDG_CONFIG_HOME/memlift/memlift.toml (or ~/.config/memlift/memlift.toml) ──▶
//!   replaced by the environment; an empty variable counts as not set. Each value is parsed and bounded once, by its
//!   [`Kind`], and stored with its origin.
//! - **Layout** key `engine.workers` ↔ variable `MEMLIFT_WORKERS`; key `ipc.timeout_s` ↔ `MEMLIFT_IPC_TIMEOUT_S`.
//! - **Owner** a [`Config`] is plain data. Loading changes nothing in the process.
//! - **Not here** the effect of a value: the service that uses the key applies it.

use std::path::{Path, PathBuf};

mod keys;
mod source;
mod value;

pub use keys::{KEYS, Key};
pub use source::{Candidate, ConfigError};
pub use value::{Kind, Value};

/// Origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// A configuration file, given by its path.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Environment(name) => f.write_str(name),
        }
    }
}

impl serde::Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One line of `memlift config show`.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Entry {
    /// Name of the key, such as `engine.workers`.
    pub key: &'static str,
    /// The environment variable that overrides the key.
    pub variable: String,
    /// Value of the key, in a form that can be pasted back; empty for none.
    pub value: String,
    /// Origin of the value.
    pub origin: Origin,
    /// Meaning of the key, one sentence with the unit.
    pub doc: &'static str,
}

/// How a thread waits for completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Spin as long as that pays, then sleep.
    Auto,
    /// Spin for up to a second before sleeping.
    Spin,
    /// Sleep immediately, without spinning.
    Block,
}

/// Default of `engine.spin_us_max`: about the cost of a sleep and a wake-up on virtual cores.
pub const SPIN_US_MAX: u64 = 100;

/// Keys under `engine.`.
#[derive(Clone, PartialEq, Debug)]
pub struct EngineConfig {
    /// Instruction set of the kernels; none: the best that the CPU has.
    pub isa: Option<String>,
    /// Masked facilities, as `a,b,c`; empty for none.
    pub disable: String,
    /// Number of engine threads.
    pub workers: usize,
    /// How threads wait.
    pub wait: Wait,
    /// Most microseconds of spinning in one wait.
    pub spin_us_max: u64,
    /// Calibration file to use instead of the one in the cache folder.
    pub calibration: Option<PathBuf>,
    /// True if an engine that copies much and has no calibration measures one in the background.
    pub calibrate: bool,
    /// True if one large copy may be shared between the caller and a worker.
    pub split: bool,
}

/// Keys under `ipc.`.
#[derive(Clone, PartialEq, Debug)]
pub struct IpcConfig {
    /// Initial size of a session's request pool, bytes.
    pub request_pool_bytes: u64,
    /// Initial size of a session's response pool, bytes.
    pub response_pool_bytes: u64,
    /// Most bytes of the two pools of one session together.
    pub pool_bytes_max: u64,
    /// Most bytes of one message.
    pub message_bytes_max: u64,
    /// Most calls in flight in one session.
    pub outstanding_max: u32,
    /// Seconds until a call without its own timeout gives up; none: never.
    pub timeout_s: Option<f64>,
    /// Folder for servers with a bare name; none: abstract sockets, nothing on disk.
    pub socket_dir: Option<PathBuf>,
}

/// How transforms store their results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Chosen per message.
    Adaptive,
    /// Through the cache.
    Temporal,
    /// With stores past the cache.
    Streaming,
    /// With stores past the cache, and reads that do not fill the cache.
    Isolated,
}

/// Keys under `transform.`.
#[derive(Clone, PartialEq, Debug)]
pub struct TransformConfig {
    /// Most bytes of scratch memory of all transforms together.
    pub scratch_bytes: u64,
    /// How results are stored.
    pub placement: Placement,
    /// Percent by which the cache must be slower than at its best to count as contended.
    pub contention_percent: u32,
    /// Percent by which other programs may be slowed before transforms avoid the cache.
    pub slowdown_percent: u32,
    /// True if contention is measured.
    pub probe: bool,
}

/// The configuration of this process.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Keys under `engine.`.
    pub engine: EngineConfig,
    /// Keys under `ipc.`.
    pub ipc: IpcConfig,
    /// Keys under `transform.`.
    pub transform: TransformConfig,
    values: Vec<(Value, Origin)>,
    unknown_variables: Vec<String>,
}

impl Config {
    /// Loads the configuration of this process: the first file found, then the environment over it.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the file or variable, the key and the allowed values.
    pub fn load() -> Result<Config, ConfigError> {
        Config::load_from(&source::search_path(|name| std::env::var_os(name)), std::env::vars_os())
    }

    /// Loads the configuration from the first of `files` that exists, and from `variables` instead of the
    /// environment.
    ///
    /// # Errors
    ///
    /// The errors of [`load`](Config::load).
    pub fn load_from(
        files: &[Candidate],
        variables: impl IntoIterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    ) -> Result<Config, ConfigError> {
        let mut values: Vec<(Value, Origin)> =
            KEYS.iter().map(|key| ((key.default)(), Origin::Default)).collect();
        if let Some((path, text)) = source::first_file(files)? {
            source::apply_file(&mut values, &path, &text)?;
        }
        let unknown_variables = source::apply_variables(&mut values, variables)?;
        Ok(Config::from_values(values, unknown_variables))
    }

    /// Returns the defaults of all keys, without file or environment.
    pub fn defaults() -> Config {
        let values = KEYS.iter().map(|key| ((key.default)(), Origin::Default)).collect();
        Config::from_values(values, Vec::new())
    }

    fn from_values(values: Vec<(Value, Origin)>, unknown_variables: Vec<String>) -> Config {
        let get = |name: &str| {
            let index = KEYS.iter().position(|key| key.name == name).expect("every key here is in the table");
            &values[index].0
        };
        let path = |name: &str| get(name).text().map(PathBuf::from);
        let engine = EngineConfig {
            isa: get("engine.isa").text().filter(|isa| *isa != "auto").map(str::to_owned),
            disable: get("engine.disable").text().unwrap_or_default().to_owned(),
            workers: get("engine.workers").number() as usize,
            wait: match get("engine.wait").text() {
                Some("spin") => Wait::Spin,
                Some("block") => Wait::Block,
                _ => Wait::Auto,
            },
            spin_us_max: get("engine.spin_us_max").number(),
            calibration: path("engine.calibration"),
            calibrate: get("engine.calibrate").flag(),
            split: get("engine.split").flag(),
        };
        let ipc = IpcConfig {
            request_pool_bytes: get("ipc.request_pool_bytes").number(),
            response_pool_bytes: get("ipc.response_pool_bytes").number(),
            pool_bytes_max: get("ipc.pool_bytes_max").number(),
            message_bytes_max: get("ipc.message_bytes_max").number(),
            outstanding_max: get("ipc.outstanding_max").number() as u32,
            timeout_s: Some(get("ipc.timeout_s").seconds()).filter(|seconds| *seconds > 0.0),
            socket_dir: path("ipc.socket_dir"),
        };
        let transform = TransformConfig {
            scratch_bytes: get("transform.scratch_bytes").number(),
            placement: match get("transform.placement").text() {
                Some("temporal") => Placement::Temporal,
                Some("streaming") => Placement::Streaming,
                Some("isolated") => Placement::Isolated,
                _ => Placement::Adaptive,
            },
            contention_percent: get("transform.contention_percent").number() as u32,
            slowdown_percent: get("transform.slowdown_percent").number() as u32,
            probe: get("transform.probe").flag(),
        };
        Config { engine, ipc, transform, values, unknown_variables }
    }

    /// Returns every key with its value and origin.
    pub fn entries(&self) -> Vec<Entry> {
        KEYS.iter()
            .zip(&self.values)
            .map(|(key, (value, origin))| Entry {
                key: key.name,
                variable: key.variable(),
                value: value.to_string(),
                origin: origin.clone(),
                doc: key.doc,
            })
            .collect()
    }

    /// Returns the `MEMLIFT_*` variables that are set but belong to no key; they are probably misspelt, so
    /// they deserve a warning.
    pub fn unknown_variables(&self) -> &[String] {
        &self.unknown_variables
    }

    /// Returns the paths where the file is searched, best first.
    pub fn search_path() -> Vec<PathBuf> {
        source::search_path(|name| std::env::var_os(name))
            .into_iter()
            .map(|candidate| Path::to_owned(candidate.path()))
            .collect()
    }
}
