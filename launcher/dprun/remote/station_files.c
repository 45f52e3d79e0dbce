/*
 * station_files.c - sends the files of a node's run directory (the recorders) to dprun, after the
 * ranks have ended. Called by station.c.
 *
 * A timer hands the link a few pieces at a time, so that neither memory nor signs of life suffer.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/dprun/failure/recorder.h"
#include "launcher/dprun/remote/station_internal.h"

#define QUEUED_MAX ((size_t)4 << 20)
#define PUMP_US 2000

typedef struct dp_station_files {
    DIR *directory;
    struct event *pump;
    int fd; /* of the file being sent; -1: none */
    char name[64];
} dp_station_files_t;

void dp_station_files_free(dp_station_t *station)
{
    dp_station_files_t *files = station->files;

    if (files == NULL) return;
    if (files->pump != NULL) event_free(files->pump);
    if (files->directory != NULL) closedir(files->directory);
    if (files->fd >= 0) close(files->fd);
    free(files);
    station->files = NULL;
}

static void send_piece(dp_station_t *station, const void *data, size_t bytes)
{
    static const size_t head_room = 2 + sizeof(station->files->name);
    uint8_t *frame = malloc(head_room + bytes);
    dp_writer_t writer;

    if (frame == NULL) return;
    dp_writer_init(&writer, frame, head_room + bytes);
    dp_write_text(&writer, station->files->name);
    if (bytes > 0) dp_write_bytes(&writer, data, bytes);
    dp_station_send(station, DP_REMOTE_FILE, frame, writer.bytes);
    free(frame);
}

/* 0: there is none left. Links are not followed: only what the ranks wrote here is sent. */
static int open_next_file(dp_station_t *station)
{
    dp_station_files_t *files = station->files;
    struct dirent *entry;

    while ((entry = readdir(files->directory)) != NULL) {
        struct stat info;

        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(files->name)) continue;
        files->fd = openat(dirfd(files->directory), entry->d_name,
                           O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (files->fd < 0) continue;
        if (fstat(files->fd, &info) == 0 && S_ISREG(info.st_mode)) {
            snprintf(files->name, sizeof(files->name), "%s", entry->d_name);
            send_piece(station, NULL, 0);
            return 1;
        }
        close(files->fd);
        files->fd = -1;
    }
    return 0;
}

static void on_pump(evutil_socket_t fd, short what, void *context)
{
    const struct timeval soon = {0, PUMP_US};
    dp_station_t *station = context;
    dp_station_files_t *files = station->files;
    uint8_t data[DP_REMOTE_PIECE];

    (void)fd;
    (void)what;
    while (station->link != NULL && dp_link_queued(station->link) < QUEUED_MAX) {
        ssize_t bytes;

        if (files->fd < 0 && !open_next_file(station)) {
            dp_station_send(station, DP_REMOTE_FILES_DONE, NULL, 0);
            dp_station_files_free(station);
            return;
        }
        bytes = read(files->fd, data, sizeof(data));
        if (bytes > 0) {
            send_piece(station, data, (size_t)bytes);
        } else {
            close(files->fd);
            files->fd = -1;
        }
    }
    event_add(files->pump, &soon);
}

void dp_station_send_files(dp_station_t *station)
{
    const struct timeval now = {0, 0};
    dp_station_files_t *files;

    if (station->files != NULL) return;
    files = calloc(1, sizeof(*files));
    station->files = files;
    if (files != NULL) {
        for (int i = 0; station->has_job && i < station->job.size; i++) {
            dp_recorder_trim(station->job.run_dir, station->start.first_rank + i);
        }
        files->fd = -1;
        files->directory = station->has_job ? opendir(station->job.run_dir) : NULL;
        files->pump = event_new(station->base, -1, 0, on_pump, station);
    }
    if (files == NULL || files->directory == NULL || files->pump == NULL) {
        dp_station_files_free(station);
        dp_station_send(station, DP_REMOTE_FILES_DONE, NULL, 0);
        return;
    }
    event_add(files->pump, &now);
}
