/*
 * fuzz_seeds.c - lets a libFuzzer program write its own seeds: fuzz_x --seeds FOLDER.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static uint8_t data[FUZZ_ROOM];
    char path[4096];
    size_t bytes;

    if (*argc != 3 || strcmp((*argv)[1], "--seeds") != 0) return 0;
    for (unsigned which = 0; (bytes = fuzz_seed(which, data, sizeof(data))) > 0; which++) {
        FILE *file;

        snprintf(path, sizeof(path), "%s/seed-%02u", (*argv)[2], which);
        file = fopen(path, "wbe");
        if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
            perror(path);
            exit(EXIT_FAILURE);
        }
    }
    exit(EXIT_SUCCESS);
}
