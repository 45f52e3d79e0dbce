/*
 * dock.c - memory of a rank in which neighbours on the same machine leave messages, and the bell
 * that wakes it.
 *
 * The memory is a memfd, the bell a pipe. A neighbour opens both under /proc/PID/fd, which the
 * kernel permits between processes of one user that may look at each other. A nonce in the file
 * says that it is the one of the address, and with it, where the bell is. The file is sealed, so no
 * one can make it shorter under those who have mapped it. The pipe is opened for reading too, as to
 * write where nobody reads would be a signal.
 *
 * The handshake with sleep is that of coordinator/loop/inbox.c: the owner stores `sleeps` and then
 * looks at its rings, a neighbour writes to a ring and then looks at `sleeps`, all sequentially
 * consistent, so at least one of the two sees the other. Who rings clears `sleeps`, so that many
 * messages make one system call.
 */
#include "runtime/transport/mailbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/auth.h"
#include "runtime/base/wire.h"

#define MAGIC UINT64_C(0x314b434f44504400) /* "\0DPDOCK1" */
#define RANKS_MAX 1024
#define ANY UINT64_MAX /* inode */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* The head of the file; behind it as many rings as fit, of ranks[] in this order. */
typedef struct header {
    _Alignas(64) uint64_t magic;
    uint64_t nonce; /* of the address: there is no other dock with it */
    uint64_t tag;
    uint64_t bell_inode;
    uint32_t bell; /* descriptor of the owner */
    uint32_t owner;
    _Atomic uint32_t sleeps; /* by the owner; a neighbour clears it and rings */
    _Atomic uint32_t is_closed;
    int32_t ranks[RANKS_MAX];
} header_t;
_Static_assert(sizeof(header_t) % 64 == 0, "rings are aligned behind it");

struct dp_mailbox {
    header_t *header; /* mapped, bytes long */
    size_t bytes;
    int ring_count; /* as checked once: the header may change */
    int only;       /* of a neighbour's dock: the ring that is this rank's; -1: all are */
    int bell;       /* the end that is watched, or both */
    /* the owner's */
    int file;
    int bell_in; /* the other end: without one the bell would always be readable */
};

static size_t bytes_of(int count)
{
    return sizeof(header_t) + (size_t)count * sizeof(dp_ring_t);
}

static dp_ring_t *ring_at(const dp_mailbox_t *dock, int place)
{
    return (dp_ring_t *)(void *)((char *)(dock->header + 1)) + place;
}

static dp_mailbox_t *alloc_dock(void)
{
    dp_mailbox_t *dock = calloc(1, sizeof(*dock));

    if (dock != NULL) dock->file = dock->bell = dock->bell_in = -1;
    return dock;
}

static int map(dp_mailbox_t *dock, int file, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);

    if (memory == MAP_FAILED) return -1;
    dock->header = memory;
    dock->bytes = bytes;
    return 0;
}

void dp_mailbox_destroy(dp_mailbox_t *dock)
{
    if (dock == NULL) return;
    if (dock->header != NULL) munmap(dock->header, dock->bytes);
    if (dock->file >= 0) close(dock->file);
    if (dock->bell >= 0) close(dock->bell);
    if (dock->bell_in >= 0) close(dock->bell_in);
    free(dock);
}

/* ---- One's own ---------------------------------------------------------------------------- */

