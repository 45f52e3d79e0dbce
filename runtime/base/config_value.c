/*
 * config_value.c - names, sizes, times, numbers and choices as people write them, to numbers and
 * back. Pure; config.c calls it for settings, and command lines and DP_INJECT are read by it, too.
 */
#include "runtime/base/config_value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct unit {
    const char *name;
    int64_t factor;
} unit_t;

/* Largest first: the order in which a value looks for its unit. */
static const unit_t byte_units[] = {
    {"T", (int64_t)1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}, {"", 1},
};
static const unit_t time_units[] = {
    {"h", 3600000000000}, {"min", 60000000000}, {"s", 1000000000},
    {"ms", 1000000},      {"us", 1000},         {"ns", 1},
};

/* Reads decimal digits; returns where they end, or NULL when there are none or too many. */
static const char *read_digits(const char *text, int64_t *value)
{
    const char *at = text;

    *value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(*value, (int64_t)10, value) ||
            __builtin_add_overflow(*value, (int64_t)(*at - '0'), value)) {
            return NULL;
        }
    }
    return at != text ? at : NULL;
}

static const unit_t *find_unit(const unit_t *units, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(units[i].name, name) == 0) return &units[i];
    }
    return NULL;
}

const char *dp_parse_bytes(const char *text, int64_t *value)
{
    static const char wrong[] = "is not a size: digits, then K, M, G or T";
    const char *end = read_digits(text, value);
    const unit_t *unit;

    if (end == NULL) return wrong;
    unit = find_unit(byte_units, DP_ARRAY_LEN(byte_units), end);
    if (unit == NULL) return wrong;
    if (__builtin_mul_overflow(*value, unit->factor, value)) return "is larger than any size";
    return NULL;
}

const char *dp_parse_time(const char *text, int64_t *value)
{
    static const char wrong[] = "is not a time: digits, then ns, us, ms, s, min or h";
    const char *end = read_digits(text, value);
    const char *fraction = NULL;
    const unit_t *unit;
    int64_t part;

    if (end == NULL) return wrong;
    if (*end == '\0') return *value == 0 ? NULL : "has no unit: ns, us, ms, s, min or h";
    if (*end == '.') {
        fraction = end + 1;
        end = read_digits(fraction, &part);
        if (end == NULL) return wrong;
    }
    unit = find_unit(time_units, DP_ARRAY_LEN(time_units), end);
    if (unit == NULL) return wrong;
    if (__builtin_mul_overflow(*value, unit->factor, value)) return "is longer than any time";
    if (fraction == NULL) return NULL;
    part = unit->factor;
    for (; fraction < end; fraction++) { /* digits below a nanosecond are cut */
        part /= 10;
        if (__builtin_add_overflow(*value, part * (*fraction - '0'), value)) {
            return "is longer than any time";
        }
    }
    return NULL;
}

const char *dp_parse_integer(const char *text, int64_t *value)
{
    const char *end = read_digits(*text == '-' ? text + 1 : text, value);

    if (end == NULL || *end != '\0') return "is not a whole number";
    if (*text == '-') *value = -*value;
    return NULL;
}

const char *dp_parse_yes_no(const char *text, int64_t *value)
{
    static const char *const words[] = {"0", "1", "no", "yes", "off", "on", "false", "true"};

    for (size_t i = 0; i < DP_ARRAY_LEN(words); i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *value = (int64_t)(i % 2);
            return NULL;
        }
    }
    return "is neither 1, yes, on nor 0, no, off";
}

int dp_parse_choice(const char *text, const char *choices)
{
    const size_t bytes = strlen(text);

    for (int position = 0; choices != NULL; position++) {
        const size_t length = strcspn(choices, "|");

        if (length == bytes && strncasecmp(text, choices, bytes) == 0) return position;
        choices = choices[length] == '|' ? choices + length + 1 : NULL;
    }
    return -1;
}

/* ---- Back to text --------------------------------------------------------------------------- */

static void format_units(int64_t value, const unit_t *units, size_t count, char *text, size_t room)
{
    size_t i = 0;

    while (i + 1 < count && value % units[i].factor != 0)
        i++;
    snprintf(text, room, "%" PRId64 "%s", value / units[i].factor, units[i].name);
}

void dp_format_bytes(int64_t value, char *text, size_t room)
{
    if (value == 0) {
        snprintf(text, room, "0");
        return;
    }
    format_units(value, byte_units, DP_ARRAY_LEN(byte_units), text, room);
}

void dp_format_time(int64_t value, char *text, size_t room)
{
    if (value == 0) {
        snprintf(text, room, "0");
        return;
    }
    format_units(value, time_units, DP_ARRAY_LEN(time_units), text, room);
}

void dp_format_choice(int position, const char *choices, char *text, size_t room)
{
    for (; position > 0; position--) {
        choices += strcspn(choices, "|");
        if (*choices == '|') choices++;
    }
    snprintf(text, room, "%.*s", (int)strcspn(choices, "|"), choices);
}

/* ---- Names ---------------------------------------------------------------------------------- */

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

/* ---- FILE[:steps=A-B] ----------------------------------------------------------------------- */

#define STEPS ":steps="

/* A number in plain digits; *text moves behind it. */
static int read_number(const char **text, uint64_t *number)
{
    char *end;

    if (!isdigit((unsigned char)**text)) return 0;
    errno = 0;
    *number = strtoull(*text, &end, 10);
    *text = end;
    return errno == 0;
}

dp_status_t dp_window_parse(const char *text, dp_window_t *window, dp_error_t *error)
{
    const char *steps = strstr(text, STEPS);

    *window = (dp_window_t){.file_bytes = steps == NULL ? strlen(text) : (size_t)(steps - text)};
    if (window->file_bytes == 0) {
        return dp_error_set(error, DP_ERR_CONFIG, "timeline %s: must be FILE[:steps=A-B]", text);
    }
    if (steps == NULL) return DP_OK;
    steps += strlen(STEPS);
    if (!read_number(&steps, &window->first) || *steps++ != '-' ||
        !read_number(&steps, &window->last) || *steps != '\0' || window->first > window->last) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "timeline %s: steps must be A-B, two numbers with A <= B", text);
    }
    window->has_steps = 1;
    return DP_OK;
}
