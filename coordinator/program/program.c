/*
 * program.c - order=program: every rank launches its operations in the order in which it submits
 * them, without asking the others.
 *
 * A group has one open bucket. It is closed when the next operation would make it larger than
 * DP_FUSION_BYTES or has to travel alone, behind an operation that says launch_now, and when the
 * program waits for something in it; nothing depends on time or on other ranks. The thread of the
 * program that submits or waits launches, under `lock`. Operations that are agreed on (program.h)
 * close all buckets; submissions behind one are postponed until it was launched.
 *
 *     submit ---> an agreement is pending? --yes--> postponed[] --- dp_program_agreed() ---+
 *                          | no                                                            |
 *                          v                                                               |
 *                   the group's open bucket <----------------------------------------------+
 *                          | full, travels alone, launch_now, or is waited for
 *                          v
 *                   callbacks.launch(), in this thread
 *
 * Ranks whose programs differ would sum the wrong tensors. There are two checks that cost no wait:
 * - Each launch has a digest of its content, which the engine compares before it touches another
 *   rank's memory. It rides in the arrival that the engine waits for anyway.
 * - Each heartbeat between neighbours in the tree carries the position and digest of a chain of all
 *   submissions to the world (chain.h). This finds what no engine operation can: ranks that wait in
 *   different operations, a rank that has finalized, an engine that cannot compare.
 * A rank that finds a difference by either check sends its neighbours its latest entries as text.
 * On any path of the tree between two ranks that differ there are neighbours that differ; they name
 * the first entry in which they do, and the world ends with that text.
 *
 * Threads: those of the program (submit, wait), the thread that owns the coordinator's progress
 * (agreed, the heartbeat functions), and the data plane's (suspend). It must not know how data
 * moves.
 */
#include "coordinator/program/program.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/program/chain.h"
#include "fusion/plan.h"
#include "kernels/kernels.h"

#define BUCKET_TENSORS 4096 /* of one launch, at most */
#define LAUNCHES                                                                                   \
    1000000000ull /* of a group; a launch's number is its group's times this, and more */

struct dp_program {
    dp_program_options_t options;
    dp_loop_t *loop;         /* borrowed; written before the first submission */
    dp_trace_track_t *track; /* guarded by lock, likewise all below */
    pthread_mutex_t lock;
    dp_chain_t chain;
    dp_program_bucket_t *open, **open_end; /* with something in them, oldest first */
    int is_agreeing;          /* one request is being agreed on: what follows it is postponed */
    uint64_t agreeing_ticket; /* of that request, as its memory may be another one's by now */
    /* [postponed_count] of [postponed_room]; NULL: a wait for all before it */
    dp_program_op_t **postponed;
    size_t postponed_count, postponed_room;
    dp_launch_entry_t *entries; /* [entry_room] of the launch being made */
    size_t entry_room;
    dp_program_op_t *suspended; /* by next */
    int is_stopped;
};

/* ---- The rules ------------------------------------------------------------------------------ */

dp_program_kind_t dp_program_kind(dp_collective_t collective)
{
    switch (collective) {
    case DP_COLLECTIVE_BARRIER:
    case DP_COLLECTIVE_GROUP_CREATE:
    case DP_COLLECTIVE_GROUP_DESTROY:
        return DP_PROGRAM_AGREED;
    case DP_COLLECTIVE_SEND:
    case DP_COLLECTIVE_JOIN:
        return DP_PROGRAM_REFUSED;
    default:
        return DP_PROGRAM_ORDERED;
    }
}

int dp_program_is_even(dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_ALLREDUCE || collective == DP_COLLECTIVE_ALLGATHER ||
           collective == DP_COLLECTIVE_REDUCE_SCATTER;
}

uint64_t dp_program_bytes(const dp_signature_t *signature, int ranks)
{
    const uint64_t rows =
        signature->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (uint64_t)ranks : 1;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < signature->part_count; i++) {
        const dp_signature_part_t *part = &signature->parts[i];
        uint64_t more;

        if (__builtin_mul_overflow(part->count, dp_dtype_bytes(part->dtype) * rows, &more) ||
            __builtin_add_overflow(bytes, more, &bytes))
            return UINT64_MAX;
    }
    return bytes;
}

