// SPDX-License-Identifier: Apache-2.0 OR MIT
// TATP 1.0: seven transactions on subscribers of a telephone network, on whatever store apps.c was compiled for.
//
// Scale   100,000 subscribers, the benchmark's usual size; a subscriber's rows of SUBSCRIBER, ACCESS_INFO and SPECIAL_FACILITY lie
//         together, rows of CALL_FORWARDING are objects of their own; sub_nbr has a hash index
// Mix     GET_SUBSCRIBER_DATA 35 · GET_NEW_DESTINATION 10 · GET_ACCESS_DATA 35 · UPDATE_SUBSCRIBER_DATA 2 · UPDATE_LOCATION 14 ·
//         INSERT_CALL_FORWARDING 2 · DELETE_CALL_FORWARDING 2; subscribers not uniform, A = 65535
// Locks   subscribers are in 64 parts; reads share them. The index never changes and has none

#include <string.h>

#define SUBSCRIBERS 100000
#define INDEX (1 << 18)

struct subscriber {
    uint32_t id, bits, msc, vlr;
    uint8_t hex[12], bytes[12], number[16];
    uint64_t unused;
};

struct access {
    uint32_t present;
    uint8_t data[10], unused[2];
};

struct facility {
    uint8_t present, active, error_control, data_a, data_b[5], unused[7];
    place forwards[3];
};

struct forward {
    uint32_t subscriber;
    uint8_t type, start, end, unused;
    uint8_t number[16];
};

struct person {
    struct subscriber subscriber;
    struct access access[4];
    struct facility facilities[4];
};

struct number {
    uint8_t number[16];
    uint64_t id;
};

static struct {
    struct person *persons;
    struct number *index;
} tatp;

// Fifteen digits.
static void tatp_number(uint8_t number[16], uint64_t id) {
    memset(number, '0', 15);
    number[15] = 0;
    for (int at = 14; id; at--, id /= 10) number[at] = (uint8_t)('0' + id % 10);
}

static uint64_t tatp_hash(const uint8_t number[16]) {
    uint64_t words[2];
    memcpy(words, number, 16);
    return mix(mix(0, words[0]), words[1]) % INDEX;
}

// The subscriber's id; 0: there is none.
static uint64_t tatp_find(const uint8_t number[16]) {
    uint64_t at = tatp_hash(number);
    for (; tatp.index[at].id; at = (at + 1) % INDEX)
        if (!memcmp(tatp.index[at].number, number, 16)) return tatp.index[at].id;
    return 0;
}

// The first `count` of the numbers below `of`, in random order.
static void tatp_choose(uint64_t *state, unsigned of, unsigned count, unsigned *chosen) {
    for (unsigned at = 0; at < of; at++) chosen[at] = at;
    for (unsigned at = 0; at < count; at++) {
        unsigned other = at + (unsigned)(draw(state) % (of - at)), kept = chosen[at];
        chosen[at] = chosen[other];
        chosen[other] = kept;
    }
}

static void tatp_fill(void) {
    tatp.persons = store_at(store_make(sizeof *tatp.persons * SUBSCRIBERS));
    tatp.index = store_at(store_make(sizeof *tatp.index * INDEX));
    for (uint32_t id = 1; id <= SUBSCRIBERS; id++) {
        struct person *person = &tatp.persons[id - 1];
        struct subscriber *subscriber = &person->subscriber;
        uint64_t state = row_state(1, id);
        unsigned types[4], starts[3];
        subscriber->id = id;
        subscriber->bits = (uint32_t)(draw(&state) % 1024);
        subscriber->msc = (uint32_t)draw(&state);
        subscriber->vlr = (uint32_t)draw(&state);
        for (int at = 0; at < 10; at++) subscriber->hex[at] = (uint8_t)(draw(&state) % 16);
        for (int at = 0; at < 10; at++) subscriber->bytes[at] = (uint8_t)draw(&state);
        tatp_number(subscriber->number, id);
        unsigned count = 1 + (unsigned)(draw(&state) % 4);
        tatp_choose(&state, 4, count, types);
        for (unsigned at = 0; at < count; at++) {
            struct access *access = &person->access[types[at]];
            access->present = 1;
            memlift_reference_pattern(access->data, 10, draw(&state));
        }
        count = 1 + (unsigned)(draw(&state) % 4);
        tatp_choose(&state, 4, count, types);
        for (unsigned at = 0; at < count; at++) {
            struct facility *facility = &person->facilities[types[at]];
            facility->present = 1;
            facility->active = draw(&state) % 100 < 85;
            facility->error_control = (uint8_t)draw(&state);
            facility->data_a = (uint8_t)draw(&state);
            memlift_reference_pattern(facility->data_b, 5, draw(&state));
            unsigned forwards = (unsigned)(draw(&state) % 4);
            tatp_choose(&state, 3, forwards, starts);
            for (unsigned turn = 0; turn < forwards; turn++) {
                place where = store_make_small(sizeof(struct forward));
                struct forward *forward = store_at(where);
                uint8_t start = (uint8_t)(8 * starts[turn]), end = (uint8_t)(start + 1 + draw(&state) % 8);
                *forward = (struct forward){id, (uint8_t)(types[at] + 1), start, end, 0, {0}};
                memlift_reference_pattern(forward->number, 16, draw(&state));
                facility->forwards[starts[turn]] = where;
            }
        }
        uint64_t at = tatp_hash(subscriber->number);
        while (tatp.index[at].id) at = (at + 1) % INDEX;
        memcpy(tatp.index[at].number, subscriber->number, 16);
        tatp.index[at].id = id;
    }
}

static uint64_t tatp_subscriber(uint64_t *state) {
    uint64_t one = draw(state) % 65536, other = 1 + draw(state) % SUBSCRIBERS;
    return (one | other) % SUBSCRIBERS + 1;
}

