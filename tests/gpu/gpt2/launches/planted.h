/*
 * planted.h - launches that are wrong on purpose, which the check of launches must find.
 */
#ifndef DP_TESTS_LAUNCHES_PLANTED_H
#define DP_TESTS_LAUNCHES_PLANTED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Each returns a cudaError_t as int. to [rows][width] bytes. */
int planted_int_index(uint8_t *to, size_t rows, size_t width); /* computed in an int */
int planted_unsigned_index(uint8_t *to, size_t rows, size_t width);
int planted_row_too_many(uint8_t *to, size_t rows, size_t width); /* no bound in the last block */
int planted_right_index(uint8_t *to, size_t rows, size_t width);  /* and this one is right */
int planted_grid(void);                                           /* 65536 along y */
int planted_shared(int is_allowed);                               /* 64 KiB, allowed or not */

#ifdef __cplusplus
}
#endif
#endif
