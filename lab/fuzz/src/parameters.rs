// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of parameters that somebody else wrote, for each of the papers' machines.
//!
//! - **Order** what is refused is one line with the file, the field and what to do; what passes passes again, to the same machine
//! - **Layout** u8, bit 0: hostile bytes are the file. Else: u8 device, then pairs of u8: which value of the shipped file, and what it becomes

use memlift_model::reproduce::Inputs;
use memlift_model::{dmu, dsa, nearpm, pulse, smartdimm};

use crate::Input;

const FILES: [&str; 5] = [
    pulse::timing::PARAMETERS,
    nearpm::timing::PARAMETERS,
    dsa::timing::PARAMETERS,
    dmu::timing::PARAMETERS,
    smartdimm::timing::PARAMETERS,
];

/// Replacements of a value.
const VALUES: [&str; 16] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "64",
    "1000000000000",
    "9223372036854775807",
    "0.5",
    "1e300",
    "nan",
    "inf",
    "\"7\"",
    "[1, 2]",
    "true",
    "",
];

fn file(input: &mut Input<'_>) -> String {
    let mut lines: Vec<String> =
        FILES[usize::from(input.byte()) % FILES.len()].lines().map(str::to_owned).collect();
    let values: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].starts_with("value = ")).collect();
    for pair in input.rest().chunks_exact(2) {
        let line = &mut lines[values[usize::from(pair[0]) % values.len()]];
        *line = format!("value = {}", VALUES[usize::from(pair[1]) % VALUES.len()]);
    }
    lines.join("\n")
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let text = if input.byte() & 1 == 1 {
        String::from_utf8_lossy(input.rest()).into_owned()
    } else {
        file(&mut input)
    };
    let mut inputs = Inputs::shipped();
    match inputs.replace("hostile.toml", &text) {
        Ok(()) => {
            let once = format!("{inputs:?}");
            assert!(inputs.replace("hostile.toml", &text).is_ok() && format!("{inputs:?}") == once);
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("hostile.toml: ") && said.len() > 30, "{said:?}");
        }
    }
}

/// Each shipped file, as it is and with a value changed.
pub fn seeds() -> Vec<Vec<u8>> {
    let whole = FILES.iter().map(|text| [&[1][..], text.as_bytes()].concat());
    let changed = (0..FILES.len() as u8).flat_map(|device| [vec![0, device], vec![0, device, 3, 0, 9, 6]]);
    whole.chain(changed).collect()
}
