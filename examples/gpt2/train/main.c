/*
 * main.c - gpt2: trains a GPT-2 on text or tokens, alone or on many ranks (see --help); its first
 * word may be a command.
 *
 * Reading order: run.c (the loop), trainer.c (a step), strategy_coordinator.c (all of libdp that
 * is used), model.h, forward.c, backward.c; kernels.h for the arithmetic.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "examples/gpt2/model/device.h"
#include "examples/gpt2/tokens/tokenize.h"
#include "examples/gpt2/train/evaluate.h"
#include "examples/gpt2/train/run.h"
#include "include/dp.h"

#define EXIT_USAGE 2

int main(int argc, char **argv)
{
    gpt2_error_t error = {""};
    gpt2_options_t options;
    const gpt2_strategy_ops_t *ops;
    const gpt2_device_t *device;
    gpt2_strategy_t *strategy;
    int code;
    int rank;

    (void)signal(SIGXFSZ, SIG_IGN); /* a file past ulimit -f: write() then says EFBIG */
    if (argc > 1 && strcmp(argv[1], "tokenize") == 0) return gpt2_tokenize(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "eval") == 0) return gpt2_evaluate(argc - 1, argv + 1);
    if (gpt2_options_parse(argc, argv, &options, &error) != 0) {
        (void)fprintf(stderr, "gpt2: %s\n", error.text);
        return EXIT_USAGE;
    }
    if (options.help) {
        gpt2_options_help(stdout);
        return 0;
    }
    if (options.version) {
        (void)printf("gpt2 %d.%d.%d\n", DP_VERSION_MAJOR, DP_VERSION_MINOR, DP_VERSION_PATCH);
        return 0;
    }
    ops = gpt2_strategy_find(options.strategy, &error);
    if (ops == NULL) {
        (void)fprintf(stderr, "gpt2: %s\n", error.text);
        return EXIT_USAGE;
    }
    /* First, so that libdp finds the driver loaded and works on the GPU as well. */
    if (gpt2_device_find(options.device, &device, &error) != 0) {
        (void)fprintf(stderr, "gpt2: %s\n", error.text);
        return EXIT_USAGE;
    }
    if (ops->create(&strategy, &error) != 0) {
        (void)fprintf(stderr, "gpt2: %s\n", error.text);
        return 1;
    }
    rank = strategy->rank;
    code = gpt2_run(&options, strategy, &error);
    /* A full disk under the report of the run. */
    if (code == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        code = gpt2_fail(&error, "standard output: cannot be written: %s", strerror(errno));
    if (code != 0) (void)fprintf(stderr, "gpt2: %s\n", error.text);
    /* After a failure destroy() fails as well; its message would only repeat the first. */
    if (ops->destroy(strategy, &error) != 0 && code == 0) {
        (void)fprintf(stderr, "gpt2: rank %d: %s\n", rank, error.text);
        code = -1;
    }
    return code == 0 ? 0 : 1;
}
