// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine: kernels, workers, placement and queues of one process, opened with one configuration.
//!
//! - **Flow** `Engine::open(Config)` ──▶ mask facilities ─▶ pick kernels ─▶ read the calibration, or use built-in
//!   numbers ──▶ synchronous calls (`direct`) and queues
//! - **Owner** an engine owns its threads, which start when the first work is given to them and end with the engine. The
//!   process-wide engine (`global`) is never dropped.
//! - **Cost** opening reads the configuration and one file, and starts nothing. An engine without a calibration of this
//!   machine measures one in the background once it has copied much (`place::background`)
//! - **Not here** the synchronous calls: see `direct`

use crate::error::EngineError;
use crate::run::{Absent, ExecutorSettings, Inline, Worker, WorkerSettings, open_dsa};
use crate::submit::{Operation, Queue, Reason, Rejected, Ticket};
use memlift_ground::complete::WaitPolicy;
use memlift_ground::config::Config;
use memlift_ground::facility::{self, Facility};
use memlift_ground::observe::CacheState;
use memlift_idxd::Idxd;
use memlift_kernels::{CopyFn, Isa, Kernels, set_rep_movsb_from};
use memlift_place::{
    Background, CalibrateError, Calibration, Explanation, Loaded, Origin, Placer, Refine, StoreError,
};
use memlift_spec::{Backend, Opcode};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Number of descriptors that the workers' ring holds.
const RING_DEPTH: usize = 256;
/// Smallest size at which a queued operation goes to DSA: the break-even of Rocket (arXiv 2601.06331, §IV), whose calls do
/// not wait either.
const DSA_BYTES_MIN: usize = 4096;

/// Runs memory operations. Share it as `&Engine` or `Arc<Engine>`.
pub struct Engine {
    pub(crate) copy: CopyFn,
    pub(crate) kernels: &'static Kernels,
    pub(crate) numbers: Arc<Numbers>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) splits: bool,
    pub(crate) background: Background,
    executor_settings: Arc<ExecutorSettings>,
    policy: WaitPolicy,
    queue: Queue,
    /// The device, opened at first use; an error is remembered, and opening is not tried again.
    dsa: OnceLock<Result<Device, Absent>>,
}

/// The numbers by which an engine decides; the thread that calibrates in the background shares them.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub placer: Placer,
    pub refine: Refine,
    executor_settings: Arc<ExecutorSettings>,
    path: Option<PathBuf>,
}

impl Numbers {
    /// Saves a trusted `measured` on disk and decides by it from now on. An untrusted one never replaces a trusted one.
    fn adopt(&self, measured: Calibration) -> Calibrated {
        let path = self.path.as_deref();
        let before = self.placer.loaded();
        let isa = self.executor_settings.kernels().isa;
        let saved = if measured.trust.trusted || !memlift_place::load(path, isa).is_measured() {
            memlift_place::save(&measured, path)
        } else {
            memlift_place::default_or(path, &measured.machine)
        };
        let loaded = if measured.trust.trusted {
            let origin = saved.as_ref().map_or(Origin::Measured, |path| Origin::File { path: path.clone() });
            Loaded { calibration: measured.clone(), origin }
        } else if before.is_measured() {
            before
        } else {
            Loaded::untrusted(&measured)
        };
        self.placer.replace(loaded.clone());
        self.apply();
        Calibrated { measured, loaded, saved }
    }

