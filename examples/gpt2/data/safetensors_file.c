/*
 * safetensors_file.c - reads headers of safetensors. Rank 0's main thread.
 */
#include "examples/gpt2/data/safetensors_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/base/foreign.h"

#define HEADER_MAX ((uint64_t)16 << 20) /* bytes; one of 1558M has some 80 kB */

int gpt2_safetensors_open(const char *path, gpt2_safetensors_file_t *source, gpt2_error_t *error)
{
    unsigned char length_bytes[8];
    uint64_t length = 0;
    size_t bytes;

    memset(source, 0, sizeof(*source));
    source->path = path;
    if (gpt2_file_open(path, &source->file, &bytes, error) != 0) return -1;
    if (gpt2_foreign_refuse(source->file, path, error) != 0) return -1;
    if (gpt2_file_read(source->file, path, length_bytes, sizeof(length_bytes), error) != 0) {
        return -1;
    }
    for (int i = 7; i >= 0; i--)
        length = length << 8 | length_bytes[i];
    if (length > HEADER_MAX || length + 8 > bytes) {
        return gpt2_fail(error, "%s: its header has %" PRIu64 " bytes, the file %zu", path, length,
                         bytes);
    }
    source->header_bytes = (size_t)length;
    source->data_bytes = bytes - 8 - length;
    source->header = malloc(source->header_bytes + 1);
    if (source->header == NULL) return gpt2_fail(error, "out of memory for the header of %s", path);
    return gpt2_file_read(source->file, path, source->header, source->header_bytes, error);
}

void gpt2_safetensors_close(gpt2_safetensors_file_t *source)
{
    if (source->file != NULL) (void)fclose(source->file);
    free(source->header);
}

/* [a, b] of numbers; *count: how many there were, at most `most`. */
static int read_numbers(gpt2_json_t *json, uint64_t *numbers, int most, int *count)
{
    *count = 0;
    if (!gpt2_json_open(json, '[')) return -1;
    while (gpt2_json_next(json, '[', *count == 0)) {
        uint64_t value;

        if (gpt2_json_number(json, &value) != 0) return -1;
        if (*count < most) numbers[*count] = value;
        ++*count;
    }
    return json->failed ? -1 : 0;
}

/* The object behind a tensor's name. */
static int read_header_entry(gpt2_json_t *json, gpt2_safetensors_entry_t *entry)
{
    uint64_t offsets[2] = {0, 0};
    uint64_t shape[2] = {1, 1};
    int offset_count = 0;
    int first = 1;

    if (!gpt2_json_open(json, '{')) return -1;
    for (; gpt2_json_next(json, '{', first); first = 0) {
        char key[16];

        if (gpt2_json_key(json, key, sizeof(key)) != 0) return -1;
        if (strcmp(key, "dtype") == 0) {
            if (gpt2_json_string(json, entry->dtype, sizeof(entry->dtype)) != 0) return -1;
        } else if (strcmp(key, "shape") == 0) {
            if (read_numbers(json, shape, 2, &entry->dimensions) != 0) return -1;
        } else if (strcmp(key, "data_offsets") == 0) {
            if (read_numbers(json, offsets, 2, &offset_count) != 0) return -1;
        } else if (gpt2_json_skip(json) != 0) {
            return -1;
        }
    }
    if (json->failed || offset_count != 2) return -1;
    entry->shape[0] = entry->dimensions == 1 ? 1 : shape[0];
    entry->shape[1] = entry->dimensions == 1 ? shape[0] : shape[1];
    entry->begin = offsets[0];
    entry->end = offsets[1];
    return 0;
}

/* Where the tensors of a header lie. */
typedef struct extent {
    uint64_t begin;
    uint64_t end;
} extent_t;

typedef struct extents {
    extent_t *list; /* [count] */
    size_t count;
    size_t room;
} extents_t;

static int append_extent(extents_t *extents, const gpt2_safetensors_entry_t *entry,
                         gpt2_error_t *error)
{
    if (extents->count == extents->room) {
        const size_t room = extents->room == 0 ? 256 : 2 * extents->room;
        extent_t *larger = realloc(extents->list, room * sizeof(*larger));

        if (larger == NULL) return gpt2_fail(error, "out of memory for %zu tensors", room);
        extents->list = larger;
        extents->room = room;
    }
    extents->list[extents->count++] = (extent_t){entry->begin, entry->end};
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const extent_t *left = a;
    const extent_t *right = b;

    if (left->begin != right->begin) return left->begin < right->begin ? -1 : 1;
    return (left->end > right->end) - (left->end < right->end);
}

