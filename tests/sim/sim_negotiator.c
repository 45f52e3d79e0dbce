/*
 * sim_negotiator.c - many ranks over a virtual network: each seed is a world with its own size,
 * tree, groups, delays, order of submissions and misfortunes.
 *
 *     sim_negotiator                 seeds 1 to 2000; ctest runs some of them
 *     sim_negotiator --seeds A B     seeds A to B
 *     sim_negotiator --seed S        one of them, exactly as it was, with a summary
 *
 * Time is an event queue. Every input's outputs are taken at once or after a random while, so that
 * inputs coalesce as they do in the loop. After each run what must hold at the end is checked:
 * everything was handed back, or all survivors know the same kind of cause; nothing is under way;
 * nobody wants to be woken.
 */
#include "script.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define ENOUGH 1000          /* seeds, in which all that is counted has happened */
#define WAIT_MAX (5000 * MS) /* what stalls are timed by is twice as long */

/* ---- The scenario --------------------------------------------------------------------------- */

typedef enum misfortune {
    NONE,
    DEATH,      /* a rank dies at some moment */
    TWO_DEATHS, /* so do two */
    ABORT,      /* a rank calls dp_abort() */
    LEAVER,     /* a rank finalizes some steps early */
    MISMATCH,   /* some submissions have another shape than the others' */
    STALL,      /* a rank is asleep for half a minute */
    MISFORTUNES
} misfortune_t;

static const char *const misfortune_names[MISFORTUNES] = {
    "none", "death", "two deaths", "abort", "leaver", "mismatch", "stall"};

typedef enum event_kind { STEP, DELIVER, LAUNCHED, TICK, TAKE, DIE, CALL_ABORT } event_kind_t;

typedef struct event {
    uint64_t at_ns, order; /* order: ties are broken by who was first */
    event_kind_t kind;
    int rank; /* or edge */
    uint64_t sequence;
} event_t;

typedef struct program {
    size_t next, last; /* acts */
    int wakes;         /* STEP is scheduled */
    int is_done;
    uint64_t sleep_until_ns; /* a stalled rank */
} program_t;

typedef struct sim {
    uint64_t seed, random, now_ns, order;
    uint64_t busy_ns; /* when something last came of an event */
    misfortune_t misfortune;
    int is_lazy;
    int has_priorities;
    uint64_t delay_ns, compute_ns, transfer_ns;
    int culprits[2];
    uint64_t events_done;
    event_t *heap;
    size_t heap_count, heap_room;
    uint64_t *wanted_ns; /* [size] earliest TICK scheduled */
    int *takes;          /* [size] TAKE is scheduled */
    program_t *programs;
    script_t script;
    world_t world;
} sim_t;

static void violated(void *user, const char *text)
{
    const sim_t *sim = user;

    fprintf(stderr,
            "seed %" PRIu64 " (%d ranks, %d groups, %d tensors, %s) at %" PRIu64 " ns: %s\n"
            "replay: sim_negotiator --seed %" PRIu64 "\n",
            sim->seed, sim->script.options.size, sim->script.group_count, sim->script.tensor_count,
            misfortune_names[sim->misfortune], sim->now_ns, text, sim->seed);
    exit(1);
}

/* ---- Events --------------------------------------------------------------------------------- */

static int is_before(const event_t *a, const event_t *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void swap(event_t *a, event_t *b)
{
    event_t kept = *a;

    *a = *b;
    *b = kept;
}

static void schedule(sim_t *sim, uint64_t at_ns, event_kind_t kind, int rank, uint64_t sequence)
{
    size_t at = sim->heap_count++;

    if (at == sim->heap_room) {
        sim->heap_room = sim->heap_room > 0 ? sim->heap_room * 2 : 1024;
        sim->heap = realloc(sim->heap, sim->heap_room * sizeof(*sim->heap));
        if (sim->heap == NULL) exit(2);
    }
    sim->heap[at] = (event_t){at_ns, sim->order++, kind, rank, sequence};
    for (; at > 0 && is_before(&sim->heap[at], &sim->heap[(at - 1) / 2]); at = (at - 1) / 2)
        swap(&sim->heap[at], &sim->heap[(at - 1) / 2]);
}

static event_t next_event(sim_t *sim)
{
    event_t first = sim->heap[0];
    size_t at = 0;

    sim->heap[0] = sim->heap[--sim->heap_count];
    for (;;) {
        size_t least = at;

        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < sim->heap_count; child++) {
            if (is_before(&sim->heap[child], &sim->heap[least])) least = child;
        }
        if (least == at) return first;
        swap(&sim->heap[at], &sim->heap[least]);
        at = least;
    }
}

