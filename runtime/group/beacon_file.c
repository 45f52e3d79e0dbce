/*
 * beacon_file.c - the file by which rank 0 tells the ranks of its machine where it serves.
 *
 * A process that can write the file can pass for rank 0, and one that can read it joins the job: so
 * directory and file are opened without following links and believed only if they belong to this
 * user and nobody else may enter. The file is written under another name and renamed: a reader sees
 * all of it or nothing. Writers take turns by a lock on the directory, so that a stale file is
 * replaced by one of them and a living one by none.
 *
 * Called by bootstrap_elsewhere.c in dp_init(); the thread of bootstrap_server.c removes the file
 * once all ranks have come.
 */
#include "runtime/group/beacon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/config.h"
#include "runtime/base/input_file.h"

#define NAME_MAX_KEPT 96 /* of an identity in a file's name; a hash tells longer ones apart */
#define LOCK_WAIT_NS 5000000

/* ---- Processes ------------------------------------------------------------------------------ */

/* When a process started; 0: there is none. */
static uint64_t start_of(uint32_t pid)
{
    char path[64];
    char text[1024];
    char *at;
    char *end = NULL;

    snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    if (!dp_input_file_read(path, text, sizeof(text))) return 0;
    at = strrchr(text, ')'); /* the name in parentheses may hold anything */
    if (at == NULL) return 0;
    at++; /* a blank follows, then field 3; the start is field 22 */
    for (int field = 3; field < 22 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at, &end, 10) : 0;
}

void dp_process_self(dp_process_t *process)
{
    struct stat space;

    memset(process, 0, sizeof(*process));
    process->pid = (uint32_t)getpid();
    process->start = start_of(process->pid);
    if (stat("/proc/self/ns/pid", &space) == 0) process->pid_space = space.st_ino;
    dp_input_file_read_line(DP_BOOT_ID_FILE, process->boot, sizeof(process->boot));
}

int dp_process_has_ended(const dp_process_t *process)
{
    dp_process_t self;
    uint64_t start;

    dp_process_self(&self);
    if (strcmp(self.boot, process->boot) != 0) return 1; /* /run and /tmp are of this machine */
    if (self.pid_space != process->pid_space) return 0;  /* cannot be known from here */
    if (kill((pid_t)process->pid, 0) != 0 && errno == ESRCH) return 1;
    start = start_of(process->pid);
    return start != 0 && process->start != 0 && start != process->start;
}

/* ---- The directory -------------------------------------------------------------------------- */

/* Opens the directory of a file, which must be ours alone. DP_ERR_PENDING: it is not there. */
static dp_status_t open_directory(const char *file, char path[DP_BEACON_PATH_MAX], int *fd,
                                  dp_error_t *error)
{
    struct stat about;

    snprintf(path, DP_BEACON_PATH_MAX, "%.*s", (int)(strrchr(file, '/') - file), file);
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0 && errno == ENOENT) {
        return dp_error_set(error, DP_ERR_PENDING, "there is no %s", file);
    }
    if (*fd < 0 || fstat(*fd, &about) != 0) {
        dp_error_set(error, DP_ERR_CONFIG, "%s: not a directory of ours: %s", path,
                     strerror(errno));
        if (*fd >= 0) close(*fd);
        return DP_ERR_CONFIG;
    }
    if (about.st_uid != geteuid() || (about.st_mode & 077) != 0) {
        close(*fd);
        return dp_error_set(error, DP_ERR_CONFIG,
                            "%s belongs to user %u with mode %o, expected user %u and mode 700: "
                            "remove it, or set XDG_RUNTIME_DIR to a directory of your own",
                            path, (unsigned)about.st_uid, (unsigned)about.st_mode & 0777,
                            (unsigned)geteuid());
    }
    return DP_OK;
}