    /// Makes executors and kernels use the current thresholds and shapes.
    fn apply(&self) {
        let loaded = self.placer.loaded();
        let thresholds = &loaded.calibration.thresholds;
        let limit = |bytes: Option<u64>| bytes.map_or(usize::MAX, |bytes| bytes as usize);
        self.executor_settings.stream_from(limit(thresholds.nt_from_cold_bytes));
        // Both settings are global to the process: an engine without measured numbers does not change those of another
        // engine.
        if loaded.is_measured() {
            set_rep_movsb_from(limit(thresholds.rep_movsb_from_bytes));
            memlift_place::apply_shapes(&loaded.calibration);
        }
        self.refine.reset();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("isa", &self.kernels.isa)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

/// A device in use: a DSA work queue, or a backend of the program's own.
struct Device {
    queue: Queue,
    /// Bit mask of opcodes: bit n is set if the device itself does opcode n.
    opcodes: [u64; 4],
}

impl Device {
    fn dsa(device: Idxd, policy: WaitPolicy) -> Device {
        Device { opcodes: device.opcodes(), queue: Queue::device(Box::new(device), policy) }
    }
}

/// Result of [`Engine::calibrate`]: the numbers, and the path where they were saved.
#[derive(Debug)]
pub struct Calibrated {
    /// The measured numbers, with the judgement if they can be trusted.
    pub measured: Calibration,
    /// The numbers in use from now on: the measured ones if they can be trusted, otherwise the earlier ones.
    pub loaded: Loaded,
    /// Path of the saved calibration, or the reason that it is only in memory.
    pub saved: Result<PathBuf, StoreError>,
}

impl Engine {
    /// Opens an engine of its own, besides the process-wide one.
    ///
    /// # Errors
    ///
    /// [`EngineError`] if the configuration requires something that does not exist.
    pub fn open(config: &Config) -> Result<Engine, EngineError> {
        let unknown = facility::mask(&config.engine.disable);
        if !unknown.is_empty() {
            return Err(EngineError::Facility {
                unknown: unknown.join(", "),
                known: facility::known_names(),
            });
        }
        let kernels = kernels(config.engine.isa.as_deref())?;
        Ok(Engine::with(config, kernels))
    }

    fn with(config: &Config, kernels: &'static Kernels) -> Engine {
        let policy = WaitPolicy::from_config(config);
        let executor_settings = Arc::new(ExecutorSettings::new(kernels, usize::MAX));
        let settings =
            WorkerSettings { threads: config.engine.workers, queue_depth: RING_DEPTH, wait: policy };
        let worker = Arc::new(Worker::new(settings, Arc::clone(&executor_settings)));
        let queue = if settings.threads > 0 {
            Queue::worker(Arc::clone(&worker), policy)
        } else {
            Queue::inline(Inline::new(RING_DEPTH, Arc::clone(&executor_settings)), policy)
        };
        let loaded = memlift_place::load(config.engine.calibration.as_deref(), kernels.isa);
        let background =
            Background::new(config.engine.calibrate && memlift_place::is_worth_measuring(&loaded));
        let numbers = Numbers {
            placer: Placer::new(loaded, kernels.isa),
            refine: Refine::new(kernels.isa),
            executor_settings: Arc::clone(&executor_settings),
            path: config.engine.calibration.clone(),
        };
        numbers.apply();
        Engine {
            copy: kernels.copy,
            kernels,
            numbers: Arc::new(numbers),
            worker,
            splits: config.engine.split,
            background,
            executor_settings,
            policy,
            queue,
            dsa: OnceLock::new(),
        }
    }

    /// Returns the process-wide engine, configured by `memlift.toml` and `MEMLIFT_*`. An invalid configuration is replaced
    /// by the defaults; [`try_global`](Engine::try_global) returns the error.
    pub fn global() -> &'static Engine {
        static FALLBACK: OnceLock<Engine> = OnceLock::new();
        Engine::try_global().unwrap_or_else(|_| {
            FALLBACK.get_or_init(|| Engine::with(&Config::defaults(), memlift_kernels::active()))
        })
    }

    /// Returns the process-wide engine.
    ///
    /// # Errors
    ///
    /// [`EngineError`] if the configuration is not valid.
    pub fn try_global() -> Result<&'static Engine, &'static EngineError> {
        static GLOBAL: OnceLock<Result<Engine, EngineError>> = OnceLock::new();
        let open = || Config::load().map_err(EngineError::from).and_then(|config| Engine::open(&config));
        GLOBAL.get_or_init(open).as_ref()
    }

    /// Returns the routines in use.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }

    /// Returns the engine threads.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Returns the placer, which chooses the executor of each operation.
    pub fn placer(&self) -> &Placer {
        &self.numbers.placer
    }

    /// Returns the engine's queue: that of the workers or, without workers, a queue that runs when it is polled or waited
    /// for.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    fn opened_dsa(&self) -> Result<&Device, &Absent> {
        let open = || open_dsa(Path::new("/"), &self.executor_settings);
        self.dsa.get_or_init(|| Ok(Device::dsa(open()?, self.policy))).as_ref()
    }

    /// Returns the queue of Intel DSA. It accepts every operation that other queues accept: those that the device does not
    /// support run on the caller that polls or waits.
    ///
    /// # Errors
    ///
    /// The reason that there is no DSA. The search happens once.
    pub fn dsa(&self) -> Result<&Queue, &Absent> {
        self.opened_dsa().map(|dsa| &dsa.queue)
    }

    /// Offloads to `backend` instead of DSA: queued operations that are large enough, and calls that name the device
    /// ([`Executor::Idxd`](memlift_ground::observe::Executor::Idxd)). Other operations go to engine threads. If the backend
    /// does not finish a copy of a call that names the device, the caller makes it; a queued operation returns the backend's
    /// error.
    ///
    /// # Errors
    ///
    /// The backend is returned if a device is in use, or DSA was already searched for.
    pub fn use_backend(&self, backend: Box<dyn Backend>) -> Result<(), Box<dyn Backend>> {
        let mut backend = Some(backend);
        let _ = self.dsa.get_or_init(|| {
            let backend = backend.take().expect("once");
            let opcodes = backend.capabilities().opcodes;
            Ok(Device { opcodes, queue: Queue::device(backend, self.policy) })
        });
        backend.map_or(Ok(()), Err)
    }

