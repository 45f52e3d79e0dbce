/*
 * fuzz.h - what a fuzz target provides: libFuzzer's entry, and well-formed inputs to start from.
 *
 * Linked with fuzz_driver.c a target is an ordinary test; compiled with clang's -fsanitize=fuzzer
 * and without the driver it is a libFuzzer program.
 */
#ifndef DP_TESTS_FUZZ_H
#define DP_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#define FUZZ_ROOM 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Writes well-formed input number which; returns its size, or 0 when there are no more. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room);

#endif