static int is_usable(const char *path)
{
    struct stat about;

    return path != NULL && path[0] == '/' && strlen(path) < DP_BEACON_PATH_MAX / 2 &&
           stat(path, &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == geteuid() &&
           access(path, W_OK | X_OK) == 0;
}

void dp_beacon_path(const char *identity, char path[DP_BEACON_PATH_MAX])
{
    const char *runtime = dp_environment("XDG_RUNTIME_DIR");
    char directory[DP_BEACON_PATH_MAX / 2 + 16];
    char name[NAME_MAX_KEPT + 1];
    dp_secret_t digest; /* tells identities apart that are cut, or look alike */
    size_t bytes;

    if (is_usable(runtime)) {
        snprintf(directory, sizeof(directory), "%s/dp", runtime);
    } else {
        snprintf(directory, sizeof(directory), "/tmp/dp-%u", (unsigned)geteuid());
    }
    for (bytes = 0; identity[bytes] != '\0' && bytes < NAME_MAX_KEPT; bytes++) {
        const char c = identity[bytes];
        const int is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '-' || c == '.';

        name[bytes] = (char)(is_plain ? c : '_');
    }
    name[bytes] = '\0';
    dp_auth_derive(NULL, "beacon", identity, strlen(identity), &digest);
    snprintf(path, DP_BEACON_PATH_MAX, "%s/%s-%02x%02x%02x%02x", directory, name, digest.bytes[0],
             digest.bytes[1], digest.bytes[2], digest.bytes[3]);
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* Reads and checks one in an open directory; its identity is not looked at. */
static dp_status_t load(int directory_fd, const char *path, dp_beacon_t *beacon, dp_error_t *error)
{
    uint8_t data[DP_BEACON_MAX + 1];
    const int fd = openat(directory_fd, strrchr(path, '/') + 1,
                          O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat about;
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status;
    ssize_t bytes;

    if (fd < 0 && errno == ENOENT) {
        return dp_error_set(error, DP_ERR_PENDING, "there is no %s", path);
    }
    if (fd < 0) {
        return dp_error_set(error, DP_ERR_CONFIG, "%s: cannot be read: %s", path, strerror(errno));
    }
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != geteuid() ||
        (about.st_mode & 077) != 0) {
        close(fd);
        return dp_error_set(error, DP_ERR_CONFIG,
                            "%s is not a file of user %u that nobody else can read (mode %o of "
                            "user %u): remove it",
                            path, (unsigned)geteuid(), (unsigned)about.st_mode & 0777,
                            (unsigned)about.st_uid);
    }
    do {
        bytes = read(fd, data, sizeof(data)); /* renamed into place: all of it is there */
    } while (bytes < 0 && errno == EINTR);
    close(fd);
    status = dp_beacon_read(data, bytes > 0 ? (size_t)bytes : 0, beacon, &cause);
    explicit_bzero(data, sizeof(data));
    if (status == DP_OK) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG, "%s: %s: remove it", path, cause.text);
}

dp_status_t dp_beacon_look(const char *path, const char *identity, dp_beacon_t *beacon,
                           dp_error_t *error)
{
    char directory[DP_BEACON_PATH_MAX];
    int fd;
    dp_status_t status = open_directory(path, directory, &fd, error);

    if (status != DP_OK) return status;
    status = load(fd, path, beacon, error);
    close(fd);
    if (status != DP_OK) return status;
    if (strcmp(beacon->identity, identity) != 0) {
        return dp_error_set(error, DP_ERR_PENDING, "%s is of another job, '%.100s'", path,
                            beacon->identity);
    }
    if (dp_process_has_ended(&beacon->server)) {
        return dp_error_set(error, DP_ERR_PENDING, "%s is stale: its process %u has ended", path,
                            beacon->server.pid);
    }
    return DP_OK;
}

/* ---- Writing -------------------------------------------------------------------------------- */

static dp_status_t write_file(const char *path, const dp_beacon_t *beacon, dp_error_t *error)
{
    uint8_t data[DP_BEACON_MAX];
    const size_t bytes = dp_beacon_write(beacon, data, sizeof(data));
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int is_written = 0;
    int cause = errno;

    if (fd >= 0) {
        is_written = bytes > 0 && write(fd, data, bytes) == (ssize_t)bytes;
        cause = bytes == 0 ? E2BIG : is_written ? 0 : errno != 0 ? errno : ENOSPC;
        close(fd);
        if (!is_written) unlink(path);
    }
    explicit_bzero(data, sizeof(data));
    if (is_written) return DP_OK;
    return dp_error_set(error, cause == ENOENT ? DP_ERR_PENDING : DP_ERR_SYSTEM,
                        "%s: cannot be written: %s", path, strerror(cause));
}

/* Removes what processes that were killed have left: beacons, and half-made ones. */
static void sweep(int directory_fd, const char *directory)
{
    const int fd = dup(directory_fd);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;

    if (entries == NULL) {
        if (fd >= 0) close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        char path[DP_BEACON_PATH_MAX + 256];
        dp_beacon_t beacon = {0};

        if (entry->d_name[0] == '.' && strncmp(entry->d_name, ".new-", 5) != 0) continue;
        snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
        if (entry->d_name[0] == '.') {
            unlink(path); /* its writer held the lock that we hold now */
        } else if (load(directory_fd, path, &beacon, NULL) == DP_OK) {
            if (dp_process_has_ended(&beacon.server)) unlink(path);
            explicit_bzero(&beacon.secret, sizeof(beacon.secret));
        }
    }
    closedir(entries);
}

/* Called with the directory's lock held. */
static dp_status_t replace(int directory_fd, const char *directory, const char *path,
                           const dp_beacon_t *beacon, dp_error_t *error)
{
    char temporary[DP_BEACON_PATH_MAX + 64];
    dp_beacon_t old = {0};
    dp_status_t status = load(directory_fd, path, &old, error);

    if (status == DP_ERR_CONFIG) return status;
    if (status == DP_OK && !dp_process_has_ended(&old.server)) {
        explicit_bzero(&old.secret, sizeof(old.secret));
        return dp_error_set(error, DP_ERR_BUSY,
                            "process %u is rank 0 of the same job '%.200s' and gathers its ranks "
                            "now (%s)",
                            old.server.pid, old.identity, path);
    }
    sweep(directory_fd, directory);
    snprintf(temporary, sizeof(temporary), "%s/.new-%u", directory, beacon->server.pid);
    status = write_file(temporary, beacon, error);
    if (status != DP_OK) return status;
    if (rename(temporary, path) != 0) {
        status = dp_error_set(error, errno == ENOENT ? DP_ERR_PENDING : DP_ERR_SYSTEM, "%s: %s",
                              path, strerror(errno));
        unlink(temporary);
    }
    return status;
}

/* Waits for the directory's lock, which others hold for moments unless they are stopped. */
static dp_status_t lock_directory(int fd, const char *directory, uint64_t deadline_ns,
                                  dp_error_t *error)
{
    const struct timespec pause = {0, LOCK_WAIT_NS};

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (dp_now_ns() > deadline_ns || (errno != EWOULDBLOCK && errno != EINTR)) {
            return dp_error_set(error, DP_ERR_TIMEOUT, "%s: its lock: %s", directory,
                                strerror(errno));
        }
        nanosleep(&pause, NULL);
    }
    return DP_OK;
}

