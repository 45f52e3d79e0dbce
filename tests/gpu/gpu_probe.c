/*
 * gpu_probe.c - opens libraries as a program would and says which ones came: for libraries.sh and
 * pack.sh.
 *
 *     gpu_probe LIBRARY...      a name that the loader looks for, or a path
 *     gpu_probe --open FILE...  plug-ins: every symbol must be there
 *
 * A line each, fields separated by tabs: the library's kind (libcuda, libcudart, libcublasLt,
 * libnccl or -), its version, the file that was opened. A library that cannot be opened is a line
 * with the kind "error", the name and the reason, and exit code 1. Nothing here needs a GPU.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef int (*get_version_t)(int *version);
typedef size_t (*get_size_t)(void);

static void *symbol(void *library, const char *name)
{
    return dlsym(library, name);
}

/* The result of a function of this name, -1 without one. */
static int ask(void *library, const char *name)
{
    void *address = symbol(library, name);
    get_version_t get_version;
    int version = -1;

    if (address == NULL) return -1;
    memcpy(&get_version, &address, sizeof(address));
    return get_version(&version) == 0 ? version : -1;
}

static int ask_cublas(void *library)
{
    void *address = symbol(library, "cublasLtGetVersion");
    get_size_t get_version;

    if (address == NULL) return -1;
    memcpy(&get_version, &address, sizeof(address));
    return (int)get_version();
}

static void print_version(void *library, const char *path)
{
    const int driver = ask(library, "cuDriverGetVersion");
    const int runtime = ask(library, "cudaRuntimeGetVersion");
    const int cublas = ask_cublas(library);
    const int nccl = ask(library, "ncclGetVersion");

    if (driver >= 0) {
        printf("libcuda\t%d.%d\t%s\n", driver / 1000, driver % 1000 / 10, path);
    } else if (runtime >= 0) {
        printf("libcudart\t%d.%d\t%s\n", runtime / 1000, runtime % 1000 / 10, path);
    } else if (cublas >= 0) {
        printf("libcublasLt\t%d.%d.%d\t%s\n", cublas / 10000, cublas / 100 % 100, cublas % 100,
               path);
    } else if (nccl >= 0) {
        printf("libnccl\t%d.%d.%d\t%s\n", nccl / 10000, nccl / 100 % 100, nccl % 100, path);
    } else {
        printf("-\t-\t%s\n", path);
    }
}

/* Returns 0, or 1 with the reason on standard output. */
static int probe(const char *name, int flags)
{
    void *library = dlopen(name, flags | RTLD_LOCAL);
    struct link_map *map = NULL;

    if (library == NULL) {
        printf("error\t%s\t%s\n", name, dlerror());
        return 1;
    }
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) map = NULL;
    print_version(library, map == NULL ? name : map->l_name);
    return 0; /* left open: CUDA's libraries cannot be unloaded safely */
}

int main(int argc, char **argv)
{
    const int is_plugin = argc > 1 && strcmp(argv[1], "--open") == 0;
    int failed = 0;

    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        printf("usage: gpu_probe LIBRARY... | --open FILE...\n");
        return argc < 2 ? 2 : 0;
    }
    for (int i = 1 + is_plugin; i < argc; i++)
        failed |= probe(argv[i], is_plugin ? RTLD_NOW : RTLD_LAZY);
    return failed;
}
