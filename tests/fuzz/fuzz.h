/*
 * fuzz.h - what a fuzz target provides: libFuzzer's entry, and well-formed inputs to start from.
 *
 * Linked with fuzz_driver.c a target is an ordinary test; compiled with clang's -fsanitize=fuzzer
 * and linked with fuzz_files.c it is a libFuzzer program.
 */
#ifndef DP_TESTS_FUZZ_H
#define DP_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FUZZ_ROOM 16384

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Writes well-formed input number which; returns its size, or 0 when there are no more. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room);

/* For targets whose seeds are texts: fuzz_seed() over an array of them. */
static inline size_t fuzz_seed_text(const char *const *texts, size_t count, unsigned which,
                                    uint8_t *data, size_t room)
{
    size_t bytes = which < count ? strlen(texts[which]) : 0;

    if (bytes > room) return 0;
    if (bytes > 0) memcpy(data, texts[which], bytes);
    return bytes;
}

/* Takes an input apart. What is missing at its end is 0, so any input is a whole one. */
typedef struct fuzz_input {
    const uint8_t *data;
    size_t bytes;
} fuzz_input_t;

static inline uint64_t fuzz_number(fuzz_input_t *input, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes && input->bytes > 0; i++, input->data++, input->bytes--)
        value |= (uint64_t)*input->data << (8 * i);
    return value;
}

/* At most `bytes` of the rest; their number is written to *got. */
static inline const uint8_t *fuzz_take(fuzz_input_t *input, size_t bytes, size_t *got)
{
    const uint8_t *at = input->data;

    *got = bytes < input->bytes ? bytes : input->bytes;
    input->data += *got;
    input->bytes -= *got;
    return at;
}

/* No port could be had: targets that run beside each other may use up those of the machine for a
 * moment. *tries: those so far; after 15 s there is another cause. */
static inline void fuzz_await_port(int *tries)
{
    const struct timespec moment = {0, 100 * 1000 * 1000};

    if (++*tries > 150) abort();
    (void)nanosleep(&moment, NULL);
}

#endif
