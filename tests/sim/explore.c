/*
 * explore.c - every interleaving of small worlds: whatever may happen next is tried, from every
 * state that can be reached.
 *
 * A negotiator cannot be copied, but the memory that all of them lie in can: the search keeps a
 * moment of it wherever there is more than one way to go on, and comes back to it. States are
 * recognised by their digest and entered once. When nothing can happen any more the world must have
 * ended well: everything handed back and everybody gone, or all survivors told who was lost.
 *
 *     explore                 all the worlds listed below
 *     explore --size S        those of a set: pair, trio; groups, short, long, with groups; contest
 *     explore --world W       one of them
 */
#include "digest.h"
#include "moments.h"
#include "plans.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_MAX_ACTIONS 256
#define ACTIONS_MAX 64

typedef enum action_kind {
    SUBMIT,
    DELIVER,
    LAUNCHED,
    FINALIZE,
    TAKE,
    DIE,
    ABORT,
    URGENT,
    JOIN
} action_kind_t;

static const char *const action_names[] = {"submit", "deliver", "launched", "finalize", "take",
                                           "die",    "abort",   "urgent",   "join"};

typedef struct action {
    action_kind_t kind;
    int who; /* rank, or edge */
    int tensor;
} action_t;

/* A moment: the world and the rest of its state. */
typedef struct now {
    world_t world;
    int is_finalizing[8], is_dirty[8];
    int joined[8]; /* groups a rank has joined: a bit each */
    uint64_t told; /* launches the root's data plane has finished */
    int died, aborted, was_urgent;
} now_t;

typedef struct search {
    size_t names_kept; /* 0: all get an id */
    const plan_t *plan;
    now_t now;
    action_t path[PATH_MAX_ACTIONS];
    size_t depth;
    moment_t *moments[PATH_MAX_ACTIONS + 1]; /* before each of these, where there was a choice */
    uint64_t *seen;                          /* open addressing, 0: free */
    size_t seen_count, seen_room;
    uint64_t ends, steps;
    uint64_t mismatched, made; /* ends in which a group was not made for it; all were */
} search_t;

static void violated(void *user, const char *text)
{
    const search_t *search = user;

    fprintf(stderr, "world \"%s\": %s\nafter:\n", search->plan->name, text);
    for (size_t i = 0; i < search->depth; i++) {
        const action_t *action = &search->path[i];

        fprintf(stderr, "  %zu %s %d", i, action_names[action->kind], action->who);
        if (action->kind == DELIVER) {
            fprintf(stderr, " (%d -> %d)", search->now.world.edges[action->who].from,
                    search->now.world.edges[action->who].to);
        }
        if (action->kind == SUBMIT) fprintf(stderr, " tensor %d", action->tensor);
        if (action->kind == JOIN) fprintf(stderr, " group %d", action->tensor);
        fprintf(stderr, "\n");
    }
    exit(1);
}

/* ---- Doing ---------------------------------------------------------------------------------- */

static int tensor_count(const plan_t *plan)
{
    return plan->cast != NULL ? plan->cast->tensor_count : plan->tensors;
}

/* Launches what the search takes for granted. */
static void play_prelude(search_t *search)
{
    world_t *world = &search->now.world;
    const cast_t *cast = search->plan->cast;

    for (int t = 0; cast != NULL && t < cast->tensor_count; t++) {
        if (!(cast->prelude >> t & 1)) continue;
        for (int r = 0; r < search->plan->size; r++) {
            if (world_takes_part(world, t, r)) world_submit(world, r, t, 768, 0, 1.0f, 0);
            world_drain(world, r);
        }
        while (world->under_way > 0) {
            for (int e = 0; e < world->edge_count; e++) {
                if (world->edges[e].first == NULL) continue;
                world_deliver(world, e, 0);
                world_drain(world, world->edges[e].to);
            }
        }
    }
    search->now.told = world->ranks[0].launches;
    dp_negotiator_launch_done(world->ranks[0].negotiator, search->now.told, 0);
}