/* Pages are made here, by a call that can fail: a first touch that finds none would be a signal. */
static int make_file(dp_mailbox_t *dock, size_t bytes)
{
    dock->file = memfd_create("dp-dock", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (dock->file < 0 || ftruncate(dock->file, (off_t)bytes) != 0) return -1;
    if (fallocate(dock->file, 0, 0, (off_t)bytes) != 0) return -1;
    if (fcntl(dock->file, F_ADD_SEALS, SEALS) != 0) return -1;
    return map(dock, dock->file, bytes);
}

static int make_bell(dp_mailbox_t *dock)
{
    struct stat about;
    int ends[2];

    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return -1;
    dock->bell = ends[0];
    dock->bell_in = ends[1];
    if (fstat(dock->bell, &about) != 0) return -1;
    dock->header->bell = (uint32_t)dock->bell;
    dock->header->bell_inode = about.st_ino;
    return 0;
}

dp_status_t dp_mailbox_create(int rank, uint64_t tag, const int *ranks, int count,
                              dp_mailbox_t **out, dp_error_t *error)
{
    dp_mailbox_t *dock;
    header_t *header;

    if (count > RANKS_MAX) {
        return dp_error_set(error, DP_ERR_UNSUPPORTED, "%d neighbours are more than %d", count,
                            RANKS_MAX);
    }
    dock = alloc_dock();
    if (dock == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    if (make_file(dock, bytes_of(count)) != 0 || make_bell(dock) != 0) {
        dp_error_set(error, DP_ERR_SYSTEM, "no shared memory: %s", strerror(errno));
        dp_mailbox_destroy(dock);
        return DP_ERR_SYSTEM;
    }
    dock->ring_count = count;
    dock->only = -1;
    header = dock->header;
    dp_random(&header->nonce, sizeof(header->nonce));
    header->magic = MAGIC;
    header->tag = tag;
    header->owner = (uint32_t)rank;
    for (int i = 0; i < count; i++)
        header->ranks[i] = ranks[i];
    *out = dock;
    return DP_OK;
}

void dp_mailbox_address(const dp_mailbox_t *dock, uint8_t address[DP_MAILBOX_ADDRESS])
{
    dp_writer_t writer;

    dp_writer_init(&writer, address, DP_MAILBOX_ADDRESS);
    dp_write_u32(&writer, (uint32_t)getpid());
    dp_write_u32(&writer, (uint32_t)dock->file);
    dp_write_u64(&writer, dock->header->nonce);
    DP_ASSERT(!writer.failed && writer.bytes == DP_MAILBOX_ADDRESS);
}

dp_ring_t *dp_mailbox_ring(const dp_mailbox_t *dock, int from)
{
    if (dock->only >= 0) return ring_at(dock, dock->only);
    for (int i = 0; i < dock->ring_count; i++) {
        if (dock->header->ranks[i] == from) return ring_at(dock, i);
    }
    return NULL;
}

int dp_mailbox_fd(const dp_mailbox_t *dock)
{
    return dock->bell;
}

void dp_mailbox_clear_doorbell(dp_mailbox_t *dock)
{
    char rung[64];

    while (read(dock->bell, rung, sizeof(rung)) > 0) {
    }
}

void dp_mailbox_arm(dp_mailbox_t *dock)
{
    atomic_store(&dock->header->sleeps, 1);
}

void dp_mailbox_disarm(dp_mailbox_t *dock)
{
    /* Who has not seen it yet rings in vain. */
    atomic_store_explicit(&dock->header->sleeps, 0, memory_order_relaxed);
}

void dp_mailbox_close(dp_mailbox_t *dock)
{
    atomic_store(&dock->header->is_closed, 1);
}

/* ---- A neighbour's ------------------------------------------------------------------------ */

/* Opens a descriptor of another process. It is looked at first: to open what is not known could do
 * anything. -1 with errno; EXDEV: it is something else. */
static int open_theirs(uint32_t pid, uint32_t number, mode_t kind, uint64_t inode)
{
    char path[64];
    struct stat about;
    int seen, fd = -1, failed = EXDEV;

    snprintf(path, sizeof(path), "/proc/%u/fd/%u", pid, number);
    seen = open(path, O_PATH | O_CLOEXEC);
    if (seen < 0) return -1;
    if (fstat(seen, &about) == 0 && (about.st_mode & S_IFMT) == kind &&
        (inode == ANY || about.st_ino == inode)) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", seen);
        fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
        failed = errno;
    }
    close(seen);
    errno = failed;
    return fd;
}

/* Maps the file if it is the one, and finds this rank's ring in it. In words what is wrong. */
static const char *map_theirs(dp_mailbox_t *dock, int file, uint64_t nonce, int rank, int from,
                              uint64_t tag)
{
    const int seals = fcntl(file, F_GET_SEALS);
    struct stat about;
    const header_t *header;

    /* What can be made shorter must not be mapped: to read past its end would be a signal. */
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file, &about) != 0 ||
        (size_t)about.st_size < bytes_of(0) || (size_t)about.st_size > bytes_of(RANKS_MAX))
        return "there is another file";
    if (map(dock, file, (size_t)about.st_size) != 0) return "no memory to map it";
    header = dock->header;
    dock->ring_count = (int)((dock->bytes - bytes_of(0)) / sizeof(dp_ring_t));
    if (header->magic != MAGIC || header->nonce != nonce || header->tag != tag ||
        header->owner != (uint32_t)rank)
        return "what lies there is not its dock";
    for (int i = 0; i < dock->ring_count; i++) {
        if (header->ranks[i] != from) continue;
        dock->only = i;
        return NULL;
    }
    return "it has no ring for this rank";
}

dp_status_t dp_mailbox_open(const uint8_t *address, int rank, int from, uint64_t tag,
                            dp_mailbox_t **out, dp_error_t *error)
{
    dp_mailbox_t *dock = alloc_dock();
    const char *reason = NULL;
    dp_reader_t reader;
    uint32_t pid, number;
    int file;

    if (dock == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    dp_reader_init(&reader, address, DP_MAILBOX_ADDRESS);
    pid = dp_read_u32(&reader);
    number = dp_read_u32(&reader);
    file = open_theirs(pid, number, S_IFREG, ANY);
    if (file >= 0) {
        reason = map_theirs(dock, file, dp_read_u64(&reader), rank, from, tag);
        close(file);
        if (reason == NULL)
            dock->bell = open_theirs(pid, dock->header->bell, S_IFIFO, dock->header->bell_inode);
    }
    if (reason == NULL && dock->bell < 0)
        reason = errno == EXDEV ? "there is another file" : strerror(errno);
    if (reason != NULL) {
        dp_error_set(error, DP_ERR_SYSTEM, "process %u: %s", pid, reason);
        dp_mailbox_destroy(dock);
        return DP_ERR_SYSTEM;
    }
    *out = dock;
    return DP_OK;
}

void dp_mailbox_wake(dp_mailbox_t *dock)
{
    _Atomic uint32_t *sleeps = &dock->header->sleeps;

    if (atomic_load(sleeps) == 0 || atomic_exchange(sleeps, 0) == 0) return;
    /* A pipe that is full rings already. */
    while (write(dock->bell, "", 1) < 0 && errno == EINTR) {
    }
}

int dp_mailbox_is_closed(const dp_mailbox_t *dock)
{
    return atomic_load_explicit(&dock->header->is_closed, memory_order_relaxed) != 0;
}
