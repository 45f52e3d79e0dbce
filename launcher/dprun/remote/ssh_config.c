/*
 * ssh_config.c - see ssh_config.h. Called by fleet_start.c and nodes.c, once for a job.
 */
#include "launcher/dprun/remote/ssh_config.h"

#include <ctype.h>
#include <glob.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DEPTH_MAX 8
#define FILE_MAX ((size_t)1 << 20)

static void scan_text(const char *text, const char *folder, int depth, dp_ssh_config_t *config);

/* A file that cannot be read has no options, as for ssh. */
static void scan_file(const char *path, const char *folder, int depth, dp_ssh_config_t *config)
{
    FILE *file = fopen(path, "re");
    char *text = file == NULL ? NULL : malloc(FILE_MAX + 1);

    if (text != NULL) {
        text[fread(text, 1, FILE_MAX, file)] = '\0';
        scan_text(text, folder, depth, config);
    }
    free(text);
    if (file != NULL) fclose(file);
}

/* Names with patterns, relative to the folder of the including configuration. */
static void include(const char *words, size_t bytes, const char *folder, int depth,
                    dp_ssh_config_t *config)
{
    char list[PATH_MAX];
    char *rest = NULL;

    if (depth >= DEPTH_MAX || bytes >= sizeof(list)) return;
    memcpy(list, words, bytes);
    list[bytes] = '\0';
    for (char *word = strtok_r(list, " \t\"", &rest); word != NULL;
         word = strtok_r(NULL, " \t\"", &rest)) {
        char pattern[PATH_MAX];
        glob_t found;

        if (word[0] == '/' || word[0] == '~') {
            snprintf(pattern, sizeof(pattern), "%.4000s", word);
        } else {
            snprintf(pattern, sizeof(pattern), "%.2000s/%.2000s", folder, word);
        }
        if (glob(pattern, GLOB_TILDE, NULL, &found) != 0) continue;
        for (size_t i = 0; i < found.gl_pathc; i++)
            scan_file(found.gl_pathv[i], folder, depth + 1, config);
        globfree(&found);
    }
}

static int is_word(const char *text, size_t bytes, const char *word)
{
    return bytes == strlen(word) && strncasecmp(text, word, bytes) == 0;
}

static void scan_text(const char *text, const char *folder, int depth, dp_ssh_config_t *config)
{
    for (const char *line = text; *line != '\0';) {
        const size_t all = strcspn(line, "\r\n");
        const size_t blank = strspn(line, " \t");
        const char *word = line + blank;
        const size_t bytes = blank < all ? strcspn(word, " \t=\r\n") : 0;
        const char *value = word + bytes + strspn(word + bytes, " \t=");

        config->has_timeout |= is_word(word, bytes, "ConnectTimeout");
        config->has_alive |= is_word(word, bytes, "ServerAliveInterval") ||
                             is_word(word, bytes, "ServerAliveCountMax");
        if (is_word(word, bytes, "Include") && folder[0] != '\0' && value < line + all)
            include(value, (size_t)(line + all - value), folder, depth, config);
        line += all + (line[all] != '\0');
    }
}

void dp_ssh_config_scan(const char *text, const char *folder, dp_ssh_config_t *config)
{
    scan_text(text, folder, 0, config);
}

/* Options among ssh's words: "-o ServerAliveInterval=5", "-oConnectTimeout=5". */
static void scan_words(const char *ssh, dp_ssh_config_t *config)
{
    config->has_timeout |= strcasestr(ssh, "ConnectTimeout") != NULL;
    config->has_alive |= strcasestr(ssh, "ServerAlive") != NULL;
}

void dp_ssh_config_look(const char *ssh, dp_ssh_config_t *config)
{
    const struct passwd *user = getpwuid(getuid());
    const char *other = strstr(ssh, " -F");
    char folder[PATH_MAX] = "";
    char path[PATH_MAX + 16];

    memset(config, 0, sizeof(*config));
    scan_words(ssh, config);
    if (user != NULL) snprintf(folder, sizeof(folder), "%.4000s/.ssh", user->pw_dir);
    if (other != NULL) {
        other += 3 + strspn(other + 3, " \t");
        snprintf(path, sizeof(path), "%.*s", (int)strcspn(other, " \t"), other);
        scan_file(path, folder, 0, config); /* "none": there is no such file */
        return;
    }
    snprintf(path, sizeof(path), "%s/config", folder);
    scan_file(path, folder, 0, config);
    scan_file("/etc/ssh/ssh_config", "/etc/ssh", 0, config);
}
