/*
 * select.c - the public kernels: the best table this machine can run.
 *
 * The choice is a few bit tests of what the C runtime found at start, so it is made per call and
 * nothing has to be remembered.
 *
 * Called by the engines, the pipeline and coordinator/api, on any thread.
 */
#include "kernels/kernels.h"
#include "kernels/variant.h"

static const dp_kernel_table_t *select_table(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return &dp_kernels_avx512;
    }
    /* F16C came before AVX2 in every processor; clang 14 has no name to ask for it. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &dp_kernels_avx2;
#endif
    return &dp_kernels_c;
}

const dp_kernel_table_t *dp_kernels_table(int index)
{
    const dp_kernel_table_t *const all[] = {
#if defined(__x86_64__)
        &dp_kernels_avx512,
        &dp_kernels_avx2,
#endif
        &dp_kernels_c,
    };
    const dp_kernel_table_t *best = select_table();
    int is_usable = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        is_usable |= all[i] == best;
        if (is_usable && index-- == 0) return all[i];
    }
    return NULL;
}

void dp_kernel_reduce(const dp_reduce_args_t *args)
{
    select_table()->reduce(args);
}

void dp_kernel_cast(const dp_cast_args_t *args)
{
    select_table()->cast(args);
}

void dp_kernel_reduce_cast(const float *const *in, int in_count, dp_dtype_t wire, void *out,
                           size_t count, float scale)
{
    select_table()->reduce_cast(in, in_count, wire, out, count, scale);
}

void dp_kernel_expand(dp_dtype_t wire, const void *in, float *const *out, int out_count,
                      size_t count, float scale, dp_tally_t *tally)
{
    select_table()->expand(wire, in, out, out_count, count, scale, tally);
}

const char *dp_kernels_name(void)
{
    return select_table()->name;
}

size_t dp_kernel_dtype_bytes(dp_dtype_t dtype)
{
    switch (dtype) {
    case DP_U8:
    case DP_I8:
    case DP_BOOL:
        return 1;
    case DP_U16:
    case DP_I16:
    case DP_F16:
    case DP_BF16:
        return 2;
    case DP_I32:
    case DP_U32:
    case DP_F32:
        return 4;
    case DP_I64:
    case DP_U64:
    case DP_F64:
        return 8;
    case DP_DTYPE_COUNT:
        break;
    }
    return 0;
}
