// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every figure, table and section of the five papers that has a measurement: reproduced by which entry, or out of reach and why.
//!
//! - **Order** by paper, then as in the paper
//! - **Rule** a reason names the input that is not published or not here, or the part that the machine lacks
//! - **Not here** drawings of how something works, and tables of set-ups: they measure nothing

/// How a published measurement is covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// By the entry of this name.
    By(&'static str),
    /// By none, for this reason.
    OutOfReach(&'static str),
}

/// A published measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Paper that has it.
    pub paper: &'static str,
    /// Place in the paper.
    pub place: &'static str,
    /// Quantity that it shows.
    pub shows: &'static str,
    /// How it is covered here.
    pub cover: Cover,
}

const fn by(paper: &'static str, place: &'static str, shows: &'static str, name: &'static str) -> Published {
    Published { paper, place, shows, cover: Cover::By(name) }
}

const fn out(paper: &'static str, place: &'static str, shows: &'static str, why: &'static str) -> Published {
    Published { paper, place, shows, cover: Cover::OutOfReach(why) }
}

const ROCKET: &str = "Rocket";
const SMARTDIMM: &str = "SmartDIMM";
const PULSE: &str = "PULSE";
const NEARPM: &str = "NearPM";
const DMU: &str = "DMU";

/// All of them.
pub const PUBLISHED: &[Published] = &[
    out(
        ROCKET,
        "table I",
        "bytes and time of copies of four programs",
        "its rates differ from 0.6 to 1.7 GB/s, and what else is in the times (page faults, number of copies) is not published",
    ),
    out(
        ROCKET,
        "figure 1",
        "share of copies in the time of gRPC and of shared memory",
        "bars without numbers, of two IPC stacks that the machine does not model",
    ),
    out(
        ROCKET,
        "figure 3",
        "busy waiting, lazy waiting, UMWAIT",
        "no numbers, and the period of the lazy wait is not published; UMWAIT's cap and wake-ups are in rocket-fig9",
    ),
    out(
        ROCKET,
        "figure 4",
        "copies with page faults and with pinned memory",
        "no numbers; the machine's memory is always present, so nothing faults",
    ),
    by(ROCKET, "figure 5", "cache injection, one thread and several", "rocket-fig5"),
    by(ROCKET, "table III", "time that an offload of 1 MB frees, break-even size", "rocket-fig9"),
    by(ROCKET, "figure 9", "latency against size", "rocket-fig9"),
    out(
        ROCKET,
        "figure 10",
        "throughput and latency of five programs, up to 2.1 times and 72 %",
        "what the five programs (on ONNX, XGBoost, Boost, Milvus, an A100) take before and after their copies is drawn as bars without numbers, and the text does not name the bars that 2.1 and 72 % are of",
    ),
    by(ROCKET, "figure 11", "execution modes against sizes", "rocket-fig11"),
    out(
        ROCKET,
        "figure 12",
        "part of asynchronous execution and part of DSA in the gain",
        "bars without numbers of the programs of figure 10; the machine's server has no mode in which cores copy asynchronously",
    ),
    out(
        ROCKET,
        "figure 13",
        "instructions, cycles, bus cycles, down by up to 23 %",
        "the machine counts no instructions and no cycles of the programs of figure 10",
    ),
    by(ROCKET, "figure 14", "cache hits with injection", "rocket-fig5"),
    out(ROCKET, "figure 15", "misses of the data TLB", "the machine has no TLB"),
    out(
        SMARTDIMM,
        "figure 2",
        "TLS on a SmartNIC when packets are lost",
        "the machine has no network, no TCP and no SmartNIC",
    ),
    out(
        SMARTDIMM,
        "figure 3",
        "memory traffic of HTTPS over that of HTTP, against connections",
        "curves without numbers; the machine has no network card that writes into the cache",
    ),
    by(SMARTDIMM, "section IV-C", "insertions into the translation table", "smartdimm-table"),
    by(SMARTDIMM, "sections V-B, V-D", "compression ratio, channels", "smartdimm-deflate"),
    by(SMARTDIMM, "figure 9", "reads and writes on the bus", "smartdimm-fig9"),
    by(SMARTDIMM, "figure 10", "scratchpad in use against the cache", "smartdimm-fig10"),
    out(
        SMARTDIMM,
        "figure 11",
        "nginx with TLS: +21.0 and +35.8 % requests per second",
        "the authors leave encryption out of nginx and measure the rest of it on 10 cores at 100 Gb/s; how much of a request's time is encryption, network and cache misses is not published. memlift whatif --device smartdimm asks it of a recorded nginx",
    ),
    out(
        SMARTDIMM,
        "figure 12",
        "nginx with compression: 6.09 and 11.28 times the requests per second",
        "as figure 11; nor are level and library of the CPU's compression, which the ratio is of",
    ),
    out(
        SMARTDIMM,
        "table I",
        "slow-down of nginx and mcf beside each other",
        "needs SPEC's mcf, which is not free, and how much either loses per miss of the cache",
    ),
    out(SMARTDIMM, "section VII-D", "power and area of the FPGA", "the machine has no power and no area"),
    out(
        PULSE,
        "figure 2",
        "share of time in traversals, share of requests that cross nodes",
        "both depend on the applications' own data and on a page cache of swapped memory, neither of which is published",
    ),
    by(PULSE, "table 3", "compute over memory time of three data structures", "pulse-table3"),
    out(
        PULSE,
        "figure 7",
        "latency 9 to 34 times lower, throughput 28 to 171 times higher than with a cache",
        "bars without numbers; the hit rates of the rival's cache and the costs of its swapping are not published, and the machine has no rival",
    ),
    out(
        PULSE,
        "figure 8",
        "energy of an operation, 4.5 to 5 times less",
        "the power of neither the FPGA's rails nor the servers is published, and the machine has no power",
    ),
    by(PULSE, "figure 9", "in-network against over the client", "pulse-fig9"),
    by(PULSE, "figure 10", "latency of the accelerator's parts", "pulse-fig10"),
    by(PULSE, "table 4", "throughput and latency of 20 machines", "pulse-table4"),
    by(PULSE, "figure 11", "performance per watt against the ratio of pipelines", "pulse-fig11"),
    by(PULSE, "figure 12", "slow-down behind CXL", "pulse-fig12"),
    by(NEARPM, "figure 1", "share of crash consistency, and of data movement in it", "nearpm-fig1"),
    by(NEARPM, "figure 15", "speed-up of code for crash consistency", "nearpm-fig15"),
    by(NEARPM, "figure 16", "speed-up of whole programs", "nearpm-fig16"),
    by(NEARPM, "figure 17", "speed-up of copies", "nearpm-fig17"),
    by(NEARPM, "figure 18", "time in which CPU and devices both work", "nearpm-fig18"),
    by(NEARPM, "figure 19", "units of a device", "nearpm-fig19"),
    by(NEARPM, "figure 20", "threads", "nearpm-fig20"),
    out(
        DMU,
        "figure 1",
        "capacity of memory, cores and flash over nine years",
        "dates and sizes of products: there is nothing to run",
    ),
    out(
        DMU,
        "figure 5",
        "GraphBig beside a file of 140 GB without precise allocation: 8 times slower",
        "a server of 190 GB with swap on NVMe and no compression; the machine is the compressed memory of the prototype, and what its disk and reclaim cost is not published",
    ),
    by(DMU, "section V-A", "accesses to compressed pages, first fault", "dmu-accesses"),
    by(DMU, "figure 19", "GAP beside a file", "dmu-fig19"),
    by(DMU, "figure 20", "SPEC beside a file", "dmu-fig20"),
    out(
        DMU,
        "section IV-D",
        "radiosity in 1 GB with compression: 3 % longer",
        "measured on virtual machines of a cloud, without DMU",
    ),
    out(
        DMU,
        "section V-C",
        "1.3 % overhead of the kernel's part; 0.035 mm2 and 3 GHz in 7 nm",
        "the first is Linux on an x86 server with 17 lines added, the second a synthesis: the machine has neither instructions nor gates",
    ),
    out(
        DMU,
        "section VI",
        "compression by the OS keeps 61 %, by hardware 93 %",
        "simulated in gem5 with the benchmarks and the window of another paper; neither their accesses nor their compressed shares are published",
    ),
];