/* It decides how a tensor travels as fp16, so it is part of what must be equal on all ranks. */
static float absmax_of(const dp_submission_t *submission)
{
    return submission->signature->wire == DP_WIRE_FP16 ? submission->last_absmax : 0.0f;
}

static dp_chain_manner_t manner_of(const dp_submission_t *submission)
{
    return (dp_chain_manner_t){.in_place = submission->in_place,
                               .launches_now = submission->is_urgent,
                               .absmax = absmax_of(submission)};
}

/* ---- Launching, under the lock -------------------------------------------------------------- */

/* Without memory for what the program submitted the order cannot be kept. */
static void fail_world(dp_program_t *program)
{
    dp_loop_abort(program->loop, DP_ERR_NO_MEMORY, "order=program: no memory");
    program->is_stopped = 1;
}

/* realloc() for an array that grows by half. NULL: no memory, and the old array is as it was. */
static void *grow_array(void *array, size_t *room, size_t count, size_t bytes)
{
    const size_t wanted = dp_max(count, *room + *room / 2 + 16);
    void *larger = realloc(array, wanted * bytes);

    if (larger != NULL) *room = wanted;
    return larger;
}

static int reserve_launch_entries(dp_program_t *program, size_t count)
{
    void *larger;

    if (count <= program->entry_room) return 1;
    larger = grow_array(program->entries, &program->entry_room, count, sizeof(*program->entries));
    if (larger == NULL) return 0;
    program->entries = larger;
    return 1;
}

static void unlist_bucket(dp_program_t *program, dp_program_bucket_t *bucket)
{
    dp_program_bucket_t **at = &program->open;

    while (*at != bucket)
        at = &(*at)->next;
    *at = bucket->next;
    if (*at == NULL) program->open_end = at;
    bucket->next = NULL;
}

/* Launches what is in an open bucket. Its memory is used again for the next one. */
static void launch_open_bucket(dp_program_t *program, dp_program_bucket_t *bucket)
{
    const uint32_t uid = bucket->ops[0]->node->submission.group;
    dp_output_t launch = {.kind = DP_OUTPUT_LAUNCH, .group = uid, .entry_count = bucket->count};
    uint64_t digest;

    unlist_bucket(program, bucket);
    if (!reserve_launch_entries(program, bucket->count)) {
        fail_world(program);
        return;
    }
    for (size_t i = 0; i < bucket->count; i++) {
        const dp_submission_t *submission = &bucket->ops[i]->node->submission;

        program->entries[i] = (dp_launch_entry_t){.request = submission->request,
                                                  .signature = submission->signature,
                                                  .name = submission->name,
                                                  .last_absmax = absmax_of(submission),
                                                  .in_place = submission->in_place};
    }
    bucket->launches++;
    launch.sequence = (uint64_t)uid * LAUNCHES + bucket->launches;
    launch.entries = program->entries;
    /* Never 0: that tells the engine that the ranks have agreed, and to compare nothing. */
    digest = dp_kernel_hash(&bucket->launches, sizeof(bucket->launches), bucket->hash) | 1;
    bucket->count = 0;
    bucket->bytes = bucket->hash = 0;
    program->options.callbacks.launch(program->options.callbacks.user, &launch, digest,
                                      program->track);
}

/* The chain holds the world's submissions. */
static int is_of_world(const dp_program_op_t *op)
{
    return op->node->submission.group == DP_GROUP_WORLD;
}

/* Launches a bucket because the program waits for it. Where programs wait decides how operations
 * are bundled, so a wait is an entry of the chain. */
static void close_bucket(dp_program_t *program, dp_program_bucket_t *bucket)
{
    if (is_of_world(bucket->ops[0])) dp_chain_add_wait(&program->chain);
    launch_open_bucket(program, bucket);
}

static void close_all_buckets(dp_program_t *program)
{
    while (program->open != NULL && !program->is_stopped)
        close_bucket(program, program->open);
}

