// SPDX-License-Identifier: Apache-2.0 OR MIT
// TPC-C's new-order transaction (TPC-C 5.11, clause 2.4), on whatever store apps.c was compiled for.
//
// Scale   one warehouse with all its rows: 10 districts, 30,000 customers, 100,000 items and their stock; of wide rows the columns that
//         new-order reads or writes; no orders at first. So all lines are supplied by the home warehouse
// Order   district locked ─▶ next order number ─▶ per line: item, stock ─▶ order with its lines ─▶ its slot, which is also its row of
//         NEW-ORDER. One in a hundred names an item that there is not at its end, and is undone
// Locks   a district is one; stock is in 64 parts by item; ascending
// Draw    district, customer (NURand 1023), lines (5 to 15), one of a hundred undone, date; per line: item (NURand 8191), quantity

#include <string.h>

#define DISTRICTS 10
#define CUSTOMERS 3000
#define ITEMS 100000
#define LINES_MAX 15
#define CHUNK 128
#define CHUNKS 1024
#define NURAND_CUSTOMER 259
#define NURAND_ITEM 7911

struct item {
    uint32_t id, image, price, unused;
    uint8_t name[24], data[56];
};

struct stock {
    uint32_t quantity, ytd, orders, remote;
    uint8_t districts[DISTRICTS][24], data[56];
};

struct customer {
    uint32_t id, discount;
    uint8_t last[16];
    uint32_t good_credit, unused;
};

struct line {
    uint32_t item, supplier, quantity, amount;
    uint64_t delivered;
    uint8_t info[24];
};

struct order {
    uint32_t id, district, customer, lines;
    uint64_t entered;
    uint32_t carrier, all_local;
    struct line line[];
};

struct slot {
    place order;
    uint64_t is_new;
};

struct district {
    uint64_t next, ytd;
    uint32_t tax, unused;
    place chunks[CHUNKS];
};

struct warehouse {
    uint64_t ytd;
    uint32_t tax, unused;
};

static struct {
    struct item *items;
    struct stock *stock;
    struct customer *customers;
    struct district *districts;
    struct warehouse *warehouse;
} tpcc;

static const char tpcc_original[8] = {'O', 'R', 'I', 'G', 'I', 'N', 'A', 'L'};

static void tpcc_data(uint8_t *data, uint64_t *state) {
    memlift_reference_pattern(data, 56, draw(state));
    uint64_t original = draw(state), at = draw(state);
    if (original % 10 == 0) memcpy(data + at % 43, tpcc_original, 8);
}

static int tpcc_is_original(const uint8_t *data) {
    uint64_t wanted, word;
    memcpy(&wanted, tpcc_original, 8);
    for (int at = 0; at <= 42; at++) {
        memcpy(&word, data + at, 8);
        if (word == wanted) return 1;
    }
    return 0;
}

static void tpcc_fill(void) {
    tpcc.warehouse = store_at(store_make(sizeof *tpcc.warehouse));
    tpcc.districts = store_at(store_make(sizeof *tpcc.districts * DISTRICTS));
    tpcc.customers = store_at(store_make(sizeof *tpcc.customers * DISTRICTS * CUSTOMERS));
    tpcc.items = store_at(store_make(sizeof *tpcc.items * ITEMS));
    tpcc.stock = store_at(store_make(sizeof *tpcc.stock * ITEMS));
    uint64_t state = row_state(1, 0);
    *tpcc.warehouse = (struct warehouse){.ytd = 30000000, .tax = (uint32_t)(draw(&state) % 2001)};
    for (uint32_t row = 0; row < DISTRICTS; row++) {
        state = row_state(2, row);
        tpcc.districts[row].next = 1;
        tpcc.districts[row].ytd = 3000000;
        tpcc.districts[row].tax = (uint32_t)(draw(&state) % 2001);
    }
    for (uint32_t row = 0; row < DISTRICTS * CUSTOMERS; row++) {
        struct customer *customer = &tpcc.customers[row];
        state = row_state(3, row);
        customer->id = row % CUSTOMERS + 1;
        customer->discount = (uint32_t)(draw(&state) % 5001);
        customer->good_credit = draw(&state) % 10 != 0;
        memlift_reference_pattern(customer->last, sizeof customer->last, draw(&state));
    }
    for (uint32_t row = 0; row < ITEMS; row++) {
        struct item *item = &tpcc.items[row];
        state = row_state(4, row);
        item->id = row + 1;
        item->image = (uint32_t)(1 + draw(&state) % 10000);
        item->price = (uint32_t)(100 + draw(&state) % 9901);
        memlift_reference_pattern(item->name, sizeof item->name, draw(&state));
        tpcc_data(item->data, &state);
        struct stock *stock = &tpcc.stock[row];
        state = row_state(5, row);
        stock->quantity = (uint32_t)(10 + draw(&state) % 91);
        memlift_reference_pattern(stock->districts, sizeof stock->districts, draw(&state));
        tpcc_data(stock->data, &state);
    }
}

static uint64_t nurand(uint64_t *state, uint64_t a, uint64_t c, uint64_t count) {
    uint64_t one = draw(state) % (a + 1), other = 1 + draw(state) % count;
    return ((one | other) + c) % count + 1;
}