static uint64_t tatp_fixed(const struct subscriber *subscriber) {
    uint64_t words[3];
    memcpy(words, subscriber->hex, 24);
    return mix(mix(mix((uint64_t)subscriber->id << 32 | subscriber->msc, words[0]), words[1]), words[2]);
}

static uint64_t tatp_forward_sum(const struct forward *forward) {
    uint64_t words[3];
    memcpy(words, forward, 24);
    return mix(mix(words[0], words[1]), words[2]);
}

static void tatp_transaction(uint64_t *state, struct tally *tally) {
    uint64_t kind = draw(state) % 100, id = tatp_subscriber(state);
    uint8_t number[16];
    int writes = kind >= 80;
    if (kind >= 82) {
        tatp_number(number, id);
        id = tatp_find(number);
        if (!id) fail("a subscriber is not in the index");
    }
    struct person *person = &tatp.persons[id - 1];
    struct subscriber *subscriber = &person->subscriber;
    uint16_t lock = (uint16_t)(1 + id % PARTS);
    if (writes)
        store_lock_write(lock);
    else
        store_lock_read(lock);
    if (kind < 35) { // GET_SUBSCRIBER_DATA
        tally->settled += tatp_fixed(subscriber);
        tally->racing += mix(subscriber->bits, subscriber->vlr);
    } else if (kind < 45) { // GET_NEW_DESTINATION
        const struct facility *facility = &person->facilities[draw(state) % 4];
        uint8_t start = (uint8_t)(draw(state) % 3 * 8), end = (uint8_t)(1 + draw(state) % 24);
        if (facility->present && facility->active) {
            for (unsigned at = 0; at < 3 && at * 8 <= start; at++) {
                if (!facility->forwards[at]) continue;
                const struct forward *forward = store_at(facility->forwards[at]);
                if (end < forward->end) tally->racing += tatp_forward_sum(forward);
            }
        }
    } else if (kind < 80) { // GET_ACCESS_DATA
        const struct access *access = &person->access[draw(state) % 4];
        if (access->present) {
            uint64_t word;
            memcpy(&word, access->data, 8);
            tally->settled += mix(word, (uint64_t)access->data[8] << 8 | access->data[9]);
        }
    } else if (kind < 82) { // UPDATE_SUBSCRIBER_DATA
        uint32_t bit = (uint32_t)(draw(state) % 2);
        struct facility *facility = &person->facilities[draw(state) % 4];
        uint8_t data_a = (uint8_t)draw(state);
        store_begin();
        store_add(&subscriber->bits, sizeof subscriber->bits);
        subscriber->bits = (subscriber->bits & ~1u) | bit;
        if (facility->present) {
            store_add(&facility->data_a, 1);
            facility->data_a = data_a;
            store_commit();
        } else {
            store_abort();
            tally->aborted++;
        }
    } else if (kind < 96) { // UPDATE_LOCATION
        uint32_t vlr = (uint32_t)draw(state);
        store_begin();
        store_add(&subscriber->vlr, sizeof subscriber->vlr);
        subscriber->vlr = vlr;
        store_commit();
    } else {
        uint8_t type = (uint8_t)(draw(state) % 4), start = (uint8_t)(draw(state) % 3);
        uint8_t end = (uint8_t)(start * 8 + 1 + draw(state) % 8);
        uint64_t seed = draw(state);
        struct facility *facility = &person->facilities[type];
        place *forward = &facility->forwards[start];
        if (!facility->present || (kind < 98) == (*forward != 0)) {
            tally->aborted++;
        } else if (kind < 98) { // INSERT_CALL_FORWARDING
            store_begin();
            place where = store_alloc(sizeof(struct forward));
            struct forward *row = store_at(where);
            *row = (struct forward){(uint32_t)id, (uint8_t)(type + 1), (uint8_t)(start * 8), end, 0, {0}};
            memlift_reference_pattern(row->number, 16, seed);
            store_add(forward, sizeof *forward);
            *forward = where;
            store_commit();
        } else { // DELETE_CALL_FORWARDING
            store_begin();
            store_free(*forward, sizeof(struct forward));
            store_add(forward, sizeof *forward);
            *forward = 0;
            store_commit();
        }
    }
    store_unlock_one(lock);
}

static void tatp_work(unsigned thread, uint64_t state, uint64_t count, struct tally *tally) {
    (void)thread;
    uint64_t aborted = tally->aborted;
    while (count-- > 0) tatp_transaction(&state, tally);
    // How many inserts and deletes fail depends on the order of the threads.
    tally->racing += tally->aborted - aborted;
}

static void tatp_look(struct tally *tally) {
    for (uint32_t id = 1; id <= SUBSCRIBERS; id++) {
        const struct person *person = &tatp.persons[id - 1];
        tally->settled += tatp_fixed(&person->subscriber);
        tally->racing += mix(id, (uint64_t)person->subscriber.bits << 32 | person->subscriber.vlr);
        for (unsigned type = 0; type < 4; type++) {
            const struct facility *facility = &person->facilities[type];
            tally->racing += mix((uint64_t)id << 8 | type, facility->data_a);
            for (unsigned start = 0; start < 3; start++) {
                if (!facility->forwards[start]) continue;
                const struct forward *forward = store_at(facility->forwards[start]);
                if (!facility->present || forward->subscriber != id || forward->type != type + 1 || forward->start != start * 8)
                    fail("a call forwarding is not where it belongs");
                tally->racing += tatp_forward_sum(forward);
            }
        }
    }
}

static const struct app app_tatp = {"tatp", (size_t)128 << 20, tatp_fill, NULL, tatp_work, tatp_look};
