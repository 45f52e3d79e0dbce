/*
 * stall.c - reports which ranks are missing for a tensor that waits too long, and what they are
 * doing.
 *
 *   pending --(warn or limit)--> overdue: PARTIAL up --> root: WHO down --> MISSING up --> WARN
 *
 * Each rank times what waits in its own subtree, once: a tensor some of whose ranks are ready and
 * some are not is reported up as PARTIAL when it is overdue. The root then asks WHO down the
 * subtrees that are not ready; each rank answers once, for itself and those below it, when they
 * have answered or its patience ends. The report goes to the ranks of the group, and the root logs
 * it. In a job without stalls no message of this file is ever sent.
 *
 * A rank may also set a time limit for a tensor. When it is over, the rank says EXPIRED, at once
 * behind its READY or PARTIAL; the root asks WHO as above and fails the tensor on all its ranks.
 *
 * Called on the thread that drives the negotiator: by agree.c, which has a tensor watched while it
 * waits, by negotiator.c when time has passed and to send what is due, and by receive.c for WHO and
 * MISSING.
 */
#include "coordinator/negotiator/stall.h"

#include "coordinator/negotiator/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MS 1000 /* the root's; each level below waits three quarters of its parent's */
#define NAMED_IN_TEXT 3  /* missing ranks that a report spells out */
#define NAME_IN_TEXT 96  /* bytes of a tensor's name in a report, and its group's */
#define OTHERS_IN_TEXT 2 /* tensors that a report names beside the oldest one */
#define OTHER_IN_TEXT 48 /* bytes of the name of each */

static uint64_t threshold_ns(const dp_negotiator_t *n)
{
    if (n->stall.warn_ns == 0) return n->stall.limit_ns;
    if (n->stall.limit_ns == 0) return n->stall.warn_ns;
    return dp_min(n->stall.warn_ns, n->stall.limit_ns);
}

static double seconds_since(const dp_negotiator_t *n, uint64_t ns)
{
    return (double)(n->now_ns - ns) * 1e-9;
}