/* Puts an operation into its group's open bucket. The bucket is launched first if it does not
 * fit, and afterwards if it is full, or the request travels alone or says launch_now: by what is
 * equal on all ranks, or differs in the digests. */
static void add_to_bucket(dp_program_t *program, dp_program_op_t *op)
{
    const dp_submission_t *submission = &op->node->submission;
    const dp_signature_t *signature = submission->signature;
    const dp_chain_manner_t manner = manner_of(submission);
    const int is_alone = dp_plan_is_alone(signature->collective);
    const size_t limit = program->options.fusion_bytes;
    const uint64_t bytes = dp_program_bytes(signature, op->ranks);
    const uint64_t hash = dp_chain_hash(submission->name, signature, &manner);
    dp_program_bucket_t *bucket = op->bucket;

    if (is_of_world(op)) dp_chain_add(&program->chain, hash, submission->name, signature, &manner);
    if (bucket->count > 0 && (is_alone || bucket->count == BUCKET_TENSORS || bytes > limit ||
                              bucket->bytes > limit - bytes))
        launch_open_bucket(program, bucket);
    if (program->is_stopped) return;
    if (bucket->count == bucket->room) {
        void *larger =
            grow_array(bucket->ops, &bucket->room, bucket->count + 1, sizeof(dp_program_op_t *));

        if (larger == NULL) {
            fail_world(program);
            return;
        }
        bucket->ops = larger;
    }
    if (bucket->count == 0) {
        *program->open_end = bucket;
        program->open_end = &bucket->next;
    }
    bucket->ops[bucket->count++] = op;
    bucket->bytes += bytes > UINT64_MAX - bucket->bytes ? UINT64_MAX - bucket->bytes : bytes;
    bucket->hash = dp_kernel_hash(&hash, sizeof(hash), bucket->hash);
    if (is_alone || manner.launches_now || bucket->bytes >= limit)
        launch_open_bucket(program, bucket);
}

/* op: NULL: a wait for all before it; two of these in a row are one. */
static void postpone(dp_program_t *program, dp_program_op_t *op)
{
    const size_t count = program->postponed_count;

    if (op == NULL && count > 0 && program->postponed[count - 1] == NULL) return;
    if (program->postponed_count == program->postponed_room) {
        void *larger = grow_array(program->postponed, &program->postponed_room,
                                  program->postponed_count + 1, sizeof(dp_program_op_t *));

        if (larger == NULL) {
            fail_world(program);
            return;
        }
        program->postponed = larger;
    }
    program->postponed[program->postponed_count++] = op;
}

/* An operation's turn in the program's order has come, and no agreement is pending. */
static void place_op(dp_program_t *program, dp_program_op_t *op)
{
    dp_loop_node_t *node = op->node;

    if (dp_program_kind(node->submission.signature->collective) == DP_PROGRAM_ORDERED) {
        add_to_bucket(program, op);
        return;
    }
    close_all_buckets(program);
    if (program->is_stopped) return;
    /* Set before the submission: it may be launched, and dp_program_agreed() wait for the lock, at
     * once. */
    program->is_agreeing = 1;
    program->agreeing_ticket = op->ticket;
    dp_loop_submit(program->loop, &node, 1, 0);
}

/* ---- The program's threads ------------------------------------------------------------------ */

void dp_program_submit(dp_program_t *program, dp_program_op_t *op)
{
    pthread_mutex_lock(&program->lock);
    if (program->is_stopped) {
        /* the end of the world fails the request, if it has not yet */
    } else if (program->is_agreeing) {
        postpone(program, op);
    } else {
        place_op(program, op);
    }
    pthread_mutex_unlock(&program->lock);
}

static int is_pending(const dp_program_t *program, const dp_program_op_t *op)
{
    return program->options.callbacks.is_pending(op->node->submission.request);
}

void dp_program_wait(dp_program_t *program, const dp_program_op_t *op)
{
    int is_mine;

    if (!is_pending(program, op)) return;
    pthread_mutex_lock(&program->lock);
    /* 0: launched meanwhile, being agreed on, or never to be launched. */
    is_mine = !program->is_stopped && is_pending(program, op) &&
              !(program->is_agreeing && program->agreeing_ticket == op->ticket);
    if (is_mine && program->is_agreeing) {
        postpone(program, NULL);
    } else if (is_mine && op->bucket->count > 0) {
        close_bucket(program, op->bucket);
    }
    pthread_mutex_unlock(&program->lock);
}

