/*
 * strategy.c - the list of strategies, the default first. A new one is a file and a line here. And
 * what libdp keeps beside a strategy, by its settings.
 */
#include "examples/gpt2/strategy/strategy.h"

#include <stdlib.h>
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

int gpt2_strategy_check_compress(const gpt2_strategy_t *strategy, const char *method,
                                 gpt2_error_t *error)
{
    if (strategy->ops->can_compress || strcmp(method, "none") == 0) return 0;
    return gpt2_fail(error, "--compress %s needs --strategy coordinator or dps, this is %s", method,
                     strategy->ops->name);
}

/* "32M" and its kind. */
static size_t setting_bytes(gpt2_strategy_t *strategy, const char *name)
{
    const char *text = strategy->ops->setting(strategy, name);
    char *end = NULL;
    size_t value;

    if (text == NULL) return 0;
    value = (size_t)strtoull(text, &end, 10);
    switch (*end) {
    case 'K':
        return value << 10;
    case 'M':
        return value << 20;
    case 'G':
        return value << 30;
    default:
        return value;
    }
}

size_t gpt2_strategy_library(gpt2_strategy_t *strategy)
{
    return setting_bytes(strategy, "FUSION_BYTES") * setting_bytes(strategy, "FUSION_BUFFERS");
}

int gpt2_strategy_sees_rows(gpt2_strategy_t *strategy)
{
    const char *shared = strategy->ops->setting(strategy, "SHARED_WEIGHTS");

    return shared != NULL && strcmp(shared, "1") == 0;
}