static uint64_t soon(sim_t *sim, uint64_t mean_ns)
{
    return sim->now_ns + 1 + below(&sim->random, 2 * mean_ns + 1);
}

static uint64_t delay(void *user, world_edge_t *edge)
{
    sim_t *sim = user;
    uint64_t at_ns = soon(sim, sim->delay_ns);

    if (at_ns <= edge->last_ns) at_ns = edge->last_ns + 1;
    schedule(sim, at_ns, DELIVER, (int)(edge - sim->world.edges), 0);
    return at_ns;
}

static void launched(void *user, int rank, uint64_t sequence)
{
    sim_t *sim = user;

    schedule(sim, soon(sim, sim->transfer_ns), LAUNCHED, rank, sequence);
}

/* ---- Programs ------------------------------------------------------------------------------- */

static void wake_program(sim_t *sim, int rank, uint64_t at_ns)
{
    program_t *program = &sim->programs[rank];

    if (program->wakes || program->is_done) return;
    program->wakes = 1;
    schedule(sim, dp_max(at_ns, program->sleep_until_ns), STEP, rank, 0);
}

/* Takes outputs now or a little later, and sees to it that the rank is woken in time. */
static void after_input(sim_t *sim, int rank, int is_tick)
{
    world_rank_t *self = &sim->world.ranks[rank];
    uint64_t deadline_ns;
    int pending = self->pending;

    if (self->is_dead) return;
    if (sim->is_lazy && below(&sim->random, 2) == 0) {
        if (!sim->takes[rank]) schedule(sim, soon(sim, 20 * US), TAKE, rank, 0);
        sim->takes[rank] = 1;
        return;
    }
    world_drain(&sim->world, rank);
    /* Something it waits for may have come back. */
    if (self->pending < pending && !world_is_deaf(&sim->world, rank))
        wake_program(sim, rank, sim->now_ns + 1);
    deadline_ns = dp_negotiator_deadline(self->negotiator);
    if (deadline_ns == UINT64_MAX) return;
    if (deadline_ns <= sim->now_ns && is_tick)
        world_violation(&sim->world, "rank %d wants to be woken at once, for ever", rank);
    if (deadline_ns < sim->wanted_ns[rank]) {
        sim->wanted_ns[rank] = deadline_ns;
        schedule(sim, dp_max(deadline_ns, sim->now_ns), TICK, rank, 0);
    }
}

static int is_control(const world_tensor_t *kind)
{
    return kind->collective == DP_COLLECTIVE_GROUP_CREATE ||
           kind->collective == DP_COLLECTIVE_GROUP_DESTROY;
}

/* A rank submits no tensor to a group that could not be made; the others know the same. */
static int is_void(const world_rank_t *self, const world_tensor_t *kind)
{
    return kind->collective != DP_COLLECTIVE_GROUP_CREATE && !self->alive[kind->group];
}

static int joins_pending(const sim_t *sim, int rank)
{
    int pending = 0;

    for (int g = 0; g < sim->script.group_count; g++)
        pending += sim->world.ranks[rank].joins[g].is_pending;
    return pending;
}

/* Without a draw: a seed's world stays as it is but for the order. Ranks need not agree. */
static int32_t priority_for(const sim_t *sim, int rank, int tensor)
{
    const uint64_t mixed =
        (sim->seed + (uint64_t)tensor * 31 + (uint64_t)rank / 2) * UINT64_C(0x9e3779b97f4a7c15);

    return (int32_t)(mixed >> 61) - 4;
}

