/*
 * program.c - ordered groups: every rank launches a group's operations in the order in which it
 * submits them, without asking the others.
 *
 * A group has one open bucket. It is closed when the next operation would make it larger than
 * DP_FUSION_BYTES or has to travel alone, behind an operation that says launch_now, and when the
 * program waits for something in it; nothing depends on time, on other groups or on other ranks.
 * The thread of the program that submits or waits launches, under `lock`. Groups know nothing of
 * each other: each travels in a lane of its own (engine.h), so none waits for another.
 *
 *     submit ---> the group's open bucket
 *                          | full, travels alone, launch_now, or is waited for
 *                          v
 *                   callbacks.launch(), in this thread
 *
 * Ranks whose programs differ would sum the wrong tensors. There are two checks that cost no wait:
 * - Each launch has a digest of its content, which the engine compares before it touches another
 *   rank's memory. It rides in the arrival that the engine waits for anyway.
 * - Each heartbeat between neighbours in the tree carries, for each ordered group of the sender,
 *   the position and digest of a chain of all submissions to it (chain.h). Members compare, others
 *   skip it. This finds what no engine operation can: ranks that wait in different operations, a
 *   rank that has finalized, an engine that cannot compare. It takes two members that are
 *   neighbours.
 * A rank that finds a difference by either check sends its neighbours its latest entries in that
 * group as text. On any path of the tree between two ranks of the world that differ there are
 * neighbours that differ; they name the first entry in which they do, and the world ends with that
 * text.
 *
 * Threads: those of the program (submit, wait), the thread that owns the coordinator's progress
 * (the heartbeat functions), and the data plane's (suspend). It must not know how data moves.
 */
#include "coordinator/program/program.h"
#include "coordinator/loop/post.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusion/plan.h"
#include "kernels/kernels.h"

#define BUCKET_TENSORS 4096 /* of one launch, at most */
#define LAUNCHES                                                                                   \
    1000000000ull /* of a group; a launch's number is its group's times this, and more */
#define GROUP_HEARTBEAT_BYTES (4 + DP_CHAIN_HEARTBEAT_BYTES) /* uid, chain */

struct dp_program {
    dp_program_options_t options;
    dp_loop_t *loop; /* borrowed; written before the first submission */
    pthread_mutex_t lock;
    /* guarded by lock */
    dp_trace_track_t *track; /* NULL until a group is ordered */
    dp_program_group_t *groups;
    size_t next_told;           /* which of them the next heartbeat begins with */
    uint32_t differing;         /* uid of the group whose history is sent */
    dp_launch_entry_t *entries; /* [entry_room] of the launch being made */
    size_t entry_room;
    dp_program_op_t *suspended; /* by next */
    int is_final;               /* this rank submits nothing more */
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
        return DP_PROGRAM_DIRECT;
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

/* Launches what is in a group's open bucket. Its memory is used again for the next one. */
static void launch_bucket(dp_program_t *program, dp_program_group_t *group)
{
    dp_output_t launch = {
        .kind = DP_OUTPUT_LAUNCH, .group = group->uid, .entry_count = group->op_count};
    uint64_t digest;

    if (!reserve_launch_entries(program, group->op_count)) {
        fail_world(program);
        return;
    }
    for (size_t i = 0; i < group->op_count; i++) {
        const dp_submission_t *submission = group->ops[i]->submission;

        program->entries[i] = (dp_launch_entry_t){.request = submission->request,
                                                  .signature = submission->signature,
                                                  .name = submission->name,
                                                  .last_absmax = absmax_of(submission),
                                                  .in_place = submission->in_place};
    }
    group->launches++;
    launch.sequence = (uint64_t)group->uid * LAUNCHES + group->launches;
    launch.entries = program->entries;
    /* Never 0: that tells the engine that the ranks have agreed, and to compare nothing. */
    digest = dp_kernel_hash(&group->launches, sizeof(group->launches), group->hash) | 1;
    group->op_count = 0;
    group->bytes = group->hash = 0;
    program->options.callbacks.launch(program->options.callbacks.user, &launch, digest,
                                      program->track);
}

/* Launches a bucket because the program waits for it. Where programs wait decides how operations
 * are bundled, so a wait is an entry of the chain. */
static void close_bucket(dp_program_t *program, dp_program_group_t *group)
{
    if (group->op_count == 0 || program->is_stopped) return;
    dp_chain_add_wait(&group->chain);
    launch_bucket(program, group);
}

/* Puts an operation into its group's open bucket. The bucket is launched first if it does not
 * fit, and afterwards if it is full, or the request travels alone or says launch_now: by what is
 * equal on all ranks, or differs in the digests. */
static void add_to_bucket(dp_program_t *program, dp_program_op_t *op)
{
    const dp_submission_t *submission = op->submission;
    const dp_signature_t *signature = submission->signature;
    const dp_chain_manner_t manner = manner_of(submission);
    const int is_alone = dp_plan_is_alone(signature->collective);
    const size_t limit = program->options.fusion_bytes;
    dp_program_group_t *group = op->group;
    const uint64_t bytes = dp_signature_payload(signature, group->size);
    const uint64_t hash = dp_chain_hash(submission->name, signature, &manner);

    dp_chain_add(&group->chain, hash, submission->name, signature, &manner);
    if (group->op_count > 0 && (is_alone || group->op_count == BUCKET_TENSORS || bytes > limit ||
                                group->bytes > limit - bytes))
        launch_bucket(program, group);
    if (program->is_stopped) return;
    if (group->op_count == group->op_room) {
        void *larger =
            grow_array(group->ops, &group->op_room, group->op_count + 1, sizeof(dp_program_op_t *));

        if (larger == NULL) {
            fail_world(program);
            return;
        }
        group->ops = larger;
    }
    group->ops[group->op_count++] = op;
    group->bytes += bytes > UINT64_MAX - group->bytes ? UINT64_MAX - group->bytes : bytes;
    group->hash = dp_kernel_hash(&hash, sizeof(hash), group->hash);
    if (is_alone || manner.launches_now || group->bytes >= limit) launch_bucket(program, group);
}

/* ---- The program's threads ------------------------------------------------------------------ */

void dp_program_submit(dp_program_t *program, dp_program_op_t *op)
{
    pthread_mutex_lock(&program->lock);
    /* else the end of the world fails the request, if it has not yet */
    if (!program->is_stopped) add_to_bucket(program, op);
    pthread_mutex_unlock(&program->lock);
}

static int is_pending(const dp_program_t *program, const dp_program_op_t *op)
{
    return program->options.callbacks.is_pending(op->submission->request);
}

void dp_program_wait(dp_program_t *program, const dp_program_op_t *op)
{
    if (!is_pending(program, op)) return;
    pthread_mutex_lock(&program->lock);
    if (is_pending(program, op)) close_bucket(program, op->group);
    pthread_mutex_unlock(&program->lock);
}

void dp_program_wait_all(dp_program_t *program, dp_program_group_t *group)
{
    pthread_mutex_lock(&program->lock);
    if (group != NULL) {
        close_bucket(program, group);
    } else {
        for (group = program->groups; group != NULL; group = group->next)
            close_bucket(program, group);
    }
    pthread_mutex_unlock(&program->lock);
}

void dp_program_leave(dp_program_t *program)
{
    dp_program_wait_all(program, NULL);
    pthread_mutex_lock(&program->lock);
    program->is_final = 1;
    for (dp_program_group_t *group = program->groups; group != NULL; group = group->next)
        group->chain.is_final = 1;
    pthread_mutex_unlock(&program->lock);
}

/* ---- The data plane ------------------------------------------------------------------------- */

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
        program->differing = op->group->uid;
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
    op = program->suspended;
    program->suspended = NULL;
    pthread_mutex_unlock(&program->lock);
    /* Without the lock: a failed request wakes threads that may call this module. */
    for (; op != NULL; op = next) {
        next = op->next; /* the request may be used again once it has failed */
        callbacks->fail(callbacks->user, op->submission->request, status, text);
    }
}