static void begin(search_t *search)
{
    const plan_t *plan = search->plan;
    world_options_t options = {0};

    options.size = plan->size;
    options.tensors = tensor_count(plan);
    if (plan->cast != NULL) {
        options.groups = plan->cast->groups;
        options.group_count = plan->cast->group_count;
        options.kinds = plan->cast->kinds;
    }
    options.occurrences = plan->occurrences;
    options.arity = plan->arity;
    options.nodes = plan->size;
    options.hold_ns = plan->holds ? UINT64_MAX : 0;
    options.fusion_bytes = 1 << 20;
    options.names_kept = search->names_kept;
    options.checks_priorities = plan->holds == BY_PRIORITY;
    options.user = search;
    options.violated = violated;
    world_init(&search->now.world, &options);
    memset(search->now.is_finalizing, 0, sizeof(search->now.is_finalizing));
    memset(search->now.is_dirty, 0, sizeof(search->now.is_dirty));
    memset(search->now.joined, 0, sizeof(search->now.joined));
    search->now.told = 0;
    search->now.died = search->now.aborted = NOBODY;
    search->now.was_urgent = 0;
    play_prelude(search);
}

static int is_control(const world_tensor_t *kind)
{
    return kind->collective == DP_COLLECTIVE_GROUP_CREATE ||
           kind->collective == DP_COLLECTIVE_GROUP_DESTROY;
}

static int times(const search_t *search, int tensor)
{
    world_tensor_t kind = world_kind(&search->now.world, tensor);

    return is_control(&kind) ? 1 : search->plan->occurrences;
}

/* Has this rank done all in a group, and has it all come back? What could not be made is done. */
static int is_group_over(const search_t *search, int rank, int group)
{
    const world_t *world = &search->now.world;
    const world_rank_t *self = &world->ranks[rank];

    for (int t = 0; t < tensor_count(search->plan); t++) {
        world_tensor_t kind = world_kind(world, t);

        if (kind.group != group || is_control(&kind) || !world_takes_part(world, t, rank)) continue;
        if (self->submitted[t] < times(search, t)) return 0;
    }
    if (search->plan->cast != NULL && (search->plan->cast->joins >> group & 1) &&
        !(search->now.joined[rank] >> group & 1))
        return 0;
    return self->pending_in[group] == 0;
}

/* May a program submit this tensor now? */
static int may_submit(const search_t *search, int rank, int tensor)
{
    const world_t *world = &search->now.world;
    const world_rank_t *self = &world->ranks[rank];
    world_tensor_t kind = world_kind(world, tensor);

    if (self->requests[tensor].is_pending) return 0;
    if (kind.collective == DP_COLLECTIVE_GROUP_CREATE) return 1;
    if (!self->alive[kind.group] || self->joins[kind.group].is_pending) return 0;
    return kind.collective != DP_COLLECTIVE_GROUP_DESTROY ||
           is_group_over(search, rank, kind.group);
}

/* Was the group tried and could not be made? Then nobody submits to it. */
static int is_void(const search_t *search, int rank, int group)
{
    const world_rank_t *self = &search->now.world.ranks[rank];

    for (int t = 0; t < tensor_count(search->plan); t++) {
        world_tensor_t kind = world_kind(&search->now.world, t);

        if (kind.group == group && kind.collective == DP_COLLECTIVE_GROUP_CREATE)
            return self->submitted[t] > 0 && !self->requests[t].is_pending && !self->alive[group];
    }
    return 0;
}

static int submits(const search_t *search, int tensor, int rank)
{
    const cast_t *cast = search->plan->cast;

    return world_takes_part(&search->now.world, tensor, rank) &&
           (cast == NULL || !(cast->silent[tensor] >> rank & 1));
}

/* Has this rank nothing more to do? */
static int has_all(const search_t *search, int rank)
{
    const world_rank_t *self = &search->now.world.ranks[rank];
    const cast_t *cast = search->plan->cast;

    for (int t = 0; t < tensor_count(search->plan); t++) {
        world_tensor_t kind = world_kind(&search->now.world, t);
        int is_create = kind.collective == DP_COLLECTIVE_GROUP_CREATE;

        if (!submits(search, t, rank)) continue;
        if (!is_create && is_void(search, rank, kind.group)) continue;
        if (self->submitted[t] < times(search, t)) return 0;
    }
    for (int g = 0; cast != NULL && g < cast->group_count; g++) {
        if (!(cast->joins >> g & 1) || !world_has_member(&search->now.world, g, rank)) continue;
        if (self->joins[g].is_pending) return 0; /* who finalizes first is a leaver */
        if (!(search->now.joined[rank] >> g & 1) && !is_void(search, rank, g)) return 0;
    }
    return 1;
}