/* Carries out one act; 0: it must wait for something to be handed back. */
static int act(sim_t *sim, int rank, const act_t *act)
{
    world_rank_t *self = &sim->world.ranks[rank];
    const world_tensor_t *kind = &sim->script.kinds[act->index >= 0 ? act->index : 0];

    switch (act->kind) {
    case ACT_SUBMIT:
        if (self->requests[act->index].is_pending) return 0;
        if (is_void(self, kind)) {
            self->submitted[act->index]++;
            return 1;
        }
        if (sim->has_priorities) self->priority = priority_for(sim, rank, act->index);
        world_submit(&sim->world, rank, act->index, act->count, below(&sim->random, 16) == 0,
                     (float)below(&sim->random, 100) - 1.0f, sim->now_ns);
        return 1;
    case ACT_WAIT:
        return !self->requests[act->index].is_pending;
    case ACT_DRAIN:
        return act->index >= 0 ? self->pending_in[act->index] == 0
                               : self->pending == joins_pending(sim, rank);
    case ACT_JOIN:
        if (self->alive[act->index]) {
            world_join(&sim->world, rank, act->index, act->until, sim->now_ns);
            return 1;
        }
        for (int t = 0; t < sim->script.tensor_count; t++) {
            if (sim->script.kinds[t].group != act->index || is_control(&sim->script.kinds[t]))
                continue;
            self->submitted[t] = dp_max(self->submitted[t], act->until);
        }
        return 1;
    case ACT_WAIT_JOIN:
        return !self->joins[act->index].is_pending;
    }
    return 1;
}

/* Submits what the program may submit now; 0: it must wait for something to be handed back. */
static int submit_some(sim_t *sim, int rank)
{
    program_t *program = &sim->programs[rank];
    int burst = 1 + (int)below(&sim->random, 4);

    while (program->next < program->last && burst-- > 0) {
        if (!act(sim, rank, &sim->script.acts[rank][program->next])) return 0;
        program->next++;
    }
    return 1;
}

/* Somebody may wait for one of them by now. */
static void be_urgent(sim_t *sim, int rank)
{
    char name[32];
    int tensor;
    world_tensor_t kind;

    if (sim->script.tensor_count == 0 || below(&sim->random, 2) == 0) return;
    tensor = (int)below(&sim->random, (uint64_t)sim->script.tensor_count);
    kind = sim->script.kinds[tensor];
    dp_negotiator_urgent(sim->world.ranks[rank].negotiator,
                         kind.collective == DP_COLLECTIVE_GROUP_CREATE
                             ? DP_GROUP_UNBORN
                             : sim->world.ranks[rank].uids[kind.group],
                         world_name(kind.name, name), sim->now_ns);
}

static void run_program(sim_t *sim, int rank)
{
    program_t *program = &sim->programs[rank];
    int may_go_on;

    program->wakes = 0;
    if (world_is_deaf(&sim->world, rank)) return;
    may_go_on = submit_some(sim, rank);
    if (below(&sim->random, 8) == 0) be_urgent(sim, rank);
    if (may_go_on && program->next == program->last) {
        be_urgent(sim, rank);
        sim->world.is_parting = 1;
        dp_negotiator_finalize(sim->world.ranks[rank].negotiator, sim->now_ns);
        program->is_done = 1;
    }
    after_input(sim, rank, 0);
    if (may_go_on) wake_program(sim, rank, soon(sim, sim->compute_ns));
}

