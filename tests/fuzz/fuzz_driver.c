/*
 * fuzz_driver.c - runs a fuzz target without libFuzzer: mutations of its seeds, the same every
 * time.
 *
 * Arguments: how many inputs (20000), the random seed (1). A failure is a crash or a sanitizer's
 * report; running again with the same arguments repeats it.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* xorshift64*: a generator that is the same on every machine. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

static size_t mutate(uint8_t *data, size_t bytes, uint64_t *state)
{
    static const uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '=', '#', '\n'};
    const size_t at = bytes > 0 ? next_random(state) % bytes : 0;

    switch (next_random(state) % 6) {
    case 0: /* a bit */
        if (bytes > 0) data[at] ^= (uint8_t)(1u << next_random(state) % 8);
        return bytes;
    case 1: /* a byte at an edge of its range */
        if (bytes > 0) data[at] = edges[next_random(state) % sizeof(edges)];
        return bytes;
    case 2: /* cut */
        return at;
    case 3: /* four bytes of a length */
        for (size_t i = at; i < bytes && i < at + 4; i++)
            data[i] = (uint8_t)next_random(state);
        return bytes;
    case 4: /* one byte more */
        if (bytes == FUZZ_ROOM) return bytes;
        memmove(data + at + 1, data + at, bytes - at);
        data[at] = (uint8_t)next_random(state);
        return bytes + 1;
    default: /* one byte less */
        if (bytes == 0) return 0;
        memmove(data + at, data + at + 1, bytes - at - 1);
        return bytes - 1;
    }
}

/* In memory of exactly its size, so that a sanitizer sees a read past the end. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1);

    if (exact == NULL) return;
    memcpy(exact, data, bytes);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
}

int main(int argc, char **argv)
{
    const unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000;
    uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
    uint8_t data[FUZZ_ROOM];
    unsigned seeds = 0;

    while (fuzz_seed(seeds, data, sizeof(data)) > 0)
        seeds++;
    for (unsigned which = 0; which < seeds; which++)
        run(data, fuzz_seed(which, data, FUZZ_ROOM));
    for (unsigned long i = 0; i < count; i++) {
        size_t bytes = seeds > 0 ? fuzz_seed((unsigned)(i % seeds), data, sizeof(data)) : 0;

        for (uint64_t left = 1 + next_random(&state) % 6; left > 0; left--) {
            bytes = mutate(data, bytes, &state);
        }
        run(data, bytes);
    }
    printf("%lu inputs from %u seeds\n", count, seeds);
    return seeds > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
