/*
 * config_value.c - sizes, times, numbers and choices as people write them, to numbers and back.
 * Pure; config.c calls it for settings, and command lines and DP_INJECT are read by it, too.
 */
#include "runtime/base/config_value.h"

#include <inttypes.h>
#include <stdio.h>
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
