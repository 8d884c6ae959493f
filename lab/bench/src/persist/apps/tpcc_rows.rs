// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TPC-C's tables, as far as new-order reads or writes them, and their first rows.
//!
//! - **Layout** [`Root`] ─▶ warehouse, districts, customers, tables of pointers to items and stock rows · a district ─▶ chunks of slots ─▶
//!   orders with their lines. A slot is an order's place in the index and, by `is_new`, its row of NEW-ORDER
//! - **Scale** one warehouse; items are a parameter and 100,000 in the benchmark; 3000 customers a district; no orders at first
//! - **Sections** 0: root, warehouse, tables · 1 to 10: a district, its customers and orders · then the parts of items and stock
//! - **Source** TPC Benchmark C 5.11, clauses 1.3 and 4.3.3; money in cents, rates in ten thousandths

use memlift_persist::{Error, PPtr, PSlice, Persist, Pool, View};

use super::{PARTS, filling, row_draw, section};
use crate::persist::draw::Draw;
use crate::reference;

pub const DISTRICTS: u64 = 10;
pub const CUSTOMERS: u64 = 3000;
/// Slots of a chunk, and chunks of a district.
pub const CHUNK: u64 = 128;
pub const CHUNKS: usize = 1024;
pub const LINES_MAX: usize = 15;
/// Rows of a table of customers or of pointers, and the largest number of tables.
pub const TABLE: usize = 1000;
const CUSTOMER_TABLES: usize = CUSTOMERS as usize / TABLE;
const TABLES: usize = 100;

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Item {
    pub id: u32,
    pub image: u32,
    pub price: u32,
    unused: u32,
    name: [u8; 24],
    pub data: [u8; 56],
}

