/*
 * collectives.c - the collectives of dp.h. Each function describes its operation to dp_submit(), on
 * the program's thread; nothing else happens here.
 */
#include "coordinator/api/operation/submit.h"

/* ---- Reductions ----------------------------------------------------------------------------- */

dp_status_t dp_allreduce(dp_group_t *group, const char *name, const void *in, void *out,
                         size_t count, dp_dtype_t dtype, const dp_options_t *options,
                         dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_ALLREDUCE,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = -1,
                                    .peer = -1,
                                    .options = options},
                     handle);
}

dp_status_t dp_reduce(dp_group_t *group, const char *name, const void *in, void *out, size_t count,
                      dp_dtype_t dtype, int root, const dp_options_t *options, dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_REDUCE,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = root,
                                    .peer = -1,
                                    .options = options},
                     handle);
}

dp_status_t dp_reduce_scatter(dp_group_t *group, const char *name, const void *in, void *out,
                              size_t count, dp_dtype_t dtype, const dp_options_t *options,
                              dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_REDUCE_SCATTER,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = -1,
                                    .peer = -1,
                                    .options = options},
                     handle);
}

dp_status_t dp_reduce_scatterv(dp_group_t *group, const char *name, const void *in, void *out,
                               const size_t *counts, dp_dtype_t dtype, const dp_options_t *options,
                               dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, 0, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_REDUCE_SCATTERV,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = -1,
                                    .peer = -1,
                                    .counts = counts,
                                    .options = options},
                     handle);
}

/* ---- Lists ---------------------------------------------------------------------------------- */

static dp_status_t submit_list(dp_group_t *group, dp_collective_t collective, const char *name,
                               const dp_tensor_t *tensors, size_t count, int root,
                               const dp_options_t *options, dp_handle_t **handle)
{
    return dp_submit(group,
                     &(dp_submit_t){.collective = collective,
                                    .name = name,
                                    .tensors = tensors,
                                    .count = count,
                                    .is_grouped = 1,
                                    .root = root,
                                    .peer = -1,
                                    .options = options},
                     handle);
}

dp_status_t dp_grouped_allreduce(dp_group_t *group, const char *name, const dp_tensor_t *tensors,
                                 size_t count, const dp_options_t *options, dp_handle_t **handle)
{
    return submit_list(group, DP_COLLECTIVE_ALLREDUCE, name, tensors, count, -1, options, handle);
}

dp_status_t dp_grouped_reduce(dp_group_t *group, const char *name, const dp_tensor_t *tensors,
                              size_t count, int root, const dp_options_t *options,
                              dp_handle_t **handle)
{
    return submit_list(group, DP_COLLECTIVE_REDUCE, name, tensors, count, root, options, handle);
}

dp_status_t dp_grouped_broadcast(dp_group_t *group, const char *name, const dp_tensor_t *tensors,
                                 size_t count, int root, const dp_options_t *options,
                                 dp_handle_t **handle)
{
    return submit_list(group, DP_COLLECTIVE_BROADCAST, name, tensors, count, root, options, handle);
}

dp_status_t dp_grouped_allgather(dp_group_t *group, const char *name, const dp_tensor_t *tensors,
                                 size_t count, const dp_options_t *options, dp_handle_t **handle)
{
    return submit_list(group, DP_COLLECTIVE_ALLGATHER, name, tensors, count, -1, options, handle);
}

dp_status_t dp_grouped_reduce_scatter(dp_group_t *group, const char *name,
                                      const dp_tensor_t *tensors, size_t count,
                                      const dp_options_t *options, dp_handle_t **handle)
{
    return submit_list(group, DP_COLLECTIVE_REDUCE_SCATTER, name, tensors, count, -1, options,
                       handle);
}

/* ---- Copies of equal size ------------------------------------------------------------------- */

static dp_status_t submit_copy(dp_group_t *group, dp_collective_t collective, const char *name,
                               const dp_tensor_t *tensor, int root, const dp_options_t *options,
                               dp_handle_t **handle)
{
    return dp_submit(group,
                     &(dp_submit_t){.collective = collective,
                                    .name = name,
                                    .tensors = tensor,
                                    .count = 1,
                                    .root = root,
                                    .peer = -1,
                                    .options = options},
                     handle);
}

dp_status_t dp_broadcast(dp_group_t *group, const char *name, const void *in, void *out,
                         size_t count, dp_dtype_t dtype, int root, const dp_options_t *options,
                         dp_handle_t **handle)
{
    return submit_copy(group, DP_COLLECTIVE_BROADCAST, name, &(dp_tensor_t){in, out, count, dtype},
                       root, options, handle);
}

