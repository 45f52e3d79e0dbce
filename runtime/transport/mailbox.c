/*
 * mailbox.c - memory of one rank into which its neighbours on the same node write messages, and the
 * doorbell that wakes the rank. mailbox.h has the picture, the callers and their threads.
 *
 * The memory is a memfd, the doorbell an eventfd. The file is sealed: were it made shorter, an
 * access past its end would end the processes that have mapped it.
 *
 * Sleep and wake-up are Dekker's algorithm, with these four accesses sequentially consistent:
 *
 *     owner                                    neighbour
 *     dp_mailbox_arm():  is_asleep = 1         dp_ring_write():    ring->head = ...
 *     dp_ring_has():     reads ring->head      dp_mailbox_wake():  reads is_asleep
 *
 * At least one of the two reads sees the other side's store, so either the owner finds the message
 * or the neighbour rings. The neighbour that rings clears is_asleep, so that many messages to a
 * sleeping rank cost one system call. coordinator/loop/inbox.c sleeps in the same way.
 */
#include "runtime/transport/mailbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/limits.h"

#define MAGIC UINT64_C(0x31584f424d504400) /* "\0DPMBOX1" */
#define RANKS_MAX 1024
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* The head of the file. Behind it lie as many rings as fit, one for each of ranks[], in this order.
 * Written once by the owner before any neighbour has the file, but for the two flags. */
typedef struct header {
    _Alignas(64) uint64_t magic;
    uint64_t tag;               /* of the job */
    uint32_t owner;             /* rank */
    _Atomic uint32_t is_asleep; /* set by the owner; cleared by it, or by a neighbour that rings */
    _Atomic uint32_t is_closed; /* set by the owner */
    int32_t ranks[RANKS_MAX];
} header_t;
_Static_assert(sizeof(header_t) % 64 == 0, "rings are aligned behind it");

struct dp_mailbox {
    header_t *header; /* mapped, bytes long */
    size_t bytes;
    int ring_count; /* as checked once: the header may change under a broken owner */
    int ring_index; /* of a neighbour's mailbox: the ring that this rank writes; -1: it is own */
    int doorbell;
    int file; /* the owner's; -1: it is a neighbour's */
};

static size_t mailbox_bytes(int count)
{
    return sizeof(header_t) + (size_t)count * sizeof(dp_ring_t);
}

static dp_ring_t *ring_at(const dp_mailbox_t *mailbox, int place)
{
    return (dp_ring_t *)(void *)((char *)(mailbox->header + 1)) + place;
}

static dp_mailbox_t *alloc_mailbox(void)
{
    dp_mailbox_t *mailbox = calloc(1, sizeof(*mailbox));

    if (mailbox != NULL) mailbox->file = mailbox->doorbell = -1;
    return mailbox;
}

static int map_mailbox(dp_mailbox_t *mailbox, int file, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);

    if (memory == MAP_FAILED) return -1;
    mailbox->header = memory;
    mailbox->bytes = bytes;
    return 0;
}

void dp_mailbox_destroy(dp_mailbox_t *mailbox)
{
    if (mailbox == NULL) return;
    if (mailbox->header != NULL) munmap(mailbox->header, mailbox->bytes);
    if (mailbox->file >= 0) close(mailbox->file);
    if (mailbox->doorbell >= 0) close(mailbox->doorbell);
    free(mailbox);
}

/* ---- For the owner -------------------------------------------------------------------------- */

/* what: the call that failed, with errno. */
static dp_status_t no_file(dp_error_t *error, const char *what, const char *needs)
{
    dp_error_set(error, DP_ERR_SYSTEM, "no shared memory for messages: %s: %s%s", what,
                 strerror(errno), needs);
    return DP_ERR_SYSTEM;
}

/* Makes the pages now, by a call that can fail: a first access that found no memory would be a
 * SIGBUS. write() does what fallocate() does, which some sandboxes refuse. */
static int fill_file(int file, size_t bytes)
{
    static const char zeros[1 << 16];
    size_t done = 0;

    while (done < bytes) {
        const ssize_t written = write(file, zeros, dp_min(bytes - done, sizeof(zeros)));

        if (written < 0 && errno != EINTR) return -1;
        if (written > 0) done += (size_t)written;
    }
    return 0;
}