/// Columns of a stock row that orders change.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C, align(8))]
pub struct Counts {
    pub quantity: u32,
    pub ytd: u32,
    pub orders: u32,
    pub remote: u32,
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C, align(8))]
pub struct Stock {
    pub counts: Counts,
    pub districts: [[u8; 24]; DISTRICTS as usize],
    pub data: [u8; 56],
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Customer {
    pub id: u32,
    pub discount: u32,
    pub last: [u8; 16],
    pub good_credit: u32,
    unused: u32,
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Line {
    pub item: u32,
    pub supplier: u32,
    pub quantity: u32,
    pub amount: u32,
    pub delivered: u64,
    pub info: [u8; 24],
}

impl Line {
    pub const NONE: Line = Line { item: 0, supplier: 0, quantity: 0, amount: 0, delivered: 0, info: [0; 24] };

    /// Sum of all its bytes, as they lie in memory.
    pub fn sum(&self) -> u64 {
        let mut bytes = [0; 48];
        bytes[0..4].copy_from_slice(&self.item.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.supplier.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.quantity.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.amount.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.delivered.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.info);
        reference::checksum_of(&bytes)
    }
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Order {
    pub id: u32,
    pub district: u32,
    pub customer: u32,
    pub all_local: u32,
    pub entered: u64,
    pub carrier: u64,
    pub lines: PSlice<Line>,
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Slot {
    pub order: PPtr<Order>,
    pub is_new: u64,
}

impl Slot {
    pub const FREE: Slot = Slot { order: PPtr::NULL, is_new: 0 };
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Chunk {
    pub slots: [Slot; CHUNK as usize],
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct District {
    pub next: u64,
    pub ytd: u64,
    pub tax: u32,
    unused: u32,
    pub chunks: [PPtr<Chunk>; CHUNKS],
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Warehouse {
    pub ytd: u64,
    pub tax: u32,
    unused: u32,
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Root {
    pub rows: u64,
    pub warehouse: PPtr<Warehouse>,
    pub districts: [PPtr<District>; DISTRICTS as usize],
    pub customers: [[PSlice<Customer>; CUSTOMER_TABLES]; DISTRICTS as usize],
    pub items: [PSlice<PPtr<Item>>; TABLES],
    pub stock: [PSlice<PPtr<Stock>>; TABLES],
}

/// The section of an item and its stock row.
pub fn part(pool: &Pool, item: u64) -> u16 {
    section(pool, 1 + DISTRICTS + item % PARTS)
}

/// The section of a district, which counts from 0.
pub fn district(pool: &Pool, district: u64) -> u16 {
    section(pool, 1 + district)
}

/// Text of 50 characters, one in ten with ORIGINAL in it.
fn data(draw: &mut Draw) -> [u8; 56] {
    let mut data = [0; 56];
    reference::pattern_of(&mut data, draw.next());
    let (original, at) = (draw.next(), draw.next() as usize % 43);
    if original % 10 == 0 {
        data[at..at + 8].copy_from_slice(b"ORIGINAL");
    }
    data
}

fn item(row: u64) -> Item {
    let mut draw = row_draw(4, row);
    let (image, price) = (1 + draw.next() % 10_000, 100 + draw.next() % 9901);
    let mut name = [0; 24];
    reference::pattern_of(&mut name, draw.next());
    let data = data(&mut draw);
    Item { id: row as u32 + 1, image: image as u32, price: price as u32, unused: 0, name, data }
}

fn stock(row: u64) -> Stock {
    let mut draw = row_draw(5, row);
    let quantity = 10 + draw.next() % 91;
    let mut bytes = [0; 24 * DISTRICTS as usize];
    reference::pattern_of(&mut bytes, draw.next());
    let mut districts = [[0; 24]; DISTRICTS as usize];
    districts.iter_mut().zip(bytes.as_chunks::<24>().0).for_each(|(district, bytes)| *district = *bytes);
    let counts = Counts { quantity: quantity as u32, ytd: 0, orders: 0, remote: 0 };
    Stock { counts, districts, data: data(&mut draw) }
}

fn customer(district: u64, row: u64) -> Customer {
    let mut draw = row_draw(3, district * CUSTOMERS + row);
    let (discount, good_credit) = (draw.next() % 5001, !draw.next().is_multiple_of(10));
    let mut last = [0; 16];
    reference::pattern_of(&mut last, draw.next());
    let id = row as u32 + 1;
    Customer { id, discount: discount as u32, last, good_credit: good_credit.into(), unused: 0 }
}

/// Tables of a new pool; `rows` items.
pub fn fill(pool: &Pool, rows: u64) -> Result<(), Error> {
    let mut root = Root {
        rows,
        warehouse: PPtr::NULL,
        districts: [PPtr::NULL; DISTRICTS as usize],
        customers: [[PSlice::EMPTY; CUSTOMER_TABLES]; DISTRICTS as usize],
        items: [PSlice::EMPTY; TABLES],
        stock: [PSlice::EMPTY; TABLES],
    };
    for at in 0..DISTRICTS {
        let tax = row_draw(2, at).next() % 2001;
        let customers: Vec<Customer> = (0..CUSTOMERS).map(|row| customer(at, row)).collect();
        let new =
            District { next: 1, ytd: 3_000_000, tax: tax as u32, unused: 0, chunks: [PPtr::NULL; CHUNKS] };
        let sections = [district(pool, at)];
        root.districts[at as usize] = pool.tx_with(filling(&sections), |t| t.alloc(new))?;
        for (place, customers) in root.customers[at as usize].iter_mut().zip(customers.chunks(TABLE)) {
            *place = pool.tx_with(filling(&sections), |t| t.alloc_slice(customers))?;
        }
    }
    let mut pointers = vec![(PPtr::NULL, PPtr::NULL); rows as usize];
    for part_of in 0..PARTS {
        let rows: Vec<u64> = (0..rows).filter(|row| (row + 1) % PARTS == part_of).collect();
        for rows in rows.chunks(64) {
            pool.tx_with(filling(&[part(pool, part_of)]), |t| {
                for row in rows {
                    pointers[*row as usize] = (t.alloc(item(*row))?, t.alloc(stock(*row))?);
                }
                Ok::<_, Error>(())
            })?;
        }
    }
    for (at, pointers) in pointers.chunks(TABLE).enumerate() {
        let (items, stock): (Vec<PPtr<Item>>, Vec<PPtr<Stock>>) = pointers.iter().copied().unzip();
        pool.tx_with(filling(&[0]), |t| {
            (root.items[at], root.stock[at]) = (t.alloc_slice(&items)?, t.alloc_slice(&stock)?);
            Ok::<_, Error>(())
        })?;
    }
    let tax = row_draw(1, 0).next() % 2001;
    pool.tx_with(filling(&[0]), |t| {
        root.warehouse = t.alloc(Warehouse { ytd: 30_000_000, tax: tax as u32, unused: 0 })?;
        let place = t.alloc(root)?;
        t.set_root(place)
    })
}

/// The root, and where items and stock rows are.
type Found = (Root, Vec<PPtr<Item>>, Vec<PPtr<Stock>>);

/// Finds the tables from the pool's root.
pub fn find(pool: &Pool) -> Result<Found, Error> {
    pool.read_in(&[0], |r| {
        let root = *r.get(r.root::<Root>()?.ok_or_else(|| super::broken("there is no root"))?)?;
        let (mut items, mut stock) = (Vec::new(), Vec::new());
        for at in 0..TABLES {
            items.extend_from_slice(r.slice(root.items[at])?);
            stock.extend_from_slice(r.slice(root.stock[at])?);
        }
        Ok((root, items, stock))
    })
}
