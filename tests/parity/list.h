/*
 * list.h - the list of the cases, with the fewest ranks that each makes sense for.
 */
#ifndef DP_TESTS_PARITY_LIST_H
#define DP_TESTS_PARITY_LIST_H

/* clang-format off */
#define PARITY_CASES(CASE) \
    CASE(allreduce, 1) \
    CASE(allreduce_average, 1) \
    CASE(allreduce_inplace, 1) \
    CASE(allreduce_prescale, 1) \
    CASE(allreduce_postscale, 1) \
    CASE(allreduce_scale_of_integers, 1) \
    CASE(allreduce_min_max_product, 1) \
    CASE(allreduce_async_fused, 1) \
    CASE(allreduce_error, 2) \
    CASE(allreduce_type_error, 2) \
    CASE(allreduce_options_error, 2) \
    CASE(operation_error, 2) \
    CASE(allreduce_duplicate_name_error, 2) \
    CASE(allreduce_process_sets, 2) \
    CASE(grouped_allreduce, 1) \
    CASE(grouped_allreduce_average, 1) \
    CASE(grouped_allreduce_inplace, 1) \
    CASE(grouped_allreduce_process_sets, 2) \
    CASE(grouped_allreduce_error, 2) \
    CASE(compression_fp16, 1) \
    CASE(allgather, 1) \
    CASE(allgather_process_sets, 2) \
    CASE(allgather_variable_size, 1) \
    CASE(allgather_async_fused, 1) \
    CASE(allgather_error, 2) \
    CASE(allgather_type_error, 2) \
    CASE(allgather_duplicate_name_error, 2) \
    CASE(grouped_allgather, 1) \
    CASE(allgather_object, 1) \
    CASE(allgather_too_little_room, 1) \
    CASE(broadcast, 1) \
    CASE(broadcast_inplace, 1) \
    CASE(broadcast_process_sets, 2) \
    CASE(broadcast_error, 2) \
    CASE(broadcast_type_error, 2) \
    CASE(broadcast_rank_error, 2) \
    CASE(broadcast_duplicate_name_error, 2) \
    CASE(grouped_broadcast, 1) \
    CASE(alltoall, 1) \
    CASE(alltoall_uneven, 1) \
    CASE(alltoall_zero_splits, 1) \
    CASE(alltoall_one_rank_sends_nothing, 2) \
    CASE(alltoall_one_rank_receives_nothing, 2) \
    CASE(alltoall_process_sets, 2) \
    CASE(alltoall_equal_split, 1) \
    CASE(alltoall_type_error, 2) \
    CASE(alltoall_rank_error, 2) \
    CASE(alltoall_splits_error, 1) \
    CASE(reducescatter, 1) \
    CASE(reducescatter_average, 1) \
    CASE(grouped_reducescatter, 1) \
    CASE(grouped_reducescatter_average, 1) \
    CASE(reducescatter_process_sets, 2) \
    CASE(reducescatter_uneven, 1) \
    CASE(reducescatter_error, 2) \
    CASE(reducescatter_type_error, 2) \
    CASE(reducescatter_scalar, 1) \
    CASE(process_set_add_remove, 2) \
    CASE(process_sets_overlap, 2) \
    CASE(process_set_errors, 2) \
    CASE(process_set_split, 2) \
    CASE(process_sets_are_independent, 3) \
    CASE(join_allreduce, 2) \
    CASE(join_last_rank, 2) \
    CASE(join_allgather, 2) \
    CASE(join_broadcast, 2) \
    CASE(join_alltoall_reducescatter, 2) \
    CASE(join_process_sets, 2) \
    CASE(barrier, 2) \
    CASE(barrier_process_sets, 2) \
    CASE(rank_and_size, 1) \
    CASE(broadcast_state, 1) \
    CASE(broadcast_object, 1) \
    CASE(duplicate_names, 1) \
    CASE(dynamic_requires_grad, 1) \
    CASE(gradient_clipping, 1) \
    CASE(synchronize_twice, 1) \
    CASE(optimizer_process_sets, 2) \
    CASE(outputs_are_written_only_when_due, 2) \
    CASE(test_keeps_the_handle, 2) \
    CASE(names_are_free_after_completion, 1) \
    CASE(failures_without_a_handle_are_told, 2) \
    CASE(failures_with_a_handle_are_the_holders, 2) \
    CASE(handles_may_be_left_to_finalize, 1) \
    CASE(registered_memory_is_reduced_in_place, 1) \
    CASE(registered_memory_serves_every_collective, 1) \
    CASE(registering_what_cannot_be_says_why, 1) \
    CASE(registrations_may_be_left_to_finalize, 1)
/* clang-format on */

#endif
