/*
 * test_topology.c - every world becomes one tree that respects its nodes.
 */
#include "runtime/group/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

#define RANKS 300

typedef struct layout {
    const char *name;
    int (*node)(int rank, int size); /* number of a rank's node */
} layout_t;

static int one_node(int rank, int size)
{
    (void)rank;
    (void)size;
    return 0;
}

static int node_each(int rank, int size)
{
    (void)size;
    return rank;
}

static int blocks(int rank, int size)
{
    (void)size;
    return rank / 8;
}

static int halves(int rank, int size)
{
    return 2 * rank / size;
}

static int round_robin(int rank, int size)
{
    (void)size;
    return (rank + 3) % 7;
}

static int scattered(int rank, int size)
{
    (void)size;
    return (int)((uint32_t)rank * 2654435761u >> 28);
}

static const layout_t layouts[] = {
    {"one node", one_node}, {"node each", node_each},     {"blocks of 8", blocks},
    {"halves", halves},     {"round robin", round_robin}, {"scattered", scattered},
};

static void make(dp_topology_t *topology, const layout_t *layout, int size)
{
    static char text[RANKS][32];
    const char *names[RANKS];

    for (int rank = 0; rank < size; rank++) {
        snprintf(text[rank], sizeof(text[rank]), "node-%d", layout->node(rank, size));
        names[rank] = text[rank];
    }
    assert_int_equal(dp_topology_init(topology, names, size), DP_OK);
    memset(text, 'x', sizeof(text)); /* the names were copied */
}

static void check_nodes(const dp_topology_t *topology, const layout_t *layout)
{
    int total = 0;

    assert_int_equal(topology->node[0], 0);
    assert_int_equal(topology->node_begin[topology->node_count], topology->size);
    for (int node = 0; node < topology->node_count; node++) {
        const int begin = topology->node_begin[node];
        const int first = topology->node_ranks[begin];
        char name[32];

        assert_int_equal(topology->node_begin[node + 1] - begin, topology->node_size[node]);
        assert_true(topology->node_size[node] > 0);
        snprintf(name, sizeof(name), "node-%d", layout->node(first, topology->size));
        assert_string_equal(topology->host_name[node], name);
        if (node > 0) { /* numbered by first appearance */
            assert_true(first > topology->node_ranks[topology->node_begin[node - 1]]);
        }
        for (int i = 0; i < topology->node_size[node]; i++, total++) {
            const int rank = topology->node_ranks[begin + i];

            assert_int_equal(topology->node[rank], node);
            assert_int_equal(topology->local_rank[rank], i);
            if (i > 0) assert_true(rank > topology->node_ranks[begin + i - 1]);
        }
    }
    assert_int_equal(total, topology->size);
    for (int a = 0; a < topology->size; a++) {
        for (int b = 0; b < a; b++) {
            const int same = layout->node(a, topology->size) == layout->node(b, topology->size);

            assert_int_equal(topology->node[a] == topology->node[b], same);
        }
    }
}

static int is_leader(const dp_topology_t *topology, int rank)
{
    return topology->local_rank[rank] == 0;
}

static void check_tree(const dp_topology_t *topology, int arity)
{
    dp_tree_links_t nodes[RANKS];
    int seen[RANKS] = {0};
    int depth_max = 0;
    int levels = 0;

    for (int rank = 0; rank < topology->size; rank++) {
        assert_int_equal(dp_tree_links_init(&nodes[rank], topology, arity, rank), DP_OK);
    }
    assert_int_equal(nodes[0].parent, -1);
    for (int rank = 0; rank < topology->size; rank++) {
        const dp_tree_links_t *node = &nodes[rank];
        int local = 0;
        int upper = 0;

        for (int i = 0; i < node->child_count; i++) {
            const int child = node->children[i];

            assert_in_range(child, 1, topology->size - 1);
            assert_int_equal(nodes[child].parent, rank);
            if (i > 0) assert_true(child > node->children[i - 1]);
            seen[child]++;
            if (is_leader(topology, child)) {
                assert_true(is_leader(topology, rank)); /* nodes meet at leaders only */
                upper++;
            } else {
                assert_int_equal(topology->node[child], topology->node[rank]);
                local++;
            }
        }
        assert_true(local <= arity);
        assert_true(upper <= arity);
        assert_true(node->child_count + (node->parent >= 0) <= 2 * arity + 1);
    }
    assert_int_equal(seen[0], 0);
    for (int rank = 1; rank < topology->size; rank++)
        assert_int_equal(seen[rank], 1);
    for (int rank = 0; rank < topology->size; rank++) { /* no rank hangs in a loop of its own */
        int depth = 0;

        for (int at = rank; at != 0; at = nodes[at].parent) {
            assert_true(++depth <= topology->size);
        }
        depth_max = dp_max(depth_max, depth);
    }
    for (int64_t width = 1, left = topology->size; left > 0; width *= arity, levels++) {
        left -= width;
    }
    if (topology->node_count == 1) assert_int_equal(depth_max, levels - 1);
    assert_true(arity == 1 || depth_max <= 2 * levels);
    for (int rank = 0; rank < topology->size; rank++)
        dp_tree_links_fini(&nodes[rank]);
}

static void topology_every_world_is_one_tree(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 64, 100, 257, 300};
    static const int arities[] = {1, 2, 3, 8, 64};

    (void)state;
    for (size_t l = 0; l < DP_ARRAY_LEN(layouts); l++) {
        for (size_t s = 0; s < DP_ARRAY_LEN(sizes); s++) {
            dp_topology_t topology;

            make(&topology, &layouts[l], sizes[s]);
            check_nodes(&topology, &layouts[l]);
            for (size_t a = 0; a < DP_ARRAY_LEN(arities); a++)
                check_tree(&topology, arities[a]);
            dp_topology_fini(&topology);
        }
    }
}

