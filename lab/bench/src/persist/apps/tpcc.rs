// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TPC-C's new-order transaction.
//!
//! - **Flow** warehouse read ─▶ district and parts of the stock locked ─▶ next order number ─▶ per line: item, stock ─▶ order with its lines
//!   ─▶ its slot. One in a hundred names an item that there is not at its end, and is undone
//! - **Draw** district, customer (NURand 1023), lines (5 to 15), one of a hundred undone, date; per line: item (NURand 8191), quantity
//! - **Check** conditions 1 to 4 of clause 3.3.2, and that the stock has sold what the lines say
//! - **Source** TPC Benchmark C 5.11, clauses 2.1.6, 2.4 and 3.3.2

use std::mem::offset_of;

use memlift_persist::{Durability, Error, PPtr, Pool, Tx, TxOptions, View};

use super::tpcc_rows::{
    CHUNK, CHUNKS, CUSTOMERS, Chunk, Counts, DISTRICTS, District, Item, LINES_MAX, Line, Order, Root, Slot,
    Stock, TABLE, district, find, part,
};
use super::{PARTS, Program, Tally, broken, mix};
use crate::persist::draw::Draw;

const NURAND_CUSTOMER: u64 = 259;
const NURAND_ITEM: u64 = 7911;

/// The program on its tables.
#[derive(Debug)]
pub struct Tpcc {
    root: Root,
    items: Vec<PPtr<Item>>,
    stock: Vec<PPtr<Stock>>,
}

/// Reason that an order did not happen.
enum Stop {
    NoSuchItem,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// Order that a terminal asks for.
struct NewOrder {
    district: u64,
    customer: u64,
    entered: u64,
    lines: usize,
    /// Item and quantity.
    wanted: [(u32, u32); LINES_MAX],
    /// Parts of the stock that it needs, one bit each.
    parts: u64,
}

/// Clause 2.1.6: of the numbers 1 to `count`, some more often than others.
fn nurand(draw: &mut Draw, a: u64, c: u64, count: u64) -> u64 {
    let (one, other) = (draw.next() % (a + 1), 1 + draw.next() % count);
    ((one | other) + c) % count + 1
}

impl NewOrder {
    fn draw(draw: &mut Draw, items: u64) -> NewOrder {
        let district = draw.next() % DISTRICTS;
        let customer = nurand(draw, 1023, NURAND_CUSTOMER, CUSTOMERS);
        let lines = 5 + (draw.next() % 11) as usize;
        let undone = draw.next().is_multiple_of(100);
        let entered = draw.next();
        let (mut wanted, mut parts) = ([(0, 0); LINES_MAX], 0);
        for (at, one) in wanted[..lines].iter_mut().enumerate() {
            let item = nurand(draw, 8191, NURAND_ITEM, items);
            *one = (item as u32, 1 + (draw.next() % 10) as u32);
            if undone && at + 1 == lines {
                one.0 = items as u32 + 1;
            } else {
                parts |= 1 << (item % PARTS);
            }
        }
        NewOrder { district, customer, entered, lines, wanted, parts }
    }
}

fn is_original(data: &[u8; 56]) -> bool {
    data[..50].windows(8).any(|window| window == b"ORIGINAL")
}

impl Tpcc {
    /// On a pool that was filled.
    pub fn open(pool: &Pool) -> Result<Tpcc, Error> {
        let (root, items, stock) = find(pool)?;
        if items.len() as u64 != root.rows || stock.len() as u64 != root.rows {
            return Err(broken("items are missing"));
        }
        Ok(Tpcc { root, items, stock })
    }

    /// Runs one transaction; returns a sum of the output for its terminal.
    fn new_order(&self, pool: &Pool, new: &NewOrder) -> Result<u64, Stop> {
        let warehouse = self.root.warehouse;
        let warehouse_tax = pool.read_in(&[0], |r| Ok::<_, Error>(r.get(warehouse)?.tax))?;
        let mut sections = [0; LINES_MAX + 1];
        sections[0] = district(pool, new.district);
        let (mut held, mut parts) = (1, new.parts);
        while parts != 0 {
            sections[held] = part(pool, parts.trailing_zeros().into());
            held += 1;
            parts &= parts - 1;
        }
        let options = TxOptions { durability: Durability::Sync, sections: Some(&sections[..held]) };
        pool.tx_with(options, |t| self.order(t, new, warehouse_tax.into()))
    }

    /// Reads a word of every cache line that the lines will need, so that their misses overlap; the rival prefetches them.
    fn touch(&self, t: &Tx<'_>, new: &NewOrder) -> Result<(), Error> {
        let mut sum = 0;
        for (number, _) in &new.wanted[..new.lines] {
            let at = *number as usize - 1;
            let (Some(item), Some(stock)) = (self.items.get(at), self.stock.get(at)) else { continue };
            let (item, stock) = (t.get(*item)?, t.get(*stock)?);
            let info = stock.districts[new.district as usize][0];
            sum ^= item.price ^ u32::from(item.data[40]) ^ stock.counts.quantity ^ u32::from(info);
        }
        std::hint::black_box(sum);
        Ok(())
    }

