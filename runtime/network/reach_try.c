/*
 * reach_try.c - connects to every address of this node's partners, and finds which node answers
 * there.
 *
 * Called by dp_init() on the program's thread, or by dprun, while a thread of reach.c answers the
 * partners. All attempts are under way at once, in one poll(). An attempt that nothing answers is
 * made again each second: on a link that loses packets the first may be lost.
 */
#include "runtime/network/reach_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ATTEMPT_NS 1000000000ull
#define PAUSE_NS 100000000ull /* before an attempt that failed at once is made again */
#define GRACE_NS 20000000ull  /* for further addresses to answer, once every partner has */
#define POLL_MS 20

typedef enum stage { STAGE_PAUSE, STAGE_CONNECT, STAGE_ANSWER, STAGE_OVER } stage_t;

/* One address of one partner. */
typedef struct attempt {
    stage_t stage;
    int fd; /* -1: none */
    int partner;
    int index;          /* of the address */
    dp_reach_how_t how; /* of the last connection */
    uint64_t until_ns;  /* end of the stage; STAGE_OVER has none */
    size_t bytes;       /* of the answer */
    uint8_t nonce[REACH_NONCE_BYTES];
    uint8_t answer[REACH_ANSWER_BYTES];
} attempt_t;

typedef struct trial {
    dp_reach_t *reach; /* borrowed, likewise cards */
    const dp_reach_card_t *cards;
    dp_reach_survey_t *survey;
    attempt_t *attempts; /* [count] */
    struct pollfd *polled;
    int count;
} trial_t;

/* ---- One attempt ---------------------------------------------------------------------------- */

static void end_attempt(attempt_t *attempt, dp_reach_how_t how, int is_final)
{
    if (attempt->fd >= 0) close(attempt->fd);
    attempt->fd = -1;
    attempt->how = how;
    attempt->stage = is_final ? STAGE_OVER : STAGE_PAUSE;
    attempt->until_ns = dp_now_ns() + PAUSE_NS;
}

/* A connection failed with this errno. */
static void fail_attempt(attempt_t *attempt, int code)
{
    if (code == ECONNREFUSED) {
        end_attempt(attempt, DP_REACH_REFUSED, 1);
    } else if (code == ENETUNREACH || code == EACCES || code == EPERM || code == EADDRNOTAVAIL) {
        end_attempt(attempt, DP_REACH_NO_ROUTE, 1);
    } else if (code == ETIMEDOUT) {
        end_attempt(attempt, DP_REACH_SILENT, 0);
    } else { /* the neighbour's hardware address was not found, for one: it may be yet */
        end_attempt(attempt, DP_REACH_NO_ROUTE, 0);
    }
}

static void begin_attempt(trial_t *trial, attempt_t *attempt)
{
    const int node = trial->survey->tries[attempt->partner].node;
    const dp_reach_card_t *card = &trial->cards[node];
    struct sockaddr_storage address;
    const socklen_t bytes = dp_ip_socket_address(&card->addresses[attempt->index].ip,
                                                 card->ports[attempt->index], &address);

    attempt->bytes = 0;
    attempt->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (attempt->fd < 0) {
        fail_attempt(attempt, errno);
        return;
    }
    attempt->stage = STAGE_CONNECT;
    attempt->until_ns = dp_now_ns() + ATTEMPT_NS;
    if (connect(attempt->fd, (struct sockaddr *)&address, bytes) != 0 && errno != EINPROGRESS)
        fail_attempt(attempt, errno);
}

static void send_hello(trial_t *trial, attempt_t *attempt)
{
    const int to = trial->survey->tries[attempt->partner].node;
    uint8_t hello[REACH_HELLO_BYTES];
    socklen_t bytes = sizeof(int);
    int code = 0;

    if (getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &code, &bytes) != 0) code = errno;
    if (code != 0) {
        fail_attempt(attempt, code);
        return;
    }
    dp_random(attempt->nonce, sizeof(attempt->nonce));
    dp_reach_hello_write(&trial->reach->secret, trial->reach->node, to, attempt->nonce, hello);
    attempt->stage = STAGE_ANSWER;
    if (send(attempt->fd, hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello))
        end_attempt(attempt, DP_REACH_STRANGER, 0);
}

static void receive_answer(trial_t *trial, attempt_t *attempt)
{
    const ssize_t got = recv(attempt->fd, attempt->answer + attempt->bytes,
                             sizeof(attempt->answer) - attempt->bytes, 0);
    int node;

    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) { /* it closes without a word: a stranger, or one of us with too many visitors */
        end_attempt(attempt, DP_REACH_STRANGER, 0);
        return;
    }
    attempt->bytes += (size_t)got;
    if (attempt->bytes < sizeof(attempt->answer)) return;
    node = dp_reach_answer_read(&trial->reach->secret, attempt->nonce, attempt->answer);
    if (node < 0) {
        end_attempt(attempt, DP_REACH_STRANGER, 1);
    } else if (node == trial->survey->tries[attempt->partner].node) {
        end_attempt(attempt, DP_REACH_YES, 1);
    } else {
        end_attempt(attempt, DP_REACH_OTHER_NODE, 1);
    }
}

static void advance_attempt(trial_t *trial, attempt_t *attempt, short events, uint64_t now_ns)
{
    switch (attempt->stage) {
    case STAGE_PAUSE:
        if (now_ns >= attempt->until_ns) begin_attempt(trial, attempt);
        return;
    case STAGE_CONNECT:
        if (events != 0) send_hello(trial, attempt);
        break;
    case STAGE_ANSWER:
        if (events != 0) receive_answer(trial, attempt);
        break;
    case STAGE_OVER:
        return;
    }
    if (attempt->fd >= 0 && now_ns >= attempt->until_ns) end_attempt(attempt, DP_REACH_SILENT, 0);
}

