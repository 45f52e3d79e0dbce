/*
 * device_cuda.c - opens libgpt2-cuda.so, which lies beside the program, where there is a driver.
 *
 * One build serves machines with and without a GPU: the program links nothing of CUDA. Driver and
 * plug-in stay open until the process ends, as CUDA's own libraries cannot be unloaded safely.
 */
#include "examples/gpt2/model/device.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static void *symbol(void *library, const char *name)
{
    return library == NULL ? NULL : dlsym(library, name);
}

/* Asks the driver itself, so that nothing large is loaded where there is none. */
static int find_driver(gpt2_error_t *error)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *init = symbol(driver, "cuInit");
    void *count = symbol(driver, "cuDeviceGetCount");
    int (*initialize)(unsigned flags);
    int (*get_count)(int *count);
    int devices = 0;
    int code;

    if (driver == NULL) return gpt2_fail(error, "no CUDA driver: %s", dlerror());
    if (init == NULL || count == NULL) return gpt2_fail(error, "libcuda.so.1 is no CUDA driver");
    memcpy(&initialize, &init, sizeof(init));
    memcpy(&get_count, &count, sizeof(count));
    code = initialize(0);
    if (code == 0) code = get_count(&devices);
    if (code != 0) return gpt2_fail(error, "the CUDA driver answers error %d", code);
    if (devices == 0) return gpt2_fail(error, "the CUDA driver shows no GPU");
    return 0;
}

/* path [PATH_MAX + name] = the plug-in, in the program's folder. */
static int find_plugin(char *path, gpt2_error_t *error)
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);

    while (length > 0 && path[length - 1] != '/')
        length--;
    if (length < 0) length = 0;
    memcpy(path + length, GPT2_CUDA_PLUGIN, sizeof(GPT2_CUDA_PLUGIN));
    if (access(path, R_OK) == 0) return 0;
    return gpt2_fail(error, "no plug-in: %s: %s", path, strerror(errno));
}

int gpt2_cuda_open(const gpt2_device_t **out, gpt2_error_t *error)
{
    char path[PATH_MAX + sizeof(GPT2_CUDA_PLUGIN)];
    gpt2_cuda_entry_t enter;
    const gpt2_device_t *device;
    void *library;
    void *entry;

    /* The driver last: once it is loaded, libdp uses it. */
    if (find_plugin(path, error) != 0 || find_driver(error) != 0) return 1;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) return gpt2_fail(error, "no plug-in: %s", dlerror());
    entry = dlsym(library, GPT2_CUDA_ENTRY);
    memcpy(&enter, &entry, sizeof(enter));
    device = entry == NULL ? NULL : enter(GPT2_CUDA_ABI);
    if (device == NULL) return gpt2_fail(error, "%s is of another build", path);
    *out = device;
    return 0;
}
