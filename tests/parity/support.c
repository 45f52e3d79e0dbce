/*
 * support.c - the list, numbers of any type, and how the cases wait for each other.
 */
#include "kernels/convert.h"
#include "tests/parity/parity.h"

#define PARITY_ENTRY(name, least_ranks) {#name, parity_##name, least_ranks},
const parity_case_t parity_cases[] = {PARITY_CASES(PARITY_ENTRY)};
const size_t parity_case_count = sizeof(parity_cases) / sizeof(parity_cases[0]);

int parity_is_float(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32 || dtype == DP_F64;
}

double parity_value(dp_dtype_t dtype, size_t i)
{
    const double value = (double)((i * 2654435761u >> 7) % 21);

    if (dtype == DP_BOOL) return (double)(i % 2);
    return dtype == DP_U8 || dtype == DP_U16 || dtype == DP_U32 || dtype == DP_U64 ? value
                                                                                   : value - 10.0;
}

void parity_store(dp_dtype_t dtype, void *data, size_t i, double value)
{
    const int64_t whole = (int64_t)value;

    switch (dtype) {
    case DP_U8:
    case DP_I8:
        ((uint8_t *)data)[i] = (uint8_t)whole;
        break;
    case DP_U16:
    case DP_I16:
        ((uint16_t *)data)[i] = (uint16_t)whole;
        break;
    case DP_U32:
    case DP_I32:
        ((uint32_t *)data)[i] = (uint32_t)whole;
        break;
    case DP_U64:
    case DP_I64:
        ((uint64_t *)data)[i] = (uint64_t)whole;
        break;
    case DP_F16:
        ((uint16_t *)data)[i] = dp_convert_f32_to_f16((float)value);
        break;
    case DP_BF16:
        ((uint16_t *)data)[i] = dp_convert_f32_to_bf16((float)value);
        break;
    case DP_F32:
        ((float *)data)[i] = (float)value;
        break;
    case DP_F64:
        ((double *)data)[i] = value;
        break;
    case DP_BOOL:
        ((uint8_t *)data)[i] = value != 0.0;
        break;
    case DP_DTYPE_COUNT:
        break;
    }
}

void parity_fill(dp_dtype_t dtype, void *data, size_t count, double by, double plus)
{
    for (size_t i = 0; i < count; i++)
        parity_store(dtype, data, i, parity_value(dtype, i) * by + plus);
}

size_t parity_differs(dp_dtype_t dtype, const void *data, size_t count, double by, double plus)
{
    const size_t bytes = dp_dtype_bytes(dtype);

    for (size_t i = 0; i < count; i++) {
        uint64_t wanted = 0;

        parity_store(dtype, &wanted, 0, parity_value(dtype, i) * by + plus);
        if (memcmp((const char *)data + i * bytes, &wanted, bytes) != 0) return i;
    }
    return SIZE_MAX;
}

dp_status_t parity_wait(dp_status_t submitted, dp_handle_t **handle, dp_result_t *result)
{
    return submitted == DP_OK ? dp_wait(*handle, 120.0, result) : submitted;
}

int parity_after_rank0(dp_context_t *dp, const char *name)
{
    dp_handle_t *handle = NULL;
    uint8_t byte = 1;
    dp_status_t status = dp_broadcast(dp_world(dp), name, &byte, &byte, 1, DP_U8, 0, NULL, &handle);

    EXPECT_STATUS(dp, parity_wait(status, &handle, NULL), DP_OK);
    return 0;
}

int parity_half(dp_context_t *dp, dp_group_t **group)
{
    const int odd = dp_rank(dp) % 2;
    int ranks[PARITY_RANKS_MAX];
    size_t count = 0;

    for (int i = odd; i < dp_size(dp); i += 2)
        ranks[count++] = i;
    EXPECT_STATUS(dp, dp_group_create(dp, odd ? "odd" : "even", ranks, count, NULL, group), DP_OK);
    EXPECT(dp, *group != NULL, "no group");
    return 0;
}

int parity_run(dp_context_t *dp, const char *name)
{
    int found = 0;

    for (size_t i = 0; i < parity_case_count; i++) {
        const parity_case_t *what = &parity_cases[i];
        int failed;

        if (strcmp(name, "all") != 0 && strcmp(name, what->name) != 0) continue;
        found = 1;
        if (dp_size(dp) < what->least_ranks) continue;
        failed = what->run(dp);
        if (failed) {
            fprintf(stderr, "rank %d of %d: %s: FAILED\n", dp_rank(dp), dp_size(dp), what->name);
            return 1;
        }
        if (dp_rank(dp) == 0) printf("%-36s %d ranks: ok\n", what->name, dp_size(dp));
        fflush(stdout);
    }
    return found ? 0 : 2;
}