void dp_program_wait_all(dp_program_t *program, dp_program_bucket_t *bucket)
{
    pthread_mutex_lock(&program->lock);
    if (program->is_stopped) {
        /* nothing is launched any more */
    } else if (program->is_agreeing) {
        postpone(program, NULL);
    } else if (bucket == NULL) {
        close_all_buckets(program);
    } else if (bucket->count > 0) {
        close_bucket(program, bucket);
    }
    pthread_mutex_unlock(&program->lock);
}

void dp_program_leave(dp_program_t *program)
{
    dp_program_wait_all(program, NULL);
    pthread_mutex_lock(&program->lock);
    program->chain.is_final = 1;
    pthread_mutex_unlock(&program->lock);
}

/* ---- The coordinator and the data plane ----------------------------------------------------- */

void dp_program_agreed(dp_program_t *program)
{
    size_t taken = 0;

    pthread_mutex_lock(&program->lock);
    program->is_agreeing = 0;
    /* Up to the next operation that is agreed on; what follows it stays postponed. */
    while (taken < program->postponed_count && !program->is_agreeing && !program->is_stopped) {
        dp_program_op_t *next = program->postponed[taken++];

        if (next == NULL) {
            close_all_buckets(program);
        } else {
            place_op(program, next);
        }
    }
    program->postponed_count -= taken;
    if (program->postponed_count > 0) {
        memmove(program->postponed, program->postponed + taken,
                program->postponed_count * sizeof(dp_program_op_t *));
    }
    pthread_mutex_unlock(&program->lock);
}

int dp_program_suspend(dp_program_t *program, dp_program_op_t *op, dp_status_t status,
                       const char *text)
{
    int is_suspended;

    pthread_mutex_lock(&program->lock);
    /* Under the lock, as dp_program_stop() takes the list once and for all. */
    is_suspended = !program->is_stopped;
    if (is_suspended) {
        op->next = program->suspended;
        program->suspended = op;
    }
    pthread_mutex_unlock(&program->lock);
    if (is_suspended) dp_loop_report_mismatch(program->loop, status, text);
    return is_suspended;
}

void dp_program_stop(dp_program_t *program, dp_status_t status, const char *text)
{
    const dp_program_callbacks_t *callbacks = &program->options.callbacks;
    dp_program_op_t *op, *next;

    pthread_mutex_lock(&program->lock);
    program->is_stopped = 1;
    program->postponed_count = 0;
    program->is_agreeing = 0;
    op = program->suspended;
    program->suspended = NULL;
    pthread_mutex_unlock(&program->lock);
    /* Without the lock: a failed request wakes threads that may call this module. */
    for (; op != NULL; op = next) {
        next = op->next; /* the request may be used again once it has failed */
        callbacks->fail(callbacks->user, op->node->submission.request, status, text);
    }
}

/* ---- Between neighbours --------------------------------------------------------------------- */

static size_t write_heartbeat(void *user, void *data, size_t room)
{
    dp_program_t *program = user;
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    pthread_mutex_lock(&program->lock);
    dp_chain_write_heartbeat(&program->chain, &writer);
    pthread_mutex_unlock(&program->lock);
    return writer.failed ? 0 : writer.bytes;
}

static const char *host_name_of(const dp_program_t *program, int rank)
{
    const dp_topology_t *topology = program->options.topology;

    return topology->host_name[topology->node[rank]];
}

