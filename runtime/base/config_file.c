/*
 * config_file.c - reads "name = value" lines; every error has the line's number.
 *
 * dprun's options.c calls it for --config. It must not know which settings there are: config.c
 * does.
 */
#include "runtime/base/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/config_value.h"
#include "runtime/base/input_file.h"

static char *trim(char *text)
{
    char *end;

    while (isspace((unsigned char)*text))
        text++;
    end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    return text;
}

/* One line of a file, without its end. A '#' begins a comment at the start or after a blank. */
static dp_status_t set_line(dp_config_t *config, char *line, dp_error_t *error)
{
    char *equals;
    char *name;

    for (char *at = line; *at != '\0'; at++) {
        if (*at == '#' && (at == line || isspace((unsigned char)at[-1]))) {
            *at = '\0';
            break;
        }
    }
    name = trim(line);
    if (*name == '\0') return DP_OK;
    equals = strchr(name, '=');
    if (equals == NULL) {
        return dp_error_set(error, DP_ERR_CONFIG, "'%.100s' has no '=': name = value", name);
    }
    *equals = '\0';
    return dp_config_set(config, trim(name), trim(equals + 1), DP_FROM_FILE, error);
}

dp_status_t dp_config_from_file(dp_config_t *config, const char *path, dp_error_t *error)
{
    char line[DP_CONFIG_TEXT_MAX + DP_CONFIG_NAME_ROOM] = "";
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status = DP_OK;
    static const char mark[] = "\xef\xbb\xbf"; /* how editors of Windows begin a UTF-8 file */
    const char *why = "";
    FILE *file = dp_input_file_open(path, &why);
    size_t number = 1;
    size_t bytes = 0;
    int byte;

    if (file == NULL) {
        return dp_error_set(error, DP_ERR_CONFIG, "%.300s: cannot be read: %s", path, why);
    }
    do { /* by bytes: fgets() would hide a NUL and the length of a line */
        byte = fgetc(file);
        if (byte == '\n' || byte == EOF) {
            line[bytes] = '\0';
            status = set_line(config, number == 1 && strncmp(line, mark, 3) == 0 ? line + 3 : line,
                              &cause);
            if (status == DP_OK) number++;
            bytes = 0;
        } else if (byte == '\0') {
            status = dp_error_set(&cause, DP_ERR_CONFIG, "a NUL byte: this is no text file");
        } else if (bytes + 1 >= sizeof(line)) {
            status = dp_error_set(&cause, DP_ERR_CONFIG, "longer than %zu bytes", sizeof(line) - 1);
        } else {
            line[bytes++] = (char)byte;
        }
    } while (status == DP_OK && byte != EOF);
    if (status != DP_OK) {
        dp_error_set(error, status, "%.200s:%zu: %s", path, number, cause.text);
    } else if (ferror(file)) {
        status =
            dp_error_set(error, DP_ERR_CONFIG, "%.300s: reading failed: %s", path, strerror(errno));
    }
    fclose(file);
    return status;
}