    /// Returns the queue of DSA, if there is a device, it supports the operation, and the size is large enough.
    fn offloads(&self, opcode: Opcode, bytes: usize) -> Option<&Queue> {
        if bytes < DSA_BYTES_MIN {
            return None;
        }
        let dsa = match self.dsa.get() {
            Some(found) => found.as_ref().ok()?,
            None if facility::usable(Facility::Dsa) => self.opened_dsa().ok()?,
            None => return None,
        };
        let supported = dsa.opcodes[(opcode.0 >> 6) as usize] >> (opcode.0 & 63) & 1 == 1;
        let fits = bytes <= dsa.queue.capabilities().transfer_bytes_max as usize;
        (supported && fits && !dsa.queue.is_lost()).then_some(&dsa.queue)
    }

    /// Submits to DSA if there is a device that supports the operation, otherwise to [`queue`](Engine::queue), with the cost
    /// model's prediction for the wait. For DRAIN this first waits until DSA has completed everything submitted before.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the operation in it.
    pub fn submit(&self, mut operation: Operation) -> Result<Ticket, Rejected> {
        let (opcode, bytes) = (operation.opcode(), operation.bytes());
        if let (Opcode::DRAIN, Some(Ok(dsa))) = (opcode, self.dsa.get()) {
            // Operations submitted before the drain may be in either queue, so both are drained.
            if let Ok(ticket) = dsa.queue.submit(Operation::Drain) {
                let _ = ticket.wait();
            }
        }
        if let Some(queue) = self.offloads(opcode, bytes) {
            match queue.submit(operation) {
                Ok(ticket) => return Ok(ticket.with_prediction(dsa_ns(bytes))),
                Err(Rejected { operation: back, reason: Reason::Busy }) => operation = *back,
                Err(rejected) => return Err(rejected),
            }
        }
        let predicted = self.predict_queued_ns(opcode, bytes);
        Ok(self.queue.submit(operation)?.with_prediction(predicted))
    }

    /// Explains which executor would run an operation of `bytes` bytes now, and why. If the cache state is `Unknown`, the
    /// state that the size suggests is assumed.
    pub fn explain(&self, opcode: Opcode, bytes: usize, cache: CacheState) -> Explanation {
        self.numbers.placer.explain(opcode, bytes, cache)
    }

    /// Measures the machine (about a second). Decides by the result from now on and saves it on disk, unless the machine was
    /// busy.
    ///
    /// # Errors
    ///
    /// [`CalibrateError`] if there is not enough memory to measure; nothing has changed then.
    pub fn calibrate(&self) -> Result<Calibrated, CalibrateError> {
        self.background.cancel();
        Ok(self.numbers.adopt(memlift_place::calibrate(self.kernels, &*self.worker)?))
    }

    /// Calibrates in the background; no call waits for it.
    #[cold]
    pub(crate) fn calibrate_later(&self) {
        let (kernels, numbers) = (self.kernels, Arc::clone(&self.numbers));
        self.background.start(move |stop| {
            // If there is not enough memory to measure, the built-in numbers stay in use.
            if let Ok(measured) = memlift_place::calibrate_alone(kernels, stop)
                && !stop.load(std::sync::atomic::Ordering::Relaxed)
            {
                numbers.adopt(measured);
            }
        });
    }

    /// Predicts the time until a queued operation has completed, nanoseconds.
    fn predict_queued_ns(&self, opcode: Opcode, bytes: usize) -> u64 {
        use memlift_ground::observe::Executor::{InlineTemporal, Worker};
        let cold = CacheState::Cold;
        let placer = &self.numbers.placer;
        let predicted = placer
            .predict_ns(Worker, opcode, bytes, cold)
            .or_else(|| placer.predict_ns(InlineTemporal, opcode, bytes, cold));
        predicted.map_or(0, |ns| ns as u64)
    }
}

/// Returns the predicted time of DSA in nanoseconds: that of one device of a Sapphire Rapids server, as measured by its
/// users (intel/DML issue 25, DTO's table). Calibration does not measure DSA. Only the length of waits depends on this.
fn dsa_ns(bytes: usize) -> u64 {
    1_750 + bytes as u64 / 32
}

fn kernels(isa: Option<&str>) -> Result<&'static Kernels, EngineError> {
    // The kernels handle the variable themselves, because they also serve programs without an engine.
    let Some(name) = isa.filter(|_| std::env::var_os(memlift_kernels::ISA_VARIABLE).is_none()) else {
        return Ok(memlift_kernels::active());
    };
    let found = Isa::from_name(name).and_then(memlift_kernels::for_isa);
    found.ok_or_else(|| EngineError::Isa { name: name.to_owned() })
}
