/*
 * device.c - picks the device a replica lives on. main() asks before libdp starts, because libdp
 * takes the GPU only in a program that has opened the driver; the trainer asks again and gets the
 * same.
 */
#include "examples/gpt2/model/device.h"

#include <string.h>

#include "examples/gpt2/base/nearest.h"

static const gpt2_device_t CPU = {"cpu", gpt2_replica_cpu_create};

int gpt2_device_find(const char *wanted, const gpt2_device_t **out, gpt2_error_t *error)
{
    static const char *const names[] = {"auto", "cpu", "cuda"};
    gpt2_error_t reason;
    int code;

    *out = &CPU;
    if (strcmp(wanted, "cpu") == 0) return 0;
    if (strcmp(wanted, "auto") != 0 && strcmp(wanted, "cuda") != 0) {
        return gpt2_fail(error, "--device %s: no such choice, did you mean %s?", wanted,
                         gpt2_nearest(wanted, names, 3));
    }
    code = gpt2_cuda_open(out, &reason);
    if (code == 0) return 0;
    if (strcmp(wanted, "cuda") == 0) return gpt2_fail(error, "--device cuda: %.900s", reason.text);
    if (code > 0) return 0;
    /* Falling back to the CPU would not work: libdp has seen the driver and hands out GPU
     * memory. */
    return gpt2_fail(error, "--device auto: %.900s; --device cpu leaves the GPU alone",
                     reason.text);
}