/* With groups there is enough to try without the moments of the goodbye. */
static int ends_at_once(const search_t *search, int rank)
{
    const world_rank_t *self = &search->now.world.ranks[rank];

    return search->plan->cast != NULL && search->plan->leaves == NOBODY &&
           !search->now.is_finalizing[rank] && !self->is_dead &&
           !world_is_deaf(&search->now.world, rank) && self->pending == 0 && has_all(search, rank);
}

static uint64_t shape(const search_t *search, int rank, int tensor)
{
    const plan_t *plan = search->plan;
    int differs = rank == plan->mismatch_rank && tensor == plan->mismatch_tensor &&
                  search->now.world.ranks[rank].submitted[tensor] == plan->mismatch_occurrence;

    return differs ? 1024 : 768;
}

static void part_now(search_t *search, int rank)
{
    search->now.is_finalizing[rank] = 1;
    search->now.world.is_parting = 1;
    dp_negotiator_finalize(search->now.world.ranks[rank].negotiator, 0);
    world_drain(&search->now.world, rank);
}

static int waits_for_all(const plan_t *plan)
{
    return plan->cast != NULL && plan->cast->contests == 2;
}

static void part_together(search_t *search)
{
    for (int r = 0; r < search->plan->size; r++) {
        if (!ends_at_once(search, r)) return;
    }
    for (int r = 0; r < search->plan->size; r++)
        part_now(search, r);
}

static void act(search_t *search, action_t action)
{
    world_t *world = &search->now.world;
    int rank = action.who;

    search->steps++;
    switch (action.kind) {
    case SUBMIT:
        world->ranks[rank].priority =
            search->plan->holds == BY_PRIORITY && rank == search->plan->size - 1 ? action.tensor
                                                                                 : 0;
        world_submit(world, rank, action.tensor, shape(search, rank, action.tensor), 0, (float)rank,
                     0);
        break;
    case DELIVER:
        rank = world->edges[action.who].to;
        world_deliver(world, action.who, 0);
        break;
    case LAUNCHED:
        search->now.told = world->ranks[0].launches;
        dp_negotiator_launch_done(world->ranks[0].negotiator, search->now.told, 0);
        break;
    case FINALIZE:
        search->now.is_finalizing[rank] = 1;
        world->is_parting = 1;
        dp_negotiator_finalize(world->ranks[rank].negotiator, 0);
        break;
    case TAKE:
        break;
    case DIE:
        search->now.died = rank;
        world_kill(world, rank, SIZE_MAX);
        return;
    case ABORT:
        search->now.aborted = rank;
        dp_negotiator_abort(world->ranks[rank].negotiator, DP_ERR_ABORTED, "enough", 0);
        break;
    case JOIN:
        search->now.joined[rank] |= 1 << action.tensor;
        world_join(world, rank, action.tensor, search->plan->occurrences, 0);
        break;
    case URGENT:
        search->now.was_urgent = 1;
        dp_negotiator_urgent(world->ranks[rank].negotiator, DP_GROUP_WORLD, "h.0.weight", 0);
        break;
    }
    search->now.is_dirty[rank] = search->plan->is_lazy && action.kind != TAKE;
    if (search->now.is_dirty[rank]) return;
    world_drain(world, rank);
    if (waits_for_all(search->plan)) {
        part_together(search);
    } else if (ends_at_once(search, rank)) {
        part_now(search, rank);
    }
}

/* ---- What may happen next ------------------------------------------------------------------- */

static int is_meant(int whom, int rank)
{
    return whom == ANYBODY || whom == rank;
}

static void add(action_t *actions, int *count, action_kind_t kind, int who, int tensor)
{
    actions[(*count)++] = (action_t){kind, who, tensor};
}

static void add_joins(const search_t *search, int rank, action_t *actions, int *count)
{
    const world_rank_t *self = &search->now.world.ranks[rank];
    const cast_t *cast = search->plan->cast;

    for (int g = 0; cast != NULL && g < cast->group_count; g++) {
        if (!(cast->joins >> g & 1) || !world_has_member(&search->now.world, g, rank)) continue;
        if ((search->now.joined[rank] >> g & 1) || !self->alive[g]) continue;
        add(actions, count, JOIN, rank, g);
    }
}

