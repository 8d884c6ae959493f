// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The DSA backend with the twin at the other end of its portal: whatever the device does, the submitter sees right bytes and a
//! record without a trace of it.
//!
//! - **Flow** suite ─▶ `Idxd` ─▶ a portal of this file ─▶ [`Twin`] (order, faults) ─▶ records ─▶ `Idxd`, the engine's routines ─▶ suite
//! - **Portals** [`Wire`]: the device is done at once, or when it is told to; takes no batches, or few descriptors, if so made.
//!   A pipe: write(2) for real, with the device in a thread behind it

use super::address;
use memlift_conformance::{Plan, run, run_each};
use memlift_ground::complete::WaitPolicy;
use memlift_ground::config::Config;
use memlift_ground::observe::Executor;
use memlift_idxd::portal::Written;
use memlift_idxd::{Idxd, Mode, Portal, Settings, Untrusted, WorkQueue};
use memlift_model::{Fortune, Twin};
use memlift_offload::Engine;
use memlift_offload::run::{Absent, ExecutorSettings, Finisher, open_dsa};
use memlift_offload::submit::{Operation, Queue};
use memlift_spec::{Backend, Completion, Descriptor, Flags, Opcode, Status};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A queue with the properties of a real device.
pub fn queue(size: u32) -> WorkQueue {
    WorkQueue {
        name: "wq0.0".to_owned(),
        device: "dsa0".to_owned(),
        enabled: true,
        kind: "user".to_owned(),
        mode: Mode::Shared,
        size,
        threshold: size,
        transfer_bytes_max: 1 << 31,
        batch_max: 1024,
        blocks_on_fault: false,
        cache_control: true,
        overlap: true,
        opcodes: [0x1_003f_07ff, 0, 0, 0],
        node: None,
        path: "/dev/dsa/wq0.0".into(),
    }
}

/// A portal with the twin behind it.
pub struct Wire {
    twin: Twin,
    /// Batches are refused, as by kernels that let none through.
    barred: bool,
    /// True if the twin works only when it is told to.
    held: AtomicBool,
    took: AtomicU64,
}

impl Wire {
    pub fn new(depth: usize, fortune: Fortune) -> Arc<Wire> {
        wire_of(Twin::new(depth, fortune))
    }

    /// From now on, takes descriptors and does nothing with them until `work`.
    pub fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    /// How many descriptors it took.
    pub fn took(&self) -> u64 {
        self.took.load(Ordering::Relaxed)
    }

    pub fn work(&self) {
        while self.twin.poll() > 0 {}
    }
}

pub fn wire_of(twin: Twin) -> Arc<Wire> {
    Arc::new(Wire { twin, barred: false, held: AtomicBool::new(false), took: AtomicU64::new(0) })
}

pub struct End(pub Arc<Wire>);

// SAFETY: the twin uses a descriptor's memory as a device does.
unsafe impl Portal for End {
    fn name(&self) -> &'static str {
        "wire"
    }

    unsafe fn offer(&self, descriptors: &[Descriptor]) -> io::Result<usize> {
        let Wire { twin, barred, held, took } = &*self.0;
        let open = descriptors.iter().take_while(|d| !barred || d.opcode() != Opcode::BATCH).count();
        if open == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the caller of `offer` vouches for the descriptors' memory as for `Backend::submit`, and the twin gets a part of
        // them.
        let taken = match unsafe { twin.submit(&descriptors[..open]) } {
            Ok(()) => open,
            Err(busy) => busy.accepted,
        };
        took.fetch_add(taken as u64, Ordering::Relaxed);
        if !held.load(Ordering::Relaxed) {
            self.0.work();
        }
        Ok(taken)
    }
}

fn executor_settings() -> Arc<ExecutorSettings> {
    Arc::new(ExecutorSettings::new(memlift_kernels::active(), usize::MAX))
}

pub fn finisher() -> Box<Finisher> {
    Box::new(Finisher::new(executor_settings()))
}

fn open(queue: &WorkQueue, portal: Box<dyn Portal>) -> Idxd {
    Idxd::new(queue, portal, finisher(), Settings { patience: Duration::from_secs(600) }).unwrap()
}

pub fn over(queue: &WorkQueue, wire: &Arc<Wire>) -> Idxd {
    open(queue, Box::new(End(Arc::clone(wire))))
}