/* a + b, not beyond the end of time */
static uint64_t later(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

dp_status_t dp_stall_init(dp_negotiator_t *n, uint64_t warn_ns, uint64_t limit_ns)
{
    n->stall.warn_ns = warn_ns;
    n->stall.limit_ns = limit_ns;
    n->stall.asked = calloc(n->table.bit_words, sizeof(*n->stall.asked));
    return n->stall.asked != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

/* Entries go as they are: whatever list they are in goes with them. */
void dp_stall_fini(dp_negotiator_t *n)
{
    for (size_t i = 0; i < n->table.entry_count; i++)
        n->table.entries[i]->stall.list = DP_ENTRY_UNLISTED;
    free(n->stall.asked);
    free(n->stall.expired.entries);
}

/* ---- Lists, oldest first -------------------------------------------------------------------- */

static void insert_by_age(dp_entry_t **oldest, dp_entry_t **newest, dp_entry_t *entry)
{
    dp_entry_t *before = *newest; /* nearly always right at once: time does not go back */

    while (before != NULL && before->stall.first_ns > entry->stall.first_ns)
        before = before->stall.older;
    entry->stall.older = before;
    entry->stall.newer = before != NULL ? before->stall.newer : *oldest;
    *(entry->stall.older != NULL ? &entry->stall.older->stall.newer : oldest) = entry;
    *(entry->stall.newer != NULL ? &entry->stall.newer->stall.older : newest) = entry;
}

static void unlink_entry(dp_entry_t **oldest, dp_entry_t **newest, dp_entry_t *entry)
{
    *(entry->stall.older != NULL ? &entry->stall.older->stall.newer : oldest) = entry->stall.newer;
    *(entry->stall.newer != NULL ? &entry->stall.newer->stall.older : newest) = entry->stall.older;
    entry->stall.older = entry->stall.newer = NULL;
    entry->stall.list = DP_ENTRY_UNLISTED;
}

void dp_stall_watch(dp_negotiator_t *n, dp_entry_t *entry, uint64_t first_ns)
{
    dp_stall_t *stall = &n->stall;

    entry->stall.first_ns = first_ns;
    if (threshold_ns(n) == 0 || entry->stall.list != DP_ENTRY_UNLISTED) return;
    insert_by_age(&stall->fresh_oldest, &stall->fresh_newest, entry);
    entry->stall.list = DP_ENTRY_FRESH;
}

static void make_overdue(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_stall_t *stall = &n->stall;

    unlink_entry(&stall->fresh_oldest, &stall->fresh_newest, entry);
    insert_by_age(&stall->stalled_oldest, &stall->stalled_newest, entry);
    entry->stall.list = DP_ENTRY_STALLED;
    if (stall->stalled_count++ == 0) {
        stall->interval_ns = n->stall.warn_ns;
        stall->next_report_ns = n->now_ns;
    }
    if (!dp_is_root(n)) dp_outbox_partial(n, entry);
}

/* Root: the tensor's group hears it, and this rank whether in it or not. */
static void warn_group(dp_negotiator_t *n, const dp_entry_t *entry, const char *text)
{
    const uint64_t *branches = entry->view != NULL ? entry->view->expect : entry->expect;

    dp_item_ref(&n->made, DP_ITEM_WARN, entry);
    n->made.text = text;
    n->made.list = entry->making.list;
    n->made.list_count = entry->making.list_count;
    dp_outbox_down(n, branches, &n->made, 0);
    n->made.list_count = 0;
    dp_outbox_warn(n, text);
}

void dp_stall_unwatch(dp_negotiator_t *n, dp_entry_t *entry, int is_complete)
{
    dp_stall_t *stall = &n->stall;
    char text[DP_ERROR_TEXT_MAX], what[DP_ENTRY_TEXT_MAX];

    if (entry->stall.list == DP_ENTRY_FRESH)
        unlink_entry(&stall->fresh_oldest, &stall->fresh_newest, entry);
    if (entry->stall.list == DP_ENTRY_STALLED) {
        unlink_entry(&stall->stalled_oldest, &stall->stalled_newest, entry);
        stall->stalled_count--;
    }
    if (dp_is_root(n) && stall->is_asking && stall->subject == entry) stall->is_asking = 0;
    if (!is_complete || !entry->stall.was_warned) return;
    entry->stall.was_warned = 0;
    snprintf(text, sizeof(text), "%.*s: no longer stalled after %.1f s", NAME_IN_TEXT,
             dp_entry_text(entry, what), seconds_since(n, entry->stall.first_ns));
    warn_group(n, entry, text);
}

void dp_stall_forget(dp_negotiator_t *n, const dp_entry_t *entry)
{
    dp_stall_t *stall = &n->stall;
    dp_entry_t *going = n->table.entries[entry->index];

    dp_stall_unwatch(n, going, 0);
    if (stall->is_asking && stall->subject == entry) stall->is_asking = 0;
    dp_entry_array_remove(&stall->expired, entry);
}

void dp_stall_expire(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (!entry->is_pending || entry->arrived.is_mismatched || n->is_fatal) return;
    if (!dp_is_root(n)) {
        dp_outbox_expired(n, entry);
        return;
    }
    if (entry->arrived.is_complete || entry->stall.is_expired) return;
    dp_entry_array_remove(&n->stall.expired, entry); /* of an occurrence that has ended */
    if (dp_entry_array_push(&n->stall.expired, entry) != DP_OK) dp_fatal_memory(n);
    entry->stall.is_expired = 1;
}

/* ---- The question --------------------------------------------------------------------------- */

static void add_missing(dp_missing_t *found, int rank, uint32_t pending, const char *progress)
{
    dp_missing_rank_t *entry;

    found->count++;
    if (found->named == DP_MISSING_NAMED_MAX) return;
    entry = &found->ranks[found->named++];
    entry->rank = rank;
    entry->pending = pending;
    snprintf(entry->progress, sizeof(entry->progress), "%s", progress);
}

/* 1: this branch has announced the tensor, or all its ranks that take part have joined. */
static int is_here(const dp_negotiator_t *n, const dp_entry_t *entry, int branch)
{
    if (dp_bit_get(entry->heard, branch)) return 1;
    return entry->view != NULL && entry->view->joined_count > 0 && dp_join_covers(n, entry, branch);
}

static void begin_question(dp_negotiator_t *n, dp_entry_t *entry, uint32_t round,
                           uint32_t patience_ms)
{
    dp_stall_t *stall = &n->stall;

    stall->is_asking = stall->is_unsent = 1;
    stall->round = round;
    stall->subject = entry;
    stall->patience_ms = patience_ms;
    stall->patience_until_ns = later(n->now_ns, (uint64_t)patience_ms * 1000000u);
    stall->waiting = 0;
    stall->found.count = stall->found.named = 0;
    memset(stall->asked, 0, n->table.bit_words * sizeof(*stall->asked));
    if (!dp_entry_takes_part(n, entry) || is_here(n, entry, dp_own_branch(n))) return;
    add_missing(&stall->found, n->rank, (uint32_t)dp_min(n->own.pending, UINT32_MAX), n->progress);
}

void dp_stall_who(dp_negotiator_t *n, const dp_item_t *item, dp_entry_t *entry)
{
    begin_question(n, entry, item->round, item->patience_ms);
}

static void ask_children(dp_negotiator_t *n)
{
    dp_stall_t *stall = &n->stall;
    dp_item_t *item = &n->made;

    stall->is_unsent = 0;
    for (int i = 0; i < n->child_count && !n->is_fatal; i++) {
        if (!dp_bit_get(stall->subject->expect, i) || is_here(n, stall->subject, i)) continue;
        dp_item_ref(item, DP_ITEM_WHO, stall->subject);
        item->list = stall->subject->making.list;
        item->list_count = stall->subject->making.list_count;
        item->round = stall->round;
        item->patience_ms = (uint32_t)((uint64_t)stall->patience_ms * 3 / 4);
        dp_bit_set(stall->asked, i);
        stall->waiting++;
        dp_outbox_ask(n, n->children[i], item);
    }
}

void dp_stall_missing(dp_negotiator_t *n, int child, const dp_item_t *item)
{
    dp_stall_t *stall = &n->stall;
    uint32_t unnamed = item->missing.count - item->missing.named;

    if (!stall->is_asking || item->round != stall->round) return; /* late */
    if (!dp_bit_get(stall->asked, child)) return;                 /* given up, or told twice */
    stall->asked[child / 64] &= ~((uint64_t)1 << (child % 64));
    stall->waiting--;
    for (uint32_t i = 0; i < item->missing.named; i++) {
        const dp_missing_rank_t *entry = &item->missing.ranks[i];

        add_missing(&stall->found, entry->rank, entry->pending, entry->progress);
    }
    stall->found.count = (uint32_t)dp_min((uint64_t)stall->found.count + unnamed, UINT32_MAX);
}

/* Children that never answered count as missing themselves. */
static void end_patience(dp_negotiator_t *n)
{
    dp_stall_t *stall = &n->stall;

    for (int i = 0; i < n->child_count; i++) {
        if (dp_bit_get(stall->asked, i)) {
            add_missing(&stall->found, n->children[i], 0, "no answer about its subtree");
        }
    }
    memset(stall->asked, 0, n->table.bit_words * sizeof(*stall->asked));
    stall->waiting = 0;
}

/* ---- The answer ----------------------------------------------------------------------------- */

/* Appends to a text; what does not fit is cut. */
static void append_text(char *text, size_t room, const char *more)
{
    size_t bytes = strlen(text);

    snprintf(text + bytes, room - bytes, "%s", more);
}

static void append_missing(const dp_negotiator_t *n, const dp_missing_t *found, char *text,
                           size_t room)
{
    char rank[DP_RANK_TEXT_MAX], part[DP_RANK_TEXT_MAX + DP_PROGRESS_MAX + 48];
    uint32_t named = dp_min(found->named, NAMED_IN_TEXT);

    for (uint32_t i = 0; i < named; i++) {
        const dp_missing_rank_t *entry = &found->ranks[i];

        snprintf(part, sizeof(part), "%s%s", i > 0 ? "; " : "", dp_rank_text(n, entry->rank, rank));
        append_text(text, room, part);
        if (entry->progress[0] != '\0') {
            snprintf(part, sizeof(part), ": %s", entry->progress);
            append_text(text, room, part);
        }
        if (entry->pending == 0) continue;
        snprintf(part, sizeof(part), " (%" PRIu32 " operations pending)", entry->pending);
        append_text(text, room, part);
    }
    if (found->count <= named) return;
    snprintf(part, sizeof(part), "; and %" PRIu32 " more", found->count - named);
    append_text(text, room, part);
}

/* The tensors that are stalled beside the oldest one: " (also tensor b, tensor c and 4 more)". */
static void append_others(const dp_negotiator_t *n, char *text, size_t room)
{
    char part[OTHER_IN_TEXT + 48], what[DP_ENTRY_TEXT_MAX];
    const dp_entry_t *other = n->stall.stalled_oldest;
    size_t named = 0, others = n->stall.stalled_count - 1;

    if (others == 0) return;
    for (; other != NULL && named < OTHERS_IN_TEXT; other = other->stall.newer) {
        if (other == n->stall.subject) continue;
        snprintf(part, sizeof(part), "%s%.*s", named == 0 ? " (also " : ", ", OTHER_IN_TEXT,
                 dp_entry_text(other, what));
        append_text(text, room, part);
        named++;
    }
    snprintf(part, sizeof(part), " and %zu more", others - named);
    if (others > named) append_text(text, room, part);
    append_text(text, room, ")");
}

static void report_stall(dp_negotiator_t *n)
{
    dp_stall_t *stall = &n->stall;
    const dp_missing_t *found = &stall->found;
    dp_entry_t *entry = stall->subject;
    char text[DP_ERROR_TEXT_MAX], what[DP_ENTRY_TEXT_MAX], ready[64];
    uint32_t ranks = dp_entry_ranks(entry), missing = dp_min(found->count, ranks);

    snprintf(text, sizeof(text), "%s %.1f s: %.*s", stall->is_expiry ? "given up after" : "stalled",
             seconds_since(n, entry->stall.first_ns), NAME_IN_TEXT, dp_entry_text(entry, what));
    if (!stall->is_expiry) append_others(n, text, sizeof(text));
    snprintf(ready, sizeof(ready), ": ready on %" PRIu32 " of %" PRIu32 " ranks; missing ",
             ranks - missing, ranks);
    append_text(text, sizeof(text), ready);
    append_missing(n, found, text, sizeof(text));
    if (stall->is_expiry) {
        entry->stall.is_expired = 0;
        /* Or else all of them have submitted meanwhile: their READY is on its way here. */
        if (found->count > 0) dp_order_expired(n, entry, text);
        return;
    }
    if (stall->is_final) {
        dp_fatal(n, DP_ERR_STALLED, found->named > 0 ? found->ranks[0].rank : -1, -1, text);
        return;
    }
    stall->next_report_ns = later(n->now_ns, stall->interval_ns);
    stall->interval_ns = later(stall->interval_ns, stall->interval_ns);
    /* All of them submitted while the question was under way: their READY is on its way here. */
    if (found->count == 0) return;
    entry->stall.was_warned = 1;
    warn_group(n, entry, text);
}

/* Root: the first whose time limit is over and that is still pending; NULL: none. */
static dp_entry_t *first_expired(dp_negotiator_t *n)
{
    dp_entry_array_t *expired = &n->stall.expired;

    while (expired->count > 0) {
        dp_entry_t *entry = expired->entries[0];

        if (entry->is_pending && entry->stall.is_expired && !entry->arrived.is_complete &&
            !entry->arrived.is_mismatched)
            return entry;
        dp_entry_array_remove(expired, entry);
    }
    return NULL;
}

/* Root: is it time to ask, or to ask again? */
static void consider_report(dp_negotiator_t *n)
{
    dp_stall_t *stall = &n->stall;
    dp_entry_t *entry;

    if (stall->is_asking) return;
    entry = first_expired(n);
    stall->is_expiry = entry != NULL;
    if (entry == NULL) entry = stall->stalled_oldest;
    if (entry == NULL) return;
    stall->is_final =
        n->stall.limit_ns > 0 && n->now_ns >= later(entry->stall.first_ns, n->stall.limit_ns);
    if (stall->is_expiry || stall->is_final ||
        (n->stall.warn_ns > 0 && n->now_ns >= stall->next_report_ns))
        begin_question(n, entry, stall->round + 1, PATIENCE_MS);
}

void dp_stall_flush(dp_negotiator_t *n)
{
    dp_stall_t *stall = &n->stall;

    if (n->is_fatal) return;
    if (stall->expired.count > 0) consider_report(n);
    if (!stall->is_asking) return;
    if (stall->is_unsent) ask_children(n);
    if (stall->waiting > 0 || n->is_fatal) return;
    stall->is_asking = 0;
    if (dp_is_root(n)) {
        report_stall(n);
        return;
    }
    n->made.kind = DP_ITEM_MISSING;
    n->made.round = stall->round;
    n->made.missing = stall->found;
    n->made.list_count = 0;
    dp_outbox_up_item(n, &n->made);
}

/* ---- Time ----------------------------------------------------------------------------------- */

void dp_stall_tick(dp_negotiator_t *n)
{
    dp_stall_t *stall = &n->stall;
    uint64_t threshold = threshold_ns(n);

    while (stall->fresh_oldest != NULL &&
           n->now_ns >= later(stall->fresh_oldest->stall.first_ns, threshold)) {
        make_overdue(n, stall->fresh_oldest);
    }
    if (stall->is_asking && stall->waiting > 0 && n->now_ns >= stall->patience_until_ns)
        end_patience(n);
    if (dp_is_root(n)) consider_report(n);
}

uint64_t dp_stall_deadline(const dp_negotiator_t *n)
{
    const dp_stall_t *stall = &n->stall;
    uint64_t deadline = UINT64_MAX;

    if (stall->fresh_oldest != NULL)
        deadline = dp_min(deadline, later(stall->fresh_oldest->stall.first_ns, threshold_ns(n)));
    if (stall->is_asking) return dp_min(deadline, stall->patience_until_ns);
    if (stall->expired.count > 0) return n->now_ns;
    if (!dp_is_root(n) || stall->stalled_oldest == NULL) return deadline;
    if (n->stall.warn_ns > 0) deadline = dp_min(deadline, stall->next_report_ns);
    if (n->stall.limit_ns > 0) {
        deadline =
            dp_min(deadline, later(stall->stalled_oldest->stall.first_ns, n->stall.limit_ns));
    }
    return deadline;
}