static void add_of_rank(const search_t *search, int rank, action_t *actions, int *count)
{
    const plan_t *plan = search->plan;
    const world_rank_t *self = &search->now.world.ranks[rank];
    int waits = plan->cast != NULL && plan->leaves == NOBODY; /* see ends_at_once() */

    if (self->is_dead) return;
    if (search->now.is_dirty[rank]) add(actions, count, TAKE, rank, 0);
    if (world_is_deaf(&search->now.world, rank)) return;
    for (int t = 0; t < tensor_count(plan) && !search->now.is_finalizing[rank]; t++) {
        if (!submits(search, t, rank)) continue;
        if (self->submitted[t] < times(search, t) && may_submit(search, rank, t))
            add(actions, count, SUBMIT, rank, t);
    }
    if (!search->now.is_finalizing[rank]) add_joins(search, rank, actions, count);
    if (!search->now.is_finalizing[rank] && !waits &&
        (is_meant(plan->leaves, rank) || has_all(search, rank)))
        add(actions, count, FINALIZE, rank, 0);
    if (search->now.died == NOBODY && is_meant(plan->dies, rank)) add(actions, count, DIE, rank, 0);
    if (search->now.aborted == NOBODY && is_meant(plan->aborts, rank))
        add(actions, count, ABORT, rank, 0);
}

static int list_actions(const search_t *search, action_t *actions)
{
    const world_t *world = &search->now.world;
    int last = search->plan->size - 1, count = 0;

    for (int i = 0; i < world->edge_count; i++) {
        if (world->edges[i].first == NULL) continue;
        if (world->ranks[world->edges[i].to].is_dead) continue;
        add(actions, &count, DELIVER, i, 0);
    }
    for (int r = 0; r < search->plan->size; r++)
        add_of_rank(search, r, actions, &count);
    if (search->plan->holds && !world_is_deaf(world, 0) &&
        world->ranks[0].launches > search->now.told)
        add(actions, &count, LAUNCHED, 0, 0);
    if (search->plan->is_urgent && !search->now.was_urgent &&
        world->ranks[last].requests[0].is_pending)
        add(actions, &count, URGENT, last, 0);
    return count;
}

/* ---- What must hold where nothing can happen ------------------------------------------------ */

static int has_contests(const search_t *search)
{
    return search->plan->cast != NULL && search->plan->cast->contests;
}

static const world_outcome_t *outcome_of(const search_t *search, int tensor, int occurrence)
{
    return &search->now.world.outcomes[tensor * search->now.world.options.occurrences + occurrence];
}

/* Which rank has which shape. */
static void check_mismatch_text(search_t *search)
{
    const plan_t *plan = search->plan;
    char part[32];

    snprintf(part, sizeof(part), "1024 on rank %d (", plan->mismatch_rank);
    for (int r = 0; r < plan->size; r++) {
        const world_rank_t *self = &search->now.world.ranks[r];

        if (self->failures == 0 || self->last_failure_status != DP_ERR_MISMATCH) continue;
        if (strstr(self->last_failure, part) == NULL ||
            strstr(self->last_failure, "768 on") == NULL)
            world_violation(&search->now.world, "rank %d: %s", r, self->last_failure);
    }
}

/* Two shapes of one tensor: nobody may have reduced them. Where somebody died, aborted, or left
 * before, it need not have come to that. */
static void check_mismatch(search_t *search)
{
    const plan_t *plan = search->plan;
    const world_outcome_t *outcome;

    if (plan->mismatch_rank == NOBODY || search->now.died != NOBODY ||
        search->now.aborted != NOBODY)
        return;
    outcome = outcome_of(search, plan->mismatch_tensor, plan->mismatch_occurrence);
    if (outcome->is_known && outcome->status == DP_ERR_MISMATCH) {
        check_mismatch_text(search);
        return;
    }
    if (plan->leaves != NOBODY && (!outcome->is_known || outcome->status == DP_ERR_LEFT)) return;
    world_violation(&search->now.world, "tensor %d in two shapes: %s", plan->mismatch_tensor,
                    outcome->is_known ? dp_status_string(outcome->status) : "never over");
}

/* Groups that are made under one name with different lists: they fail for that, or one is made and
 * what waits for its members fails when they leave. */