    fn order(&self, t: &mut Tx<'_>, new: &NewOrder, warehouse_tax: u64) -> Result<u64, Stop> {
        let place = self.root.districts[new.district as usize];
        let (id, tax) = {
            let district = t.get(place)?;
            (district.next, u64::from(district.tax))
        };
        *t.part_mut::<District, u64>(place, offset_of!(District, next))? = id + 1;
        let row = new.customer as usize - 1;
        let customer = t.slice(self.root.customers[new.district as usize][row / TABLE])?[row % TABLE];
        self.touch(t, new)?;
        let mut lines = [Line::NONE; LINES_MAX];
        let (mut total, mut brands) = (0, 0);
        for (line, (number, quantity)) in lines.iter_mut().zip(&new.wanted[..new.lines]) {
            let at = *number as usize - 1;
            let (price, original) = {
                let item = t.get(*self.items.get(at).ok_or(Stop::NoSuchItem)?)?;
                (item.price, is_original(&item.data))
            };
            let stock = t.get(self.stock[at])?;
            brands += u64::from(original && is_original(&stock.data));
            let (info, amount) = (stock.districts[new.district as usize], quantity * price);
            let counts = t.part_mut::<Stock, Counts>(self.stock[at], offset_of!(Stock, counts))?;
            counts.quantity = match counts.quantity {
                enough if enough >= quantity + 10 => enough - quantity,
                few => few + 91 - quantity,
            };
            counts.ytd += quantity;
            counts.orders += 1;
            *line = Line { item: *number, supplier: 1, quantity: *quantity, amount, delivered: 0, info };
            total += u64::from(amount);
        }
        let order = Order {
            id: id as u32,
            district: new.district as u32 + 1,
            customer: new.customer as u32,
            all_local: 1,
            entered: new.entered,
            carrier: 0,
            lines: t.alloc_slice(&lines[..new.lines])?,
        };
        let slot = Slot { order: t.alloc(order)?, is_new: 1 };
        put(t, place, id, slot)?;
        let total = total * (10_000 - u64::from(customer.discount)) / 10_000 * (10_000 + warehouse_tax + tax)
            / 10_000;
        Ok(total + brands + u64::from(customer.good_credit) + u64::from(customer.last[0]))
    }
}

/// Puts an order where its number says.
fn put(t: &mut Tx<'_>, district: PPtr<District>, id: u64, slot: Slot) -> Result<(), Error> {
    let (at, inside) = ((id / CHUNK) as usize, (id % CHUNK) as usize);
    if at >= CHUNKS {
        return Err(Error::Aborted("a district's orders are full".to_owned()));
    }
    let chunk = t.get(district)?.chunks[at];
    if chunk.is_null() {
        let mut chunk = Chunk { slots: [Slot::FREE; CHUNK as usize] };
        chunk.slots[inside] = slot;
        let chunk = t.alloc(chunk)?;
        let place = offset_of!(District, chunks) + at * size_of::<PPtr<Chunk>>();
        *t.part_mut::<District, PPtr<Chunk>>(district, place)? = chunk;
        return Ok(());
    }
    *t.part_mut::<Chunk, Slot>(chunk, inside * size_of::<Slot>())? = slot;
    Ok(())
}

impl Program for Tpcc {
    fn work(
        &self,
        pool: &Pool,
        _thread: usize,
        state: u64,
        count: u64,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let mut draw = Draw::new(state);
        for _ in 0..count {
            match self.new_order(pool, &NewOrder::draw(&mut draw, self.root.rows)) {
                Ok(sum) => tally.settle(sum),
                Err(Stop::NoSuchItem) => tally.aborted += 1,
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn audit(&self, pool: &Pool, tally: &mut Tally) -> Result<(), Error> {
        pool.read(|r| {
            let (mut ytd, mut lines, mut sold) = (0, 0, 0);
            for (number, place) in (0..).zip(self.root.districts) {
                let district = r.get(place)?;
                ytd += district.ytd;
                tally.settle(mix(number, district.next));
                for id in 1..=(CHUNKS as u64 * CHUNK - 1) {
                    let chunk = district.chunks[(id / CHUNK) as usize];
                    let there =
                        if chunk.is_null() { Slot::FREE } else { r.get(chunk)?.slots[(id % CHUNK) as usize] };
                    // Conditions 2 and 3: orders and rows of NEW-ORDER are those below the district's next number, without gaps.
                    if (there.is_new == 1) != (id < district.next)
                        || there.order.is_null() == (there.is_new == 1)
                    {
                        return Err(broken("a district's next number is not that after its last order's"));
                    }
                    if id >= district.next {
                        if chunk.is_null() {
                            break;
                        }
                        continue;
                    }
                    let order = r.get(there.order)?;
                    if u64::from(order.id) != id || u64::from(order.district) != number + 1 {
                        return Err(broken("an order is not where it belongs"));
                    }
                    let all = r.slice(order.lines)?;
                    let mut hash =
                        mix(order.customer.into(), u64::from(order.district) << 32 | all.len() as u64);
                    hash = mix(hash, order.entered);
                    for line in all {
                        lines += 1;
                        sold += u64::from(line.quantity);
                        hash = mix(hash, line.sum());
                    }
                    tally.settle(hash);
                }
            }
            // Condition 1: the warehouse has what its districts have.
            if r.get(self.root.warehouse)?.ytd != ytd {
                return Err(broken("the warehouse's sum is not that of its districts"));
            }
            let (mut sold_by_stock, mut lines_by_stock) = (0, 0);
            for (row, place) in (0..).zip(&self.stock) {
                let counts = r.get(*place)?.counts;
                if !(10..=100).contains(&counts.quantity) {
                    return Err(broken("a stock row has too little or too much"));
                }
                sold_by_stock += u64::from(counts.ytd);
                lines_by_stock += u64::from(counts.orders);
                let hash = mix(row, u64::from(counts.quantity) << 32 | u64::from(counts.ytd));
                tally.settle(mix(hash, u64::from(counts.orders) << 32 | u64::from(counts.remote)));
            }
            // Condition 4, seen from the stock: each line of an order was counted where its item was taken.
            if lines != lines_by_stock || sold != sold_by_stock {
                return Err(broken("the stock has not sold what the orders say"));
            }
            Ok(())
        })
    }
}
