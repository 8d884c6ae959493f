// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernels of the GAP suite on Kronecker graphs: breadth-first search, shortest paths, PageRank, connected components.
//!
//! - **Layout** compressed sparse rows, both directions: offsets of 8 bytes, neighbours of 4, weights of 4 for shortest paths
//! - **Source** the graph's edges are those of corpora/rmat.c, whose parameters are Graph500's; the kernels' definitions the GAP benchmark
//!   specification's (Beamer, Asanović, Patterson: The GAP Benchmark Suite). One thread, so that sums are the same everywhere

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Draw, Sum};
use crate::rmat;

const FAR: u32 = u32::MAX;
/// Ranges of nodes whose neighbours are filled one after the other.
const RANGES: usize = 8;

/// Graph kernel that a job runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kernel {
    Bfs,
    Sssp,
    PageRank,
    Components,
}

impl Kernel {
    pub fn parse(name: &str) -> Option<Kernel> {
        Some(match name {
            "bfs" => Kernel::Bfs,
            "sssp" => Kernel::Sssp,
            "pr" => Kernel::PageRank,
            "cc" => Kernel::Components,
            _ => return None,
        })
    }
}

/// A graph in both directions.
#[derive(Debug)]
pub(super) struct Graph {
    offsets: Vec<u64>,
    neighbours: Vec<u32>,
    weights: Vec<u32>,
}

impl Graph {
    /// Of 2^`scale` nodes and `degree` times as many edges.
    pub fn kronecker(scale: u32, degree: u64, kernel: Kernel) -> Graph {
        let nodes = 1usize << scale;
        let edges = nodes as u64 * degree;
        // The edges are drawn again for each range of nodes: no list of edges is held, and one range is filled at a time.
        let mut offsets = vec![0u64; nodes + 1];
        rmat::edges(1, scale, edges, |from, to| {
            offsets[from as usize + 1] += 1;
            offsets[to as usize + 1] += 1;
        });
        for node in 0..nodes {
            offsets[node + 1] += offsets[node];
        }
        let mut neighbours = vec![0u32; 2 * edges as usize];
        let range_nodes = nodes.div_ceil(RANGES);
        let mut filled = vec![0u32; range_nodes];
        for range in 0..RANGES {
            let first = range * range_nodes;
            filled.fill(0);
            rmat::edges(1, scale, edges, |from, to| {
                for (one, other) in [(from as usize, to), (to as usize, from)] {
                    if let Some(filled) = filled.get_mut(one.wrapping_sub(first)) {
                        neighbours[offsets[one] as usize + *filled as usize] = other;
                        *filled += 1;
                    }
                }
            });
        }
        for node in 0..nodes {
            neighbours[offsets[node] as usize..offsets[node + 1] as usize].sort_unstable();
        }
        let weights = match kernel {
            Kernel::Sssp => {
                neighbours.iter().map(|node| 1 + node.wrapping_mul(2_654_435_761) % 255).collect()
            }
            _ => Vec::new(),
        };
        Graph { offsets, neighbours, weights }
    }

    fn nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    fn range(&self, node: usize) -> std::ops::Range<usize> {
        self.offsets[node] as usize..self.offsets[node + 1] as usize
    }

    /// Runs the kernel `rounds` times, each time from another node where it has a start.
    pub fn work(&self, kernel: Kernel, rounds: u64) -> Sum {
        let mut sum = Sum::new();
        let mut draw = Draw(27);
        for _ in 0..rounds {
            let start = loop {
                let node = draw.below(self.nodes() as u64) as usize;
                if !self.range(node).is_empty() {
                    break node;
                }
            };
            match kernel {
                Kernel::Bfs => self.bfs(start).iter().for_each(|depth| sum.add(u64::from(*depth))),
                Kernel::Sssp => self.sssp(start).iter().for_each(|far| sum.add(u64::from(*far))),
                Kernel::PageRank => self.page_rank().iter().for_each(|rank| sum.add(rank.to_bits())),
                Kernel::Components => self.components().iter().for_each(|label| sum.add(u64::from(*label))),
            }
        }
        sum
    }

    fn bfs(&self, start: usize) -> Vec<u32> {
        let mut depth = vec![FAR; self.nodes()];
        depth[start] = 0;
        let (mut front, mut next) = (vec![start as u32], Vec::new());
        let mut level = 0;
        while !front.is_empty() {
            level += 1;
            for node in front.drain(..) {
                for other in &self.neighbours[self.range(node as usize)] {
                    if depth[*other as usize] == FAR {
                        depth[*other as usize] = level;
                        next.push(*other);
                    }
                }
            }
            std::mem::swap(&mut front, &mut next);
        }
        depth
    }

    fn sssp(&self, start: usize) -> Vec<u32> {
        let mut far = vec![FAR; self.nodes()];
        far[start] = 0;
        let mut heap = BinaryHeap::from([Reverse((0u32, start as u32))]);
        while let Some(Reverse((distance, node))) = heap.pop() {
            if distance > far[node as usize] {
                continue;
            }
            let range = self.range(node as usize);
            for (other, weight) in self.neighbours[range.clone()].iter().zip(&self.weights[range]) {
                let through = distance + weight;
                if through < far[*other as usize] {
                    far[*other as usize] = through;
                    heap.push(Reverse((through, *other)));
                }
            }
        }
        far
    }

    /// Ten iterations, damping 0.85.
    fn page_rank(&self) -> Vec<f64> {
        const DAMPING: f64 = 0.85;
        let nodes = self.nodes();
        let mut rank = vec![1.0 / nodes as f64; nodes];
        let mut out = vec![0.0; nodes];
        for _ in 0..10 {
            for node in 0..nodes {
                let degree = self.range(node).len();
                out[node] = if degree == 0 { 0.0 } else { rank[node] / degree as f64 };
            }
            for (node, rank) in rank.iter_mut().enumerate() {
                let incoming: f64 =
                    self.neighbours[self.range(node)].iter().map(|other| out[*other as usize]).sum();
                *rank = (1.0 - DAMPING) / nodes as f64 + DAMPING * incoming;
            }
        }
        rank
    }

    /// The least node of each component, by hooking and shortcutting.
    fn components(&self) -> Vec<u32> {
        let mut label: Vec<u32> = (0..self.nodes() as u32).collect();
        let mut changed = true;
        while changed {
            changed = false;
            for node in 0..self.nodes() {
                for other in &self.neighbours[self.range(node)] {
                    let (one, two) = (label[node], label[*other as usize]);
                    let (high, low) = (one.max(two), one.min(two));
                    if high != low && label[high as usize] == high {
                        label[high as usize] = low;
                        changed = true;
                    }
                }
            }
            for node in 0..self.nodes() {
                while label[node] != label[label[node] as usize] {
                    label[node] = label[label[node] as usize];
                }
            }
        }
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_agree_with_each_other() {
        let graph = Graph::kronecker(8, 4, Kernel::Sssp);
        let start = (0..graph.nodes()).find(|node| !graph.range(*node).is_empty()).expect("an edge");
        let (depth, far, label) = (graph.bfs(start), graph.sssp(start), graph.components());
        for node in 0..graph.nodes() {
            let reached = depth[node] != FAR;
            assert_eq!(reached, far[node] != FAR, "{node}");
            assert_eq!(reached, label[node] == label[start], "{node}");
            assert!(!reached || far[node] <= depth[node] * 255 && far[node] >= depth[node]);
        }
        let ranks: f64 = graph.page_rank().iter().sum();
        assert!(ranks > 0.15 && ranks <= 1.0 + 1e-9, "{ranks}");
    }
}
