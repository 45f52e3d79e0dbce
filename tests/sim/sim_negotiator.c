/*
 * sim_negotiator.c - many ranks over a virtual network: each seed is a world with its own size,
 * tree, delays, order of submissions and misfortunes.
 *
 * sim_negotiator                 the seeds that ctest runs
 * sim_negotiator --seeds A B     seeds A to B
 * sim_negotiator --seed S        one of them, exactly as it was, with a summary
 *
 * Time is an event queue. Every input's outputs are taken at once or after a random while, so that
 * inputs coalesce as they do in the loop. After each run what must hold at the end is checked:
 * everything was handed back, or all survivors know the same kind of cause; nothing is under way;
 * nobody wants to be woken.
 */
#include "world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define US UINT64_C(1000)
#define MS (1000 * US)

/* ---- Random numbers, the same everywhere (splitmix64) ----------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* 0 .. bound - 1 */
static uint64_t below(uint64_t *state, uint64_t bound)
{
    return next_random(state) % bound;
}

/* ---- The scenario ----------------------------------------------------------------------- */

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
    int step, index;  /* next submission */
    int *permutation; /* [tensors] of this step */
    int wakes;        /* STEP is scheduled */
    int is_done;
    int last_step;
    uint64_t sleep_until_ns; /* a stalled rank */
} program_t;

typedef struct sim {
    uint64_t seed, random, now_ns, order;
    misfortune_t misfortune;
    int steps, waits_at_step_end, is_lazy, verbose;
    uint64_t delay_ns, compute_ns, transfer_ns;
    int culprits[2];
    int mismatch_step, mismatch_tensor, mismatch_rank;
    int reshape_step; /* all ranks change every shape together */
    uint64_t events_done;
    event_t *heap;
    size_t heap_count, heap_room;
    uint64_t *wanted_ns; /* [size] earliest TICK scheduled */
    int *takes;          /* [size] TAKE is scheduled */
    program_t *programs;
    world_t world;
} sim_t;

static void violated(void *user, const char *text)
{
    const sim_t *sim = user;

    fprintf(stderr,
            "seed %" PRIu64 " (%d ranks, %d tensors, %d steps, %s) at %" PRIu64 " ns: %s\n"
            "replay: sim_negotiator --seed %" PRIu64 "\n",
            sim->seed, sim->world.options.size, sim->world.options.tensors, sim->steps,
            misfortune_names[sim->misfortune], sim->now_ns, text, sim->seed);
    exit(1);
}

/* ---- Events ----------------------------------------------------------------------------- */

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

/* ---- Programs --------------------------------------------------------------------------- */

static void shuffle(sim_t *sim, program_t *program)
{
    int tensors = sim->world.options.tensors;

    for (int t = 0; t < tensors; t++) {
        int other = (int)below(&sim->random, (uint64_t)t + 1);

        program->permutation[t] = program->permutation[other];
        program->permutation[other] = t;
    }
}

static uint64_t shape(const sim_t *sim, int rank, int tensor, int step)
{
    uint64_t count = 100 + (uint64_t)tensor;

    if (sim->reshape_step > 0 && step >= sim->reshape_step) count += 1000;
    if (sim->misfortune == MISMATCH && step == sim->mismatch_step &&
        tensor % 3 == sim->mismatch_tensor % 3 && rank == sim->mismatch_rank)
        count += 7;
    return count;
}

static void wake_program(sim_t *sim, int rank, uint64_t at_ns)
{
    program_t *program = &sim->programs[rank];

    if (program->wakes || program->is_done) return;
    program->wakes = 1;
    schedule(sim, DP_MAX(at_ns, program->sleep_until_ns), STEP, rank, 0);
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
        schedule(sim, DP_MAX(deadline_ns, sim->now_ns), TICK, rank, 0);
    }
}

/* Submits what the program may submit now; 0: it must wait for something to be handed back. */
static int submit_some(sim_t *sim, int rank)
{
    program_t *program = &sim->programs[rank];
    world_rank_t *self = &sim->world.ranks[rank];
    int burst = 1 + (int)below(&sim->random, 4);

    while (program->step < program->last_step && burst-- > 0) {
        int tensor = program->permutation[program->index];

        if (self->requests[tensor].is_pending) return 0;
        if (program->index == 0 && sim->waits_at_step_end && self->pending > 0) return 0;
        world_submit(&sim->world, rank, tensor, shape(sim, rank, tensor, program->step),
                     below(&sim->random, 16) == 0, (float)below(&sim->random, 100) - 1.0f,
                     sim->now_ns);
        if (++program->index == sim->world.options.tensors) {
            program->index = 0;
            program->step++;
            shuffle(sim, program);
        }
    }
    return 1;
}