fn pass(device: &Idxd, share: u64) {
    let plan = Plan::from_environment();
    let plan = Plan { cases: plan.cases / share, ..plan };
    if let Err(failure) = run(device, &plan) {
        panic!("{device:?}: {failure}");
    }
}

pub const CALM: Fortune = Fortune { seed: 1, faults: 0, reorder: true };

#[test]
fn it_conforms_whatever_faults() {
    for (seed, faults) in [(1, 0), (2, 100_000), (3, 1_000_000)] {
        let device = over(&queue(8), &Wire::new(8, Fortune { seed, faults, reorder: true }));
        pass(&device, 15);
        let stats = device.stats();
        assert!(stats.offloaded > 100 && !stats.quarantined, "{stats:?}");
        assert_eq!(stats.faults > 0, faults > 0, "{stats:?}");
    }
}

#[test]
fn it_conforms_within_narrow_limits() {
    let faulty = Fortune { seed: 9, faults: 200_000, reorder: true };
    let short = WorkQueue { transfer_bytes_max: 4096, batch_max: 3, ..queue(2) };
    let device = over(&short, &Wire::new(1, faulty));
    pass(&device, 15);
    let plain = WorkQueue {
        overlap: false,
        cache_control: false,
        blocks_on_fault: true,
        opcodes: [0x2b, 0, 0, 0],
        ..queue(4)
    };
    pass(&over(&plain, &Wire::new(4, faulty)), 15);
    let none = WorkQueue { transfer_bytes_max: 0, batch_max: 0, ..queue(1) };
    pass(&over(&none, &Wire::new(1, CALM)), 20);
}

/// A shared queue of eight entries that refuses programs' descriptors from the third on.
#[test]
fn a_queue_gets_no_more_than_its_threshold() {
    let wire = Wire::new(8, CALM);
    let device = over(&WorkQueue { threshold: 3, ..queue(8) }, &wire);
    assert_eq!(device.capabilities().queue_depth, 3);
    wire.hold();
    let before = wire.took();
    let mut records = [Completion::PENDING; 5];
    let noops: Vec<Descriptor> = records
        .iter_mut()
        .map(|record| {
            let flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
            Descriptor { completion_address: address(record), ..Descriptor::new(Opcode::NOOP, flags) }
        })
        .collect();
    // SAFETY: NOOPs use their records only, which live to the end.
    let busy = unsafe { device.submit(&noops) }.unwrap_err();
    assert_eq!((busy.accepted, wire.took() - before, device.stats().full), (3, 3, 0));
    wire.work();
    while device.poll() > 0 {}
    assert_eq!(records.iter().filter(|record| record.status() == Status::SUCCESS).count(), 3);
}

#[test]
fn batches_that_the_kernel_refuses_go_member_by_member() {
    let wire = Wire::new(8, Fortune { seed: 4, faults: 100_000, reorder: true });
    let wire = Arc::new(Wire { barred: true, ..Arc::into_inner(wire).unwrap() });
    let device = over(&queue(8), &wire);
    pass(&device, 15);
    assert!(device.stats().offloaded > 100 && device.stats().by_cpu > 0);
}

#[test]
#[ignore = "soak"]
fn soak_every_opcode_through_the_portal_with_faults() {
    let device = over(&queue(8), &Wire::new(8, Fortune { seed: 12, faults: 300_000, reorder: true }));
    let count =
        run_each(&device, 100_000, &Plan::from_environment()).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{count} descriptors, {:?}", device.stats());
}

/// Descriptors from a pipe to the twin, until its writer is gone.
fn device_behind(mut pipe: std::fs::File) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let twin = Twin::new(1, Fortune { seed: 5, faults: 50_000, reorder: false });
        let (mut bytes, mut count) = ([0; 64], 0);
        while pipe.read_exact(&mut bytes).is_ok() {
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let mut descriptor = Descriptor::new(Opcode::NOOP, Flags::NONE);
            (descriptor.pasid, descriptor.flags_opcode) = (word(0) as u32, (word(0) >> 32) as u32);
            (descriptor.completion_address, descriptor.source, descriptor.target) =
                (word(8), word(16), word(24));
            (descriptor.size, descriptor.operation) = (word(32) as u32, [word(40), word(48), word(56)]);
            // SAFETY: whoever wrote it to the pipe vouches for it, as for a queue's file.
            unsafe { twin.submit(&[descriptor]).unwrap() };
            twin.poll();
            count += 1;
        }
        count
    })
}

