/*
 * lines.c - cuts a stream of bytes into lines; see lines.h.
 *
 * Called by output.c for each stream of each rank, and for the report of a failure. Pure.
 */
#include "launcher/dprun/output/lines.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

void dp_lines_init(dp_lines_t *lines)
{
    memset(lines, 0, sizeof(*lines));
}

void dp_lines_fini(dp_lines_t *lines)
{
    free(lines->data);
    dp_lines_init(lines);
}

size_t dp_lines_cut(const char *text, size_t bytes)
{
    size_t start = bytes;
    size_t need;

    /* Steps back over continuation bytes to the character's first. */
    while (start > 0 && bytes - start < 3 && ((unsigned char)text[start - 1] & 0xc0) == 0x80) {
        start--;
    }
    if (start == 0) return bytes;
    start--;
    need = ((unsigned char)text[start] & 0xe0) == 0xc0   ? 2
           : ((unsigned char)text[start] & 0xf0) == 0xe0 ? 3
           : ((unsigned char)text[start] & 0xf8) == 0xf0 ? 4
                                                         : 1;
    return start > 0 && start + need > bytes ? start : bytes;
}

static void emit_all(dp_lines_t *lines, dp_line_end_t end, dp_line_fn emit, void *context)
{
    emit(context, lines->data == NULL ? "" : lines->data, lines->bytes, end);
    lines->bytes = 0;
}

/* Emits a full buffer as a piece of a line; the bytes of an incomplete UTF-8 character stay. */
static void emit_piece(dp_lines_t *lines, dp_line_fn emit, void *context)
{
    size_t piece = dp_lines_cut(lines->data, lines->bytes);

    emit(context, lines->data, piece, DP_LINE_CUT);
    memmove(lines->data, lines->data + piece, lines->bytes - piece);
    lines->bytes -= piece;
}

/* Adds bytes without a line end among them. */
static void append_to_line(dp_lines_t *lines, const char *data, size_t bytes, dp_line_fn emit,
                           void *context)
{
    while (bytes > 0) {
        size_t part = bytes;

        if (lines->bytes + part > lines->room && lines->room < DP_LINE_BYTES_MAX) {
            size_t room = lines->room == 0 ? 512 : lines->room;
            char *grown;

            while (room < lines->bytes + part && room < DP_LINE_BYTES_MAX) {
                room *= 2;
            }
            grown = realloc(lines->data, room);
            if (grown == NULL && lines->bytes == 0) { /* no memory: pass it on as it came */
                emit(context, data, bytes, DP_LINE_CUT);
                return;
            }
            if (grown != NULL) {
                lines->data = grown;
                lines->room = room;
            }
        }
        if (part > lines->room - lines->bytes) part = lines->room - lines->bytes;
        if (part == 0) {
            emit_piece(lines, emit, context);
            continue;
        }
        memcpy(lines->data + lines->bytes, data, part);
        lines->bytes += part;
        data += part;
        bytes -= part;
    }
}

void dp_lines_feed(dp_lines_t *lines, const char *data, size_t bytes, dp_line_fn emit,
                   void *context)
{
    size_t at = 0;

    while (at < bytes) {
        const char *newline = memchr(data + at, '\n', bytes - at);
        size_t end = newline == NULL ? bytes : (size_t)(newline - data);
        const char *back;

        if (lines->has_return) {
            lines->has_return = 0;
            if (data[at] == '\n') {
                emit_all(lines, DP_LINE_RETURN_NEWLINE, emit, context);
                at++;
                continue;
            }
            emit_all(lines, DP_LINE_RETURN, emit, context);
        }
        back = memchr(data + at, '\r', end - at);
        if (back != NULL) {
            append_to_line(lines, data + at, (size_t)(back - data) - at, emit, context);
            at = (size_t)(back - data) + 1;
            lines->has_return = 1;
            continue;
        }
        append_to_line(lines, data + at, end - at, emit, context);
        at = end;
        if (newline != NULL) {
            emit_all(lines, DP_LINE_NEWLINE, emit, context);
            at++;
        }
    }
}

void dp_lines_end(dp_lines_t *lines, dp_line_fn emit, void *context)
{
    if (lines->has_return) {
        emit_all(lines, DP_LINE_RETURN, emit, context);
    } else if (lines->bytes > 0) {
        emit_all(lines, DP_LINE_OPEN, emit, context);
    }
    lines->has_return = 0;
}

/* ---- The last lines of a rank ---------------------------------------------------------------- */

void dp_tail_add(dp_tail_t *tail, const char *text, size_t bytes)
{
    size_t oldest = tail->count % DP_TAIL_LINES;
    size_t kept = bytes <= DP_TAIL_BYTES ? bytes : dp_lines_cut(text, DP_TAIL_BYTES);
    char *copy;

    if (bytes == 0) return;
    copy = malloc(kept + 1);
    if (copy == NULL) return;
    for (size_t i = 0; i < kept; i++)
        copy[i] = (char)(text[i] == '\t' ? ' ' : text[i] == '\0' ? '?' : text[i]);
    copy[kept] = '\0';
    dp_text_mask(copy);
    free(tail->lines[oldest]);
    tail->lines[oldest] = copy;
    tail->count++;
}

const char *dp_tail_get(const dp_tail_t *tail, size_t from_end)
{
    if (from_end >= DP_TAIL_LINES || from_end >= tail->count) return NULL;
    return tail->lines[(tail->count - 1 - from_end) % DP_TAIL_LINES];
}

void dp_tail_fini(dp_tail_t *tail)
{
    for (size_t i = 0; i < DP_TAIL_LINES; i++) {
        free(tail->lines[i]);
        tail->lines[i] = NULL;
    }
    tail->count = 0;
}