static void topology_large_world_is_quick(void **state)
{
    enum { SIZE = 20000 };
    const char **names = malloc(SIZE * sizeof(*names));
    char *text = malloc(SIZE * (size_t)16);
    dp_topology_t topology;

    (void)state;
    assert_non_null(names);
    assert_non_null(text);
    for (int rank = 0; rank < SIZE; rank++) {
        snprintf(text + 16 * rank, 16, "node-%d", rank / 8);
        names[rank] = text + 16 * rank;
    }
    assert_int_equal(dp_topology_init(&topology, names, SIZE), DP_OK);
    assert_int_equal(topology.node_count, SIZE / 8);
    assert_int_equal(topology.node[SIZE - 1], SIZE / 8 - 1);
    dp_topology_fini(&topology);
    free(text);
    free(names);
}

static void topology_small_example_is_as_drawn(void **state)
{
    /* a: 0 2 4, b: 1 3, c: 5; arity 2: 0 -> 2, 4 (local) and 1, 5 (leaders); 1 -> 3 */
    static const char *const names[] = {"a", "b", "a", "b", "a", "c"};
    dp_topology_t topology;
    dp_tree_links_t node;

    (void)state;
    assert_int_equal(dp_topology_init(&topology, names, 6), DP_OK);
    assert_int_equal(topology.node_count, 3);
    assert_int_equal(dp_tree_links_init(&node, &topology, 2, 0), DP_OK);
    assert_int_equal(node.child_count, 4);
    assert_int_equal(node.children[0], 1);
    assert_int_equal(node.children[1], 2);
    assert_int_equal(node.children[2], 4);
    assert_int_equal(node.children[3], 5);
    dp_tree_links_fini(&node);
    assert_int_equal(dp_tree_links_init(&node, &topology, 2, 1), DP_OK);
    assert_int_equal(node.parent, 0);
    assert_int_equal(node.child_count, 1);
    assert_int_equal(node.children[0], 3);
    dp_tree_links_fini(&node);
    dp_topology_fini(&topology);
}

static void topology_tells_nodes_of_one_name_apart(void **state)
{
    static const char *const keys[] = {"x", "y", "x", "y", "z"};
    static const char *const names[] = {"localhost", "localhost", "localhost", "localhost", "c"};
    static const int some[] = {3, 4, 1};
    dp_topology_t topology, part;

    (void)state;
    assert_int_equal(dp_topology_init_keys(&topology, keys, names, 5), DP_OK);
    assert_int_equal(topology.node_count, 3);
    assert_int_equal(topology.node[2], 0);
    assert_int_equal(topology.node[3], 1);
    assert_string_equal(topology.host_name[0], "localhost");
    assert_string_equal(topology.host_name[1], "localhost");
    assert_int_equal(dp_topology_init_part(&part, &topology, some, 3), DP_OK);
    assert_int_equal(part.node_count, 2);
    assert_int_equal(part.node[0], 0);
    assert_int_equal(part.node[1], 1);
    assert_int_equal(part.node[2], 0);
    assert_int_equal(part.local_rank[2], 1);
    assert_string_equal(part.host_name[1], "c");
    dp_topology_fini(&part);
    dp_topology_fini(&topology);
}

static void topology_refuses_nonsense(void **state)
{
    static const char *const names[] = {"a"};
    dp_topology_t topology;
    dp_tree_links_t node;

    (void)state;
    assert_int_equal(dp_topology_init(&topology, names, 0), DP_ERR_INVALID);
    dp_topology_fini(&topology);
    assert_int_equal(dp_topology_init(&topology, names, 1), DP_OK);
    assert_int_equal(dp_tree_links_init(&node, &topology, 0, 0), DP_ERR_INVALID);
    assert_int_equal(dp_tree_links_init(&node, &topology, 8, 1), DP_ERR_INVALID);
    assert_int_equal(dp_tree_links_init(&node, &topology, 8, -1), DP_ERR_INVALID);
    dp_tree_links_fini(&node);
    dp_topology_fini(&topology);
    dp_topology_fini(&topology); /* twice is harmless */
}

static dp_status_t make_and_look(void)
{
    static const char *const names[] = {"a", "b", "a", "c"};
    dp_topology_t topology;
    dp_tree_links_t node;
    dp_status_t status = dp_topology_init(&topology, names, 4);

    if (status != DP_OK) return status;
    status = dp_tree_links_init(&node, &topology, 2, 0);
    dp_tree_links_fini(&node);
    dp_topology_fini(&topology);
    return status;
}

static void topology_nth_allocation_fails_without_a_leak(void **state)
{
    int failed = 0;

    (void)state;
    for (int is_reached = 1; is_reached; failed += is_reached) {
        dp_status_t status;

        fail_allocation(failed + 1);
        status = make_and_look();
        is_reached = fail_allocation_reached();
        assert_int_equal(status, is_reached ? DP_ERR_NO_MEMORY : DP_OK);
    }
    assert_true(failed >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topology_every_world_is_one_tree),
        cmocka_unit_test(topology_large_world_is_quick),
        cmocka_unit_test(topology_small_example_is_as_drawn),
        cmocka_unit_test(topology_tells_nodes_of_one_name_apart),
        cmocka_unit_test(topology_refuses_nonsense),
        cmocka_unit_test(topology_nth_allocation_fails_without_a_leak),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