static dp_status_t check_heartbeat(void *user, int rank, const void *data, size_t bytes, char *text,
                                   size_t room)
{
    dp_program_t *program = user;
    char what[DP_CHAIN_WHAT_MAX];
    uint64_t position = 0;
    dp_chain_verdict_t verdict;
    dp_reader_t reader;

    dp_reader_init(&reader, data, bytes);
    pthread_mutex_lock(&program->lock);
    verdict = dp_chain_check_heartbeat(&program->chain, &reader, what, &position);
    pthread_mutex_unlock(&program->lock);
    switch (verdict) {
    case DP_CHAIN_ALIKE:
        return DP_OK;
    case DP_CHAIN_DIFFERS:
        return DP_ERR_MISMATCH;
    case DP_CHAIN_LACKS:
        snprintf(text, room,
                 "order=program: rank %d (%s) finalized before entry %llu of the program, which is "
                 "%s on rank %d (%s)",
                 rank, host_name_of(program, rank), (unsigned long long)position, what,
                 program->options.rank, host_name_of(program, program->options.rank));
        return DP_ERR_LEFT;
    case DP_CHAIN_BAD:
        break;
    }
    snprintf(text, room, "rank %d (%s) sent a heartbeat that makes no sense (%zu bytes)", rank,
             host_name_of(program, rank), bytes);
    return DP_ERR_SYSTEM;
}

static size_t write_history(void *user, void *data, size_t room)
{
    dp_program_t *program = user;
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    pthread_mutex_lock(&program->lock);
    dp_chain_write_history(&program->chain, &writer);
    pthread_mutex_unlock(&program->lock);
    return writer.failed ? 0 : writer.bytes;
}

static dp_status_t compare_history(void *user, int rank, const void *data, size_t bytes, char *text,
                                   size_t room)
{
    dp_program_t *program = user;
    const int self = program->options.rank;
    char own[DP_CHAIN_WHAT_MAX], other[DP_CHAIN_WHAT_MAX];
    uint64_t position = 0;
    dp_chain_verdict_t verdict;
    dp_reader_t reader;

    dp_reader_init(&reader, data, bytes);
    pthread_mutex_lock(&program->lock);
    verdict = dp_chain_compare_history(&program->chain, &reader, &position, own, other);
    pthread_mutex_unlock(&program->lock);
    if (verdict == DP_CHAIN_ALIKE) return DP_OK;
    if (verdict == DP_CHAIN_BAD) {
        snprintf(text, room, "rank %d (%s) sent a history that makes no sense (%zu bytes)", rank,
                 host_name_of(program, rank), bytes);
        return DP_ERR_SYSTEM;
    }
    /* Both neighbours may find it; the lower rank comes first, so that their texts are equal. */
    snprintf(text, room,
             "order=program, but the ranks' programs differ: entry %llu is %s on rank %d (%s), %s "
             "on rank %d (%s)",
             (unsigned long long)position, self < rank ? own : other, dp_min(self, rank),
             host_name_of(program, dp_min(self, rank)), self < rank ? other : own,
             dp_max(self, rank), host_name_of(program, dp_max(self, rank)));
    return DP_ERR_MISMATCH;
}

dp_loop_peer_check_t dp_program_peer_check(dp_program_t *program)
{
    return (dp_loop_peer_check_t){.user = program,
                                  .write_heartbeat = write_heartbeat,
                                  .check_heartbeat = check_heartbeat,
                                  .write_history = write_history,
                                  .compare_history = compare_history};
}

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_program_create(const dp_program_options_t *options, dp_program_t **out)
{
    dp_program_t *program = calloc(1, sizeof(*program));

    if (program == NULL) return DP_ERR_NO_MEMORY;
    program->options = *options;
    program->open_end = &program->open;
    if (dp_chain_init(&program->chain) != DP_OK) {
        free(program);
        return DP_ERR_NO_MEMORY;
    }
    pthread_mutex_init(&program->lock, NULL);
    program->track = dp_trace_track(options->trace, "program order", DP_TRACE_TRACK_COORDINATOR);
    *out = program;
    return DP_OK;
}

void dp_program_set_loop(dp_program_t *program, dp_loop_t *loop)
{
    program->loop = loop;
}

void dp_program_bucket_fini(dp_program_bucket_t *bucket)
{
    free(bucket->ops);
    bucket->ops = NULL;
}

void dp_program_destroy(dp_program_t *program)
{
    if (program == NULL) return;
    dp_chain_fini(&program->chain);
    pthread_mutex_destroy(&program->lock);
    free(program->entries);
    free(program->postponed);
    free(program);
}