static void check_contests(search_t *search)
{
    int made = 0, mismatched = 0, tensors = search->plan->cast->tensor_count;

    for (int t = 0; t < tensors; t++) {
        const world_outcome_t *outcome = outcome_of(search, t, 0);

        if (!outcome->is_known)
            world_violation(&search->now.world, "group of tensor %d: no outcome", t);
        made += outcome->status == DP_OK;
        mismatched += outcome->status == DP_ERR_MISMATCH;
        if (outcome->status != DP_OK && outcome->status != DP_ERR_MISMATCH &&
            outcome->status != DP_ERR_LEFT) {
            world_violation(&search->now.world, "group of tensor %d: %s", t,
                            dp_status_string(outcome->status));
        }
    }
    if (waits_for_all(search->plan) && mismatched < tensors)
        world_violation(&search->now.world, "%d lists of %d failed", mismatched, tensors);
    search->made += made > 0;
    search->mismatched += mismatched > 0;
}

/* A rank that died or aborted with tensors under way had not said goodbye, and nobody finished
 * without its goodbye. */
static void check_goodbye(search_t *search)
{
    int lost = search->now.died != NOBODY ? search->now.died : search->now.aborted;

    if (lost == NOBODY || search->plan->is_lazy || !search->now.world.ranks[0].is_finished) return;
    if (search->now.world.ranks[lost].pending == 0) return;
    world_violation(&search->now.world, "the job is over, and rank %d had %d tensors under way",
                    lost, search->now.world.ranks[lost].pending);
}

static void check_end(search_t *search)
{
    world_t *world = &search->now.world;
    int fatal = 0, finished = 0;

    search->ends++;
    for (int r = 0; r < search->plan->size; r++) {
        const world_rank_t *self = &world->ranks[r];
        int culprit = search->now.died != NOBODY ? search->now.died : search->now.aborted;

        if (self->is_dead) continue;
        fatal += self->is_fatal;
        finished += self->is_finished;
        if (!self->is_fatal && !self->is_finished) world_violation(world, "rank %d hangs", r);
        if (self->is_fatal && self->fatal_culprit != culprit) {
            world_violation(world, "rank %d blames rank %d: %s", r, self->fatal_culprit,
                            self->fatal_text);
        }
        if (!self->is_fatal && self->pending > 0)
            world_violation(world, "rank %d: %d requests were never handed back", r, self->pending);
        if (self->failures > 0 && search->plan->mismatch_rank == NOBODY && !has_contests(search) &&
            search->plan->leaves == NOBODY && self->last_failure_status != DP_ERR_ORDER)
            world_violation(world, "rank %d: %s", r, self->last_failure);
        if (self->failures > 0 && self->last_failure_status == DP_ERR_ORDER &&
            strstr(self->last_failure, ": send needs rank ") == NULL)
            world_violation(world, "rank %d: %s", r, self->last_failure);
    }
    check_goodbye(search);
    check_mismatch(search);
    if (has_contests(search) && search->now.died == NOBODY && search->plan->leaves == NOBODY)
        check_contests(search);
    if (finished == search->plan->size) world_check_identities(world);
    world_check_order(world);
    if (fatal > 0 && finished > 0 && !world->ranks[0].is_finished)
        world_violation(world, "%d finished, %d fatal", finished, fatal);
}

/* ---- The search ----------------------------------------------------------------------------- */

static void grow_seen(search_t *search);

/* 1 when the state is new. */
static int remember(search_t *search, uint64_t digest)
{
    size_t at;

    if (digest == 0) digest = 1;
    if (search->seen_count * 2 >= search->seen_room) grow_seen(search);
    for (at = digest & (search->seen_room - 1); search->seen[at] != 0;
         at = (at + 1) & (search->seen_room - 1)) {
        if (search->seen[at] == digest) return 0;
    }
    search->seen[at] = digest;
    search->seen_count++;
    return 1;
}

static void grow_seen(search_t *search)
{
    uint64_t *old = search->seen;
    size_t room = search->seen_room;

    search->seen_room = room > 0 ? room * 4 : 1 << 14;
    search->seen = lasting_allocate(search->seen_room, sizeof(*search->seen));
    if (search->seen == NULL) exit(2);
    search->seen_count = 0;
    for (size_t i = 0; i < room; i++) {
        if (old[i] != 0) remember(search, old[i]);
    }
    lasting_free(old);
}

