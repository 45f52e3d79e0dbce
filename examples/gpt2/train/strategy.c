/*
 * strategy.c - the list of strategies, the default first. A new one is a file and a line here.
 */
#include "examples/gpt2/train/strategy.h"

#include <string.h>

#include "examples/gpt2/base/nearest.h"

static const gpt2_strategy_ops_t *const STRATEGIES[] = {
#if defined(GPT2_WITH_DP)
    &gpt2_strategy_coordinator,
    &gpt2_strategy_dps,
    &gpt2_strategy_sps,
#endif
    &gpt2_strategy_single,
};
#define STRATEGY_COUNT (sizeof(STRATEGIES) / sizeof(STRATEGIES[0]))

const gpt2_strategy_ops_t *gpt2_strategy_find(const char *name, gpt2_error_t *error)
{
    const char *names[STRATEGY_COUNT];

    if (name == NULL || *name == '\0') return STRATEGIES[0];
    for (size_t i = 0; i < STRATEGY_COUNT; i++) {
        names[i] = STRATEGIES[i]->name;
        if (strcmp(names[i], name) == 0) return STRATEGIES[i];
    }
    gpt2_fail(error, "--strategy %s: no such strategy, did you mean %s?", name,
              gpt2_nearest(name, names, STRATEGY_COUNT));
    return NULL;
}
