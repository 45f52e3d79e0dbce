/*
 * checkpoint_extra.c - a file of extra state, piece by piece. Rank 0's main thread, as the rest of
 * a checkpoint; it must not know how the pieces come from other ranks.
 */
#include "examples/gpt2/data/checkpoint_extra.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/gpt2/base/hash.h"

static int make_path(gpt2_extra_file_t *self, const char *folder, gpt2_error_t *error)
{
    char name[GPT2_EXTRA_NAME_MAX + 32];

    if (self->entry.rank < 0) {
        (void)snprintf(name, sizeof(name), "%s.bin", self->entry.name);
    } else {
        (void)snprintf(name, sizeof(name), "%s.%d.bin", self->entry.name, self->entry.rank);
    }
    return gpt2_path_join(self->path, folder, name, error);
}

/* The checksum of a file is that of its pieces' checksums, in a chain. */
static void count_piece(gpt2_extra_file_t *self, const void *data, size_t bytes)
{
    const uint64_t link[2] = {self->entry.hash, gpt2_hash(data, bytes)};

    self->entry.hash = gpt2_hash(link, sizeof(link));
    self->entry.bytes += bytes;
}

int gpt2_extra_create(gpt2_extra_file_t *self, const char *folder, const char *name, int rank,
                      int ranks, gpt2_error_t *error)
{
    memset(self, 0, sizeof(*self));
    if (strlen(name) >= sizeof(self->entry.name)) {
        return gpt2_fail(error, "%s: too long for the name of extra state", name);
    }
    memcpy(self->entry.name, name, strlen(name) + 1);
    self->entry.rank = rank;
    self->entry.ranks = ranks;
    if (make_path(self, folder, error) != 0) return -1;
    return gpt2_file_create(self->path, &self->file, error);
}

int gpt2_extra_write(gpt2_extra_file_t *self, const void *data, size_t bytes, gpt2_error_t *error)
{
    count_piece(self, data, bytes);
    return gpt2_file_write(self->file, self->path, data, bytes, error);
}

int gpt2_extra_commit(gpt2_extra_file_t *self, gpt2_error_t *error)
{
    FILE *file = self->file;

    self->file = NULL;
    return gpt2_file_commit(file, self->path, error);
}

int gpt2_extra_open(gpt2_extra_file_t *self, const char *folder,
                    const gpt2_manifest_extra_t *listed, gpt2_error_t *error)
{
    size_t bytes;

    memset(self, 0, sizeof(*self));
    self->entry = *listed;
    self->entry.bytes = 0;
    self->entry.hash = 0;
    if (make_path(self, folder, error) != 0) return -1;
    if (gpt2_file_open(self->path, &self->file, &bytes, error) != 0) return -1;
    if (bytes == listed->bytes) return 0;
    gpt2_extra_close(self);
    return gpt2_fail(error, "%s: %s: %zu bytes, the manifest says %zu", self->path,
                     bytes < listed->bytes ? "truncated" : "too long", bytes, listed->bytes);
}

int gpt2_extra_read(gpt2_extra_file_t *self, void *data, size_t bytes, gpt2_error_t *error)
{
    if (gpt2_file_read(self->file, self->path, data, bytes, error) != 0) return -1;
    count_piece(self, data, bytes);
    return 0;
}

int gpt2_extra_finish(gpt2_extra_file_t *self, const gpt2_manifest_extra_t *listed,
                      gpt2_error_t *error)
{
    gpt2_extra_close(self);
    if (self->entry.hash == listed->hash) return 0;
    return gpt2_fail(error, "%s: damaged: checksum %016" PRIx64 ", the manifest says %016" PRIx64,
                     self->path, self->entry.hash, listed->hash);
}

void gpt2_extra_close(gpt2_extra_file_t *self)
{
    if (self->file != NULL) (void)fclose(self->file);
    self->file = NULL;
}

int gpt2_extra_check(const gpt2_manifest_t *manifest, const char *folder, const gpt2_extra_t *extra,
                     int ranks, gpt2_error_t *error)
{
    const gpt2_manifest_extra_t *listed =
        gpt2_manifest_find(manifest, extra->name, extra->per_rank ? 0 : -1);

    if (listed == NULL && extra->is_optional) return 0;
    if (listed == NULL) {
        return gpt2_fail(error,
                         "%s: has no %s, which this run needs: it was saved by a run without",
                         folder, extra->name);
    }
    if (extra->per_rank && listed->ranks != ranks) {
        return gpt2_fail(error, "%s: has %s of %d ranks, this run has %d", folder, extra->name,
                         listed->ranks, ranks);
    }
    for (int rank = extra->per_rank ? 0 : -1; rank < (extra->per_rank ? ranks : 0); rank++) {
        listed = gpt2_manifest_find(manifest, extra->name, rank);
        if (listed == NULL) {
            return gpt2_fail(error, "%s: has no %s of rank %d", folder, extra->name, rank);
        }
        if (listed->bytes != extra->bytes) {
            return gpt2_fail(error, "%s: %s has %zu bytes, this run needs %zu", folder, extra->name,
                             listed->bytes, extra->bytes);
        }
    }
    return 1;
}

int gpt2_extra_verify(const char *folder, const gpt2_manifest_extra_t *listed, void *buffer,
                      gpt2_error_t *error)
{
    gpt2_extra_file_t file;

    if (gpt2_extra_open(&file, folder, listed, error) != 0) return -1;
    for (size_t at = 0; at < listed->bytes; at += GPT2_EXTRA_PIECE) {
        const size_t left = listed->bytes - at;

        if (gpt2_extra_read(&file, buffer, left < GPT2_EXTRA_PIECE ? left : GPT2_EXTRA_PIECE,
                            error) != 0) {
            gpt2_extra_close(&file);
            return -1;
        }
    }
    return gpt2_extra_finish(&file, listed, error);
}