static void handle(sim_t *sim, const event_t *event)
{
    world_t *world = &sim->world;
    int rank = event->rank;
    char reason[] = "out of cheese";

    sim->now_ns = event->at_ns;
    sim->events_done++;
    switch (event->kind) {
    case STEP:
        sim->busy_ns = sim->now_ns;
        run_program(sim, rank);
        return;
    case DELIVER:
        /* A death may have dropped the message this event stood for. */
        if (world->edges[rank].first == NULL) return;
        if (world->edges[rank].first->deliver_ns > sim->now_ns) return;
        sim->busy_ns = sim->now_ns;
        world_deliver(world, rank, sim->now_ns);
        after_input(sim, world->edges[rank].to, 0);
        return;
    case LAUNCHED:
        dp_negotiator_launch_done(world->ranks[rank].negotiator, event->sequence, sim->now_ns);
        break;
    case TICK:
        sim->wanted_ns[rank] = UINT64_MAX;
        dp_negotiator_tick(world->ranks[rank].negotiator, sim->now_ns);
        break;
    case TAKE:
        sim->takes[rank] = 0;
        break;
    case DIE:
        if (world->ranks[rank].is_dead || world->ranks[rank].is_finished) return;
        world_kill(world, rank, (size_t)below(&sim->random, 4));
        return;
    case CALL_ABORT:
        dp_negotiator_abort(world->ranks[rank].negotiator, DP_ERR_ABORTED, reason, sim->now_ns);
        break;
    }
    after_input(sim, rank, event->kind == TICK);
}

/* ---- What must hold at the end -------------------------------------------------------------- */

/* How often something with ranks below an edge is submitted, made, ended or joined. */
static uint64_t operations_below(const sim_t *sim, int edge, uint64_t *groups)
{
    const world_t *world = &sim->world;
    const script_t *script = &sim->script;
    uint64_t operations = 0;

    *groups = 0;
    for (int t = 0; t < script->tensor_count; t++) {
        int below_edge = world_below(world, edge, t), used = script->used[t];

        if (is_control(&script->kinds[t])) used = script->occurrences;
        if (below_edge == 0) continue;
        operations += (uint64_t)used;
        if (script->kinds[t].collective != DP_COLLECTIVE_GROUP_CREATE) continue;
        *groups += 1;
        /* a JOIN for each rank */
        operations += (uint64_t)script->joins[script->kinds[t].group] * (uint64_t)below_edge;
    }
    return operations + (uint64_t)script->joins[0] * (uint64_t)world->options.size;
}

/* One message up and one down per edge for each operation would already be no batching at all;
 * urgency, leaving and stalls add a few. What concerns nobody below an edge is not sent there. */
static void check_budget(sim_t *sim)
{
    world_t *world = &sim->world;

    for (int i = 0; i < world->edge_count; i++) {
        uint64_t groups, operations = operations_below(sim, i, &groups);
        uint64_t budget = 2 * operations + world_ranks_below(world, i) + 4 + 2 * groups;

        if (sim->misfortune == LEAVER) budget += 2 * operations; /* each kept tensor less */
        if (sim->misfortune == STALL) budget += 4 * operations;
        if (world->edges[i].sent > budget) {
            world_violation(world, "edge %d to %d: %" PRIu64 " messages, budget %" PRIu64,
                            world->edges[i].from, world->edges[i].to, world->edges[i].sent, budget);
        }
    }
}

static void check_fatal(sim_t *sim, int rank)
{
    world_t *world = &sim->world;
    world_rank_t *self = &world->ranks[rank];
    dp_status_t expected = sim->misfortune == ABORT ? DP_ERR_ABORTED : DP_ERR_PEER_LOST;
    char name[32];

    if (self->fatal_status != expected ||
        (self->fatal_culprit != sim->culprits[0] && self->fatal_culprit != sim->culprits[1])) {
        world_violation(world, "rank %d: the world ended with %s, culprit %d: %s", rank,
                        dp_status_string(self->fatal_status), self->fatal_culprit,
                        self->fatal_text);
    }
    snprintf(name, sizeof(name), "rank %d (host", self->fatal_culprit);
    if (strncmp(self->fatal_text, name, strlen(name)) != 0)
        world_violation(world, "rank %d: the text names nobody: %s", rank, self->fatal_text);
}

static void check_failures(sim_t *sim, int rank)
{
    world_rank_t *self = &sim->world.ranks[rank];

    if (self->failures == 0) return;
    if (sim->misfortune == LEAVER && self->last_failure_status == DP_ERR_LEFT &&
        strstr(self->last_failure, " finalized before ") != NULL)
        return;
    if (sim->world.options.timeout_ns > 0 && self->last_failure_status == DP_ERR_TIMEOUT &&
        strncmp(self->last_failure, "given up after ", 15) == 0)
        return;
    if (sim->misfortune == MISMATCH && self->last_failure_status == DP_ERR_MISMATCH &&
        strstr(self->last_failure, ": count 1") != NULL)
        return;
    world_violation(&sim->world, "rank %d: %d failures, the last %s: %s", rank, self->failures,
                    dp_status_string(self->last_failure_status), self->last_failure);
}

