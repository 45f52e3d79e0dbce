/*
 * test_fabric.c - RDMA ports are listed where they lead to the other nodes, by made-up files of the
 * kernel.
 */
#include "runtime/group/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/cases.h"

static char root[64];
static char text[256];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/dp-fabric-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int remove_root(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    return system(command); /* NOLINT(bugprone-command-processor,cert-env33-c): a path of ours */
}

static void make_folders(char *path)
{
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
}

static void put(const char *file, const char *line)
{
    char path[256];
    FILE *stream;

    snprintf(path, sizeof(path), "%s/%s", root, file);
    make_folders(path);
    stream = fopen(path, "we");
    assert_non_null(stream);
    fprintf(stream, "%s\n", line);
    assert_int_equal(fclose(stream), 0);
}

/* A port as the kernel shows it; interface: NULL: it is none of a network interface. */
static void add_port(const char *device, int port, const char *state, const char *layer,
                     const char *interface)
{
    char file[128];

    snprintf(file, sizeof(file), "class/infiniband/%s/ports/%d/state", device, port);
    put(file, state);
    snprintf(file, sizeof(file), "class/infiniband/%s/ports/%d/link_layer", device, port);
    put(file, layer);
    if (interface == NULL) return;
    snprintf(file, sizeof(file), "class/infiniband/%s/ports/%d/gid_attrs/ndevs/0", device, port);
    put(file, interface);
}

static void fabric_without_rdma_is_the_interface(void **state)
{
    (void)state;
    assert_int_equal(dp_fabric_devices(root, "eth0", text, sizeof(text)), 0);
    assert_string_equal(text, "eth0");
    assert_int_equal(dp_fabric_devices(root, "", text, sizeof(text)), 0);
    assert_string_equal(text, "");
}

static void fabric_lists_active_infiniband_ports(void **state)
{
    (void)state;
    add_port("mlx5_0", 1, "4: ACTIVE", "InfiniBand", "ib0");
    add_port("mlx5_0", 2, "1: DOWN", "InfiniBand", "ib1");
    assert_int_equal(dp_fabric_devices(root, "eth0", text, sizeof(text)), 1);
    assert_string_equal(text, "mlx5_0:1,eth0");
    assert_int_equal(dp_fabric_devices(root, "", text, sizeof(text)), 1);
    assert_string_equal(text, "mlx5_0:1");
    add_port("mlx5_1", 1, "4: ACTIVE", "InfiniBand", NULL);
    assert_int_equal(dp_fabric_devices(root, "eth0", text, sizeof(text)), 2);
    assert_non_null(strstr(text, "mlx5_0:1,"));
    assert_non_null(strstr(text, "mlx5_1:1,"));
    assert_string_equal(strrchr(text, ','), ",eth0");
}

static void fabric_lists_ethernet_ports_of_the_interface_alone(void **state)
{
    char path[128];

    (void)state;
    add_port("mlx5_0", 1, "4: ACTIVE", "Ethernet", "eth0");
    add_port("mlx5_1", 1, "4: ACTIVE", "Ethernet", "eth1");
    add_port("mlx5_2", 1, "4: ACTIVE", "Ethernet", "eth2");
    add_port("efa_0", 1, "4: ACTIVE", "Unspecified", "eth1");
    assert_int_equal(dp_fabric_devices(root, "eth1", text, sizeof(text)), 1);
    assert_string_equal(text, "mlx5_1:1,eth1");
    put("class/net/eth2/mtu", "1500"); /* for its folder */
    snprintf(path, sizeof(path), "%s/class/net/eth2/master", root);
    assert_int_equal(symlink("../bond0", path), 0);
    assert_int_equal(dp_fabric_devices(root, "bond0", text, sizeof(text)), 1);
    assert_string_equal(text, "mlx5_2:1,bond0");
}

static void fabric_of_loopback_is_loopback(void **state)
{
    (void)state;
    add_port("mlx5_0", 1, "4: ACTIVE", "InfiniBand", "ib0");
    assert_int_equal(dp_fabric_devices(root, "lo", text, sizeof(text)), 0);
    assert_string_equal(text, "lo");
}

static void fabric_leaves_out_what_finds_no_room(void **state)
{
    char small[20];

    (void)state;
    for (int i = 0; i < 9; i++) {
        char name[16];

        snprintf(name, sizeof(name), "mlx5_%d", i);
        add_port(name, 1, "4: ACTIVE", "InfiniBand", NULL);
    }
    assert_int_equal(dp_fabric_devices(root, "eth0", small, sizeof(small)), 1);
    assert_string_equal(strrchr(small, ','), ",eth0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fabric_without_rdma_is_the_interface, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(fabric_lists_active_infiniband_ports, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(fabric_lists_ethernet_ports_of_the_interface_alone,
                                        make_root, remove_root),
        cmocka_unit_test_setup_teardown(fabric_of_loopback_is_loopback, make_root, remove_root),
        cmocka_unit_test_setup_teardown(fabric_leaves_out_what_finds_no_room, make_root,
                                        remove_root),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
