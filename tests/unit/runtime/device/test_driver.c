/*
 * test_driver.c - finding a driver and the plug-in: run once as the machine is, once with a driver
 * of the tests' own in the library path (argument "fake"), once in a program that has loaded an
 * old NCCL already ("loaded" and its file), and once beside a plug-in that cannot be opened
 * ("broken").
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "runtime/base/build_info.h"
#include "runtime/base/driver.h"
#include "runtime/device/plugin.h"
#include "tests/unit/cases.h"

/* Whatever there is, the answer has words. */
static void the_answer_has_words(void **unused)
{
    char text[256] = "";
    int count = dp_driver_find(text, sizeof(text));

    (void)unused;
    if (count == 0) {
        assert_true(strstr(text, "no driver") != NULL || strstr(text, "no GPU") != NULL ||
                    strstr(text, "libcuda") != NULL);
    } else {
        assert_non_null(strstr(text, "GPU"));
        assert_true(dp_driver_is_loaded());
    }
}

static void without_a_driver_no_plugin_is_looked_for(void **unused)
{
    const dp_plugin_t *plugin = NULL;
    char why[256], text[256] = "";

    (void)unused;
    if (dp_driver_find(why, sizeof(why)) > 0) skip();
    assert_int_equal(dp_plugin_open(&plugin, DP_VERSION_TEXT, text, sizeof(text)),
                     DP_ERR_UNSUPPORTED);
    assert_string_equal(text, why);
    assert_null(plugin);
}

static void a_driver_is_counted_and_named(void **unused)
{
    char text[256] = "";

    (void)unused;
    unsetenv("DP_TEST_GPUS");
    assert_int_equal(dp_driver_find(text, sizeof(text)), 2);
    assert_string_equal(text, "2 GPUs, driver for CUDA 13.0");
    assert_true(dp_driver_is_loaded());
}

static void a_driver_that_shows_no_gpu_says_so(void **unused)
{
    const dp_plugin_t *plugin = NULL;
    char text[256] = "";

    (void)unused;
    setenv("DP_TEST_GPUS", "0", 1);
    assert_int_equal(dp_driver_find(text, sizeof(text)), 0);
    assert_non_null(strstr(text, "no GPU"));
    assert_int_equal(dp_plugin_open(&plugin, DP_VERSION_TEXT, text, sizeof(text)),
                     DP_ERR_UNSUPPORTED);
    assert_non_null(strstr(text, "no GPU"));
    unsetenv("DP_TEST_GPUS");
}

/* The real library, built beside this program: it loads, and its table is of this build. */
static void the_plugin_of_this_build_opens(void **unused)
{
    const dp_plugin_t *plugin = NULL;
    char text[256] = "";
    dp_status_t status = dp_plugin_open(&plugin, DP_VERSION_TEXT, text, sizeof(text));

    (void)unused;
    if (status == DP_ERR_UNSUPPORTED) { /* one without an engine is of no use */
        assert_non_null(strstr(text, "built without NCCL"));
        return;
    }
    assert_int_equal(status, DP_OK);
    assert_int_equal(plugin->version, DP_PLUGIN_VERSION);
    assert_non_null(plugin->device_create);
    assert_non_null(strstr(text, "CUDA"));
}

static void a_plugin_of_another_build_is_refused(void **unused)
{
    const dp_plugin_t *plugin = NULL;
    char text[256] = "";

    (void)unused;
    assert_int_equal(dp_plugin_open(&plugin, "0.0.0", text, sizeof(text)), DP_ERR_MISMATCH);
    assert_non_null(strstr(text, "0.0.0"));
    assert_null(plugin);
}

static const char *loaded; /* a libnccl.so.2 of version 2.26.2, with no call newer than that */

/* As in a program that has loaded PyTorch, which brings a NCCL of its own. */
static void a_library_that_is_loaded_already_is_used(void **unused)
{
    const dp_plugin_t *plugin = NULL;
    char text[512] = "", wanted[400];
    dp_status_t status;

    (void)unused;
    assert_non_null(dlopen(loaded, RTLD_NOW | RTLD_LOCAL));
    status = dp_plugin_open(&plugin, DP_VERSION_TEXT, text, sizeof(text));
    if (status != DP_OK) fail_msg("%s", text);
    snprintf(wanted, sizeof(wanted), "NCCL 2.26.2 (%s), built with ", loaded);
    if (strstr(text, wanted) == NULL) fail_msg("%s", text);
}

/* In a folder with a libdp-cuda.so that is none. */
static void a_plugin_that_cannot_be_opened_says_why(void **unused)
{
    const dp_plugin_t *plugin = NULL;
    char text[512] = "";

    (void)unused;
    assert_int_equal(dp_plugin_open(&plugin, DP_VERSION_TEXT, text, sizeof(text)),
                     DP_ERR_UNSUPPORTED);
    if (strstr(text, "/broken/libdp-cuda.so: ") == NULL) fail_msg("%s", text);
    assert_null(plugin);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest found[] = {
        cmocka_unit_test(the_answer_has_words),
        cmocka_unit_test(without_a_driver_no_plugin_is_looked_for),
    };
    const struct CMUnitTest faked[] = {
        cmocka_unit_test(a_driver_is_counted_and_named),
        cmocka_unit_test(a_driver_that_shows_no_gpu_says_so),
        cmocka_unit_test(the_plugin_of_this_build_opens),
        cmocka_unit_test(a_plugin_of_another_build_is_refused),
    };

    const struct CMUnitTest with_library[] = {
        cmocka_unit_test(a_library_that_is_loaded_already_is_used),
    };

    const struct CMUnitTest broken[] = {
        cmocka_unit_test(a_plugin_that_cannot_be_opened_says_why),
    };

    if (argc > 1 && strcmp(argv[1], "broken") == 0) {
        return cmocka_run_group_tests(broken, NULL, NULL);
    }
    if (argc > 2 && strcmp(argv[1], "loaded") == 0) {
        loaded = argv[2];
        return cmocka_run_group_tests(with_library, NULL, NULL);
    }
    if (argc > 1 && strcmp(argv[1], "fake") == 0) {
        return cmocka_run_group_tests(faked, NULL, NULL);
    }
    return cmocka_run_group_tests(found, NULL, NULL);
}
