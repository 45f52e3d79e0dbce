/*
 * driver.c - asks libcuda.so.1, which comes with the kernel driver and not with any toolkit.
 *
 * This file is not linked with CUDA: without a driver the library is not there, and that is an
 * answer. It stays loaded once asked, as CUDA cannot be unloaded safely.
 *
 * dp_init() and dprun --check ask whether there is a driver; the plug-in asks where a library was
 * loaded from.
 */
#include "runtime/base/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

typedef int (*init_fn)(unsigned flags);
typedef int (*number_fn)(int *number);

int dp_driver_find(char *text, size_t room)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *symbols[3];
    init_fn init;
    number_fn get_version, get_count;
    int version = 0, count = 0, code;

    if (library == NULL) {
        const char *why = dlerror();

        snprintf(text, room, "no driver: %s", why != NULL ? why : LIBRARY);
        return 0;
    }
    symbols[0] = dlsym(library, "cuInit");
    symbols[1] = dlsym(library, "cuDriverGetVersion");
    symbols[2] = dlsym(library, "cuDeviceGetCount");
    if (symbols[0] == NULL || symbols[1] == NULL || symbols[2] == NULL) {
        snprintf(text, room, "%s lacks cuInit, cuDriverGetVersion or cuDeviceGetCount", LIBRARY);
        return 0;
    }
    memcpy(&init, &symbols[0], sizeof(init));
    memcpy(&get_version, &symbols[1], sizeof(get_version));
    memcpy(&get_count, &symbols[2], sizeof(get_count));
    code = init(0);
    if (code != 0) {
        snprintf(text, room, "%s cannot start: cuInit answers error %d", LIBRARY, code);
        return 0;
    }
    if (get_version(&version) != 0) version = 0;
    code = get_count(&count);
    if (code != 0 || count <= 0) {
        snprintf(text, room, "the driver shows no GPU (error %d); CUDA_VISIBLE_DEVICES hides some?",
                 code);
        return 0;
    }
    snprintf(text, room, "%d GPU%s, driver for CUDA %d.%d", count, count == 1 ? "" : "s",
             version / 1000, version % 1000 / 10);
    return count;
}

const char *dp_library_path(const void *function)
{
    void *address;
    Dl_info found;

    memcpy(&address, function, sizeof(address));
    if (dladdr(address, &found) == 0 || found.dli_fname == NULL) return "?";
    return found.dli_fname;
}

int dp_driver_is_loaded(void)
{
    static const char *const names[] = {LIBRARY, "libcudart.so.13", "libcudart.so.12"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);

        if (library == NULL) continue;
        dlclose(library); /* only the reference of this look */
        return 1;
    }
    return 0;
}