static dp_status_t make_file(dp_mailbox_t *mailbox, size_t bytes, dp_error_t *error)
{
    static const char needs[] =
        " (it takes Linux 3.17 or newer, and a sandbox that permits the call)";

    if (dp_limits_file_bytes() < bytes) { /* or SIGXFSZ ends the program */
        errno = EFBIG;
        return no_file(error, "the limit on the size of files", "");
    }
    mailbox->doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (mailbox->doorbell < 0) return no_file(error, "eventfd", "");
    mailbox->file = memfd_create("dp-mailbox", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (mailbox->file < 0) return no_file(error, "memfd_create", needs);
    if (fill_file(mailbox->file, bytes) != 0) return no_file(error, "write", "");
    if (fcntl(mailbox->file, F_ADD_SEALS, SEALS) != 0)
        return no_file(error, "its size cannot be sealed, F_ADD_SEALS", needs);
    return map_mailbox(mailbox, mailbox->file, bytes) == 0 ? DP_OK : no_file(error, "mmap", "");
}

dp_status_t dp_mailbox_create(int rank, uint64_t tag, const int *ranks, int count,
                              dp_mailbox_t **out, dp_error_t *error)
{
    dp_mailbox_t *mailbox;
    header_t *header;
    dp_status_t status;

    if (count > RANKS_MAX) {
        return dp_error_set(error, DP_ERR_UNSUPPORTED, "%d neighbours are more than %d", count,
                            RANKS_MAX);
    }
    mailbox = alloc_mailbox();
    if (mailbox == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    status = make_file(mailbox, mailbox_bytes(count), error);
    if (status != DP_OK) {
        dp_mailbox_destroy(mailbox);
        return status;
    }
    mailbox->ring_count = count;
    mailbox->ring_index = -1;
    header = mailbox->header;
    header->magic = MAGIC;
    header->tag = tag;
    header->owner = (uint32_t)rank;
    for (int i = 0; i < count; i++)
        header->ranks[i] = ranks[i];
    *out = mailbox;
    return DP_OK;
}

void dp_mailbox_files(const dp_mailbox_t *mailbox, int files[DP_MAILBOX_FILES])
{
    files[0] = mailbox->file;
    files[1] = mailbox->doorbell;
}

dp_ring_t *dp_mailbox_ring(const dp_mailbox_t *mailbox, int from)
{
    if (mailbox->ring_index >= 0) return ring_at(mailbox, mailbox->ring_index);
    for (int i = 0; i < mailbox->ring_count; i++) {
        if (mailbox->header->ranks[i] == from) return ring_at(mailbox, i);
    }
    return NULL;
}

int dp_mailbox_fd(const dp_mailbox_t *mailbox)
{
    return mailbox->doorbell;
}

void dp_mailbox_clear_doorbell(dp_mailbox_t *mailbox)
{
    uint64_t rung;

    while (read(mailbox->doorbell, &rung, sizeof(rung)) < 0 && errno == EINTR) {
    }
}

void dp_mailbox_arm(dp_mailbox_t *mailbox)
{
    atomic_store(&mailbox->header->is_asleep, 1); /* pairs with dp_mailbox_wake() */
}

void dp_mailbox_disarm(dp_mailbox_t *mailbox)
{
    /* Relaxed: a neighbour that still reads 1 rings once for nothing, which the next
     * dp_mailbox_clear_doorbell() takes away. */
    atomic_store_explicit(&mailbox->header->is_asleep, 0, memory_order_relaxed);
}

void dp_mailbox_close(dp_mailbox_t *mailbox)
{
    atomic_store(&mailbox->header->is_closed, 1);
}

/* ---- For a neighbour ------------------------------------------------------------------------ */

/* Maps the file if it is that rank's mailbox, and finds this rank's ring in it. NULL, or in words
 * what is wrong. */
static const char *map_peer_file(dp_mailbox_t *mailbox, int file, int rank, int from, uint64_t tag)
{
    const int seals = fcntl(file, F_GET_SEALS);
    struct stat about;
    const header_t *header;

    /* A file that can be made shorter must not be mapped: reading past its end is a SIGBUS. */
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file, &about) != 0 ||
        (size_t)about.st_size < mailbox_bytes(0) ||
        (size_t)about.st_size > mailbox_bytes(RANKS_MAX))
        return "it gave another file";
    if (map_mailbox(mailbox, file, (size_t)about.st_size) != 0) return "no memory to map it";
    header = mailbox->header;
    mailbox->ring_count = (int)((mailbox->bytes - mailbox_bytes(0)) / sizeof(dp_ring_t));
    if (header->magic != MAGIC || header->tag != tag || header->owner != (uint32_t)rank)
        return "its file is no mailbox of this job";
    for (int i = 0; i < mailbox->ring_count; i++) {
        if (header->ranks[i] != from) continue;
        mailbox->ring_index = i;
        return NULL;
    }
    return "it has no ring for this rank";
}

/* A pipe without a reader, say, would raise SIGPIPE, and another file could block. */
static int is_doorbell(int fd)
{
    struct stat about;

    return fstat(fd, &about) == 0 && !S_ISFIFO(about.st_mode) && !S_ISSOCK(about.st_mode) &&
           (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

dp_status_t dp_mailbox_open(const int files[DP_MAILBOX_FILES], int rank, int from, uint64_t tag,
                            dp_mailbox_t **out, dp_error_t *error)
{
    dp_mailbox_t *mailbox = alloc_mailbox();
    const dp_status_t status = mailbox == NULL ? DP_ERR_NO_MEMORY : DP_ERR_SYSTEM;
    const char *reason = "no memory";

    if (mailbox != NULL) {
        mailbox->doorbell = files[1];
        reason = is_doorbell(files[1]) ? map_peer_file(mailbox, files[0], rank, from, tag)
                                       : "it gave no doorbell";
    } else {
        close(files[1]);
    }
    close(files[0]);
    if (reason == NULL) {
        *out = mailbox;
        return DP_OK;
    }
    dp_mailbox_destroy(mailbox);
    return dp_error_set(error, status, "%s", reason);
}

void dp_mailbox_wake(dp_mailbox_t *mailbox)
{
    static const uint64_t one = 1;
    _Atomic uint32_t *is_asleep = &mailbox->header->is_asleep;

    /* Both pair with dp_mailbox_arm(). The load first: it leaves the cache line shared while the
     * owner is awake, which is the usual case. */
    if (atomic_load(is_asleep) == 0 || atomic_exchange(is_asleep, 0) == 0) return;
    while (write(mailbox->doorbell, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

int dp_mailbox_is_closed(const dp_mailbox_t *mailbox)
{
    /* Relaxed: nothing else is read on the strength of it. */
    return atomic_load_explicit(&mailbox->header->is_closed, memory_order_relaxed) != 0;
}
