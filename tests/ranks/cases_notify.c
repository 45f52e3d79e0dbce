/*
 * cases_notify.c - what a binding for another language needs: tags that the ranks compare, the list
 * of operations that are over, and outputs whose memory is asked for when the counts are known.
 */
#include <poll.h>
#include <stdlib.h>

#include "tests/ranks/cases_internal.h"

/* ---- Tags ----------------------------------------------------------------------------------- */

static int sum_tagged(dp_context_t *dp, const char *name, uint64_t tag, dp_status_t wanted,
                      const char *text)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_result_t result = DP_RESULT_INIT;
    float values[6] = {1, 2, 3, 4, 5, 6};
    dp_handle_t *handle;

    options.tag = tag;
    EXPECT_STATUS(
        dp, dp_allreduce(dp_world(dp), name, values, values, 6, DP_F32, &options, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), wanted);
    if (wanted != DP_OK) {
        EXPECT_TEXT(dp, result.text, text);
    } else {
        EXPECT(dp, values[5] == 6.0f * (float)dp_size(dp), "%g", (double)values[5]);
    }
    return 0;
}

/* As many elements in other shapes: 2 x 3 and 3 x 2. Equal tags pass, new ones on all ranks too. */
int case_tags(dp_context_t *dp)
{
    const uint64_t own = dp_rank(dp) == 1 ? 0x302 : 0x203;

    for (int step = 0; step < 40; step++)
        if (sum_tagged(dp, "shape", 0x203, DP_OK, NULL) != 0) return 1;
    if (sum_tagged(dp, "shape", own, DP_ERR_MISMATCH, "0000000000000302") != 0) return 1;
    if (sum_tagged(dp, "other", own, DP_ERR_MISMATCH, "tag") != 0) return 1;
    if (sum_tagged(dp, "shape", 0x302, DP_OK, NULL) != 0) return 1;
    return sum_tagged(dp, "shape", 0, DP_OK, NULL);
}

/* In program order a difference ends the world, with both values. */
int case_program_tags(dp_context_t *dp)
{
    dp_options_t options = DP_OPTIONS_INIT;
    float value = 1.0f;
    dp_status_t status;

    options.tag = dp_rank(dp) == 1 ? 0x302 : 0x203;
    for (int step = 0; step < 3; step++) {
        dp_handle_t *handle;

        status = dp_allreduce(dp_world(dp), "shape", &value, &value, 1, DP_F32, &options, &handle);
        if (status != DP_OK) break;
        status = dp_wait(handle, 60.0, NULL);
    }
    status = dp_wait_all(dp, 60.0);
    if (status == DP_OK) status = case_sum(dp, dp_world(dp), "more", 1.0, dp_size(dp)) != 0;
    EXPECT_TEXT(dp, dp_error_text(dp), "tag 0000000000000302");
    EXPECT_TEXT(dp, dp_error_text(dp), "tag 0000000000000203");
    return 0;
}

/* ---- Completions ---------------------------------------------------------------------------- */

enum { OPERATIONS = 150 };

/* Waits on the descriptor until `wanted` cookies have come; each counts once in seen. */
static int collect(dp_context_t *dp, int fd, int wanted, int *seen)
{
    uint64_t cookies[7];
    int found = 0;

    while (found < wanted) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        size_t count;

        EXPECT(dp, poll(&ready, 1, 60000) == 1, "nothing after %d of %d", found, wanted);
        count = dp_completions_read(dp, cookies, 7);
        EXPECT(dp, count > 0, "the descriptor is readable, and nothing is there");
        for (size_t i = 0; i < count; i++) {
            EXPECT(dp, cookies[i] >= 1 && cookies[i] <= OPERATIONS, "cookie %llu",
                   (unsigned long long)cookies[i]);
            seen[cookies[i] - 1]++;
        }
        found += (int)count;
    }
    EXPECT(dp, found == wanted && dp_completions_read(dp, cookies, 7) == 0, "%d of %d", found,
           wanted);
    return 0;
}

static int is_readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};

    return poll(&ready, 1, 0) == 1;
}