dp_status_t dp_allgather(dp_group_t *group, const char *name, const void *in, void *out,
                         size_t count, dp_dtype_t dtype, const dp_options_t *options,
                         dp_handle_t **handle)
{
    return submit_copy(group, DP_COLLECTIVE_ALLGATHER, name, &(dp_tensor_t){in, out, count, dtype},
                       -1, options, handle);
}

dp_status_t dp_gather(dp_group_t *group, const char *name, const void *in, void *out, size_t count,
                      dp_dtype_t dtype, int root, const dp_options_t *options, dp_handle_t **handle)
{
    return submit_copy(group, DP_COLLECTIVE_GATHER, name, &(dp_tensor_t){in, out, count, dtype},
                       root, options, handle);
}

dp_status_t dp_scatter(dp_group_t *group, const char *name, const void *in, void *out, size_t count,
                       dp_dtype_t dtype, int root, const dp_options_t *options,
                       dp_handle_t **handle)
{
    return submit_copy(group, DP_COLLECTIVE_SCATTER, name, &(dp_tensor_t){in, out, count, dtype},
                       root, options, handle);
}

dp_status_t dp_alltoall(dp_group_t *group, const char *name, const void *in, void *out,
                        size_t count, dp_dtype_t dtype, const dp_options_t *options,
                        dp_handle_t **handle)
{
    return submit_copy(group, DP_COLLECTIVE_ALLTOALL, name, &(dp_tensor_t){in, out, count, dtype},
                       -1, options, handle);
}

/* ---- Copies whose parts differ in size ------------------------------------------------------ */

dp_status_t dp_allgatherv(dp_group_t *group, const char *name, const void *in, size_t count,
                          void *out, size_t capacity, size_t *counts, dp_dtype_t dtype,
                          const dp_options_t *options, dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_ALLGATHERV,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = -1,
                                    .peer = -1,
                                    .capacity = capacity,
                                    .recv_counts = counts,
                                    .options = options},
                     handle);
}

dp_status_t dp_gatherv(dp_group_t *group, const char *name, const void *in, size_t count, void *out,
                       size_t capacity, size_t *counts, dp_dtype_t dtype, int root,
                       const dp_options_t *options, dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_GATHERV,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = root,
                                    .peer = -1,
                                    .capacity = capacity,
                                    .recv_counts = counts,
                                    .options = options},
                     handle);
}

dp_status_t dp_scatterv(dp_group_t *group, const char *name, const void *in, const size_t *counts,
                        void *out, size_t capacity, dp_dtype_t dtype, int root,
                        const dp_options_t *options, dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, 0, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_SCATTERV,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = root,
                                    .peer = -1,
                                    /* elsewhere whatever stands there is not read */
                                    .counts = root == dp_group_rank(group) ? counts : NULL,
                                    .capacity = capacity,
                                    .options = options},
                     handle);
}

dp_status_t dp_alltoallv(dp_group_t *group, const char *name, const void *in,
                         const size_t *send_counts, void *out, size_t capacity, size_t *recv_counts,
                         dp_dtype_t dtype, const dp_options_t *options, dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, 0, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_ALLTOALLV,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = -1,
                                    .peer = -1,
                                    .counts = send_counts,
                                    .capacity = capacity,
                                    .recv_counts = recv_counts,
                                    .options = options},
                     handle);
}

/* ---- Pairs ---------------------------------------------------------------------------------- */

dp_status_t dp_send(dp_group_t *group, const char *name, const void *in, size_t count,
                    dp_dtype_t dtype, int to, const dp_options_t *options, dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, NULL, count, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_SEND,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = dp_group_rank(group),
                                    .peer = to,
                                    .options = options},
                     handle);
}

dp_status_t dp_recv(dp_group_t *group, const char *name, void *out, size_t capacity,
                    dp_dtype_t dtype, int from, const dp_options_t *options, dp_handle_t **handle)
{
    dp_tensor_t tensor = {NULL, out, 0, dtype};

    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_SEND,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = from,
                                    .peer = dp_group_rank(group),
                                    .capacity = capacity,
                                    .options = options},
                     handle);
}

/* ---- Without data --------------------------------------------------------------------------- */

dp_status_t dp_barrier(dp_group_t *group, const char *name, const dp_options_t *options,
                       dp_handle_t **handle)
{
    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_BARRIER,
                                    .name = name,
                                    .root = -1,
                                    .peer = -1,
                                    .options = options},
                     handle);
}

dp_status_t dp_join(dp_group_t *group, const dp_options_t *options, dp_handle_t **handle)
{
    return dp_submit(group,
                     &(dp_submit_t){.collective = DP_COLLECTIVE_JOIN,
                                    .name = "join",
                                    .root = -1,
                                    .peer = -1,
                                    .options = options},
                     handle);
}
