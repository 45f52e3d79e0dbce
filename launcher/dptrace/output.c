/*
 * output.c - files appear whole or not at all: written beside their place, then renamed.
 *
 * Used by main.c around each writer, so that a full disk or Ctrl-C leaves an older file in place;
 * all that writes JSON has its strings from here.
 */
#include "launcher/dptrace/formats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/dptrace/proto.h"

dp_status_t dp_file_open(const char *path, dp_whole_file_t *output, dp_error_t *error)
{
    struct stat info;

    memset(output, 0, sizeof(*output));
    output->path = path;
    if (strcmp(path, "-") == 0) {
        output->file = stdout;
        return DP_OK;
    }
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        output->file = fopen(path, "we"); /* a pipe, /dev/null: nothing to rename */
    } else if (asprintf(&output->temporary, "%s.%d.part", path, (int)getpid()) < 0) {
        output->temporary = NULL;
        return dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory", path);
    } else {
        output->file = fopen(output->temporary, "wbe");
    }
    if (output->file != NULL) return DP_OK;
    dp_error_set(error, DP_ERR_SYSTEM, "%s: cannot write: %s", path, strerror(errno));
    free(output->temporary);
    output->temporary = NULL;
    return DP_ERR_SYSTEM;
}

/* Takes the writer's status and returns the first failure of all: the writer's, the stream's, that
 * of close(), which is where a full disk may show, or the rename's. Only after all of these is the
 * file in its place. */
dp_status_t dp_file_close(dp_whole_file_t *output, dp_status_t status, dp_error_t *error)
{
    int bad = fflush(output->file) != 0 || ferror(output->file);
    int code = errno;

    if (output->file != stdout && fclose(output->file) != 0 && !bad) {
        bad = 1;
        code = errno;
    }
    if (status == DP_ERR_NO_MEMORY) dp_error_set(error, status, "%s: no memory", output->path);
    if (status == DP_OK && !bad && output->temporary != NULL &&
        rename(output->temporary, output->path) != 0) {
        bad = 1;
        code = errno;
    }
    if (status == DP_OK && bad) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "%s: cannot write: %s", output->path,
                              strerror(code));
    }
    if (status != DP_OK && output->temporary != NULL) unlink(output->temporary);
    free(output->temporary);
    output->temporary = NULL;
    return status;
}

/* Names come from the program and may hold anything. */
void dp_json_string(FILE *file, const char *text)
{
    fputc('"', file);
    while (*text != '\0') {
        size_t length = dp_utf8_length(text);
        unsigned char c = (unsigned char)*text;

        if (length == 0) {
            fputs("\\ufffd", file);
        } else if (c == '"' || c == '\\') {
            fprintf(file, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f || c == '<') { /* '<': the text may end up inside a page */
            fprintf(file, "\\u%04x", c);
        } else {
            fwrite(text, 1, length, file);
        }
        text += length > 0 ? length : 1;
    }
    fputc('"', file);
}
