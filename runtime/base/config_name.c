/*
 * config_name.c - names of settings as people type them, and the nearest one to a misspelt name.
 * Called by config.c, and by the command lines of dprun and dptrace. Pure.
 */
#include "runtime/base/config.h"

#include <ctype.h>
#include <string.h>

#include "runtime/base/config_value.h"

int dp_config_fold_name(const char *name, char folded[DP_CONFIG_NAME_ROOM])
{
    size_t i = 0;

    for (; name[i] != '\0'; i++) {
        if (i + 1 >= DP_CONFIG_NAME_ROOM) return 0;
        folded[i] = (char)(name[i] == '-' ? '_' : toupper((unsigned char)name[i]));
    }
    folded[i] = '\0';
    return 1;
}

/* Insertions, deletions, substitutions and swaps of neighbours that turn a into b. */
static size_t edit_distance(const char *a, const char *b)
{
    const size_t rows = strlen(a);
    const size_t columns = strlen(b);
    uint8_t cost[3][DP_CONFIG_NAME_ROOM + 1]; /* a ring of the last three rows */

    for (size_t j = 0; j <= columns; j++)
        cost[0][j] = (uint8_t)j;
    for (size_t i = 1; i <= rows; i++) {
        uint8_t *now = cost[i % 3];
        const uint8_t *last = cost[(i + 2) % 3];
        const uint8_t *before = cost[(i + 1) % 3];

        now[0] = (uint8_t)i;
        for (size_t j = 1; j <= columns; j++) {
            uint8_t best = (uint8_t)(last[j - 1] + (a[i - 1] != b[j - 1]));

            best = (uint8_t)dp_min(best, last[j] + 1);
            best = (uint8_t)dp_min(best, now[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                best = (uint8_t)dp_min(best, before[j - 2] + 1);
            }
            now[j] = best;
        }
    }
    return cost[rows % 3][columns];
}

const char *dp_nearest_name(const char *name, const char *const *names, size_t count)
{
    char folded[DP_CONFIG_NAME_ROOM] = "";
    char candidate[DP_CONFIG_NAME_ROOM] = "";
    const char *nearest = NULL;
    size_t least;

    if (!dp_config_fold_name(name, folded)) return NULL;
    least = dp_max(strlen(folded) / 3, (size_t)1) + 1;
    for (size_t i = 0; i < count; i++) {
        size_t distance;

        if (names[i] == NULL || !dp_config_fold_name(names[i], candidate)) continue;
        distance = edit_distance(folded, candidate);
        if (distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}