static void tpcc_new_order(uint64_t *state, struct tally *tally) {
    struct {
        uint32_t item, quantity;
    } wanted[LINES_MAX];
    uint32_t d = (uint32_t)(draw(state) % DISTRICTS);
    uint32_t c = (uint32_t)nurand(state, 1023, NURAND_CUSTOMER, CUSTOMERS);
    uint32_t lines = (uint32_t)(5 + draw(state) % 11);
    int undone = draw(state) % 100 == 0;
    uint64_t entered = draw(state), parts = 0;
    for (uint32_t at = 0; at < lines; at++) {
        wanted[at].item = (uint32_t)nurand(state, 8191, NURAND_ITEM, ITEMS);
        wanted[at].quantity = (uint32_t)(1 + draw(state) % 10);
        if (undone && at + 1 == lines)
            wanted[at].item = ITEMS + 1;
        else
            parts |= (uint64_t)1 << wanted[at].item % PARTS;
    }
    uint16_t locks[STORE_HELD_MAX];
    unsigned held = 0;
    locks[held++] = (uint16_t)(1 + d);
    for (; parts; parts &= parts - 1) locks[held++] = (uint16_t)(1 + DISTRICTS + __builtin_ctzll(parts));

    uint32_t warehouse_tax = tpcc.warehouse->tax;
    store_lock(locks, held);
    store_begin();
    struct district *district = &tpcc.districts[d];
    uint64_t id = district->next;
    store_add(&district->next, sizeof district->next);
    district->next = id + 1;
    const struct customer *customer = &tpcc.customers[d * CUSTOMERS + c - 1];
    for (uint32_t at = 0; at < lines; at++) {
        if (wanted[at].item > ITEMS) continue;
        const struct item *item = &tpcc.items[wanted[at].item - 1];
        const struct stock *stock = &tpcc.stock[wanted[at].item - 1];
        __builtin_prefetch(&item->price);
        __builtin_prefetch(&item->data[40]);
        __builtin_prefetch(&stock->quantity, 1);
        __builtin_prefetch(&stock->districts[d]);
    }
    struct line line[LINES_MAX];
    uint64_t total = 0, brands = 0;
    for (uint32_t at = 0; at < lines; at++) {
        if (wanted[at].item > ITEMS) {
            store_abort();
            store_unlock(locks, held);
            tally->aborted++;
            return;
        }
        const struct item *item = &tpcc.items[wanted[at].item - 1];
        struct stock *stock = &tpcc.stock[wanted[at].item - 1];
        uint32_t quantity = wanted[at].quantity;
        store_add(stock, 16);
        stock->quantity = stock->quantity >= quantity + 10 ? stock->quantity - quantity : stock->quantity + 91 - quantity;
        stock->ytd += quantity;
        stock->orders++;
        brands += tpcc_is_original(item->data) && tpcc_is_original(stock->data);
        line[at] = (struct line){wanted[at].item, 1, quantity, quantity * item->price, 0, {0}};
        memcpy(line[at].info, stock->districts[d], 24);
        total += line[at].amount;
    }
    place where = store_alloc(sizeof(struct order) + lines * sizeof(struct line));
    struct order *order = store_at(where);
    *order = (struct order){(uint32_t)id, d + 1, c, lines, entered, 0, 1};
    memcpy(order->line, line, lines * sizeof(struct line));
    if (id / CHUNK >= CHUNKS) fail("a district's orders are full");
    int new_chunk = id % CHUNK == 0 || id == 1;
    if (new_chunk) {
        place chunk = store_alloc(CHUNK * sizeof(struct slot));
        memset(store_at(chunk), 0, CHUNK * sizeof(struct slot));
        store_add(&district->chunks[id / CHUNK], sizeof(place));
        district->chunks[id / CHUNK] = chunk;
    }
    struct slot *slot = (struct slot *)store_at(district->chunks[id / CHUNK]) + id % CHUNK;
    if (!new_chunk) store_add(slot, sizeof *slot);
    *slot = (struct slot){where, 1};
    store_commit();
    store_unlock(locks, held);
    total = total * (10000 - customer->discount) / 10000 * (10000 + warehouse_tax + district->tax) / 10000;
    tally->settled += total + brands + customer->good_credit + customer->last[0];
}

static void tpcc_work(unsigned thread, uint64_t state, uint64_t count, struct tally *tally) {
    (void)thread;
    while (count-- > 0) tpcc_new_order(&state, tally);
}

static void tpcc_look(struct tally *tally) {
    for (uint32_t d = 0; d < DISTRICTS; d++) {
        struct district *district = &tpcc.districts[d];
        tally->settled += mix(d, district->next);
        for (uint64_t id = 1; id < district->next; id++) {
            struct slot *slot = (struct slot *)store_at(district->chunks[id / CHUNK]) + id % CHUNK;
            struct order *order = store_at(slot->order);
            if (!slot->is_new || order->id != id || order->district != d + 1) fail("an order is not where it belongs");
            uint64_t hash = mix(order->customer, (uint64_t)order->district << 32 | order->lines);
            hash = mix(hash, order->entered);
            for (uint32_t at = 0; at < order->lines; at++)
                hash = mix(hash, memlift_reference_checksum(&order->line[at], sizeof order->line[at]));
            tally->settled += hash;
        }
    }
    for (uint32_t row = 0; row < ITEMS; row++) {
        struct stock *stock = &tpcc.stock[row];
        uint64_t hash = mix(row, (uint64_t)stock->quantity << 32 | stock->ytd);
        tally->settled += mix(hash, (uint64_t)stock->orders << 32 | stock->remote);
    }
}

static const struct app app_tpcc = {"tpcc", (size_t)192 << 20, tpcc_fill, NULL, tpcc_work, tpcc_look};
