// SPDX-License-Identifier: Apache-2.0 OR MIT
//! DDR commands, and how the buffer device gets a physical address back from them: slot decoder, bank table, address remap.
//!
//! - **Layout** address in lines, from the lowest bit on: column 1 bit · bank group 2 · column 6 · bank 2 · row
//! - **Order** up to four commands come in one clock of the device; slot 0 is first
//! - **Rule** a column command to a bank without an open row is the controller's fault, and is refused
//! - **Not here** timing of rows (`controller`)

use super::{LINE, Line};

/// Banks: four groups of four.
pub const BANKS: usize = 16;
/// Commands in a clock of the device, which runs at a quarter of DRAM's (§IV-C).
pub const SLOTS: usize = 4;
const COLUMN_BITS: u32 = 7;

/// Where a line lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bank; its group is in the upper two bits.
    pub bank: u8,
    /// Row of the bank.
    pub row: u32,
    /// Line of the row.
    pub column: u8,
}

/// Where the line of an address lies.
#[must_use]
pub fn place(address: u64) -> Place {
    let line = address / LINE;
    let (group, bank) = (line >> 1 & 3, line >> 9 & 3);
    let column = line & 1 | (line >> 3 & 0x3f) << 1;
    Place { bank: (group << 2 | bank) as u8, row: (line >> 11) as u32, column: column as u8 }
}

/// The address of a line.
#[must_use]
pub fn address(place: Place) -> u64 {
    let (bank, column) = (u64::from(place.bank), u64::from(place.column & ((1 << COLUMN_BITS) - 1)));
    let line =
        column & 1 | (bank >> 2 & 3) << 1 | (column >> 1) << 3 | (bank & 3) << 9 | u64::from(place.row) << 11;
    line * LINE
}

/// A command on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Opens a row (RAS).
    Activate {
        /// Bank that has the row.
        bank: u8,
        /// Row to open.
        row: u32,
    },
    /// Closes a bank's row.
    Precharge {
        /// Bank whose row is closed.
        bank: u8,
    },
    /// Reads a line of the open row (rdCAS).
    Read {
        /// Bank that has the open row.
        bank: u8,
        /// The line of the row.
        column: u8,
    },
    /// Writes a line of the open row (wrCAS).
    Write {
        /// Bank that has the open row.
        bank: u8,
        /// The line of the row.
        column: u8,
        /// The line to write.
        data: Line,
    },
}

/// Meaning of a column command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A line is read.
    Read(u64),
    /// A line is written.
    Write(u64, Line),
}

/// A column command found no open row in its bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed(pub u8);

/// The bank table.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    rows: [Option<u32>; BANKS],
}

impl Decoder {
    /// The row that is open in a bank.
    #[must_use]
    pub fn open(&self, bank: u8) -> Option<u32> {
        self.rows[usize::from(bank) % BANKS]
    }

    /// One slot: what it accesses, if it is a column command.
    ///
    /// # Errors
    /// If its bank has no open row.
    pub fn slot(&mut self, command: Command) -> Result<Option<Access>, Closed> {
        let find = |bank: u8, column| {
            let row = self.open(bank).ok_or(Closed(bank))?;
            Ok(address(Place { bank: bank % BANKS as u8, row, column }))
        };
        match command {
            Command::Read { bank, column } => Ok(Some(Access::Read(find(bank, column)?))),
            Command::Write { bank, column, data } => Ok(Some(Access::Write(find(bank, column)?, data))),
            Command::Activate { bank, row } => {
                self.rows[usize::from(bank) % BANKS] = Some(row);
                Ok(None)
            }
            Command::Precharge { bank } => {
                self.rows[usize::from(bank) % BANKS] = None;
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;

    #[test]
    fn addresses_come_back_and_a_page_lies_in_one_row_of_each_group() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let line = random.below(1 << 34) / LINE * LINE;
            assert_eq!(address(place(line)), line);
        }
        let page: Vec<Place> = (0..64).map(|line| place(0x1234_5000 + line * LINE)).collect();
        assert!(page.iter().all(|place| (place.row, place.bank & 3) == (page[0].row, page[0].bank & 3)));
    }

    #[test]
    fn the_bank_table_gives_rows_back() {
        let mut decoder = Decoder::default();
        let wanted = 0xdead_b000 + 3 * LINE;
        let Place { bank, row, column } = place(wanted);
        assert_eq!(decoder.slot(Command::Read { bank, column }), Err(Closed(bank)));
        assert_eq!(decoder.slot(Command::Activate { bank, row }), Ok(None));
        assert_eq!(decoder.slot(Command::Read { bank, column }), Ok(Some(Access::Read(wanted))));
        let data = [7; 64];
        assert_eq!(
            decoder.slot(Command::Write { bank, column, data }),
            Ok(Some(Access::Write(wanted, data)))
        );
        assert_eq!((decoder.open(bank), decoder.slot(Command::Precharge { bank })), (Some(row), Ok(None)));
        assert_eq!(decoder.slot(Command::Read { bank, column }), Err(Closed(bank)));
    }
}
