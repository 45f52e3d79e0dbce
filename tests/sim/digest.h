/*
 * digest.h - a number for all that decides how a world goes on, so that the explorer visits each
 * state once.
 */
#ifndef DP_TESTS_SIM_DIGEST_H
#define DP_TESTS_SIM_DIGEST_H

#include "world.h"

uint64_t world_digest(const world_t *world);

#endif