/* ---- All attempts --------------------------------------------------------------------------- */

/* 1: this partner answered at some address, or there is none left to wait for. */
static int is_partner_known(const trial_t *trial, int partner)
{
    int is_open = 0;

    for (int i = 0; i < trial->count; i++) {
        const attempt_t *attempt = &trial->attempts[i];

        if (attempt->partner != partner) continue;
        if (attempt->stage == STAGE_OVER && attempt->how == DP_REACH_YES) return 1;
        is_open |= attempt->stage != STAGE_OVER;
    }
    return !is_open;
}

static int are_partners_known(const trial_t *trial)
{
    for (int i = 0; i < trial->survey->count; i++) {
        if (!is_partner_known(trial, i)) return 0;
    }
    return 1;
}

static int are_all_over(const trial_t *trial)
{
    for (int i = 0; i < trial->count; i++) {
        if (trial->attempts[i].stage != STAGE_OVER) return 0;
    }
    return 1;
}

static void run_trial(trial_t *trial, int is_thorough, uint64_t deadline_ns)
{
    const uint64_t begin_ns = dp_now_ns();
    uint64_t until_ns = 0;

    for (int i = 0; i < trial->count; i++)
        begin_attempt(trial, &trial->attempts[i]);
    while (!are_all_over(trial)) {
        uint64_t now_ns;

        for (int i = 0; i < trial->count; i++) {
            const attempt_t *attempt = &trial->attempts[i];

            trial->polled[i] = (struct pollfd){
                .fd = attempt->fd, .events = attempt->stage == STAGE_CONNECT ? POLLOUT : POLLIN};
        }
        (void)poll(trial->polled, (nfds_t)trial->count, POLL_MS);
        now_ns = dp_now_ns();
        for (int i = 0; i < trial->count; i++)
            advance_attempt(trial, &trial->attempts[i], trial->polled[i].revents, now_ns);
        if (now_ns >= deadline_ns) return;
        if (is_thorough) continue;
        /* A far network gets as long again as the slowest partner took. */
        if (until_ns == 0 && are_partners_known(trial))
            until_ns = now_ns + dp_max(GRACE_NS, now_ns - begin_ns);
        if (until_ns != 0 && now_ns >= until_ns) return;
    }
}

/* An attempt that nobody waited for is unknown; where its partner was never reached it is a fault.
 */
static void write_results(trial_t *trial, int is_thorough)
{
    for (int i = 0; i < trial->count; i++) {
        attempt_t *attempt = &trial->attempts[i];
        uint8_t *how = &trial->survey->tries[attempt->partner].how[attempt->index];

        if (attempt->stage == STAGE_OVER) {
            *how = (uint8_t)attempt->how;
        } else if (!is_thorough && is_partner_known(trial, attempt->partner)) {
            *how = DP_REACH_UNKNOWN;
        } else {
            *how = (uint8_t)(attempt->how == DP_REACH_UNKNOWN ? DP_REACH_SILENT : attempt->how);
        }
        if (attempt->fd >= 0) close(attempt->fd);
    }
}

static dp_status_t make_survey(const dp_reach_t *reach, int node_count, int all, int arity,
                               dp_reach_survey_t *survey)
{
    int *partners = malloc((size_t)node_count * sizeof(*partners));

    *survey = (dp_reach_survey_t){0, calloc((size_t)node_count, sizeof(*survey->tries))};
    if (partners == NULL || survey->tries == NULL) {
        free(partners);
        dp_reach_survey_free(survey);
        return DP_ERR_NO_MEMORY;
    }
    survey->count = dp_reach_partners(reach->node, node_count, all, arity, partners);
    for (int i = 0; i < survey->count; i++)
        survey->tries[i].node = partners[i];
    free(partners);
    return DP_OK;
}

static dp_status_t make_attempts(trial_t *trial)
{
    int count = 0;

    for (int i = 0; i < trial->survey->count; i++)
        count += trial->cards[trial->survey->tries[i].node].count;
    trial->attempts = calloc((size_t)count + 1, sizeof(*trial->attempts));
    trial->polled = calloc((size_t)count + 1, sizeof(*trial->polled));
    if (trial->attempts == NULL || trial->polled == NULL) return DP_ERR_NO_MEMORY;
    for (int i = 0; i < trial->survey->count; i++) {
        for (int k = 0; k < trial->cards[trial->survey->tries[i].node].count; k++)
            trial->attempts[trial->count++] = (attempt_t){.fd = -1, .partner = i, .index = k};
    }
    return DP_OK;
}

dp_status_t dp_reach_try(dp_reach_t *reach, const dp_reach_card_t *cards, int node_count, int all,
                         int arity, int is_thorough, uint64_t deadline_ns,
                         dp_reach_survey_t *survey, dp_error_t *error)
{
    trial_t trial = {.reach = reach, .cards = cards, .survey = survey};
    dp_status_t status = make_survey(reach, node_count, all, arity, survey);

    if (status == DP_OK) status = make_attempts(&trial);
    if (status == DP_OK) {
        run_trial(&trial, is_thorough, deadline_ns);
        write_results(&trial, is_thorough);
    } else {
        dp_reach_survey_free(survey);
        dp_error_set(error, status, "no memory to try %d nodes", node_count);
    }
    free(trial.attempts);
    free(trial.polled);
    return status;
}