#[test]
fn descriptors_that_are_written_to_a_file_arrive() {
    let (reader, writer) = io::pipe().unwrap();
    let behind = device_behind(std::os::fd::OwnedFd::from(reader).into());
    let device = open(&queue(8), Box::new(Written::new(writer.into())));
    assert_eq!(device.portal(), "write");
    pass(&device, 30);
    let offloaded = device.stats().offloaded;
    drop(device);
    assert_eq!(behind.join().unwrap(), offloaded + 2, "two were probes");
}

/// A descriptor that wants a record.
pub fn described(
    opcode: Opcode,
    source: u64,
    target: u64,
    size: usize,
    record: *mut Completion,
) -> Descriptor {
    let mut descriptor = Descriptor::new(opcode, Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION));
    (descriptor.source, descriptor.target, descriptor.size) = (source, target, size as u32);
    descriptor.completion_address = address(record);
    descriptor
}

pub fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 + index / 251) as u8).collect()
}

fn status(record: *const Completion) -> Status {
    // SAFETY: records outlive their flights here, and backends store the status as one byte.
    Status(unsafe { record.cast::<std::sync::atomic::AtomicU8>().as_ref().unwrap() }.load(Ordering::Acquire))
}

/// Runs one descriptor to its end.
pub fn fly(device: &Idxd, descriptor: Descriptor) -> Completion {
    // SAFETY: callers keep what it names until this returns.
    unsafe { device.submit(&[descriptor]).unwrap() };
    let record = std::ptr::with_exposed_provenance::<Completion>(descriptor.completion_address as usize);
    while status(record).is_pending() {
        device.poll();
    }
    // SAFETY: its status was seen.
    unsafe { record.read_volatile() }
}

#[test]
fn large_copies_go_on_behind_faults_in_both_directions_with_their_checksum() {
    const SIZE: usize = 1 << 18;
    let plain = bytes(SIZE);
    let mut seen = 0;
    for seed in 0..8 {
        let wire = Wire::new(4, Fortune { seed, faults: 600_000, reorder: true });
        let device = over(&WorkQueue { transfer_bytes_max: 100_000, ..queue(4) }, &wire);
        let mut record = Completion::PENDING;
        for shift in [2 * SIZE, 5000, 0] {
            let mut room = vec![0; 3 * SIZE];
            let (from, to) = if shift == 0 { (5000, 0) } else { (0, shift) };
            room[from..from + SIZE].copy_from_slice(&plain);
            let base = address(room.as_mut_ptr());
            record = Completion::PENDING;
            let copy =
                described(Opcode::MEMMOVE, base + from as u64, base + to as u64, SIZE, &raw mut record);
            let done = fly(&device, copy);
            assert_eq!(
                (done.status(), done.bytes_completed as usize, done.fault_address),
                (Status::SUCCESS, SIZE, 0)
            );
            assert!(std::hint::black_box(&room)[to..to + SIZE] == plain, "seed {seed} shift {shift}");
        }
        let (mut crc, mut target) = (0, vec![0; SIZE]);
        for part in plain.chunks(SIZE / 2) {
            let to = address(target.as_mut_ptr());
            record = Completion::PENDING;
            let mut copy =
                described(Opcode::COPY_CRC, address(part.as_ptr()), to, part.len(), &raw mut record);
            copy.operation[0] = crc;
            crc = u64::from(fly(&device, copy).crc());
        }
        let expected = memlift_model::naive::crc32c(&plain, 0, false, false);
        assert_eq!(crc as u32, expected, "seed {seed}");
        seen += device.stats().faults;
        std::hint::black_box(record);
    }
    assert!(seen > 10, "{seen} faults");
}

