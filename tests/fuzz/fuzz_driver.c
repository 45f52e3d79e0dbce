/*
 * fuzz_driver.c - runs a fuzz target without libFuzzer: its corpus, its seeds, and mutations of
 * both that are the same every time.
 *
 * Arguments: the corpus (corpus.h; it may be missing) or a file that is one input, how many mutated
 * inputs (20000), the random seed (1). A failure is a crash or a sanitizer's report; running again
 * with the same arguments repeats it.
 */
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/fuzz.h"

#include <unistd.h>

typedef struct input {
    uint8_t *data;
    size_t bytes;
} input_t;

typedef struct inputs {
    input_t *list;
    size_t count, room;
} inputs_t;

/* xorshift64*: a generator that is the same on every machine. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

/* ---- Where inputs come from ----------------------------------------------------------------- */

static int add(void *context, const uint8_t *data, size_t bytes)
{
    inputs_t *inputs = context;
    input_t *input;

    if (inputs->count == inputs->room) {
        size_t room = inputs->room * 2 + 16;
        input_t *grown = realloc(inputs->list, room * sizeof(*grown));

        if (grown == NULL) return -1;
        inputs->list = grown;
        inputs->room = room;
    }
    input = &inputs->list[inputs->count];
    input->data = malloc(bytes + 1);
    if (input->data == NULL) return -1;
    memcpy(input->data, data, bytes);
    input->bytes = bytes;
    inputs->count++;
    return 0;
}

static int add_file(inputs_t *inputs, const char *path)
{
    uint8_t data[FUZZ_ROOM];
    FILE *file = fopen(path, "rbe");
    size_t bytes;

    if (file == NULL) {
        perror(path);
        return -1;
    }
    bytes = fread(data, 1, sizeof(data), file);
    (void)fclose(file);
    return add(inputs, data, bytes);
}

/* Adds the inputs of corpus/TARGET.txt; another file is an input by itself. */
static int add_corpus(inputs_t *inputs, const char *path)
{
    const size_t length = strlen(path);

    if (length < 4 || strcmp(path + length - 4, ".txt") != 0) return add_file(inputs, path);
    if (access(path, F_OK) != 0) return 0; /* none yet */
    return corpus_read(path, add, inputs) < 0 ? -1 : 0;
}

static size_t add_seeds(inputs_t *inputs)
{
    uint8_t data[FUZZ_ROOM];
    unsigned seeds = 0;
    size_t bytes;

    while ((bytes = fuzz_seed(seeds, data, sizeof(data))) > 0 && add(inputs, data, bytes) == 0)
        seeds++;
    return seeds;
}

/* ---- Mutations ------------------------------------------------------------------------------ */

/* A piece of another input over, or into, this one. */
static size_t splice(uint8_t *data, size_t bytes, size_t at, const input_t *other, uint64_t *state)
{
    size_t from = other->bytes > 0 ? next_random(state) % other->bytes : 0;
    size_t length = other->bytes > from ? 1 + next_random(state) % (other->bytes - from) : 0;

    if (length > 64) length = 64;
    if (bytes + length > FUZZ_ROOM) return bytes;
    if (next_random(state) % 2 == 0) {
        memmove(data + at + length, data + at, bytes - at);
        bytes += length;
    } else if (at + length > bytes) {
        bytes = at + length;
    }
    memcpy(data + at, other->data + from, length);
    return bytes;
}

static size_t mutate(uint8_t *data, size_t bytes, const inputs_t *inputs, uint64_t *state)
{
    static const uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '=', '#', '\n'};
    const size_t at = bytes > 0 ? next_random(state) % bytes : 0;

    switch (next_random(state) % 8) {
    case 0: /* a bit */
        if (bytes > 0) data[at] ^= (uint8_t)(1u << next_random(state) % 8);
        return bytes;
    case 1: /* a byte at an edge of its range */
        if (bytes > 0) data[at] = edges[next_random(state) % sizeof(edges)];
        return bytes;
    case 2: /* cut */
        return at;
    case 3: /* four bytes of a length */
        for (size_t i = at; i < bytes && i < at + 4; i++)
            data[i] = (uint8_t)next_random(state);
        return bytes;
    case 4: /* one byte more */
        if (bytes == FUZZ_ROOM) return bytes;
        memmove(data + at + 1, data + at, bytes - at);
        data[at] = (uint8_t)next_random(state);
        return bytes + 1;
    case 5: /* one byte less */
        if (bytes == 0) return 0;
        memmove(data + at, data + at + 1, bytes - at - 1);
        return bytes - 1;
    case 6: /* eight bytes at an edge */
        for (size_t i = at; i < bytes && i < at + 8; i++)
            data[i] = i == at + 7 && next_random(state) % 2 == 0 ? 0x7f : 0xff;
        return bytes;
    default:
        return splice(data, bytes, at, &inputs->list[next_random(state) % inputs->count], state);
    }
}

/* In memory of exactly its size, so that a sanitizer sees a read past the end. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1);

    if (exact == NULL) return;
    memcpy(exact, data, bytes);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
}

int main(int argc, char **argv)
{
    const unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 10) : 20000;
    uint64_t state = argc > 3 ? strtoull(argv[3], NULL, 10) | 1 : 1;
    inputs_t inputs = {NULL, 0, 0};
    uint8_t data[FUZZ_ROOM];
    int code = argc > 1 ? add_corpus(&inputs, argv[1]) : 0;
    size_t kept = inputs.count;
    size_t seeds = add_seeds(&inputs);

    for (size_t i = 0; i < inputs.count; i++)
        run(inputs.list[i].data, inputs.list[i].bytes);
    for (unsigned long i = 0; i < count && inputs.count > 0; i++) {
        const input_t *base = &inputs.list[i % inputs.count];
        size_t bytes = base->bytes;

        memcpy(data, base->data, bytes);
        for (uint64_t left = 1 + next_random(&state) % 6; left > 0; left--) {
            bytes = mutate(data, bytes, &inputs, &state);
        }
        run(data, bytes);
    }
    printf("%lu inputs from %zu seeds and %zu of the corpus\n", count, seeds, kept);
    for (size_t i = 0; i < inputs.count; i++)
        free(inputs.list[i].data);
    free(inputs.list);
    return seeds > 0 && code == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