static void run_program(sim_t *sim, int rank)
{
    program_t *program = &sim->programs[rank];
    dp_negotiator_t *negotiator = sim->world.ranks[rank].negotiator;
    int tensors = sim->world.options.tensors;
    int may_go_on;
    char name[32];

    program->wakes = 0;
    if (world_is_deaf(&sim->world, rank)) return;
    may_go_on = submit_some(sim, rank);
    if (may_go_on && program->step == program->last_step) {
        /* Somebody may wait for one of them by now. */
        if (below(&sim->random, 2) == 0)
            dp_negotiator_urgent(negotiator, DP_GROUP_WORLD,
                                 world_name((int)below(&sim->random, (uint64_t)tensors), name),
                                 sim->now_ns);
        dp_negotiator_finalize(negotiator, sim->now_ns);
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
        run_program(sim, rank);
        return;
    case DELIVER:
        /* A death may have dropped the message this event stood for. */
        if (world->edges[rank].first == NULL) return;
        if (world->edges[rank].first->deliver_ns > sim->now_ns) return;
        world_deliver(world, rank, sim->now_ns);
        after_input(sim, world->edges[rank].to, 0);
        return;
    case LAUNCHED:
        dp_negotiator_launched(world->ranks[rank].negotiator, event->sequence, sim->now_ns);
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

/* ---- What must hold at the end ---------------------------------------------------------- */

/* One up and one down per edge for each submission would already be no batching at all; leaving,
 * urgency and stalls add a few. */
static void check_budget(sim_t *sim)
{
    world_t *world = &sim->world;
    uint64_t operations = (uint64_t)sim->steps * (uint64_t)world->options.tensors;
    uint64_t budget = 2 * operations + 4 * (uint64_t)sim->steps + 16;

    if (sim->misfortune == STALL) budget += 4 * operations;
    for (int i = 0; i < world->edge_count; i++) {
        if (world->edges[i].sent > budget)
            world_violation(world, "edge %d to %d: %" PRIu64 " messages, budget %" PRIu64,
                            world->edges[i].from, world->edges[i].to, world->edges[i].sent, budget);
    }
}

static void check_fatal(sim_t *sim, int rank)
{
    world_t *world = &sim->world;
    world_rank_t *self = &world->ranks[rank];
    dp_status_t expected = sim->misfortune == ABORT ? DP_ERR_ABORTED : DP_ERR_PEER_LOST;
    char name[32];

    if (self->fatal_status != expected ||
        (self->fatal_culprit != sim->culprits[0] && self->fatal_culprit != sim->culprits[1]))
        world_violation(world, "rank %d: the world ended with %s, culprit %d: %s", rank,
                        dp_status_string(self->fatal_status), self->fatal_culprit,
                        self->fatal_text);
    snprintf(name, sizeof(name), "rank %d (host", self->fatal_culprit);
    if (strncmp(self->fatal_text, name, strlen(name)) != 0)
        world_violation(world, "rank %d: the text names nobody: %s", rank, self->fatal_text);
}

static void check_failures(sim_t *sim, int rank)
{
    world_rank_t *self = &sim->world.ranks[rank];

    if (self->failures == 0) return;
    if (sim->misfortune == LEAVER && self->last_failure_status == DP_ERR_LEFT &&
        strstr(self->last_failure, "finalized before it submitted tensor h.") != NULL)
        return;
    if (sim->misfortune == MISMATCH && self->last_failure_status == DP_ERR_MISMATCH &&
        strstr(self->last_failure, ": count 1") != NULL)
        return;
    world_violation(&sim->world, "rank %d: %d failures, the last %s: %s", rank, self->failures,
                    dp_status_string(self->last_failure_status), self->last_failure);
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
    if (fatal + finished < world->options.size - dead)
        world_violation(world, "%d ranks: %d finished, %d fatal, %d dead: somebody hangs",
                        world->options.size, finished, fatal, dead);
    if (sim->misfortune != DEATH && sim->misfortune != TWO_DEATHS && sim->misfortune != ABORT &&
        finished != world->options.size)
        world_violation(world, "%d of %d ranks finished", finished, world->options.size);
    if (sim->misfortune == MISMATCH && sim->steps > sim->mismatch_step) {
        for (int i = 0; i < world->options.size; i++) {
            int expected = 0;

            for (int t = 0; t < world->options.tensors; t++)
                expected += t % 3 == sim->mismatch_tensor % 3;
            if (world->ranks[i].failures != expected && world->options.size > 1)
                world_violation(world, "rank %d: %d failures, expected %d", i,
                                world->ranks[i].failures, expected);
        }
    }
    check_budget(sim);
}

/* ---- One seed --------------------------------------------------------------------------- */

static void choose(sim_t *sim, uint64_t seed)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 64, 200, 300};
    uint64_t *random = &sim->random;
    world_options_t options = {0};

    memset(sim, 0, sizeof(*sim));
    sim->seed = sim->random = seed;
    options.size = sizes[below(random, DP_ARRAY_LEN(sizes))];
    options.tensors = 1 + (int)below(random, options.size > 100 ? 12 : 40);
    options.arity = 1 + (int)below(random, 9);
    if (options.arity == 1 && options.size > 16) options.arity = 2; /* else a chain too deep */
    options.hosts = 1 + (int)below(random, (uint64_t)options.size);
    options.hold_ns = below(random, 3) * 100 * US;
    options.fusion_bytes = below(random, 2) == 0 ? 2000 : 1 << 20;
    options.stall_warn_ns = 10000 * MS;
    options.stall_limit_ns = 600000 * MS;
    sim->misfortune = (misfortune_t)below(random, MISFORTUNES);
    if (options.size == 1 && sim->misfortune != ABORT) sim->misfortune = NONE;
    sim->steps = 2 + (int)below(random, 6);
    options.occurrences = sim->steps;
    sim->waits_at_step_end = (int)below(random, 2);
    sim->is_lazy = (int)below(random, 2);
    sim->delay_ns = 1 + below(random, 50) * US;
    sim->compute_ns = 1 + below(random, 200) * US;
    sim->transfer_ns = 1 + below(random, 500) * US;
    sim->reshape_step = (int)below(random, 4);
    sim->mismatch_step = (int)below(random, (uint64_t)sim->steps);
    sim->mismatch_tensor = (int)below(random, (uint64_t)options.tensors);
    sim->mismatch_rank = (int)below(random, (uint64_t)options.size);
    options.user = sim;
    options.violated = violated;
    options.delay = delay;
    options.launched = launched;
    world_init(&sim->world, &options);
}

