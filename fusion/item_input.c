/*
 * item_input.c - what this rank gives to an operation: the parts of an exchange, the element that
 * changes nothing where the rank has joined, and the checksum of either.
 *
 * job.c and bucket_stages.c call it on the thread that runs the launch, pack on its stream's
 * thread; under DP_CHECK_DATA submit.c (coordinator/api) takes the checksum when an operation is
 * submitted and bucket.c when it is carried out. It must not know how the engine moves bytes.
 */
#include "fusion/item_input.h"

#include <string.h>

/* ---- Exchanges ------------------------------------------------------------------------------ */

/* The counts of a rank that has joined, in an allgatherv. */
static const size_t nothing[1] = {0};

size_t dp_exchange_parts(const dp_pipeline_item_t *item, int rank, int ranks)
{
    if (item->is_absent) return 0;
    switch (item->collective) {
    case DP_COLLECTIVE_ALLTOALL:
    case DP_COLLECTIVE_ALLTOALLV:
        return (size_t)ranks;
    case DP_COLLECTIVE_SCATTER:
    case DP_COLLECTIVE_SCATTERV:
        return item->root == rank ? (size_t)ranks : 0;
    case DP_COLLECTIVE_SEND:
        return item->root == rank ? 1 : 0;
    case DP_COLLECTIVE_GATHER:
    case DP_COLLECTIVE_GATHERV:
    case DP_COLLECTIVE_ALLGATHERV:
        return 1;
    default:
        return 0;
    }
}

void dp_exchange_fill(dp_engine_exchange_t *exchange, const dp_pipeline_item_t *item, int rank,
                      int ranks)
{
    const dp_pipeline_tensor_t *tensor = &item->tensors[0];

    if (item->is_absent) {
        *exchange = (dp_engine_exchange_t){.send_counts = nothing, .drops = 1};
        return;
    }
    *exchange = (dp_engine_exchange_t){.in = tensor->in,
                                       .out = tensor->out,
                                       .capacity = item->capacity,
                                       .recv_counts = item->recv_counts,
                                       .output = item->output,
                                       .user = item->user};
    if (dp_exchange_parts(item, rank, ranks) > 0) exchange->send_counts = item->send_counts;
}

/* ---- Joined ranks --------------------------------------------------------------------------- */

/* The bits of the numbers wanted of a type, in the low bytes. */
typedef struct bits {
    uint64_t lowest, highest, one;
    uint64_t sum_zero; /* of floats -0: adding +0 would turn a sum of -0 into +0 */
} bits_t;

static bits_t bits_of(dp_dtype_t dtype)
{
    switch (dtype) {
    case DP_U8:
        return (bits_t){0, UINT8_MAX, 1, 0};
    case DP_I8:
        return (bits_t){1u << 7, INT8_MAX, 1, 0};
    case DP_U16:
        return (bits_t){0, UINT16_MAX, 1, 0};
    case DP_I16:
        return (bits_t){1u << 15, INT16_MAX, 1, 0};
    case DP_I32:
        return (bits_t){UINT64_C(1) << 31, INT32_MAX, 1, 0};
    case DP_U32:
        return (bits_t){0, UINT32_MAX, 1, 0};
    case DP_I64:
        return (bits_t){UINT64_C(1) << 63, INT64_MAX, 1, 0};
    case DP_U64:
        return (bits_t){0, UINT64_MAX, 1, 0};
    case DP_F16:
        return (bits_t){0xfc00, 0x7c00, 0x3c00, 0x8000};
    case DP_BF16:
        return (bits_t){0xff80, 0x7f80, 0x3f80, 0x8000};
    case DP_F32:
        return (bits_t){0xff800000, 0x7f800000, 0x3f800000, 0x80000000};
    case DP_F64:
        return (bits_t){UINT64_C(0xfff) << 52, UINT64_C(0x7ff) << 52, UINT64_C(0x3ff) << 52,
                        UINT64_C(1) << 63};
    case DP_BOOL:
        return (bits_t){0, 1, 1, 0};
    case DP_DTYPE_COUNT:
        break;
    }
    return (bits_t){0, 0, 0, 0};
}

static uint64_t identity_of(dp_dtype_t dtype, dp_reduce_t reduce, double prescale)
{
    const bits_t bits = bits_of(dtype);

    switch (reduce) {
    case DP_SUM:
    case DP_AVERAGE:
        return prescale < 0.0 ? 0 : bits.sum_zero;
    case DP_PRODUCT:
        return bits.one;
    case DP_MIN:
        if (prescale == 0.0) return 0;
        return prescale < 0.0 ? bits.lowest : bits.highest;
    case DP_MAX:
        if (prescale == 0.0) return 0;
        return prescale < 0.0 ? bits.highest : bits.lowest;
    case DP_REDUCE_COUNT:
        break;
    }
    return 0;
}

void dp_identity_fill(void *to, size_t count, dp_dtype_t dtype, dp_reduce_t reduce, double prescale)
{
    const uint64_t bits = identity_of(dtype, reduce, prescale);
    const size_t bytes = dp_dtype_bytes(dtype);
    const size_t all = count * bytes;
    unsigned char *at = to;
    size_t filled = bytes;

    if (all == 0) return;
    switch (bytes) {
    case 1:
        memcpy(at, &(uint8_t){(uint8_t)bits}, 1);
        break;
    case 2:
        memcpy(at, &(uint16_t){(uint16_t)bits}, 2);
        break;
    case 4:
        memcpy(at, &(uint32_t){(uint32_t)bits}, 4);
        break;
    default:
        memcpy(at, &bits, 8);
        break;
    }
    while (filled < all) { /* doubles what is there */
        const size_t more = dp_min(filled, all - filled);

        memcpy(at + filled, at, more);
        filled += more;
    }
}

/* ---- Checksums ------------------------------------------------------------------------------ */

static size_t input_rows(const dp_pipeline_item_t *item, int ranks)
{
    return item->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)ranks : 1;
}

static uint64_t exchange_hash(const dp_pipeline_item_t *item, int rank, int ranks)
{
    const dp_pipeline_tensor_t *tensor = &item->tensors[0];
    size_t parts = dp_exchange_parts(item, rank, ranks), count = 0;

    for (size_t i = 0; i < parts; i++)
        count += item->send_counts[i];
    return count == 0 ? 0 : dp_kernel_hash(tensor->in, count * dp_dtype_bytes(tensor->dtype), 0);
}

uint64_t dp_pipeline_input_hash(const dp_pipeline_item_t *item, int rank, int ranks)
{
    uint64_t hash = 0;

    if (item->is_absent || item->ready != NULL || item->tensor_count == 0) return 0;
    if (item->collective == DP_COLLECTIVE_BROADCAST && item->root != rank) return 0;
    if (dp_plan_is_alone(item->collective)) {
        if (dp_exchange_parts(item, rank, ranks) == 0) return 0;
        hash = exchange_hash(item, rank, ranks);
        return hash == 0 ? 1 : hash; /* 0 says that there is none */
    }
    for (size_t t = 0; t < item->tensor_count; t++) {
        const dp_pipeline_tensor_t *tensor = &item->tensors[t];
        size_t bytes = input_rows(item, ranks) * tensor->count * dp_dtype_bytes(tensor->dtype);

        if (tensor->in != NULL) hash = dp_kernel_hash(tensor->in, bytes, hash);
    }
    return hash == 0 ? 1 : hash;
}
