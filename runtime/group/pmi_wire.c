/*
 * pmi_wire.c - parses PMI messages. Pure; called by pmi.c and a fuzzer.
 */
#include "runtime/group/pmi_wire.h"

#include <string.h>

/* Copies a value that ends at `end` or at the message's end; doubled semicolons become one. Moves
 * *at behind it. 0, or -1: no room. value may be NULL: then it is skipped. */
static int take_value(int version, const char *message, size_t bytes, size_t *at, char *value,
                      size_t room)
{
    const char end = version == 1 ? ' ' : ';';
    size_t length = 0;

    for (; *at < bytes; (*at)++) {
        if (message[*at] == end) {
            const int is_doubled = version == 2 && *at + 1 < bytes && message[*at + 1] == ';';

            if (!is_doubled) break;
            (*at)++;
        }
        if (value == NULL) continue;
        if (length + 1 >= room || message[*at] == '\0') {
            value[0] = '\0';
            return -1;
        }
        value[length++] = message[*at];
    }
    if (value != NULL) value[length] = '\0';
    if (*at < bytes) (*at)++; /* the end itself */
    return 0;
}

int dp_pmi_find(int version, const char *message, size_t bytes, const char *key, char *value,
                size_t room)
{
    const char end = version == 1 ? ' ' : ';';
    const size_t key_bytes = strlen(key);
    size_t at = 0;

    while (at < bytes) {
        const size_t begin = at;

        if (version == 1 && message[at] == ' ') { /* several blanks between two words */
            at++;
            continue;
        }
        while (at < bytes && message[at] != '=' && message[at] != end)
            at++;
        if (at == bytes || message[at] != '=') {
            if (version != 1) return -1;
            continue; /* of a sentence: what PMI-1 says in words is not quoted */
        }
        at++;
        if (at - 1 - begin == key_bytes && memcmp(message + begin, key, key_bytes) == 0) {
            return take_value(version, message, bytes, &at, value, room) == 0 ? 1 : -1;
        }
        take_value(version, message, bytes, &at, NULL, 0);
    }
    return 0;
}

/* Makes a message from an unknown sender printable and short. */
static void show(const char *message, size_t bytes, char text[128])
{
    const size_t kept = dp_min(bytes, (size_t)127);

    for (size_t i = 0; i < kept; i++)
        text[i] = (char)(message[i] < 0x20 || message[i] > 0x7e ? '?' : message[i]);
    text[kept] = '\0';
}

dp_status_t dp_pmi_check(int version, const char *message, size_t bytes, const char *command,
                         dp_error_t *error)
{
    char value[256] = "";
    char shown[128];

    show(message, bytes, shown);
    if (dp_pmi_find(version, message, bytes, "cmd", value, sizeof(value)) != 1 ||
        strcmp(value, command) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "PMI: the launcher said '%s', expected %s", shown,
                            command);
    }
    if (dp_pmi_find(version, message, bytes, "rc", value, sizeof(value)) == 0) return DP_OK;
    if (strcmp(value, "0") == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "PMI: the launcher refused: '%s'", shown);
}

size_t dp_pmi_length(const char digits[DP_PMI_LENGTH_BYTES])
{
    size_t value = 0;
    int is_over = 0;
    int count = 0;

    for (int i = 0; i < DP_PMI_LENGTH_BYTES; i++) {
        if (digits[i] == ' ') {
            is_over = count > 0;
            continue;
        }
        if (digits[i] < '0' || digits[i] > '9' || is_over) return 0;
        value = value * 10 + (size_t)(digits[i] - '0');
        count++;
    }
    return value <= DP_PMI_MESSAGE_MAX ? value : 0;
}
