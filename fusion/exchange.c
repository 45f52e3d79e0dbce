/*
 * exchange.c - what an item that moves blocks between single ranks asks of the engine, and the
 * checksum of what any item gives.
 *
 * job.c and bucket_op.c call it on the thread that runs the launch; under DP_CHECK submit.c
 * (coordinator/api) takes the checksum when an operation is submitted and bucket.c when it is
 * carried out. It must not know how the engine moves the blocks.
 */
#include "fusion/exchange.h"

/* What a rank that has joined gives to an allgatherv. */
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
