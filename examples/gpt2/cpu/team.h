/*
 * team.h - a fixed team of threads that run one function together.
 *
 * The caller is member 0. BLAS runs single-threaded inside each member, so the two kinds of
 * threads never fight for cores. A team of one has no threads and no cost.
 */
#ifndef GPT2_TEAM_H
#define GPT2_TEAM_H

#include <stddef.h>

#include "examples/gpt2/base/error.h"

typedef struct gpt2_team gpt2_team_t;
typedef void (*gpt2_team_fn)(void *argument, int member, int members);

/* Starts members - 1 threads; give the team back with gpt2_team_destroy(). */
int gpt2_team_create(int members, gpt2_team_t **out, gpt2_error_t *error);
void gpt2_team_destroy(gpt2_team_t *team);

int gpt2_team_members(const gpt2_team_t *team);

/* Runs function on every member and returns when all are done. */
void gpt2_team_run(gpt2_team_t *team, gpt2_team_fn function, void *argument);

/* Inside such a function: waits for all members; what they wrote before is visible after. */
void gpt2_team_barrier(gpt2_team_t *team);

/* The part [*first, *last) of count things that member takes, in multiples of granule. */
void gpt2_team_part(size_t count, size_t granule, int member, int members, size_t *first,
                    size_t *last);

#endif