#[test]
fn a_full_queue_is_waited_for_while_it_has_ours_and_else_the_cpu_does_it() {
    let wire = Wire::new(2, CALM);
    let device = over(&queue(16), &wire);
    wire.held.store(true, Ordering::Relaxed);
    let plain = bytes(8192);
    let mut targets = vec![vec![0_u8; 8192]; 5];
    let mut records = [Completion::PENDING; 5];
    let records = (&raw mut records).cast::<Completion>();
    for (index, target) in targets.iter_mut().enumerate() {
        let record = records.wrapping_add(index);
        let copy =
            described(Opcode::MEMMOVE, address(plain.as_ptr()), address(target.as_mut_ptr()), 8192, record);
        // SAFETY: everything outlives the flights, which end below.
        unsafe { device.submit(&[copy]).unwrap() };
    }
    assert_eq!(device.poll(), 0, "two are with the device, three wait for them");
    wire.held.store(false, Ordering::Relaxed);
    wire.work();
    while (0..5).any(|index| status(records.wrapping_add(index)).is_pending()) {
        device.poll();
    }
    assert!(std::hint::black_box(&targets).iter().all(|target| *target == plain));
    assert_eq!((device.stats().offloaded, device.stats().by_cpu, device.stats().full), (5, 0, 0));
    // Full of others' work.
    let others = Wire::new(1, CALM);
    let device = over(&queue(16), &others);
    others.held.store(true, Ordering::Relaxed);
    // SAFETY: a NOOP without a record.
    unsafe { others.twin.submit(&[Descriptor::new(Opcode::NOOP, Flags::NONE)]).unwrap() };
    let (mut record, mut target) = (Completion::PENDING, vec![0; 8192]);
    let copy = described(
        Opcode::MEMMOVE,
        address(plain.as_ptr()),
        address(target.as_mut_ptr()),
        8192,
        &raw mut record,
    );
    assert_eq!(fly(&device, copy).status(), Status::SUCCESS);
    assert_eq!((std::hint::black_box(&target), device.stats().full, device.stats().by_cpu), (&plain, 1, 1));
}

#[test]
fn a_queue_is_not_trusted_before_it_has_answered() {
    let settings = Settings { patience: Duration::from_millis(5) };
    let tried =
        |wire: Arc<Wire>| Idxd::new(&queue(4), Box::new(End(wire)), finisher(), settings).unwrap_err();
    let silent = Wire::new(4, CALM);
    silent.held.store(true, Ordering::Relaxed);
    assert!(matches!(tried(Arc::clone(&silent)), Untrusted::Silent));
    // Its record was left to it.
    silent.work();
    let full = Wire::new(1, CALM);
    full.held.store(true, Ordering::Relaxed);
    // SAFETY: a NOOP without a record.
    unsafe { full.twin.submit(&[Descriptor::new(Opcode::NOOP, Flags::NONE)]).unwrap() };
    assert!(matches!(tried(full), Untrusted::Full));
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let gone = Idxd::new(&queue(4), Box::new(Written::new(writer.into())), finisher(), settings);
    assert!(matches!(gone, Err(Untrusted::Refused(_))));
}

#[test]
fn drain_waits_for_what_was_submitted_before_it() {
    let wire = Wire::new(8, CALM);
    let device = over(&queue(8), &wire);
    wire.held.store(true, Ordering::Relaxed);
    let mut records = [Completion::PENDING; 2];
    let records = (&raw mut records).cast::<Completion>();
    let both = [
        described(Opcode::NOOP, 0, 0, 0, records),
        described(Opcode::DRAIN, 0, 0, 0, records.wrapping_add(1)),
    ];
    // SAFETY: the records outlive the flights.
    unsafe { device.submit(&both).unwrap() };
    device.poll();
    assert!(status(records.wrapping_add(1)).is_pending());
    wire.work();
    while status(records.wrapping_add(1)).is_pending() {
        device.poll();
    }
    assert_eq!(status(records), Status::SUCCESS);
}

#[test]
fn a_forked_child_leaves_the_portal_alone() {
    let wire = Wire::new(8, CALM);
    let device = over(&queue(8), &wire);
    let plain = bytes(8192);
    let (mut target, mut record) = (vec![0; 8192], Completion::PENDING);
    let copy = described(
        Opcode::MEMMOVE,
        address(plain.as_ptr()),
        address(target.as_mut_ptr()),
        8192,
        &raw mut record,
    );
    let took = wire.took.load(Ordering::Relaxed);
    // SAFETY: the child works on its own memory, takes no lock that another thread may hold, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = fly(&device, copy).status();
        let right = done == Status::SUCCESS
            && std::hint::black_box(&target) == &plain
            && wire.took.load(Ordering::Relaxed) == took;
        drop(device);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut ended = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
    assert_eq!(ended, 0, "the child's copy");
    assert_eq!(fly(&device, copy).status(), Status::SUCCESS);
    assert_eq!(wire.took.load(Ordering::Relaxed), took + 1);
}

