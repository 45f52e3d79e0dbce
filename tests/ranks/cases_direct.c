/*
 * cases_direct.c - send and receive in an ordered group: any size in any memory, many in flight,
 * with and without names, patterns that deadlock where a send waits for its receive, and every way
 * in which a message can fail. The group is that of a node's ranks; others are refused.
 */
#include <stdlib.h>
#include <time.h>

#include "runtime/base/common.h"
#include "tests/ranks/cases_internal.h"

enum { IN_FLIGHT = 40 }; /* more than a ring of messages has slots */

typedef struct ring {
    dp_context_t *dp;
    dp_group_t *group; /* the ranks of this node, in program order */
    int rank, size, to, from;
} ring_t;

static int begin(dp_context_t *dp, ring_t *ring)
{
    dp_group_options_t options = DP_GROUP_OPTIONS_INIT;

    options.order = DP_ORDER_PROGRAM;
    EXPECT_STATUS(dp,
                  dp_group_split(dp_world(dp), "node", dp_node_rank(dp), 0, &options, &ring->group),
                  DP_OK);
    ring->dp = dp;
    ring->rank = dp_group_rank(ring->group);
    ring->size = dp_group_size(ring->group);
    ring->to = (ring->rank + 1) % ring->size;
    ring->from = (ring->rank + ring->size - 1) % ring->size;
    return 0;
}

static int end(const ring_t *ring)
{
    EXPECT_STATUS(ring->dp, dp_group_destroy(ring->group), DP_OK);
    return case_sum(ring->dp, dp_world(ring->dp), "after", 1.0, dp_size(ring->dp));
}

/* Element i of message n from rank s. */
static int32_t value_of(int s, int n, size_t i)
{
    return (int32_t)(i * 7 + (size_t)(s * 1000 + n));
}

static int32_t *make_message(const ring_t *ring, int n, size_t count, int in_arena)
{
    int32_t *message =
        (int32_t *)(void *)case_allocate(ring->dp, count * sizeof(*message), in_arena);

    for (size_t i = 0; message != NULL && i < count; i++)
        message[i] = value_of(ring->rank, n, i);
    return message;
}

static int check_message(const ring_t *ring, const int32_t *message, int n, size_t count)
{
    for (size_t i = 0; i < count; i++)
        EXPECT(ring->dp, message[i] == value_of(ring->from, n, i),
               "message %d, element %zu is %d, wanted %d", n, i, message[i],
               value_of(ring->from, n, i));
    return 0;
}

/* All ranks send first and wait for it first. The n-th message has the n-th size. */
static int send_first(const ring_t *ring, const size_t *counts, int messages, int in_arena)
{
    dp_context_t *dp = ring->dp;
    dp_handle_t *sends[IN_FLIGHT], *receives[IN_FLIGHT];
    int32_t *out[IN_FLIGHT], *in[IN_FLIGHT];

    for (int n = 0; n < messages; n++) {
        out[n] = make_message(ring, n, counts[n], in_arena);
        in[n] = (int32_t *)(void *)case_allocate(dp, (counts[n] + 1) * 4, in_arena);
        EXPECT(dp, out[n] != NULL && in[n] != NULL, "no memory");
        EXPECT_STATUS(
            dp, dp_send(ring->group, NULL, out[n], counts[n], DP_I32, ring->to, NULL, &sends[n]),
            DP_OK);
    }
    for (int n = 0; n < messages; n++)
        EXPECT_STATUS(dp,
                      dp_recv(ring->group, NULL, in[n], counts[n] + 1, DP_I32, ring->from, NULL,
                              &receives[n]),
                      DP_OK);
    for (int n = 0; n < messages; n++)
        EXPECT_STATUS(dp, dp_wait(sends[n], 60.0, NULL), DP_OK);
    for (int n = messages - 1; n >= 0; n--) {
        dp_result_t result = DP_RESULT_INIT;

        EXPECT_STATUS(dp, dp_wait(receives[n], 60.0, &result), DP_OK);
        EXPECT(dp, result.count == counts[n], "%zu came, wanted %zu", result.count, counts[n]);
        if (check_message(ring, in[n], n, counts[n]) != 0) return 1;
        case_give_back(dp, (char *)in[n], in_arena);
        case_give_back(dp, (char *)out[n], in_arena);
    }
    return 0;
}

/* Sizes around a slot's, and many messages at once; then few that are far larger than any buffer
 * between the ranks. */
int case_direct(dp_context_t *dp)
{
    static const size_t sizes[] = {1, 0, 256, 2047, 2048, 2049, 70001, 33, 4096};
    const size_t large[2] = {(dp_size(dp) == 2 ? 16 : 4) * DP_MIB, 3 * DP_MIB + 1};
    size_t counts[IN_FLIGHT];
    ring_t ring;

    for (int n = 0; n < IN_FLIGHT; n++)
        counts[n] = sizes[(size_t)n % DP_ARRAY_LEN(sizes)];
    for (int round = 0; round < 3;
         round++) { /* each in a new group, which has the old one's rings */
        if (begin(dp, &ring) != 0) return 1;
        for (int in_arena = 0; ring.size > 1 && in_arena < 2; in_arena++) {
            if (send_first(&ring, counts, IN_FLIGHT, in_arena) != 0) return 1;
            if (round == 0 && send_first(&ring, large, 2, in_arena) != 0) return 1;
        }
        if (end(&ring) != 0) return 1;
    }
    return 0;
}

