/*
 * team.c - the team of threads, on one pthread barrier.
 *
 * The main thread calls gpt2_team_run(): it publishes the function, passes the barrier, which
 * starts the helpers, works as member 0, and passes the barrier again, which ends the run. The
 * barrier orders the two plain fields before every helper's read of them. Helpers sleep in between.
 */
#include "examples/gpt2/cpu/team.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct helper {
    gpt2_team_t *team;
    pthread_t thread;
    int member;
} helper_t;

struct gpt2_team {
    int members;
    int started;          /* helpers that run */
    pthread_mutex_t hold; /* taken while helpers are being started */
    int given_up;         /* guarded by hold: a helper did not start, the others leave */
    helper_t *helpers;    /* [members - 1] */
    pthread_barrier_t gate;
    /* written by the caller before the first barrier of a run, read by helpers after it */
    gpt2_team_fn function; /* NULL: leave */
    void *argument;
};

static void *helper_main(void *argument)
{
    helper_t *self = argument;
    gpt2_team_t *team = self->team;
    int given_up;

    pthread_mutex_lock(&team->hold);
    given_up = team->given_up;
    pthread_mutex_unlock(&team->hold);
    if (given_up) return NULL;
    for (;;) {
        pthread_barrier_wait(&team->gate);
        if (team->function == NULL) return NULL;
        team->function(team->argument, self->member, team->members);
        pthread_barrier_wait(&team->gate);
    }
}

/* Starts the helpers; all or none. Returns the cause as an error number. */
static int start_helpers(gpt2_team_t *team)
{
    int code = 0;

    pthread_mutex_lock(&team->hold);
    for (int i = 0; i < team->members - 1 && code == 0; i++) {
        team->helpers[i].team = team;
        team->helpers[i].member = i + 1;
        code = pthread_create(&team->helpers[i].thread, NULL, helper_main, &team->helpers[i]);
        if (code == 0) team->started++;
    }
    team->given_up = code != 0;
    pthread_mutex_unlock(&team->hold);
    for (int i = 0; code != 0 && i < team->started; i++) {
        pthread_join(team->helpers[i].thread, NULL);
    }
    return code;
}

int gpt2_team_create(int members, gpt2_team_t **out, gpt2_error_t *error)
{
    int code;
    gpt2_team_t *team = calloc(1, sizeof(*team));

    if (team == NULL) return gpt2_fail(error, "out of memory for a team of %d threads", members);
    team->members = members;
    if (members == 1) {
        *out = team;
        return 0;
    }
    team->helpers = calloc((size_t)members - 1, sizeof(*team->helpers));
    if (team->helpers == NULL || pthread_barrier_init(&team->gate, NULL, (unsigned)members) != 0) {
        free(team->helpers);
        free(team);
        return gpt2_fail(error, "out of memory for a team of %d threads", members);
    }
    (void)pthread_mutex_init(&team->hold, NULL);
    code = start_helpers(team);
    if (code == 0) {
        *out = team;
        return 0;
    }
    pthread_mutex_destroy(&team->hold);
    pthread_barrier_destroy(&team->gate);
    free(team->helpers);
    free(team);
    return gpt2_fail(error, "a team of %d threads did not start: %s", members, strerror(code));
}

void gpt2_team_destroy(gpt2_team_t *team)
{
    if (team == NULL) return;
    if (team->members > 1) {
        team->function = NULL;
        pthread_barrier_wait(&team->gate);
        for (int i = 0; i < team->started; i++)
            pthread_join(team->helpers[i].thread, NULL);
        pthread_mutex_destroy(&team->hold);
        pthread_barrier_destroy(&team->gate);
        free(team->helpers);
    }
    free(team);
}

int gpt2_team_members(const gpt2_team_t *team)
{
    return team->members;
}

void gpt2_team_run(gpt2_team_t *team, gpt2_team_fn function, void *argument)
{
    if (team->members == 1) {
        function(argument, 0, 1);
        return;
    }
    team->function = function;
    team->argument = argument;
    pthread_barrier_wait(&team->gate);
    function(argument, 0, team->members);
    pthread_barrier_wait(&team->gate);
}

void gpt2_team_barrier(gpt2_team_t *team)
{
    if (team->members > 1) pthread_barrier_wait(&team->gate);
}

void gpt2_team_part(size_t count, size_t granule, int member, int members, size_t *first,
                    size_t *last)
{
    size_t granules = (count + granule - 1) / granule;
    size_t from = granules * (size_t)member / (size_t)members * granule;
    size_t to = granules * ((size_t)member + 1) / (size_t)members * granule;

    *first = from < count ? from : count;
    *last = to < count ? to : count;
}
