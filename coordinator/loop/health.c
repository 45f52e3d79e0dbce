/*
 * health.c - heartbeats between neighbours of the tree, and the numbers of messages. Pure; called
 * by round.c, progress.c and thread.c on the thread that owns progress.
 */
#include "coordinator/loop/health.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_HEARTBEAT_NS (1000ull * 1000)

dp_status_t dp_health_init(dp_health_t *health, const int *ranks, int count, uint64_t heartbeat_ns,
                           uint64_t timeout_ns, uint64_t start_ns, uint64_t now_ns)
{
    memset(health, 0, sizeof(*health));
    health->heartbeat_ns = dp_max(heartbeat_ns, (uint64_t)LEAST_HEARTBEAT_NS);
    health->timeout_ns = timeout_ns;
    health->start_ns = dp_max(start_ns, timeout_ns);
    health->due_ns = now_ns;
    if (count == 0) return DP_OK;
    health->peers = calloc((size_t)count, sizeof(*health->peers));
    if (health->peers == NULL) return DP_ERR_NO_MEMORY;
    health->count = count;
    for (int i = 0; i < count; i++) {
        health->peers[i] = (dp_health_peer_t){
            .rank = ranks[i], .heartbeat_at_ns = now_ns, .heard_ns = now_ns, .message_ns = now_ns};
    }
    return DP_OK;
}

void dp_health_fini(dp_health_t *health)
{
    free(health->peers);
    memset(health, 0, sizeof(*health));
}

static dp_health_peer_t *find_peer(dp_health_t *health, int rank)
{
    for (int i = 0; i < health->count; i++) {
        if (health->peers[i].rank == rank) return &health->peers[i];
    }
    return NULL;
}

void dp_health_gave_heartbeat(dp_health_t *health, int rank, uint64_t now_ns)
{
    dp_health_peer_t *peer = find_peer(health, rank);

    if (peer != NULL) peer->heartbeat_at_ns = now_ns;
}

void dp_health_heard(dp_health_t *health, int rank, uint64_t now_ns)
{
    dp_health_peer_t *peer = find_peer(health, rank);

    if (peer == NULL) return;
    peer->heard_ns = now_ns;
    peer->message_ns = now_ns;
    peer->has_spoken = 1;
}

void dp_health_alive(dp_health_t *health, int rank, uint64_t seen_ns)
{
    dp_health_peer_t *peer = find_peer(health, rank);

    if (peer == NULL) return;
    peer->heard_ns = dp_max(peer->heard_ns, seen_ns);
    peer->has_spoken = 1;
}

static uint64_t silence_limit(const dp_health_t *health, const dp_health_peer_t *peer)
{
    return peer->has_spoken ? health->timeout_ns : health->start_ns;
}

int dp_health_have_all_spoken(const dp_health_t *health)
{
    for (int i = 0; i < health->count; i++) {
        if (!health->peers[i].has_spoken) return 0;
    }
    return 1;
}

/* Until when its last sign of life shows that its process lives. */
static uint64_t lives_until(const dp_health_t *health, const dp_health_peer_t *peer)
{
    return peer->heard_ns + dp_min(DP_HEALTH_SUSPECT_NS, health->timeout_ns / 2);
}

/* When a neighbour whose process lives is given up because it sends no messages. One that is silent
 * as well is reported as silent, later, so that all its neighbours give one cause; so is one that
 * this rank looked at late because it had no core. */
static uint64_t mute_deadline(const dp_health_t *health, const dp_health_peer_t *peer)
{
    const uint64_t due_ns = peer->message_ns + health->start_ns;
    const uint64_t until_ns = lives_until(health, peer);

    return due_ns < until_ns && health->asked_ns < until_ns ? due_ns : UINT64_MAX;
}

/* Whether its silence is to be warned of, now or later. */
static int may_become_suspect(const dp_health_peer_t *peer)
{
    return peer->has_spoken && !peer->is_suspect;
}

void dp_health_gone(dp_health_t *health, int rank)
{
    dp_health_peer_t *peer = find_peer(health, rank);

    if (peer != NULL) peer->is_gone = 1;
}

