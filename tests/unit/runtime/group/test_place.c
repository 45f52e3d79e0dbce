/*
 * test_place.c - where rank 0 of a job that others started listens, by what its name means there.
 */
#include <string.h>
#include <unistd.h>

#include "runtime/group/bootstrap_place.h"
#include "tests/unit/cases.h"

static const char *own[] = {"10.99.0.1", "fd99::1", "10.98.0.1", "127.0.0.1"};

static int is_own(const dp_ip_t *ip)
{
    char text[DP_IP_TEXT];

    dp_ip_format(ip, text);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(own[i], text) == 0) return 1;
    return 0;
}

/* Chooses for a name with these addresses, and an interface with those; both lists end with NULL.
 * Writes the result as text. */
static const char *choose(const char *const *names, const char *const *interface, int is_local)
{
    static char text[256];
    dp_ip_t named[8];
    dp_interface_address_t on_interface[8] = {0};
    dp_bootstrap_place_facts_t facts = {
        .is_local_name = is_local, .named = named, .interface = on_interface, .is_own = is_own};
    dp_bootstrap_place_t place;

    for (; names[facts.named_count] != NULL; facts.named_count++)
        assert_true(dp_ip_parse(names[facts.named_count], &named[facts.named_count]));
    for (; interface[facts.interface_count] != NULL; facts.interface_count++) {
        assert_true(
            dp_ip_parse(interface[facts.interface_count], &on_interface[facts.interface_count].ip));
    }
    dp_bootstrap_place_choose(&facts, &place);
    dp_bootstrap_place_format(&place, 7, text, sizeof(text));
    if (place.count == 0) assert_string_not_equal(place.why, "");
    return text;
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NONE ((const char *const[]){NULL})
#define ETH0 LIST("10.99.0.1", "fd99::1")

static void place_a_name_leads_to_its_addresses_alone(void **state)
{
    (void)state;
    assert_string_equal(choose(LIST("10.99.0.1"), NONE, 0), "on 10.99.0.1, port 7");
    assert_string_equal(choose(LIST("10.99.0.1", "fd99::1", "10.99.0.1"), NONE, 0),
                        "on 10.99.0.1, fd99::1, port 7");
    assert_string_equal(choose(LIST("127.0.1.1", "10.99.0.1", "10.1.1.1"), NONE, 0),
                        "on 10.99.0.1, port 7");
}

static void place_a_name_that_is_no_address_here_leads_everywhere(void **state)
{
    (void)state;
    assert_string_equal(choose(LIST("127.0.1.1"), NONE, 0), "on every address, port 7");
    assert_string_equal(choose(LIST("10.1.1.1"), NONE, 0), "on every address, port 7");
    assert_string_equal(choose(NONE, NONE, 0), "on every address, port 7");
    assert_string_equal(choose(LIST("0.0.0.0"), NONE, 0), "on every address, port 7");
}

static void place_an_interface_is_obeyed(void **state)
{
    (void)state;
    assert_string_equal(choose(LIST("10.99.0.1", "10.98.0.1"), ETH0, 0), "on 10.99.0.1, port 7");
    assert_string_equal(choose(LIST("10.1.1.1"), ETH0, 0), "on 10.99.0.1, fd99::1, port 7");
    assert_string_equal(choose(NONE, ETH0, 0), "on 10.99.0.1, fd99::1, port 7");
    /* The ranks on this machine come by loopback. */
    assert_string_equal(choose(LIST("127.0.1.1"), ETH0, 0),
                        "on 10.99.0.1, fd99::1, 127.0.1.1, port 7");
    /* The others come by the name. */
    assert_string_equal(choose(LIST("10.98.0.1"), ETH0, 0),
                        "on 10.99.0.1, fd99::1, 10.98.0.1, port 7");
}

static void place_localhost_is_loopback(void **state)
{
    (void)state;
    assert_string_equal(choose(LIST("127.0.0.1", "::1"), NONE, 1), "on 127.0.0.1, ::1, port 7");
    assert_string_equal(choose(LIST("127.0.0.1"), ETH0, 1), "on 127.0.0.1, port 7");
}

static void place_is_listened_on_at_one_port(void **state)
{
    dp_bootstrap_place_t place = {.count = 3};
    int listeners[DP_BOOTSTRAP_PLACE_MAX];
    int others[DP_BOOTSTRAP_PLACE_MAX];
    int count = 0;
    int other_count = 0;
    uint16_t port = 0;
    uint16_t other = 0;
    dp_error_t error = {DP_OK, ""};

    (void)state;
    assert_true(dp_ip_parse("127.0.0.1", &place.ips[0]));
    assert_true(dp_ip_parse("192.0.2.1", &place.ips[1])); /* nobody's: left out */
    assert_true(dp_ip_parse("127.0.0.2", &place.ips[2]));
    assert_int_equal(dp_bootstrap_place_listen(&place, 0, listeners, &count, &port, &error), DP_OK);
    assert_int_equal(count, 2);
    assert_int_not_equal(port, 0);
    place.ips[0] = place.ips[2];
    assert_int_equal(dp_bootstrap_place_listen(&place, port, others, &other_count, &other, &error),
                     DP_ERR_BUSY);
    assert_non_null(strstr(error.text, "rendezvous on 127.0.0.2 port "));
    assert_int_equal(other_count, 0);
    for (int i = 0; i < count; i++)
        close(listeners[i]);
    place = (dp_bootstrap_place_t){.count = 1, .ips = {place.ips[1]}};
    assert_int_equal(dp_bootstrap_place_listen(&place, 0, listeners, &count, &port, &error),
                     DP_ERR_SYSTEM);
}

static void place_a_name_is_looked_up(void **state)
{
    dp_bootstrap_place_t place;
    char text[256];

    (void)state;
    dp_bootstrap_place_find("127.0.0.1", "", &place);
    dp_bootstrap_place_format(&place, 9, text, sizeof(text));
    assert_string_equal(text, "on 127.0.0.1, port 9");
    dp_bootstrap_place_find("", "", &place); /* PMI, a store */
    assert_int_equal(place.count, 0);
    dp_bootstrap_place_find("", "lo", &place);
    assert_true(place.count >= 1);
    dp_bootstrap_place_find("192.0.2.1", "", &place);
    assert_int_equal(place.count, 0);
}

static void place_of_a_rank_that_tells_where_it_is(void **state)
{
    char host[256] = "";
    dp_bootstrap_place_t place;
    dp_bootstrap_place_t named;

    (void)state;
    dp_bootstrap_place_find_own("", "", &place);
    assert_int_equal(place.count, 0);
    dp_bootstrap_place_find_own("localhost", "", &place); /* leads nobody here */
    assert_int_equal(place.count, 0);
    dp_bootstrap_place_find_own("192.0.2.1", "", &place);
    assert_int_equal(place.count, 0);
    assert_string_equal(place.name, "192.0.2.1");
    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    dp_bootstrap_place_find(host, "", &named);
    dp_bootstrap_place_find_own(host, "", &place);
    assert_int_equal(place.count, named.count == 0 ? 0 : named.count + 1); /* and loopback */
    dp_bootstrap_place_find_own(host, "lo", &place);
    assert_true(place.count >= 1);
    for (int i = 0; i < place.count; i++)
        assert_true(dp_ip_is_loopback(&place.ips[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(place_a_name_leads_to_its_addresses_alone),
        cmocka_unit_test(place_a_name_that_is_no_address_here_leads_everywhere),
        cmocka_unit_test(place_an_interface_is_obeyed),
        cmocka_unit_test(place_localhost_is_loopback),
        cmocka_unit_test(place_is_listened_on_at_one_port),
        cmocka_unit_test(place_a_name_is_looked_up),
        cmocka_unit_test(place_of_a_rank_that_tells_where_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
