/*
 * plugin.c - opens libdp-cuda.so, which lies beside libdp, where there is a driver for it.
 *
 * It stays open until the process ends: CUDA's own libraries cannot be unloaded safely.
 * coordinator/api/context/device.c calls it in dp_init(), on the program's thread.
 */
#include "runtime/device/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/driver.h"

/* The file in the folder of the library, or program, that this code is in; where there is none,
 * what the system finds. One that is there and cannot be opened says what it lacks, e.g.
 * libnccl.so.2: another attempt would only say that it found nothing. */
static void *open_library(void)
{
    char path[PATH_MAX];
    Dl_info self;
    const char *slash;
    void *library = NULL;
    dp_status_t (*own)(const dp_plugin_t **, const char *, char *, size_t) = dp_plugin_open;
    void *address;

    memcpy(&address, &own, sizeof(address));
    if (dladdr(address, &self) != 0 && self.dli_fname != NULL) {
        slash = strrchr(self.dli_fname, '/');
        if (slash != NULL && snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - self.dli_fname),
                                      self.dli_fname, DP_PLUGIN_FILE) < (int)sizeof(path)) {
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
            if (library == NULL && access(path, F_OK) == 0) return NULL;
        }
    }
    return library != NULL ? library
                           : dlopen(DP_PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

dp_status_t dp_plugin_open(const dp_plugin_t **out, const char *build, char *text, size_t room)
{
    dp_plugin_entry_t enter;
    const dp_plugin_t *plugin;
    void *library, *entry;

    if (dp_driver_find(text, room) == 0) return DP_ERR_UNSUPPORTED;
    library = open_library();
    if (library == NULL) {
        const char *why = dlerror();

        snprintf(text, room, "no plug-in: %s", why != NULL ? why : DP_PLUGIN_FILE);
        return DP_ERR_UNSUPPORTED;
    }
    entry = dlsym(library, DP_PLUGIN_ENTRY);
    memcpy(&enter, &entry, sizeof(enter));
    plugin = entry == NULL ? NULL : enter(DP_PLUGIN_VERSION);
    if (plugin == NULL || strcmp(plugin->build, build) != 0) {
        snprintf(text, room, "%s is of another version%s%s, this is %s", DP_PLUGIN_FILE,
                 plugin == NULL ? "" : ", ", plugin == NULL ? "" : plugin->build, build);
        return DP_ERR_MISMATCH;
    }
    if (plugin->engine_create == NULL) {
        snprintf(text, room, "%s was built without NCCL", DP_PLUGIN_FILE);
        return DP_ERR_UNSUPPORTED;
    }
    plugin->describe(text, room);
    *out = plugin;
    return DP_OK;
}
