/*
 * fuzz_shm.c - any bytes in memory that neighbours on a node share, and in the messages by which
 * they come to share it.
 *
 * The first byte of an input chooses. 0: a mailbox whose file another process has written over: its
 * header, its rings, its address. 1: the leader of a node's ranks, and connections that send it
 * hellos with descriptors, some of them honest. 2: another rank, and a leader that answers it with
 * anything. Nothing outside the mailbox is touched, an error has a text, and no descriptor is left
 * open.
 */
#include "tests/fuzz/fuzz.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/local_socket.h"
#include "runtime/base/log.h"
#include "runtime/shm/arena_internal.h"
#include "runtime/transport/mailbox.h"

#define OWNER 3
#define TAG UINT64_C(0x1122334455667788)
#define STEPS_MAX 24
#define HEADER_BYTES 512 /* about so many: what is put there matters most */
#define RANKS 3
#define CONNECTIONS 4
#define FDS_MAX 3
#define LEADER_PATIENCE_NS UINT64_C(2000000) /* all that comes has come */
#define MEMBER_PATIENCE_NS UINT64_C(50000000)

/* The next descriptor: the same before and after, if none was left open. */
static int next_fd(void)
{
    const int fd = dup(STDIN_FILENO);

    close(fd);
    return fd;
}

/* ---- Mailbox -------------------------------------------------------------------------------- */

static void read_ring(dp_mailbox_t *mailbox, int from)
{
    dp_ring_t *ring = dp_mailbox_ring(mailbox, from);
    dp_ring_reader_t reader;
    int frees;

    if (ring == NULL || dp_ring_reader_init(&reader, ring) != DP_OK) return;
    while (dp_ring_read(&reader, &frees) == DP_OK)
        if (reader.bytes > reader.room) abort();
    dp_ring_reader_fini(&reader);
}

static void visit(const int given[DP_MAILBOX_FILES], int from, const uint8_t *data, size_t bytes)
{
    dp_mailbox_t *mailbox = NULL;
    dp_error_t error = {DP_OK, ""};
    dp_ring_writer_t writer;
    const int files[] = {dup(given[0]), dup(given[1])};
    size_t done = 0;

    if (dp_mailbox_open(files, OWNER, from, TAG, &mailbox, &error) != DP_OK) {
        if (error.text[0] == '\0') abort();
        return;
    }
    dp_ring_writer_init(&writer, dp_mailbox_ring(mailbox, from));
    (void)dp_ring_write(&writer, data, bytes, &done);
    dp_mailbox_wake(mailbox);
    (void)dp_mailbox_is_closed(mailbox);
    dp_mailbox_destroy(mailbox);
}

static void run_mailbox(fuzz_input_t *input)
{
    static const int neighbours[] = {1, 5};
    dp_mailbox_t *mailbox = NULL;
    dp_error_t error = {DP_OK, ""};
    int files[DP_MAILBOX_FILES];
    struct stat about;
    uint8_t *memory;

    if (dp_mailbox_create(OWNER, TAG, neighbours, 2, &mailbox, &error) != DP_OK) abort();
    dp_mailbox_files(mailbox, files);
    if (fstat(files[0], &about) != 0) abort();
    memory = mmap(NULL, (size_t)about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, files[0], 0);
    if (memory == MAP_FAILED) abort();
    for (int i = 0; i < STEPS_MAX && input->bytes > 0; i++) {
        const unsigned what = (unsigned)fuzz_number(input, 1);
        const size_t place = (size_t)fuzz_number(input, 2);
        size_t got;
        const uint8_t *at = fuzz_take(input, (size_t)fuzz_number(input, 1), &got);
        const size_t room = what & 8 ? HEADER_BYTES : (size_t)about.st_size;
        const size_t to = (what & 8 ? place : place * 8) % room;

        switch (what % 8) {
        case 0:
        case 1:
            memcpy(memory + to, at, dp_min(got, (size_t)about.st_size - to));
            break;
        case 2:
            memory[to] ^= (uint8_t)(1u << what / 32);
            break;
        case 3:
            visit(files, (int)(what >> 4) % 8, at, got);
            break;
        case 4: { /* other files, or in another order */
            const int other[] = {what & 16 ? STDIN_FILENO : files[1], files[what & 32 ? 0 : 1]};

            visit(other, 1, at, got);
            break;
        }
        case 5:
            dp_mailbox_arm(mailbox);
            dp_mailbox_clear_doorbell(mailbox);
            break;
        default:
            read_ring(mailbox, what & 16 ? 1 : 5);
            break;
        }
    }
    (void)munmap(memory, (size_t)about.st_size);
    dp_mailbox_destroy(mailbox);
}