int case_completions(dp_context_t *dp)
{
    static const char *const forms[] = {"sum", "cast", "gather"};
    float values[OPERATIONS][4], gathered[OPERATIONS][4 * 64];
    dp_handle_t *handles[OPERATIONS], *silent;
    uint64_t cookie = 0;
    int fd, again;

    EXPECT_STATUS(dp, dp_completions_fd(dp, NULL), DP_ERR_INVALID);
    for (int step = 0; step < 12; step++) {
        int seen[OPERATIONS] = {0};

        for (int i = 0; i < OPERATIONS; i++) {
            dp_options_t options = DP_OPTIONS_INIT;
            char name[32];
            dp_status_t status;

            snprintf(name, sizeof(name), "%s.%d", forms[i % 3], i);
            for (int k = 0; k < 4; k++)
                values[i][k] = (float)(i + dp_rank(dp));
            options.cookie = (uint64_t)i + 1;
            if (i % 3 == 0) {
                status = dp_allreduce(dp_world(dp), name, values[i], values[i], 4, DP_F32, &options,
                                      &handles[i]);
            } else if (i % 3 == 1) {
                status = dp_broadcast(dp_world(dp), name, values[i], values[i], 4, DP_F32, 0,
                                      &options, &handles[i]);
            } else {
                status = dp_allgather(dp_world(dp), name, values[i], gathered[i], 4, DP_F32,
                                      &options, &handles[i]);
            }
            EXPECT_STATUS(dp, status, DP_OK);
        }
        /* One without a cookie is not on the list. */
        EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "silent", NULL, &silent), DP_OK);
        if (step == 0) {
            /* The descriptor tells of what was over before it was asked for, too. */
            EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);
        }
        EXPECT_STATUS(dp, dp_completions_fd(dp, &fd), DP_OK);
        EXPECT_STATUS(dp, dp_completions_fd(dp, &again), DP_OK);
        EXPECT(dp, again == fd, "%d and %d", fd, again);
        if (collect(dp, fd, OPERATIONS, seen) != 0) return 1;
        EXPECT(dp, !is_readable(fd), "still readable");
        for (int i = 0; i < OPERATIONS; i++) {
            EXPECT(dp, seen[i] == 1, "operation %d: %d times", i, seen[i]);
            EXPECT_STATUS(dp, dp_wait(handles[i], 0.0, NULL), DP_OK); /* it is over */
        }
        EXPECT_STATUS(dp, dp_wait(silent, 60.0, NULL), DP_OK);
    }
    /* A submission that is refused leaves nothing behind. */
    {
        dp_options_t options = DP_OPTIONS_INIT;

        options.cookie = 99;
        EXPECT_STATUS(
            dp, dp_allreduce(dp_world(dp), "", values[0], values[0], 4, DP_F32, &options, NULL),
            DP_ERR_INVALID);
        EXPECT(dp, dp_completions_read(dp, &cookie, 1) == 0, "cookie %llu",
               (unsigned long long)cookie);
        /* Without a handle it is told of as well. Nothing waits for it, so in program order it must
         * ask to be launched. */
        options.launch_now = 1;
        EXPECT_STATUS(
            dp, dp_allreduce(dp_world(dp), "last", values[0], values[0], 4, DP_F32, &options, NULL),
            DP_OK);
        EXPECT(dp, poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 60000) == 1, "nothing");
        EXPECT(dp, dp_completions_read(dp, &cookie, 1) == 1 && cookie == 99, "cookie %llu",
               (unsigned long long)cookie);
    }
    return 0;
}

/* ---- Outputs -------------------------------------------------------------------------------- */

typedef struct room {
    size_t counts[64]; /* the call's; written before the memory is asked for */
    size_t seen[64];
    int ranks, asked, refuses;
    size_t elements;
    int32_t *memory;
} room_t;

static void *make_room(void *user, size_t count)
{
    room_t *room = user;

    room->asked++;
    room->elements = count;
    memcpy(room->seen, room->counts, sizeof(room->seen));
    if (count == 0 || room->refuses) return NULL;
    room->memory = malloc(count * sizeof(*room->memory));
    return room->memory;
}

/* How many elements `from` gives to `to` in this step. */
static size_t part_count(int step, int from, int to)
{
    return (size_t)((step * 7 + from * 3 + to * 5) % 11) * (step % 2 == 0 ? 1 : 1000);
}