uint32_t dp_health_number(dp_health_t *health, int rank, int is_message)
{
    dp_health_peer_t *peer = find_peer(health, rank);

    if (peer == NULL) return 0;
    peer->sent += is_message != 0;
    return peer->sent;
}

int dp_health_in_order(dp_health_t *health, int rank, int is_message, uint32_t number,
                       uint32_t *due)
{
    dp_health_peer_t *peer = find_peer(health, rank);

    *due = 0;
    if (peer == NULL) return 0;
    /* A heartbeat must repeat the last number that came; a message must have the next one. */
    *due = peer->came + (is_message != 0);
    if (number != *due) return 0;
    peer->came = number;
    return 1;
}

int dp_health_resume(dp_health_t *health, uint64_t now_ns)
{
    /* Half of what a neighbour is blamed for: a shorter absence cannot make one look silent. */
    const uint64_t limit_ns = health->timeout_ns > 0
                                  ? dp_min(health->timeout_ns, DP_HEALTH_SUSPECT_NS) / 2
                                  : DP_HEALTH_SUSPECT_NS / 2;
    const int was_away = now_ns > health->due_ns && now_ns - health->due_ns > limit_ns;

    health->due_ns = now_ns;
    if (!was_away) return 0;
    for (int i = 0; i < health->count; i++) {
        health->peers[i].heard_ns = now_ns;
        health->peers[i].message_ns = now_ns;
        health->peers[i].is_suspect = 0;
    }
    return 1;
}

int dp_health_next(dp_health_t *health, uint64_t now_ns, dp_health_action_t *out)
{
    health->asked_ns = now_ns;
    for (int i = 0; i < health->count; i++) {
        dp_health_peer_t *peer = &health->peers[i];
        const uint64_t silent_ns = now_ns > peer->heard_ns ? now_ns - peer->heard_ns : 0;

        if (peer->is_gone) continue;
        *out = (dp_health_action_t){.rank = peer->rank, .silent_ns = silent_ns};
        if (health->timeout_ns > 0 && silent_ns >= silence_limit(health, peer)) {
            peer->is_gone = 1;
            out->kind = DP_HEALTH_LOST;
            /* Several neighbours of the lost rank report it: their texts should be equal. */
            out->silent_ns = silence_limit(health, peer);
            return 1;
        }
        if (health->timeout_ns > 0 && now_ns >= mute_deadline(health, peer)) {
            peer->is_gone = 1;
            out->kind = DP_HEALTH_MUTE;
            out->silent_ns = health->start_ns;
            return 1;
        }
        if (may_become_suspect(peer) && silent_ns >= DP_HEALTH_SUSPECT_NS) {
            peer->is_suspect = 1;
            out->kind = DP_HEALTH_SUSPECT;
            return 1;
        }
        if (peer->is_suspect && silent_ns < DP_HEALTH_SUSPECT_NS) {
            peer->is_suspect = 0;
            out->kind = DP_HEALTH_BACK;
            return 1;
        }
        if (now_ns >= peer->heartbeat_at_ns + health->heartbeat_ns) {
            out->kind = DP_HEALTH_SEND;
            return 1;
        }
    }
    return 0;
}

uint64_t dp_health_deadline(const dp_health_t *health)
{
    uint64_t deadline_ns = UINT64_MAX;

    for (int i = 0; i < health->count; i++) {
        const dp_health_peer_t *peer = &health->peers[i];

        if (peer->is_gone) continue;
        deadline_ns = dp_min(deadline_ns, peer->heartbeat_at_ns + health->heartbeat_ns);
        if (may_become_suspect(peer)) {
            deadline_ns = dp_min(deadline_ns, peer->heard_ns + DP_HEALTH_SUSPECT_NS);
        }
        if (health->timeout_ns > 0) {
            deadline_ns = dp_min(deadline_ns, peer->heard_ns + silence_limit(health, peer));
            deadline_ns = dp_min(deadline_ns, mute_deadline(health, peer));
        }
    }
    return deadline_ns;
}

void dp_health_sleep(dp_health_t *health, uint64_t until_ns)
{
    health->due_ns = until_ns;
}
