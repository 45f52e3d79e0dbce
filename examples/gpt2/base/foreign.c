/*
 * foreign.c - first bytes of files that are often given by mistake. Main thread, while a run
 * starts.
 */
#include "examples/gpt2/base/foreign.h"

#include <string.h>

/* clang-format off */
static const struct {
    const char *begin;
    size_t bytes;
    const char *text;
} KINDS[] = {
    {"version https://git-lfs", 23, "a git-lfs pointer, not the file that it stands for: run git lfs pull"},
    {"PK\003\004", 4, "a zip archive, as torch.save() writes it: pickled; a model can be saved with safetensors.torch.save_file()"},
    {"\x80\002\x8a", 3, "pickled, as old torch.save() does it; a model can be saved with safetensors.torch.save_file()"},
    {"\x80\002}", 3, "pickled by Python; this program reads no pickles"},
    {"\x80\003}", 3, "pickled by Python; this program reads no pickles"},
    {"\x80\004\x95", 3, "pickled by Python; this program reads no pickles"},
    {"\x80\005\x95", 3, "pickled by Python; this program reads no pickles"},
    {"\x93NUMPY", 6, "an array of numpy.save(); array.astype('uint16').tofile() writes tokens for --raw-tokens"},
    {"\x1f\x8b\010", 3, "compressed: gunzip it first"},
    {"\x28\xb5\x2f\xfd", 4, "compressed: unzstd it first"},
};
/* clang-format on */

const char *gpt2_foreign(const void *begin, size_t bytes)
{
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]); i++) {
        if (bytes >= KINDS[i].bytes && memcmp(begin, KINDS[i].begin, KINDS[i].bytes) == 0)
            return KINDS[i].text;
    }
    return NULL;
}

int gpt2_foreign_refuse(FILE *file, const char *path, gpt2_error_t *error)
{
    char begin[GPT2_FOREIGN_BYTES];
    const char *what = gpt2_foreign(begin, fread(begin, 1, sizeof(begin), file));

    rewind(file);
    return what == NULL ? 0 : gpt2_fail(error, "%s: %s", path, what);
}
