/*
 * fabric.c - finds the RDMA ports of this machine in the kernel's files.
 *
 * Called while the engine makes its connections, on the program's thread. It must not know about
 * UCX, but for the way in which that writes a port's name: DEVICE:PORT.
 */
#include "runtime/group/fabric.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/input_file.h"

#define ENTRY_ROOM (PATH_MAX + 64) /* for the path of a file in a folder */
#define GIDS 16                    /* of a port: the first ones are its interface's own */

/* 1: the port is one of this interface, or of a bond that the interface is. */
static int is_port_of(const char *sys, const char *port, const char *interface)
{
    char path[ENTRY_ROOM];
    char name[64];
    char master[PATH_MAX];
    ssize_t bytes;

    for (int gid = 0; gid < GIDS; gid++) {
        snprintf(path, sizeof(path), "%s/gid_attrs/ndevs/%d", port, gid);
        if (!dp_input_file_read_line(path, name, sizeof(name))) continue;
        if (strcmp(name, interface) == 0) return 1;
        snprintf(path, sizeof(path), "%s/class/net/%s/master", sys, name); /* ".../bond0" */
        bytes = readlink(path, master, sizeof(master) - 1);
        if (bytes <= 0) continue;
        master[bytes] = '\0';
        if (strcmp(strrchr(master, '/') == NULL ? master : strrchr(master, '/') + 1, interface) ==
            0)
            return 1;
    }
    return 0;
}

static int is_port_usable(const char *sys, const char *port, const char *interface)
{
    char path[ENTRY_ROOM];
    char text[64];

    snprintf(path, sizeof(path), "%s/state", port);
    if (!dp_input_file_read_line(path, text, sizeof(text)) || strstr(text, "ACTIVE") == NULL)
        return 0;
    snprintf(path, sizeof(path), "%s/link_layer", port);
    if (!dp_input_file_read_line(path, text, sizeof(text))) return 0;
    if (strcmp(text, "InfiniBand") == 0) return 1;
    return strcmp(text, "Ethernet") == 0 && is_port_of(sys, port, interface);
}

static int list_ports(const char *sys, const char *device, const char *interface, char *text,
                      size_t room)
{
    char folder[PATH_MAX];
    struct dirent *entry;
    DIR *ports;
    int count = 0;

    snprintf(folder, sizeof(folder), "%s/class/infiniband/%s/ports", sys, device);
    ports = opendir(folder);
    while (ports != NULL && (entry = readdir(ports)) != NULL) {
        char port[PATH_MAX];
        const size_t used = strlen(text);

        if (entry->d_name[0] == '.') continue;
        if (snprintf(port, sizeof(port), "%s/%s", folder, entry->d_name) >= (int)sizeof(port))
            continue;
        if (!is_port_usable(sys, port, interface)) continue;
        if (used + strlen(device) + strlen(entry->d_name) + 3 > room) continue;
        snprintf(text + used, room - used, "%s:%s,", device, entry->d_name);
        count++;
    }
    if (ports != NULL) closedir(ports);
    return count;
}

int dp_fabric_devices(const char *sys, const char *interface, char *text, size_t room)
{
    char folder[PATH_MAX];
    struct dirent *entry;
    DIR *devices = NULL;
    size_t used;
    int count = 0;

    text[0] = '\0';
    snprintf(folder, sizeof(folder), "%s/class/infiniband", sys);
    if (strcmp(interface, "lo") != 0) devices = opendir(folder);
    while (devices != NULL && (entry = readdir(devices)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        count += list_ports(sys, entry->d_name, interface, text,
                            room - strlen(interface) - 1); /* which comes last */
    }
    if (devices != NULL) closedir(devices);
    used = strlen(text);
    if (interface[0] != '\0') {
        snprintf(text + used, room - used, "%s", interface);
    } else if (used > 0) {
        text[used - 1] = '\0'; /* the comma */
    }
    return count;
}