/* ---- Hellos with descriptors ---------------------------------------------------------------- */

typedef struct world {
    dp_bootstrap_t base;
    fuzz_input_t *input;
    int listener;                       /* of a leader that this target is; -1 */
    int fds[CONNECTIONS];               /* to the leader */
    int file;                           /* what is sent */
    char leader[DP_LOCAL_ADDRESS_ROOM]; /* the false leader's name */
    int is_short;                       /* the name that it gives */
} world_t;

/* An honest hello of the rank, changed by the bytes that follow in the input, with some
 * descriptors. */
static void send_message(int fd, int file, fuzz_input_t *input)
{
    const unsigned what = (unsigned)fuzz_number(input, 1);
    const int count = (int)(what >> 2) % (FDS_MAX + 1);
    uint32_t hello[8] = {0x4d535044u,           what % 4,        (uint32_t)TAG,
                         (uint32_t)(TAG >> 32), (uint32_t)count, RANKS};
    const int files[FDS_MAX] = {file, file, file};
    size_t got;
    const uint8_t *at = fuzz_take(input, (size_t)fuzz_number(input, 1) % 25, &got);

    for (size_t i = 0; i < got; i++)
        ((uint8_t *)hello)[i] ^= at[i];
    (void)dp_local_send(fd, hello, what >= 0xf0 ? what % 33 : 24, files, count);
}

/* While the ranks exchange names: all that the others send is on its way before the leader looks.
 */
static void send_hellos(world_t *world, const char *name)
{
    for (int i = 0; i < STEPS_MAX && world->input->bytes > 0; i++) {
        const unsigned who = (unsigned)fuzz_number(world->input, 1) % (CONNECTIONS + 1);

        if (who == CONNECTIONS) break;
        if (world->fds[who] < 0) {
            world->fds[who] = dp_local_try_connect(name);
            if (world->fds[who] < 0) abort();
        }
        send_message(world->fds[who], world->file, world->input);
    }
}

static dp_status_t exchange(dp_bootstrap_t *self, const char *name, const void *value, size_t bytes,
                            void **values, size_t *sizes, uint64_t deadline_ns, dp_error_t *error)
{
    world_t *world = (world_t *)self;

    (void)name;
    (void)deadline_ns;
    (void)error;
    if (bytes != DP_LOCAL_ADDRESS_ROOM) abort();
    for (int rank = 0; rank < RANKS; rank++) {
        values[rank] = calloc(1, bytes + 1);
        if (values[rank] == NULL) abort();
        sizes[rank] = bytes;
    }
    if (self->rank == 0) {
        memcpy(values[0], value, bytes);
        send_hellos(world, value);
    } else {
        memcpy(values[0], world->leader, bytes);
        if (world->is_short) sizes[0]--;
    }
    return DP_OK;
}

static void *lead(void *context)
{
    world_t *world = context;
    struct pollfd look = {world->listener, POLLIN, 0};
    char hello[64];
    int fd;

    if (poll(&look, 1, 20) <= 0) return NULL;
    fd = accept(world->listener, NULL, NULL);
    /* Its own hello; unread, it would turn the end below into a reset. */
    if (fd >= 0 && poll(&(struct pollfd){fd, POLLIN, 0}, 1, 20) > 0)
        (void)!recv(fd, hello, sizeof(hello), 0);
    for (int i = 0; fd >= 0 && i < STEPS_MAX && world->input->bytes > 0; i++)
        send_message(fd, world->file, world->input);
    if (fd >= 0) close(fd);
    return NULL;
}

