// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PULSE, figure 12: slowdown of walks through memory behind CXL, by the CPU and by the accelerator.
//!
//! - **Method** §7 simulates it: the CPU reads 256 B at a time, from its own DRAM (80 ns) or behind CXL (300 ns); PULSE's overheads are
//!   the FPGA's. The walks of table 3 run on the rack with CXL in the place of Ethernet. The accelerator has two bounds: figure
//!   10's memory and logic pipelines alone, and the network stack and the fitted arbitration besides
//! - **Rule** no cache of the CPU: what hits in one is not walked through CXL, so the cut here is the most that these latencies give
//! - **Not here** figures 9 and 10, on Ethernet (`distributed`, `latency`)

use super::distributed::WORKLOADS;
use super::{Figure, Inputs, Paper, Role, Row, Verdict};
use crate::event::Time;
use crate::pulse::experiment::{self, TABLE};
use crate::pulse::request::Report;
use crate::pulse::workload::Scans;
use crate::pulse::{Shape, Timing};

pub(super) const TITLE: &str = "PULSE, figure 12: slowdown behind CXL";
const WITHOUT: &str = "slowdown without PULSE";
const WITH: [&str; 2] = ["slowdown with PULSE, pipelines alone", "slowdown with PULSE, all overheads"];
const CUT: [&str; 2] = ["cut, pipelines alone", "cut, all overheads"];
/// How many times the slowdown without PULSE is the one with it: one node, four nodes (§7).
const PUBLISHED: [(f64, f64); 2] = [(4.2, 5.2), (3.0, 5.0)];

/// The rack with CXL for Ethernet: a request and its reply take what one access takes, and so does going on at another node.
fn interconnect(timing: &Timing, overheads: bool) -> Timing {
    let part = |time| if overheads { time } else { Time::ZERO };
    let (network_stack, arbitration) = (part(timing.network_stack), part(timing.arbitration));
    let (host, crossing) = (timing.cxl_latency, timing.cxl_latency + network_stack * 2);
    Timing { network_stack, arbitration, host, crossing, ..timing.clone() }
}

/// Microseconds of the same walks by the CPU, each access of which takes so long.
fn by_cpu(timing: &Timing, report: &Report, object_bytes: u64, access: Time) -> f64 {
    let requests = report.answers.len() as u64;
    let accesses = report.spent.memory.1 + requests * object_bytes.div_ceil(timing.load_bytes);
    let logic = report.spent.logic.0.as_us() / timing.cpu_clocks as f64;
    ((access * accesses).as_us() + logic) / requests as f64
}

pub(super) fn run(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.pulse;
    let (short, long) = (WORKLOADS[0], WORKLOADS[1]);
    let scans = [short, long, ("BTrDB 8 s", 227, long.2)];
    let mut points: Vec<(String, usize, Option<Scans>)> =
        vec![("Web service, 1 node".into(), 0, None), ("Web service, 4 nodes".into(), 1, None)];
    for (name, length, values) in scans {
        for (nodes, elsewhere) in [(1, 0), (4, 100_000), (4, 300_000)] {
            let label = match nodes {
                1 => format!("{name}, 1 node"),
                _ => format!("{name}, 4 nodes, {} %", elsewhere / 10_000),
            };
            points.push((label, usize::from(nodes > 1), Some(Scans { length, values, nodes, elsewhere })));
        }
    }
    let (mut rows, mut cuts, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    for (label, nodes, scans) in points {
        let mut cut = [0.0; 2];
        for bound in [0, 1] {
            let timing = interconnect(timing, bound == 1);
            let (report, object) = match scans {
                // A chain lies on one node (§6.1), so four are as one.
                None => (experiment::web_latency(&timing, Shape::built())?, TABLE.2 as u64),
                Some(scans) => (experiment::scan_latency(&timing, Shape::built(), scans)?, 0),
            };
            let local = by_cpu(&timing, &report, object, timing.dram_latency);
            let without = by_cpu(&timing, &report, object, timing.cxl_latency) / local;
            let with = report.latency_us() / local;
            cut[bound] = without / with;
            losses.push((without - 1.0) / (with - 1.0).max(f64::EPSILON));
            let row = |quantity, paper, model| Row {
                label: label.clone(),
                quantity,
                paper,
                model,
                role: Role::Predicted,
            };
            if bound == 0 {
                rows.push(row(WITHOUT, None, without));
            }
            rows.push(row(WITH[bound], None, with));
            let (low, high) = PUBLISHED[nodes];
            rows.push(row(CUT[bound], Some(Paper::Between(low, high)), cut[bound]));
        }
        cuts.push((nodes, cut));
    }
    let meets = cuts
        .iter()
        .filter(|(nodes, cut)| cut[0] >= PUBLISHED[*nodes].0 && cut[1] <= PUBLISHED[*nodes].1)
        .count();
    let span = |of: &mut dyn Iterator<Item = f64>| {
        let (low, high) =
            of.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        format!("{low:.2} to {high:.2}")
    };
    let helps = cuts.iter().filter(|(_, cut)| cut[1] > 1.0).count();
    let best = |nodes: usize| cuts.iter().filter(move |(of, _)| *of == nodes).map(|(_, cut)| cut[0]);
    let mean = |nodes| best(nodes).sum::<f64>() / best(nodes).count() as f64;
    Ok(Figure {
        name: "pulse-fig12",
        title: TITLE,
        source: "Tang et al., ASPLOS '25, §7, figure 12; tables 3 and 4; inputs: parameters/pulse.toml",
        verdicts: vec![
            Verdict {
                question: "the published cut lies between the bounds: 4.2 to 5.2 on one node, 3 to 5 on four".into(),
                answer: format!("{meets} of {}; pipelines alone {}, all overheads {}", cuts.len(), span(&mut cuts.iter().map(|(_, cut)| cut[0])), span(&mut cuts.iter().map(|(_, cut)| cut[1]))),
                holds: Some(meets == cuts.len()),
            },
            Verdict {
                question: "PULSE makes every walk behind CXL faster".into(),
                answer: format!("pipelines alone {} of {}, all overheads {helps}", cuts.iter().filter(|(_, cut)| cut[0] > 1.0).count(), cuts.len()),
                holds: Some(helps == cuts.len()),
            },
            Verdict {
                question: "on average it cuts more on one node than on four".into(),
                answer: format!("{:.2} against {:.2}, pipelines alone", mean(0), mean(1)),
                holds: Some(mean(0) > mean(1)),
            },
        ],
        rows,
        notes: vec![
            format!(
                "an iteration is one access: {} for the CPU behind CXL, {} for a memory pipeline with no logic and no scheduler, which is a cut of {:.2} at most; 4.2 is more than {} over {} even is",
                timing.cxl_latency,
                timing.memory_latency,
                timing.cxl_latency.as_us() / timing.memory_latency.as_us(),
                timing.cxl_latency,
                timing.dram_latency
            ),
            format!(
                "if a slowdown is what is lost, the part above 1, its cut is {} here over all workloads and bounds; the paper does not say which it means",
                span(&mut losses.into_iter())
            ),
            "the web service's object is read by the CPU in accesses of 256 B, one after the other, and sent along by the accelerator; its encryption and compression are not in the model".into(),
            "the paper prints bars without numbers and a range over its workloads; cache sizes are published, how often its traces hit them is not".into(),
        ],
    })
}
