/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A walk's program in C: one step per node, compiled to BPF bytecode.
 *
 * Flow     clang -ffreestanding -nostdinc -isystem $(clang -print-resource-dir)/include -O2 -fno-jump-tables
 *          -target bpf -mcpu=v3 -c walk.c; the instructions of its only function, `step`, are the program
 * Layout   step(node, scratch, walk): `node` may be read from -256 on, in a window of 256 bytes altogether; `scratch` is read
 *          and written, 1024 bytes unless the program is registered with more; `walk` is written only
 * Order    the first step gets a zeroed scratchpad but for what the client put there
 * Not here calls, globals, strings, floating point, atomics, loops without an end: such programs are refused
 *
 * PULSE's iterator is `init`, `next` and `end`: write those three and MEMLIFT_ITERATOR makes the step of them. `init` runs at
 * the client only. Or write `step` alone, with the MEMLIFT_GO_ON family.
 */
#ifndef MEMLIFT_WALK_H
#define MEMLIFT_WALK_H

#include <stddef.h>
#include <stdint.h>

/* What a step says besides its verdict. */
struct memlift_walk {
    uint64_t next;        /* global address of the next node: GO_ON, EMIT */
    uint64_t apply;       /* what to do at `address`: APPLY */
    uint64_t address;     /* global address of eight aligned bytes */
    uint64_t a;           /* value expected, or the addend */
    uint64_t b;           /* new value */
    uint32_t emit_offset; /* where in the scratchpad the bytes lie that are appended to the result: EMIT */
    uint32_t emit_bytes;  /* how many they are */
    uint64_t fuel;        /* the runtime's: a program that stores here is refused */
    uint64_t reserved;
};

_Static_assert(sizeof(struct memlift_walk) == 64, "64 bytes");
_Static_assert(offsetof(struct memlift_walk, emit_offset) == 40, "as src/step.rs has it");

/* What a step returns. */
enum {
    MEMLIFT_NEXT = 0,    /* go on at walk->next */
    MEMLIFT_DONE = 1,    /* the scratchpad is the answer */
    MEMLIFT_EMIT = 2,    /* append to the result, then go on at walk->next */
    MEMLIFT_APPLY = 3,   /* change eight bytes at their owner, exactly once */
    MEMLIFT_RETRY = 4,   /* a writer was here: start again */
    MEMLIFT_MISSING = 5, /* done, and nothing was found */
};

/* Kinds of apply. */
enum {
    MEMLIFT_COMPARE_SWAP = 1, /* if they are `a` they become `b` */
    MEMLIFT_FETCH_ADD = 2,    /* `a` is added */
};

#define MEMLIFT_INLINE static inline __attribute__((always_inline, unused))

/* What the compiler must not know about a variable: keeps sums sums (not or), so that the verifier can follow their range. */
#define MEMLIFT_OPAQUE(variable) __asm__ volatile("" : "+r"(variable))

MEMLIFT_INLINE long memlift_next(struct memlift_walk *walk, uint64_t next)
{
    walk->next = next;
    return MEMLIFT_NEXT;
}

MEMLIFT_INLINE long memlift_emit(struct memlift_walk *walk, uint32_t offset, uint32_t bytes, uint64_t next)
{
    walk->next = next;
    walk->emit_offset = offset;
    walk->emit_bytes = bytes;
    return MEMLIFT_EMIT;
}

MEMLIFT_INLINE long memlift_compare_swap(struct memlift_walk *walk, uint64_t address, uint64_t expected, uint64_t fresh)
{
    walk->apply = MEMLIFT_COMPARE_SWAP;
    walk->address = address;
    walk->a = expected;
    walk->b = fresh;
    return MEMLIFT_APPLY;
}

MEMLIFT_INLINE long memlift_fetch_add(struct memlift_walk *walk, uint64_t address, uint64_t addend)
{
    walk->apply = MEMLIFT_FETCH_ADD;
    walk->address = address;
    walk->a = addend;
    return MEMLIFT_APPLY;
}

/*
 * PULSE's form (its §3). The file has
 *     MEMLIFT_INLINE uint64_t init(STATE *state, ...)            what the client starts with; the address of the first node
 *     MEMLIFT_INLINE long end(const NODE *node, STATE *state)    MEMLIFT_DONE or MEMLIFT_MISSING, or MEMLIFT_NEXT to go on
 *     MEMLIFT_INLINE uint64_t next(const NODE *node, STATE *state)   the address of the next node
 * and then MEMLIFT_ITERATOR(NODE, STATE).
 */
#define MEMLIFT_ITERATOR(NODE, STATE)                                                    \
    long step(const void *node_, void *scratch_, struct memlift_walk *walk)             \
    {                                                                                    \
        const NODE *node = (const NODE *)node_;                                          \
        STATE *state = (STATE *)scratch_;                                                \
        long verdict = end(node, state);                                                 \
        if (verdict != MEMLIFT_NEXT)                                                     \
            return verdict;                                                              \
        walk->next = next(node, state);                                                  \
        return MEMLIFT_NEXT;                                                             \
    }

#endif