/* ---- Between neighbours --------------------------------------------------------------------- */

static dp_program_group_t *find_group(const dp_program_t *program, uint32_t uid)
{
    dp_program_group_t *group = program->groups;

    while (group != NULL && group->uid != uid)
        group = group->next;
    return group;
}

/* Of as many groups as find room; the next heartbeat begins with the first that found none. */
static size_t write_heartbeat(void *user, void *data, size_t room)
{
    dp_program_t *program = user;
    const dp_program_group_t *group;
    dp_writer_t writer;
    size_t count = 0;

    dp_writer_init(&writer, data, room);
    pthread_mutex_lock(&program->lock);
    for (group = program->groups; group != NULL; group = group->next, count++) {
        if (count < program->next_told) continue;
        if (writer.bytes + GROUP_HEARTBEAT_BYTES > room) break;
        dp_write_u32(&writer, group->uid);
        dp_chain_write_heartbeat(&group->chain, &writer);
    }
    program->next_told = group == NULL ? 0 : count;
    pthread_mutex_unlock(&program->lock);
    return writer.failed ? 0 : writer.bytes;
}

static const char *host_name_of(const dp_program_t *program, int rank)
{
    const dp_topology_t *topology = program->options.topology;

    return topology->host_name[topology->node[rank]];
}

/* " of group 'x'"; nothing for the world. */
static void describe_group(const dp_program_group_t *group, char *text, size_t room)
{
    text[0] = '\0';
    if (group->uid != DP_GROUP_WORLD) snprintf(text, room, " of group '%.60s'", group->name);
}