/* Where nobody sleeps for seconds nothing may wait for a clock that counts in seconds: a stall that
 * is reported, or a launch that comes then. */
static void check_waits(sim_t *sim)
{
    world_t *world = &sim->world;

    if (sim->misfortune == STALL) return;
    for (int i = 0; i < world->options.size; i++) {
        const world_rank_t *self = &world->ranks[i];

        if (self->warnings > 0)
            world_violation(world, "rank %d: %s, nobody slept", i, self->last_warning);
    }
    if (sim->busy_ns > WAIT_MAX)
        world_violation(world, "something came after %" PRIu64 " ns, nobody slept", sim->busy_ns);
}

static void check_end(sim_t *sim)
{
    world_t *world = &sim->world;
    int fatal = 0, finished = 0, dead = 0;

    for (int i = 0; i < world->options.size; i++) {
        world_rank_t *self = &world->ranks[i];

        fatal += self->is_fatal;
        finished += self->is_finished;
        dead += self->is_dead;
        if (self->is_dead) continue;
        if (self->is_fatal) check_fatal(sim, i);
        check_failures(sim, i);
        if (!self->is_fatal && self->pending > 0)
            world_violation(world, "rank %d: %d requests were never handed back", i, self->pending);
        if (dp_negotiator_deadline(self->negotiator) != UINT64_MAX)
            world_violation(world, "rank %d wants to be woken after the end", i);
    }
    if (world->under_way > 0) world_violation(world, "%zu messages are left", world->under_way);
    /* A misfortune may overtake the goodbye on its way down, but only then do some ranks part in
     * peace and others not. */
    if (fatal > 0 && finished > 0 && !world->ranks[0].is_finished)
        world_violation(world, "%d ranks finished, for %d the world ended", finished, fatal);
    if (fatal + finished < world->options.size - dead) {
        world_violation(world, "%d ranks: %d finished, %d fatal, %d dead: somebody hangs",
                        world->options.size, finished, fatal, dead);
    }
    if (sim->misfortune != DEATH && sim->misfortune != TWO_DEATHS && sim->misfortune != ABORT &&
        finished != world->options.size)
        world_violation(world, "%d of %d ranks finished", finished, world->options.size);
    for (int i = 0; i < world->options.size && sim->misfortune == MISMATCH; i++) {
        if (world->ranks[i].failures != sim->script.failures[i]) {
            world_violation(world, "rank %d: %d failures, expected %d", i, world->ranks[i].failures,
                            sim->script.failures[i]);
        }
    }
    if (finished == world->options.size) world_check_identities(world);
    world_check_order(world);
    check_waits(sim);
    check_budget(sim);
}

/* ---- One seed ------------------------------------------------------------------------------- */

static void choose_script(sim_t *sim, const world_options_t *options)
{
    uint64_t *random = &sim->random;
    script_options_t script = {0};

    script.size = options->size;
    script.has_groups = options->size > 1 && below(random, 3) > 0;
    script.may_join = sim->misfortune != MISMATCH && below(random, 2) == 0;
    script.world_tensors = 1 + (int)below(random, options->size > 100 ? 12 : 40);
    script.steps = 2 + (int)below(random, 6);
    script.waits_at_step_end = (int)below(random, 2);
    script.reshape_step = (int)below(random, 4);
    script.mismatch_step = -1;
    if (sim->misfortune == MISMATCH) script.mismatch_step = (int)below(random, 8);
    script.mismatch_tensor = (int)below(random, 3);
    script.mismatch_rank = (int)below(random, (uint64_t)options->size);
    script_init(&sim->script, &script, random);
}

