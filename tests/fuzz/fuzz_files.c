/*
 * fuzz_files.c - converts between a corpus and the folders of files that libFuzzer wants.
 *
 *   fuzz_x --seeds FOLDER            writes the target's seeds there, one a file
 *   fuzz_x --unpack CORPUS FOLDER    writes the inputs of corpus/x.txt there
 *   fuzz_x --lines FILE...           prints files as lines of a corpus
 *
 * Linked into the libFuzzer programs in place of fuzz_driver.c; run.sh calls them.
 */
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/fuzz.h"

typedef struct folder {
    const char *path;
    unsigned files;
} folder_t;

int LLVMFuzzerInitialize(int *argc, char ***argv);

static int write_input(void *context, const uint8_t *data, size_t bytes)
{
    folder_t *folder = context;
    char path[4096];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/input-%04u", folder->path, folder->files++);
    file = fopen(path, "wbe");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    return 0;
}

static void print_file(const char *path)
{
    static uint8_t data[FUZZ_ROOM];
    FILE *file = fopen(path, "rbe");
    size_t bytes;

    if (file == NULL) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    bytes = fread(data, 1, sizeof(data), file);
    (void)fclose(file);
    if (bytes > 0) corpus_write(stdout, data, bytes);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static uint8_t data[FUZZ_ROOM];
    const char *option = *argc > 1 ? (*argv)[1] : "";
    folder_t folder = {*argc > 2 ? (*argv)[*argc - 1] : NULL, 0};
    size_t bytes;

    if (*argc == 3 && strcmp(option, "--seeds") == 0) {
        for (unsigned which = 0; (bytes = fuzz_seed(which, data, sizeof(data))) > 0; which++)
            (void)write_input(&folder, data, bytes);
    } else if (*argc == 4 && strcmp(option, "--unpack") == 0) {
        if (corpus_read((*argv)[2], write_input, &folder) < 0) exit(EXIT_FAILURE);
    } else if (*argc > 2 && strcmp(option, "--lines") == 0) {
        for (int i = 2; i < *argc; i++)
            print_file((*argv)[i]);
    } else {
        return 0;
    }
    exit(EXIT_SUCCESS);
}