static void prepare(sim_t *sim)
{
    int size = sim->world.options.size;
    uint64_t *random = &sim->random;
    /* Long enough that misfortunes fall anywhere between the first message and the goodbye. */
    uint64_t span_ns =
        (uint64_t)sim->steps * (uint64_t)sim->world.options.tensors * (sim->compute_ns / 2 + 1) +
        20 * sim->delay_ns;

    sim->programs = calloc((size_t)size, sizeof(*sim->programs));
    sim->wanted_ns = calloc((size_t)size, sizeof(*sim->wanted_ns));
    sim->takes = calloc((size_t)size, sizeof(*sim->takes));
    if (sim->programs == NULL || sim->wanted_ns == NULL || sim->takes == NULL) exit(2);
    for (int i = 0; i < size; i++) {
        program_t *program = &sim->programs[i];

        sim->wanted_ns[i] = UINT64_MAX;
        program->permutation = calloc((size_t)sim->world.options.tensors, sizeof(int));
        if (program->permutation == NULL) exit(2);
        program->last_step = sim->steps;
        shuffle(sim, program);
        wake_program(sim, i, soon(sim, sim->compute_ns));
    }
    sim->culprits[0] = (int)below(random, (uint64_t)size);
    sim->culprits[1] = sim->culprits[0];
    if (sim->misfortune == TWO_DEATHS) sim->culprits[1] = (int)below(random, (uint64_t)size);
    if (sim->misfortune == DEATH || sim->misfortune == TWO_DEATHS)
        schedule(sim, below(random, span_ns), DIE, sim->culprits[0], 0);
    if (sim->misfortune == TWO_DEATHS)
        schedule(sim, below(random, span_ns), DIE, sim->culprits[1], 0);
    if (sim->misfortune == ABORT)
        schedule(sim, below(random, span_ns), CALL_ABORT, sim->culprits[0], 0);
    if (sim->misfortune == LEAVER)
        sim->programs[sim->culprits[0]].last_step = (int)below(random, (uint64_t)sim->steps);
    if (sim->misfortune == STALL) sim->programs[sim->culprits[0]].sleep_until_ns = 35000 * MS;
}

static void run_seed(uint64_t seed, int is_verbose)
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
    if (sim.misfortune == STALL && sim.world.ranks[0].warnings == 0 && sim.now_ns > 30000 * MS)
        world_violation(&sim.world, "a rank slept for 35 s and nobody was told");
    if (is_verbose)
        printf("seed %" PRIu64
               ": %d ranks, arity %d, %d hosts, %d tensors, %d steps, %s%s: %" PRIu64
               " launches, %" PRIu64 " messages, %" PRIu64 " bytes, %.3f ms\n%s%s",
               seed, sim.world.options.size, sim.world.options.arity, sim.world.options.hosts,
               sim.world.options.tensors, sim.steps, misfortune_names[sim.misfortune],
               sim.is_lazy ? ", lazy" : "", sim.world.ranks[0].launches, sim.world.messages,
               sim.world.bytes, (double)sim.now_ns * 1e-6, sim.world.ranks[0].last_warning,
               sim.world.ranks[0].warnings > 0 ? "\n" : "");
    for (int i = 0; i < sim.world.options.size; i++)
        free(sim.programs[i].permutation);
    free(sim.programs);
    free(sim.wanted_ns);
    free(sim.takes);
    free(sim.heap);
    world_fini(&sim.world);
}

int main(int argc, char **argv)
{
    uint64_t first = 1, last = 2000;

    if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        run_seed(strtoull(argv[2], NULL, 10), 1);
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "--seeds") == 0) {
        first = strtoull(argv[2], NULL, 10);
        last = strtoull(argv[3], NULL, 10);
    } else if (argc != 1) {
        fprintf(stderr, "usage: sim_negotiator [--seed S | --seeds A B]\n");
        return 2;
    }
    for (uint64_t seed = first; seed <= last; seed++)
        run_seed(seed, 0);
    printf("seeds %" PRIu64 " to %" PRIu64 ": every invariant held\n", first, last);
    return 0;
}