#[test]
fn tickets_get_their_buffers_back_whatever_faulted() {
    let wire = Wire::new(8, Fortune { seed: 21, faults: 700_000, reorder: true });
    let queue = Queue::foreign(Box::new(over(&queue(8), &wire)), WaitPolicy::AUTO);
    let plain = bytes(150_000);
    for _ in 0..6 {
        let ticket = queue.submit(Operation::copy(plain.clone())).unwrap();
        assert_eq!(ticket.wait().unwrap().into_target().unwrap().as_slice(), plain);
    }
}

/// A machine with one device and one queue, whose file is a FIFO.
fn machine(pasid: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let bus = root.path().join("sys/bus/dsa/devices");
    for (file, text) in [
        ("dsa0/state", "enabled"),
        ("dsa0/pasid_enabled", pasid),
        ("dsa0/gen_cap", "0x40915f0107"),
        ("dsa0/op_cap", "0,0,0,0,0,0,00000001,003f07fd"),
        ("wq0.0/state", "enabled"),
        ("wq0.0/type", "user"),
        ("wq0.0/mode", "shared"),
        ("wq0.0/size", "16"),
        ("wq0.0/max_transfer_size", "65536"),
        ("wq0.0/max_batch_size", "32"),
    ] {
        let path = bus.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }
    std::fs::create_dir_all(root.path().join("dev/dsa")).unwrap();
    let name = std::ffi::CString::new(root.path().join("dev/dsa/wq0.0").to_str().unwrap()).unwrap();
    // SAFETY: a path with its zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    root
}

#[test]
fn a_queue_that_sysfs_lists_is_opened_asked_and_used() {
    let root = machine("1");
    let path = root.path().join("dev/dsa/wq0.0");
    let behind =
        std::thread::spawn(move || device_behind(std::fs::File::open(path).unwrap()).join().unwrap());
    let device = open_dsa(root.path(), &executor_settings()).unwrap();
    assert_eq!(device.portal(), "write", "a FIFO cannot be mapped, as a queue without the right");
    pass(&device, 30);
    let offloaded = device.stats().offloaded;
    drop(device);
    assert!(offloaded > 50 && behind.join().unwrap() > offloaded);
    assert!(matches!(open_dsa(machine("0").path(), &executor_settings()), Err(Absent::NoQueue)));
    let unreadable = machine("1");
    std::fs::remove_file(unreadable.path().join("dev/dsa/wq0.0")).unwrap();
    let error = open_dsa(unreadable.path(), &executor_settings()).unwrap_err();
    assert!(matches!(&error, Absent::Unusable(why) if why.starts_with("wq0.0: ")), "{error}");
}

#[test]
fn an_engine_sends_what_is_queued_or_told_to_its_device() {
    let wire = Wire::new(8, Fortune { seed: 31, faults: 300_000, reorder: true });
    let engine = Engine::open(&Config::defaults()).unwrap();
    engine.use_backend(Box::new(over(&queue(8), &wire))).unwrap();
    assert!(engine.use_backend(Box::new(over(&queue(8), &wire))).is_err());
    let plain = bytes(200_000);
    let took = || wire.took.load(Ordering::Relaxed);
    let before = took();
    let ticket = engine.submit(Operation::copy(plain.clone())).unwrap();
    while !ticket.is_done() {
        std::thread::yield_now();
    }
    assert_eq!(ticket.wait().unwrap().into_target().unwrap().as_slice(), plain);
    assert!(took() > before);
    let before = took();
    engine.submit(Operation::copy(plain[..4000].to_vec())).unwrap().wait().unwrap();
    engine.submit(Operation::Drain).unwrap().wait().unwrap();
    assert_eq!(took(), before, "too small, and nothing to do");
    for (by, goes) in [(Executor::Idxd, true), (Executor::InlineTemporal, false)] {
        let (mut target, before) = (vec![0; plain.len()], took());
        // SAFETY: both are this long, and apart.
        unsafe { engine.copy_with(target.as_mut_ptr(), plain.as_ptr(), plain.len(), by, false) }.unwrap();
        assert_eq!((target == plain, took() > before), (true, goes));
    }
}