/* A message that nobody waits for arrives; nor does a receive that was posted long before. */
static int alone(const ring_t *ring)
{
    dp_context_t *dp = ring->dp;
    const struct timespec pause = {0, 2000000};
    int32_t in[3000] = {0}, out[3000];
    uint64_t cookies[2];
    dp_options_t options = DP_OPTIONS_INIT;
    size_t got = 0;

    for (int i = 0; i < 3000; i++)
        out[i] = value_of(ring->rank, 0, (size_t)i);
    options.cookie = 1;
    EXPECT_STATUS(dp, dp_recv(ring->group, "alone", in, 3000, DP_I32, ring->from, &options, NULL),
                  DP_OK);
    nanosleep(&pause, NULL);
    options.cookie = 2;
    EXPECT_STATUS(dp, dp_send(ring->group, "alone", out, 3000, DP_I32, ring->to, &options, NULL),
                  DP_OK);
    for (int i = 0; i < 10000 && got < 2; i++) {
        got += dp_completions_read(dp, cookies, 2 - got);
        if (got < 2) nanosleep(&pause, NULL);
    }
    EXPECT(dp, got == 2, "%zu of 2 messages came", got);
    return check_message(ring, in, 0, 3000);
}

/* One forward, one backward, over the ranks of a node as stages of a pipeline. */
static int pipeline(const ring_t *ring)
{
    enum { BATCHES = 9, COUNT = 5000 };
    dp_context_t *dp = ring->dp;
    const int last = ring->size - 1, warm = ring->size - 1 - ring->rank;
    int32_t *forward[BATCHES], *backward[BATCHES];
    dp_handle_t *handles[BATCHES], *given;

    for (int n = 0; n < BATCHES; n++) {
        forward[n] = calloc(COUNT, sizeof(int32_t));
        backward[n] = calloc(COUNT, sizeof(int32_t));
        EXPECT(dp, forward[n] != NULL && backward[n] != NULL, "no memory");
    }
    for (int n = 0; n < BATCHES + warm; n++) {
        const int back = n - warm;

        if (n < BATCHES && ring->rank > 0) {
            EXPECT_STATUS(
                dp,
                dp_recv(ring->group, "f", forward[n], COUNT, DP_I32, ring->rank - 1, NULL, &given),
                DP_OK);
            EXPECT_STATUS(dp, dp_wait(given, 60.0, NULL), DP_OK);
        }
        for (int i = 0; n < BATCHES && i < COUNT; i++)
            forward[n][i] += n + i;
        if (n < BATCHES && ring->rank < last)
            EXPECT_STATUS(
                dp,
                dp_send(ring->group, "f", forward[n], COUNT, DP_I32, ring->rank + 1, NULL, NULL),
                DP_OK);
        if (back < 0) continue;
        if (ring->rank < last) {
            EXPECT_STATUS(dp,
                          dp_recv(ring->group, "b", backward[back], COUNT, DP_I32, ring->rank + 1,
                                  NULL, &handles[back]),
                          DP_OK);
            EXPECT_STATUS(dp, dp_wait(handles[back], 60.0, NULL), DP_OK);
        } else {
            memcpy(backward[back], forward[back], COUNT * sizeof(int32_t));
        }
        for (int i = 0; i < COUNT; i++)
            EXPECT(dp, backward[back][i] == ring->size * (back + i), "batch %d, %d: %d", back, i,
                   backward[back][i]);
        if (ring->rank > 0)
            EXPECT_STATUS(dp,
                          dp_send(ring->group, "b", backward[back], COUNT, DP_I32, ring->rank - 1,
                                  NULL, NULL),
                          DP_OK);
    }
    EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);
    for (int n = 0; n < BATCHES; n++) {
        free(forward[n]);
        free(backward[n]);
    }
    return 0;
}

int case_direct_patterns(dp_context_t *dp)
{
    ring_t ring;

    if (begin(dp, &ring) != 0) return 1;
    if (ring.size > 1 && (alone(&ring) != 0 || pipeline(&ring) != 0)) return 1;
    return end(&ring);
}

/* ---- Failures ------------------------------------------------------------------------------- */

/* Rank 0 sends these, and rank 1 receives them. */
typedef struct failure {
    const char *sent, *received; /* names */
    dp_dtype_t dtype;            /* of the receive; the send is I32 */
    size_t room;
    uint64_t tag; /* of the receive */
    dp_status_t status;
    const char *texts[2]; /* both values */
} failure_t;

