// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Call sites of a trace: which code a call returned to, wherever the process had it mapped.
//!
//! - **Flow** records of all threads ──[`Code::take`]──▶ sites and modules of each process ──[`Code::sites`]──▶ one list: two
//!   processes that call from one place of one file share a site
//! - **Rule** hostile input: a module whose name did not come whole has none; a site outside of every module keeps its address. Of two
//!   modules that begin at one address the later one counts
//! - **Not here** names of functions: they are in the module's file, which this crate does not open

use std::collections::BTreeMap;

use memlift_spec::formats::trace::{Kind, Record};

/// A place that calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Path of the file that holds the code; empty: code without a file, or not known.
    pub module: String,
    /// Inode of that file when it was recorded; 0: none.
    pub inode: u64,
    /// Bytes from the file's start to the address that the call returned to; without a file, that address.
    pub offset: u64,
}

/// Code of a process, mapped from a file or made by itself.
#[derive(Clone, Debug)]
struct Module {
    end: u64,
    offset: u64,
    inode: u64,
    name: Vec<u8>,
    /// Bytes of the name that were not told yet.
    missing: usize,
}

/// Sites and modules of all processes.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// By process and first address.
    modules: BTreeMap<(u32, u64), Module>,
    /// By process and number: the address.
    sites: BTreeMap<(u32, u16), u64>,
}

impl Code {
    /// Takes a record of this process's code; `last` is the module that its thread told last.
    pub fn take(&mut self, process: u32, record: &Record, last: &mut Option<(u32, u64)>) {
        let [_, first, end, offset, inode, ..] = record.words;
        match record.kind {
            Kind::Site => {
                self.sites.insert((process, record.site), first);
            }
            Kind::Module => {
                let missing = record.parameter as usize;
                *last = Some((process, first));
                self.modules
                    .insert((process, first), Module { end, offset, inode, name: Vec::new(), missing });
            }
            Kind::ModuleName => {
                if let Some(module) = last.and_then(|key| self.modules.get_mut(&key)) {
                    let piece: Vec<u8> = record.words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    let taken = piece.len().min(module.missing);
                    module.name.extend_from_slice(&piece[..taken]);
                    module.missing -= taken;
                }
            }
            _ => {}
        }
    }

    fn site(&self, process: u32, address: u64) -> Site {
        let module = self.modules.range((process, 0)..=(process, address)).next_back();
        let whole = |module: &Module| module.missing == 0 && !module.name.is_empty();
        match module.filter(|(_, module)| address < module.end && whole(module)) {
            Some(((_, first), module)) => Site {
                module: String::from_utf8_lossy(&module.name)
                    .chars()
                    .map(|one| if one.is_control() { ' ' } else { one })
                    .collect(),
                inode: module.inode,
                offset: (address - first).saturating_add(module.offset),
            },
            None => Site { module: String::new(), inode: 0, offset: address },
        }
    }

    /// Returns all sites, each once, and for each process the place of each of its numbers among them.
    pub fn sites(&self) -> (Vec<Site>, BTreeMap<u32, Vec<Option<u32>>>) {
        let mut places: BTreeMap<Site, u32> = BTreeMap::new();
        let mut sites = Vec::new();
        let mut numbered: BTreeMap<u32, Vec<Option<u32>>> = BTreeMap::new();
        for ((process, number), address) in &self.sites {
            let site = self.site(*process, *address);
            let place = *places.entry(site).or_insert_with_key(|site| {
                sites.push(site.clone());
                sites.len() as u32 - 1
            });
            let of_process = numbered.entry(*process).or_default();
            of_process.resize(usize::from(*number) + 1, None);
            of_process[usize::from(*number)] = Some(place);
        }
        (sites, numbered)
    }
}