static uint64_t digest_of(const search_t *search)
{
    uint64_t digest = world_digest(&search->now.world) ^ search->now.told * UINT64_C(0x51ed2701);

    for (int r = 0; r < search->plan->size; r++) {
        digest =
            digest * 31 + (uint64_t)(search->now.is_finalizing[r] | search->now.is_dirty[r] << 1 |
                                     search->now.joined[r] << 2);
    }
    return digest * 31 + (uint64_t)(search->now.died + 2) * 7 +
           (uint64_t)(search->now.aborted + 2) + (uint64_t)search->now.was_urgent * 1000;
}

static void explore(search_t *search)
{
    action_t actions[ACTIONS_MAX];
    int count = list_actions(search, actions);
    int must_go_on = 0;
    const now_t now = search->now;
    moment_t **moment = &search->moments[search->depth];

    for (int i = 0; i < count; i++)
        must_go_on |= actions[i].kind != DIE && actions[i].kind != ABORT;
    if (!must_go_on) check_end(search);
    if (search->depth == PATH_MAX_ACTIONS) world_violation(&search->now.world, "it never ends");
    if (count > 1) *moment = moment_keep(*moment);
    for (int i = 0; i < count; i++) {
        if (i > 0) {
            moment_return(*moment);
            search->now = now;
        }
        search->path[search->depth++] = actions[i];
        act(search, actions[i]);
        if (remember(search, digest_of(search))) explore(search);
        search->depth--;
    }
}

static void run_plan(const plan_t *plan, size_t names_kept)
{
    search_t search;

    memset(&search, 0, sizeof(search));
    search.plan = plan;
    search.names_kept = names_kept;
    begin(&search);
    remember(&search, digest_of(&search));
    explore(&search);
    if (has_contests(&search) && plan->leaves == NOBODY &&
        ((!search.made && !waits_for_all(plan)) || !search.mismatched)) {
        world_violation(&search.now.world, "groups made in %" PRIu64 " ends, refused in %" PRIu64,
                        search.made, search.mismatched);
    }
    printf("%-30s %8zu states %8" PRIu64 " ends %10" PRIu64 " steps\n", plan->name,
           search.seen_count, search.ends, search.steps);
    fflush(stdout);
    world_fini(&search.now.world);
    for (size_t i = 0; i <= PATH_MAX_ACTIONS; i++)
        moment_forget(search.moments[i]);
    lasting_free(search.seen);
}

static const char help[] =
    "usage: explore [--size SET | --world NAME] [--names K]\n"
    "  Tries every interleaving of submissions, deliveries and misfortunes in worlds of two and\n"
    "  three ranks, each state once, and prints how many there are.\n"
    "  (nothing)      all worlds\n"
    "  --size SET     of a set: pair, trio, groups, contest (two lists under one name), long\n"
    "  --world NAME   one of them, as it is printed\n"
    "  --names K      after K ids a name gets one when it comes again, and K without one are "
    "kept\n";

static const char *set_of(const plan_t *plan)
{
    if (plan->set != NULL) return plan->set;
    return plan->size == 2 ? "pair" : "trio";
}

int main(int argc, char **argv)
{
    const char *name = NULL, *size = NULL;
    size_t names_kept = 0;
    int found = 0, at = 1;

    for (; at + 1 < argc; at += 2) {
        if (strcmp(argv[at], "--world") == 0)
            name = argv[at + 1];
        else if (strcmp(argv[at], "--size") == 0)
            size = argv[at + 1];
        else if (strcmp(argv[at], "--names") == 0)
            names_kept = strtoul(argv[at + 1], NULL, 10);
        else
            break;
    }
    if (at < argc) {
        fputs(help, argc == 2 && strcmp(argv[1], "--help") == 0 ? stdout : stderr);
        return argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    for (size_t i = 0; i < explore_plan_count; i++) {
        if (name != NULL && strcmp(name, explore_plans[i].name) != 0) continue;
        if (size != NULL && strcmp(size, set_of(&explore_plans[i])) != 0) continue;
        run_plan(&explore_plans[i], names_kept);
        found = 1;
    }
    if (!found) fprintf(stderr, "no such world\n");
    return found ? 0 : 2;
}