static void choose(sim_t *sim, uint64_t seed)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 64, 200, 300};
    uint64_t *random = &sim->random;
    world_options_t options = {0};

    memset(sim, 0, sizeof(*sim));
    sim->seed = sim->random = seed;
    options.size = sizes[below(random, DP_ARRAY_LEN(sizes))];
    options.arity = 1 + (int)below(random, 9);
    if (options.arity == 1 && options.size > 16) options.arity = 2; /* else a chain too deep */
    if (options.size >= 64 && seed % 4 == 0) options.arity = 64 + (int)(seed % 199);
    options.nodes = 1 + (int)below(random, (uint64_t)options.size);
    options.hold_ns = below(random, 3) * 100 * US;
    options.fusion_bytes = below(random, 2) == 0 ? 2000 : 1 << 20;
    options.stall_warn_ns = 10000 * MS;
    /* At times half of it is shorter than what a stalled rank sleeps. */
    options.stall_limit_ns = (below(random, 3) > 0 ? 600000 : 60000) * MS;
    options.names_kept = seed % 7; /* 0: more than there are names */
    sim->has_priorities = seed % 5 > 1;
    sim->misfortune = (misfortune_t)below(random, MISFORTUNES);
    if (options.size == 1 && sim->misfortune != ABORT) sim->misfortune = NONE;
    /* Without a draw: a seed's world stays as it is but for the limits. */
    if (sim->misfortune == STALL && seed % 2 == 0) options.timeout_ns = (1 + seed % 40) * 1000 * MS;
    choose_script(sim, &options);
    options.tensors = sim->script.tensor_count;
    options.occurrences = sim->script.occurrences;
    options.groups = sim->script.groups;
    options.group_count = sim->script.group_count;
    if (sim->script.options.has_groups) options.kinds = sim->script.kinds;
    options.checks_priorities = !sim->script.options.may_join;
    sim->is_lazy = (int)below(random, 2);
    sim->delay_ns = 1 + below(random, 50) * US;
    sim->compute_ns = 1 + below(random, 200) * US;
    sim->transfer_ns = 1 + below(random, 500) * US;
    options.user = sim;
    options.violated = violated;
    options.delay = delay;
    options.launched = launched;
    world_init(&sim->world, &options);
}

static void choose_misfortunes(sim_t *sim, uint64_t span_ns)
{
    int size = sim->world.options.size;
    uint64_t *random = &sim->random;
    program_t *culprit;

    sim->culprits[0] = (int)below(random, (uint64_t)size);
    sim->culprits[1] = sim->culprits[0];
    culprit = &sim->programs[sim->culprits[0]];
    if (sim->misfortune == TWO_DEATHS) sim->culprits[1] = (int)below(random, (uint64_t)size);
    if (sim->misfortune == DEATH || sim->misfortune == TWO_DEATHS)
        schedule(sim, below(random, span_ns), DIE, sim->culprits[0], 0);
    if (sim->misfortune == TWO_DEATHS)
        schedule(sim, below(random, span_ns), DIE, sim->culprits[1], 0);
    if (sim->misfortune == ABORT)
        schedule(sim, below(random, span_ns), CALL_ABORT, sim->culprits[0], 0);
    if (sim->misfortune == LEAVER) culprit->last = (size_t)below(random, culprit->last + 1);
    if (sim->misfortune == STALL) culprit->sleep_until_ns = 35000 * MS;
}

static void prepare(sim_t *sim)
{
    int size = sim->world.options.size;
    size_t longest = 0;

    sim->programs = calloc((size_t)size, sizeof(*sim->programs));
    sim->wanted_ns = calloc((size_t)size, sizeof(*sim->wanted_ns));
    sim->takes = calloc((size_t)size, sizeof(*sim->takes));
    if (sim->programs == NULL || sim->wanted_ns == NULL || sim->takes == NULL) exit(2);
    for (int i = 0; i < size; i++) {
        sim->wanted_ns[i] = UINT64_MAX;
        sim->programs[i].last = sim->script.act_count[i];
        longest = dp_max(longest, sim->programs[i].last);
        wake_program(sim, i, soon(sim, sim->compute_ns));
    }
    /* Long enough that misfortunes fall anywhere between the first message and the goodbye. */
    choose_misfortunes(sim, (uint64_t)longest * (sim->compute_ns / 2 + 1) + 20 * sim->delay_ns);
}

