/*
 * common.h - the handful of helpers every file may use: assertions, minimum and maximum, the clock.
 *
 * It must not grow: an idea of its own gets a file of its own.
 */
#ifndef DP_BASE_COMMON_H
#define DP_BASE_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "dp.h"

/* States what only a bug of ours can break. Release builds drop it. */
#if defined(DP_ASSERTS) && DP_ASSERTS
_Noreturn void dp_assert_failed(const char *expression, const char *file, int line);
#define DP_ASSERT(expression)                                                                      \
    ((expression) ? (void)0 : dp_assert_failed(#expression, __FILE__, __LINE__))
#else
#define DP_ASSERT(expression) ((void)sizeof(expression))
#endif

#define dp_min(a, b) ((a) < (b) ? (a) : (b))
#define dp_max(a, b) ((a) > (b) ? (a) : (b))
#define DP_ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))
#define DP_KIB ((size_t)1 << 10)
#define DP_MIB ((size_t)1 << 20)
#define DP_GIB ((size_t)1 << 30)

/* CLOCK_MONOTONIC, ns: one clock for all processes of a node. */
static inline uint64_t dp_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Rounds up to a multiple of a power of two. */
static inline size_t dp_align_up(size_t value, size_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

/* The sum, or SIZE_MAX where it does not fit: a nonsensical count then fits nowhere. */
static inline size_t dp_add_saturating(size_t a, size_t b)
{
    return b > SIZE_MAX - a ? SIZE_MAX : a + b;
}

extern const uint8_t dp_dtype_byte_table[DP_DTYPE_COUNT + 1]; /* status.c; the last is 0 */

/* 0 for an unknown type. Inline, as each operation asks some ten times. */
static inline size_t dp_dtype_bytes(dp_dtype_t dtype)
{
    return dp_dtype_byte_table[(unsigned)dtype < DP_DTYPE_COUNT ? dtype : DP_DTYPE_COUNT];
}

int dp_dtype_is_float(dp_dtype_t dtype);        /* 16-bit types included */
const char *dp_dtype_name(dp_dtype_t dtype);    /* "f32"; "unknown" */
const char *dp_reduce_name(dp_reduce_t reduce); /* "sum"; "unknown" */
const char *dp_wire_name(dp_wire_t wire);       /* "fp16" */

#endif
