/*
 * fuzz_config.c - any bytes as a configuration file; what is accepted must come back as it went in.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/config.h"

/* Every value in force, as text and back. */
static void check_round_trip(const dp_config_t *config)
{
    char text[DP_CONFIG_TEXT_MAX];
    dp_config_t copy;
    dp_error_t error;

    dp_config_defaults(&copy);
    for (size_t i = 0; i < dp_config_count(); i++) {
        dp_config_format(config, i, text, sizeof(text));
        if (dp_config_set(&copy, dp_config_setting(i)->name, text, DP_FROM_FLAG, &error) != DP_OK) {
            fprintf(stderr, "%s\n", error.text);
            abort();
        }
        dp_config_format(&copy, i, text, sizeof(text));
    }
    if (copy.fusion_bytes != config->fusion_bytes || copy.hold_ns != config->hold_ns ||
        copy.wire != config->wire || strcmp(copy.timeline, config->timeline) != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int fd = memfd_create("config", MFD_CLOEXEC);
    char path[64];
    dp_config_t config;
    dp_error_t error;

    if (fd < 0) return 0;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    dp_config_defaults(&config);
    if (write(fd, data, bytes) == (ssize_t)bytes) {
        if (dp_config_from_file(&config, path, &error) != DP_OK && error.text[0] == '\0') abort();
        check_round_trip(&config); /* also the lines before the wrong one */
    }
    close(fd);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "fusion-bytes = 64M\nwire = fp16 # half\n",
        "FUSION_HOLD = 1.5ms\nstall-limit=2h\n\n# end",
        "timeline = out.pftrace:steps=10-20\ncheck = yes\nlog=debug\r\n",
        "tree-arity = 4\nqueue_depth = 100\npretend-nodes = 2\nucx-devices = eth0\n",
    };
    size_t bytes;

    if (which >= sizeof(seeds) / sizeof(seeds[0])) return 0;
    bytes = strlen(seeds[which]);
    if (bytes > room) return 0;
    memcpy(data, seeds[which], bytes);
    return bytes;
}