static int fail_once(const ring_t *ring, const failure_t *failure, size_t count)
{
    dp_context_t *dp = ring->dp;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_result_t result = DP_RESULT_INIT;
    int32_t *memory = (int32_t *)(void *)case_allocate(dp, count * 4, 0);
    /* A small message is over when it was copied: only its receiver learns the rest. */
    const int learns = ring->rank == 1 || count * 4 > 8 * DP_KIB;
    dp_handle_t *handle;
    dp_status_t status;

    EXPECT(dp, memory != NULL, "no memory");
    if (ring->rank == 0) {
        status = dp_send(ring->group, failure->sent, memory, count, DP_I32, 1, NULL, &handle);
    } else {
        options.tag = failure->tag;
        status = dp_recv(ring->group, failure->received, memory,
                         failure->room == 0 ? count : failure->room, failure->dtype, 0, &options,
                         &handle);
    }
    EXPECT_STATUS(dp, status, DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), learns ? failure->status : DP_OK);
    for (int i = 0; i < 2 && learns && failure->status != DP_OK; i++) {
        EXPECT_TEXT(dp, result.text, failure->texts[i]);
        EXPECT_TEXT(dp, result.text, i == 0 ? "rank 0 send" : "rank 1 ");
    }
    case_give_back(dp, (char *)memory, 0);
    return 0;
}

/* A message that does not fit its receive fails alone, and the next one is well. */
int case_direct_failures(dp_context_t *dp)
{
    static const failure_t failures[] = {
        {"left", "right", DP_I32, 0, 0, DP_ERR_MISMATCH, {"left", "right"}},
        {NULL, "any", DP_I32, 0, 0, DP_OK, {NULL, NULL}},
        {"same", "same", DP_F32, 0, 0, DP_ERR_MISMATCH, {"i32", "f32"}},
        {"same", "same", DP_I32, 0, 0xab, DP_ERR_MISMATCH, {"tag 0", "ab"}},
        {"same", NULL, DP_I32, 9, 0, DP_ERR_TRUNCATED, {"elements", "room for 9"}},
        {"same", "same", DP_I32, 0, 0, DP_OK, {NULL, NULL}},
    };
    static const size_t counts[] = {10, 100000};
    ring_t ring;

    if (begin(dp, &ring) != 0) return 1;
    for (size_t i = 0; ring.size > 1 && ring.rank < 2 && i < 2 * DP_ARRAY_LEN(failures); i++)
        if (fail_once(&ring, &failures[i / 2], counts[i % 2]) != 0) return 1;
    return end(&ring);
}

/* A rank that has finalized sends and receives no more: the messages for it fail by its name. */
int case_direct_left(dp_context_t *dp)
{
    enum { COUNT = 100000 };
    int32_t *in, *out;
    dp_handle_t *receive, *send;
    dp_result_t result = DP_RESULT_INIT;

    if (dp_rank(dp) != 0) return 0;
    if (dp_size(dp) != dp_local_size(dp)) {
        EXPECT_STATUS(dp,
                      dp_send(dp_world(dp), NULL, &result, 1, DP_U8, dp_size(dp) - 1, NULL, &send),
                      DP_ERR_UNSUPPORTED);
        EXPECT_TEXT(dp, dp_error_text(dp), "different nodes");
        return 0;
    }
    in = calloc(COUNT, sizeof(*in));
    out = calloc(COUNT, sizeof(*out));
    EXPECT(dp, in != NULL && out != NULL, "no memory");
    EXPECT_STATUS(dp, dp_recv(dp_world(dp), "late", in, COUNT, DP_I32, 1, NULL, &receive), DP_OK);
    EXPECT_STATUS(dp, dp_send(dp_world(dp), "late", out, COUNT, DP_I32, 1, NULL, &send), DP_OK);
    EXPECT_STATUS(dp, dp_wait(receive, 60.0, &result), DP_ERR_LEFT);
    EXPECT_TEXT(dp, result.text, "late");
    EXPECT_TEXT(dp, result.text, "rank 1 finalized before it sent");
    EXPECT_STATUS(dp, dp_wait(send, 60.0, &result), DP_ERR_LEFT);
    EXPECT_TEXT(dp, result.text, "rank 1 finalized before it received");
    free(in);
    free(out);
    return 0;
}

/* The world ends while messages wait: all of them end with its reason, though the rank that ended
 * it finalizes at once. */
int case_direct_abort(dp_context_t *dp)
{
    const struct timespec pause = {0, 50000000};
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle;
    int32_t value = 0;
    ring_t ring;

    if (begin(dp, &ring) != 0) return 1;
    if (dp_rank(dp) == 0) {
        nanosleep(&pause, NULL);
        dp_abort(dp, "the data is gone");
        return 0;
    }
    if (ring.size == 1) return 0;
    if (dp_recv(ring.group, "never", &value, 1, DP_I32, ring.from, NULL, &handle) == DP_OK) {
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_ERR_ABORTED);
        EXPECT_TEXT(dp, result.text, "the data is gone");
    }
    return 0;
}