dp_status_t dp_beacon_publish(const char *path, const dp_beacon_t *beacon, uint64_t deadline_ns,
                              dp_error_t *error)
{
    char directory[DP_BEACON_PATH_MAX];
    dp_status_t status;
    int fd;

    do { /* again where a job that ends removes the directory under our hands */
        snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(path, '/') - path), path);
        if (mkdir(directory, 0700) != 0 && errno != EEXIST) {
            return dp_error_set(error, DP_ERR_SYSTEM,
                                "%s: cannot be made: %s; set XDG_RUNTIME_DIR to a directory of "
                                "your own",
                                directory, strerror(errno));
        }
        status = open_directory(path, directory, &fd, error);
        if (status == DP_ERR_PENDING) continue;
        if (status != DP_OK) return status;
        status = lock_directory(fd, directory, deadline_ns, error);
        if (status == DP_OK) status = replace(fd, directory, path, beacon, error);
        close(fd); /* and with it the lock */
    } while (status == DP_ERR_PENDING && dp_now_ns() < deadline_ns);
    return status;
}

void dp_beacon_remove(const char *path)
{
    char directory[DP_BEACON_PATH_MAX];

    unlink(path);
    snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(path, '/') - path), path);
    (void)rmdir(directory); /* unless another job uses it */
}