/* Each begins where the one before it ends, and the last one ends with the file. */
static int check_extents(const gpt2_safetensors_file_t *source, extents_t *extents,
                         gpt2_error_t *error)
{
    uint64_t at = 0;

    if (extents->count > 0) qsort(extents->list, extents->count, sizeof(*extents->list), by_place);
    for (size_t i = 0; i <= extents->count; i++) {
        const uint64_t next = i == extents->count ? source->data_bytes : extents->list[i].begin;

        if (next < at) return gpt2_fail(error, "%s: its tensors overlap", source->path);
        if (next > at) {
            return gpt2_fail(error,
                             "%s: no tensor has the bytes %" PRIu64 " to %" PRIu64 " of its data",
                             source->path, at, next);
        }
        if (i < extents->count) at = extents->list[i].end;
    }
    return 0;
}

static int walk_entries(const gpt2_safetensors_file_t *source, gpt2_safetensors_visit_t visit,
                        void *user, extents_t *extents, gpt2_error_t *error)
{
    gpt2_json_t json = {source->header, source->header_bytes, 0, 0};
    int first = 1;

    if (!gpt2_json_open(&json, '{')) goto refuse;
    for (; gpt2_json_next(&json, '{', first); first = 0) {
        char key[GPT2_SAFETENSORS_NAME_MAX];
        gpt2_safetensors_entry_t entry = {.name = ""};

        if (gpt2_json_key(&json, key, sizeof(key)) != 0) goto refuse;
        if (strcmp(key, "__metadata__") == 0) {
            if (gpt2_json_skip(&json) != 0) goto refuse;
            continue;
        }
        if (read_header_entry(&json, &entry) != 0) goto refuse;
        if (entry.end < entry.begin || entry.end > source->data_bytes) {
            return gpt2_fail(
                error, "%s: %s lies at %" PRIu64 " to %" PRIu64 ", the data has %" PRIu64 " bytes",
                source->path, key, entry.begin, entry.end, source->data_bytes);
        }
        if (append_extent(extents, &entry, error) != 0) return -1;
        memcpy(entry.name, key, sizeof(entry.name));
        if (visit(user, source, &entry, error) != 0) return -1;
    }
    if (gpt2_json_end(&json) == 0) return 0;
refuse:
    return gpt2_fail(error, "%s: not a safetensors header, at its byte %zu", source->path, json.at);
}

int gpt2_safetensors_each(const gpt2_safetensors_file_t *source, gpt2_safetensors_visit_t visit,
                          void *user, gpt2_error_t *error)
{
    extents_t extents = {NULL, 0, 0};
    int code = walk_entries(source, visit, user, &extents, error);

    if (code == 0) code = check_extents(source, &extents, error);
    free(extents.list);
    return code;
}

int gpt2_safetensors_metadata(const gpt2_safetensors_file_t *source, gpt2_json_t *json)
{
    int first = 1;

    *json = (gpt2_json_t){source->header, source->header_bytes, 0, 0};
    if (!gpt2_json_open(json, '{')) return 0;
    for (; gpt2_json_next(json, '{', first); first = 0) {
        char key[GPT2_SAFETENSORS_NAME_MAX];

        if (gpt2_json_key(json, key, sizeof(key)) != 0) return 0;
        if (strcmp(key, "__metadata__") == 0) return 1;
        if (gpt2_json_skip(json) != 0) return 0;
    }
    return 0;
}

int gpt2_safetensors_read(const gpt2_safetensors_file_t *source, uint64_t at, void *out,
                          size_t bytes, gpt2_error_t *error)
{
    if (fseeko(source->file, (off_t)(8 + source->header_bytes + at), SEEK_SET) != 0)
        return gpt2_fail(error, "%s: %s", source->path, strerror(errno));
    return gpt2_file_read(source->file, source->path, out, bytes, error);
}