/* Checks a neighbour's state of one group. */
static dp_status_t check_group(dp_program_t *program, int rank, dp_reader_t *reader, char *text,
                               size_t room)
{
    const uint32_t uid = dp_read_u32(reader);
    const dp_chain_t none = {.links =
                                 NULL}; /* a group that this rank is not in: nothing is known */
    char what[DP_CHAIN_WHAT_MAX], title[80] = "";
    uint64_t position = 0;
    dp_chain_verdict_t verdict;
    const dp_program_group_t *group;

    pthread_mutex_lock(&program->lock);
    group = find_group(program, uid);
    verdict =
        dp_chain_check_heartbeat(group == NULL ? &none : &group->chain, reader, what, &position);
    if (group != NULL) describe_group(group, title, sizeof(title));
    if (verdict == DP_CHAIN_DIFFERS) program->differing = uid;
    pthread_mutex_unlock(&program->lock);
    switch (verdict) {
    case DP_CHAIN_ALIKE:
        return DP_OK;
    case DP_CHAIN_DIFFERS:
        return DP_ERR_MISMATCH;
    case DP_CHAIN_LACKS:
        snprintf(text, room,
                 "order=program: rank %d (%s) finalized before entry %llu of the program%s, which "
                 "is %s on rank %d (%s)",
                 rank, host_name_of(program, rank), (unsigned long long)position, title, what,
                 program->options.rank, host_name_of(program, program->options.rank));
        return DP_ERR_LEFT;
    case DP_CHAIN_BAD:
        break;
    }
    snprintf(text, room, "rank %d (%s) sent a heartbeat that makes no sense", rank,
             host_name_of(program, rank));
    return DP_ERR_SYSTEM;
}

static dp_status_t check_heartbeat(void *user, int rank, const void *data, size_t bytes, char *text,
                                   size_t room)
{
    dp_status_t status = DP_OK;
    dp_reader_t reader;

    dp_reader_init(&reader, data, bytes);
    while (status == DP_OK && reader.at < bytes)
        status = check_group(user, rank, &reader, text, room);
    return status;
}

static size_t write_history(void *user, void *data, size_t room)
{
    dp_program_t *program = user;
    const dp_program_group_t *group;
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    pthread_mutex_lock(&program->lock);
    group = find_group(program, program->differing);
    if (group != NULL) {
        dp_write_u32(&writer, group->uid);
        dp_chain_write_history(&group->chain, &writer);
    }
    pthread_mutex_unlock(&program->lock);
    return writer.failed ? 0 : writer.bytes;
}

static dp_status_t compare_history(void *user, int rank, const void *data, size_t bytes, char *text,
                                   size_t room)
{
    dp_program_t *program = user;
    const int self = program->options.rank;
    char own[DP_CHAIN_WHAT_MAX], other[DP_CHAIN_WHAT_MAX], title[80] = "";
    dp_chain_verdict_t verdict = DP_CHAIN_ALIKE;
    const dp_program_group_t *group;
    uint64_t position = 0;
    dp_reader_t reader;

    if (bytes == 0) return DP_OK; /* the group has ended there */
    dp_reader_init(&reader, data, bytes);
    pthread_mutex_lock(&program->lock);
    group = find_group(program, dp_read_u32(&reader));
    if (reader.failed) verdict = DP_CHAIN_BAD;
    if (group != NULL) {
        verdict = dp_chain_compare_history(&group->chain, &reader, &position, own, other);
        describe_group(group, title, sizeof(title));
    }
    pthread_mutex_unlock(&program->lock);
    if (verdict == DP_CHAIN_ALIKE) return DP_OK;
    if (verdict == DP_CHAIN_BAD) {
        snprintf(text, room, "rank %d (%s) sent a history that makes no sense (%zu bytes)", rank,
                 host_name_of(program, rank), bytes);
        return DP_ERR_SYSTEM;
    }
    /* Both neighbours may find it; the lower rank comes first, so that their texts are equal. */
    snprintf(text, room,
             "order=program, but the ranks' programs differ: entry %llu%s is %s on rank %d (%s), "
             "%s on rank %d (%s)",
             (unsigned long long)position, title, self < rank ? own : other, dp_min(self, rank),
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
    pthread_mutex_init(&program->lock, NULL);
    *out = program;
    return DP_OK;
}

void dp_program_set_loop(dp_program_t *program, dp_loop_t *loop)
{
    program->loop = loop;
}

dp_status_t dp_program_add_group(dp_program_t *program, dp_program_group_t *group)
{
    dp_program_group_t **at = &program->groups;
    const dp_status_t status = dp_chain_init(&group->chain);

    if (status != DP_OK) return status;
    pthread_mutex_lock(&program->lock);
    if (program->track == NULL) {
        program->track =
            dp_trace_track(program->options.trace, "program order", DP_TRACE_TRACK_COORDINATOR);
    }
    group->chain.is_final = program->is_final;
    while (*at != NULL)
        at = &(*at)->next;
    *at = group;
    pthread_mutex_unlock(&program->lock);
    return DP_OK;
}

void dp_program_remove_group(dp_program_t *program, dp_program_group_t *group)
{
    dp_program_group_t **at = &program->groups;

    pthread_mutex_lock(&program->lock);
    while (*at != NULL && *at != group)
        at = &(*at)->next;
    if (*at != NULL) *at = group->next;
    pthread_mutex_unlock(&program->lock);
}

void dp_program_group_fini(dp_program_group_t *group)
{
    dp_chain_fini(&group->chain);
    free(group->ops);
    group->ops = NULL;
}

void dp_program_destroy(dp_program_t *program)
{
    if (program == NULL) return;
    pthread_mutex_destroy(&program->lock);
    free(program->entries);
    free(program);
}