/* Every rank's part of an allgatherv, and of an alltoallv, in new sizes each time. */
static int gather_parts(dp_context_t *dp, int step, int is_alltoall)
{
    const int rank = dp_rank(dp), ranks = dp_size(dp);
    dp_options_t options = DP_OPTIONS_INIT;
    room_t room = {.ranks = ranks};
    size_t send[64], given = 0, wanted = 0, at = 0;
    dp_handle_t *handle;
    dp_result_t result = DP_RESULT_INIT;
    int32_t *in;

    for (int to = 0; to < ranks; to++) {
        send[to] = part_count(step, rank, is_alltoall ? to : 0);
        given += is_alltoall || to == 0 ? send[to] : 0;
    }
    in = malloc((given + 1) * sizeof(*in));
    EXPECT(dp, in != NULL, "no memory");
    for (size_t i = 0; i < given; i++)
        in[i] = rank * 100000 + (int32_t)i;
    options.output = make_room;
    options.user = &room;
    if (is_alltoall) {
        EXPECT_STATUS(dp,
                      dp_alltoallv(dp_world(dp), "all", in, send, NULL, 0, room.counts, DP_I32,
                                   &options, &handle),
                      DP_OK);
    } else {
        EXPECT_STATUS(dp,
                      dp_allgatherv(dp_world(dp), "gather", in, given, NULL, 0, room.counts, DP_I32,
                                    &options, &handle),
                      DP_OK);
    }
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
    EXPECT(dp, room.asked == 1, "asked %d times", room.asked);
    for (int from = 0; from < ranks; from++) {
        const size_t count = part_count(step, from, is_alltoall ? rank : 0);
        size_t first = 0;

        EXPECT(dp, room.seen[from] == count && room.counts[from] == count,
               "from %d: %zu when asked, %zu now, wanted %zu", from, room.seen[from],
               room.counts[from], count);
        for (int to = 0; is_alltoall && to < rank; to++)
            first += part_count(step, from, to);
        for (size_t i = 0; i < count; i++, at++) {
            EXPECT(dp, room.memory[at] == from * 100000 + (int32_t)(first + i),
                   "element %zu from %d is %d", i, from, room.memory[at]);
        }
        wanted += count;
    }
    EXPECT(dp, room.elements == wanted && result.count == wanted, "%zu and %zu, wanted %zu",
           room.elements, result.count, wanted);
    free(room.memory);
    free(in);
    return 0;
}

int case_outputs(dp_context_t *dp)
{
    for (int step = 0; step < 12; step++) {
        if (gather_parts(dp, step, 0) != 0) return 1;
        if (gather_parts(dp, step, 1) != 0) return 1;
    }
    /* Ranks that make room themselves and ranks that are asked are the same to each other. */
    for (int step = 0; step < 4; step++) {
        dp_options_t options = DP_OPTIONS_INIT;
        room_t room = {.ranks = dp_size(dp)};
        int32_t own = dp_rank(dp), all[64];
        const int is_asked = (dp_rank(dp) + step) % 2;
        dp_handle_t *handle;

        options.output = is_asked ? make_room : NULL;
        options.user = &room;
        EXPECT_STATUS(dp,
                      dp_allgatherv(dp_world(dp), "mixed", &own, 1, is_asked ? NULL : all,
                                    is_asked ? 0 : 64, room.counts, DP_I32, &options, &handle),
                      DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
        for (int r = 0; r < dp_size(dp); r++) {
            const int32_t found = is_asked ? room.memory[r] : all[r];

            EXPECT(dp, found == r, "rank %d gave %d", r, found);
        }
        free(room.memory);
    }
    return 0;
}

int case_outputs_arguments(dp_context_t *dp)
{
    dp_options_t options = DP_OPTIONS_INIT;
    room_t room = {.ranks = dp_size(dp)};
    int32_t value = 1, all[64];

    options.output = make_room;
    options.user = &room;
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "sum", &value, &value, 1, DP_I32, &options, NULL),
                  DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "options.output");
    EXPECT_STATUS(
        dp, dp_allgatherv(dp_world(dp), "both", &value, 1, all, 64, NULL, DP_I32, &options, NULL),
        DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "capacity 64");
    EXPECT(dp, room.asked == 0, "asked %d times", room.asked);
    return case_sum(dp, dp_world(dp), "goes on", 1.0, dp_size(dp));
}

/* A program without memory ends the world, as other ranks may be sending by then. */
int case_outputs_none(dp_context_t *dp)
{
    dp_options_t options = DP_OPTIONS_INIT;
    room_t room = {.ranks = dp_size(dp), .refuses = 1};
    int32_t value = 1;
    dp_handle_t *handle;

    options.output = make_room;
    options.user = &room;
    EXPECT_STATUS(
        dp, dp_allgatherv(dp_world(dp), "all", &value, 1, NULL, 0, NULL, DP_I32, &options, &handle),
        DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_ERR_NO_MEMORY);
    EXPECT_TEXT(dp, dp_error_text(dp), "gave no memory for");
    return 0;
}