static void run_hellos(fuzz_input_t *input, int rank)
{
    static const dp_bootstrap_ops_t ops = {.name = "fuzz", .exchange = exchange};
    static const char *const hosts[RANKS] = {"a", "a", "a"};
    world_t world = {.base = {.ops = &ops, .rank = rank, .size = RANKS, .tag = TAG},
                     .input = input,
                     .listener = -1,
                     .fds = {-1, -1, -1, -1}};
    dp_error_t error = {DP_OK, ""};
    dp_topology_t topology;
    pthread_t thread;
    dp_status_t status;
    dp_log_t log;
    int fds[RANKS];
    int own;

    dp_log_init(&log, DP_LOG_ERROR, rank);
    own = memfd_create("own", MFD_CLOEXEC);
    world.file = memfd_create("sent", MFD_CLOEXEC);
    if (own < 0 || world.file < 0 || dp_topology_init(&topology, hosts, RANKS) != DP_OK) abort();
    if (rank > 0) {
        world.is_short = input->bytes > 0 && input->data[0] == 255;
        if (dp_local_listen(world.leader, &world.listener, &error) != DP_OK ||
            pthread_create(&thread, NULL, lead, &world) != 0)
            abort();
    }
    status = dp_arena_share(&world.base, &topology, own,
                            dp_now_ns() + (rank == 0 ? LEADER_PATIENCE_NS : MEMBER_PATIENCE_NS),
                            &log, fds, &error);
    if (status != DP_OK && error.text[0] == '\0') abort();
    for (int i = 0; i < RANKS; i++) {
        if ((status != DP_OK || i == rank) != (fds[i] < 0)) abort();
        if (fds[i] >= 0 && close(fds[i]) != 0) abort();
    }
    if (rank > 0) {
        pthread_join(thread, NULL);
        close(world.listener);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        if (world.fds[i] >= 0) close(world.fds[i]);
    close(own);
    close(world.file);
    dp_topology_fini(&topology);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    const unsigned what = (unsigned)fuzz_number(&input, 1);
    const int fd = next_fd();

    if (what % 4 < 2) {
        run_mailbox(&input);
    } else {
        run_hellos(&input, what % 4 == 2 ? 0 : 1);
    }
    if (next_fd() != fd) abort();
    return 0;
}

/* ---- Seeds ---------------------------------------------------------------------------------- */

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const struct {
        uint8_t bytes[40];
        size_t count;
    } plays[] = {
        /* two neighbours write, a stranger's rank cannot, the owner reads; then bytes elsewhere */
        {{0, 3 | 16, 0, 0, 2, 'h', 'i', 3 | 80, 0, 0, 1, 'x', 3,      0, 0, 0, 6 | 16,
          0, 0,      0, 7, 0, 0,   0,   8,      0, 0, 1, 9,   3 | 16, 0, 0, 0},
         32},
        {{0, 4, 0, 0, 0, 4 | 64, 4, 0, 0, 5, 0, 0, 0, 2 | 8, 8, 0, 0, 3 | 16, 0, 0, 0}, 21},
        /* ranks 1 and 2 come; one of them twice, a stranger in between */
        {{2, 0, 1 | 4, 0, 1, 2 | 4, 0}, 7},
        {{2, 0, 1 | 4, 0, 2, 0, 1, 9, 2, 1 | 4, 0, 1, 2 | 8, 0, 3, 2 | 4, 0, 4}, 18},
        /* a leader that answers as it should, in two batches, and one that stops */
        {{3, 0 | 12, 0}, 3},
        {{3, 0 | 4, 0, 1 | 8, 0}, 5},
        {{3, 0 | 4, 0, 2 | 8, 0}, 5},
    };

    if (which >= sizeof(plays) / sizeof(plays[0]) || room < 40) return 0;
    memcpy(data, plays[which].bytes, plays[which].count);
    return plays[which].count;
}