static void print_summary(const sim_t *sim)
{
    const world_t *world = &sim->world;

    printf("seed %" PRIu64
           ": %d ranks, arity %d, %d nodes, %d groups, %d tensors, %d steps, %s%s: %" PRIu64
           " launches, %" PRIu64 " messages, %" PRIu64 " bytes, %.3f ms\n%s%s",
           sim->seed, world->options.size, world->options.arity, world->options.nodes,
           sim->script.group_count - 1, sim->script.tensor_count, sim->script.options.steps,
           misfortune_names[sim->misfortune], sim->is_lazy ? ", lazy" : "",
           world->ranks[0].launches, world->messages, world->bytes, (double)sim->now_ns * 1e-6,
           world->ranks[0].last_warning, world->ranks[0].warnings > 0 ? "\n" : "");
}

/* Of all seeds: what is rare is worth a check that it came to pass at all. */
typedef struct totals {
    uint64_t overtakings;
    uint64_t wide;    /* worlds in which a node had 64 children */
    uint64_t expired; /* requests that failed because a time limit was over */
} totals_t;

static void count(totals_t *totals, const world_t *world)
{
    int widest = 0;

    totals->overtakings += world->overtakings;
    for (int i = 0; i < world->options.size; i++) {
        widest = dp_max(widest, world->ranks[i].links.child_count);
        if (world->options.timeout_ns > 0) totals->expired += (uint64_t)world->ranks[i].failures;
    }
    totals->wide += widest >= 64;
}

static void run_seed(uint64_t seed, int is_verbose, totals_t *totals)
{
    sim_t sim;

    choose(&sim, seed);
    prepare(&sim);
    while (sim.heap_count > 0) {
        event_t event = next_event(&sim);

        handle(&sim, &event);
        if (sim.events_done > 50000000) world_violation(&sim.world, "it never ends");
    }
    check_end(&sim);
    if (is_verbose) print_summary(&sim);
    count(totals, &sim.world);
    free(sim.programs);
    free(sim.wanted_ns);
    free(sim.takes);
    free(sim.heap);
    world_fini(&sim.world);
    script_fini(&sim.script);
}

/* 0: something that a long run must have seen did not happen. */
static int print_totals(const totals_t *totals, uint64_t first, uint64_t last)
{
    printf("seeds %" PRIu64 " to %" PRIu64 ": every invariant held; %" PRIu64
           " launches in the order of priorities, %" PRIu64
           " worlds with a node of 64 children, %" PRIu64 " requests given up\n",
           first, last, totals->overtakings, totals->wide, totals->expired);
    return totals->wide > 0 && totals->overtakings > 0 && totals->expired > 0;
}

static const char help[] =
    "usage: sim_negotiator [--seed S | --seeds A B]\n"
    "  Runs worlds of 1 to 300 ranks over a virtual network, one per seed, and checks that all\n"
    "  ranks launch in one order, nobody launches alone, nothing is lost and errors reach "
    "everybody.\n"
    "  (nothing)    seeds 1 to 2000\n"
    "  --seeds A B  seeds A to B; a long run: --seeds 1 200000\n"
    "  --seed S     one seed, exactly as it was, with a summary\n";

int main(int argc, char **argv)
{
    uint64_t first = 1, last = 2000;
    totals_t totals = {0};

    if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        run_seed(strtoull(argv[2], NULL, 10), 1, &totals);
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "--seeds") == 0) {
        first = strtoull(argv[2], NULL, 10);
        last = strtoull(argv[3], NULL, 10);
    } else if (argc != 1) {
        fputs(help, argc == 2 && strcmp(argv[1], "--help") == 0 ? stdout : stderr);
        return argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    for (uint64_t seed = first; seed <= last; seed++)
        run_seed(seed, 0, &totals);
    if (print_totals(&totals, first, last) || last - first < ENOUGH) return 0;
    fprintf(stderr, "something that so many seeds must have seen did not happen\n");
    return 1;
}
