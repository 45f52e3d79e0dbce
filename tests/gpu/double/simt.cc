/*
 * simt.cc - fibers as the threads of a block, and the barriers between them.
 *
 * A fiber lives as long as the thread that runs grids, and takes part in one block after the other:
 * most of what a small kernel costs here is the switching, so nothing is made anew for a launch.
 * The thread sanitizer takes all fibers for the one thread they are: they never run at once. Call
 * stacks in its reports are mixed up where they go through a fiber.
 */
#include "tests/gpu/double/simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#define STACK_BYTES ((size_t)128 * 1024)
#define WARP 32
#define GIVEN_BYTES 64

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

SIMT_THREAD simt_index threadIdx, blockIdx;
SIMT_THREAD dim3 blockDim, gridDim;
cudaError_t (*simt_enqueue)(void *stream, std::function<void()> work);
unsigned simt_order;
bool (*simt_wants)(const simt_index &block);
SIMT_THREAD simt_site_t simt_running;

/* A copy of cp.async that has not landed; with to NULL the end of a group. */
typedef struct copy {
    void *to;
    const void *from;
    size_t bytes, taken;
} copy_t;

enum fiber_state { FIBER_READY, FIBER_AT_BARRIER, FIBER_AT_WARP, FIBER_DONE };

/* Where a fiber, or the thread that runs them, goes on. */
#if defined(__x86_64__)
typedef void *place_t; /* its stack pointer */
#else
typedef ucontext_t place_t;
#endif

typedef struct fiber {
    place_t place;
    char *stack;
    fiber_state state;
    simt_index index;
    unsigned mask;                    /* FIBER_AT_WARP: with whom it meets */
    unsigned char given[GIVEN_BYTES]; /* to the others of the warp */
    unsigned char kept[GIVEN_BYTES];  /* a copy that stays while the others read */
    std::vector<copy_t> copies;       /* in flight, oldest first */
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
#endif
} fiber_t;

typedef struct machine {
    std::vector<fiber_t *> fibers;
    std::vector<unsigned> order;    /* of fibers, shuffled before each round */
    std::vector<unsigned> at_warp;  /* per warp: how many are FIBER_AT_WARP */
    size_t ready, at_barrier, done; /* fibers in these states */
    place_t scheduler;
    size_t current;
    const std::function<void()> *body;
    std::vector<unsigned char> shared;
    size_t shared_bytes;
    uint64_t random; /* of copies */
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
    const void *bottom;
    size_t bottom_bytes;
#endif
} machine_t;

static SIMT_THREAD machine_t *running;

static void die(const char *text)
{
    fprintf(stderr, "simt: block (%u,%u,%u), thread (%u,%u,%u): %s\n", blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, text);
    abort();
}

/* ---- Switching ------------------------------------------------------------------------------- */

static void fiber_main(void);

#if defined(__x86_64__)
/* swapcontext() without its two system calls: leaves what a call preserves on this stack, and goes
 * on with the other. */
extern "C" void simt_switch(place_t *from, place_t to);
asm(".text\n"
    ".type simt_switch, @function\n"
    ".hidden simt_switch\n"
    ".globl simt_switch\n"
    "simt_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
    "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n"
    "    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size simt_switch, . - simt_switch\n");

static void switch_to(place_t *from, const place_t *to)
{
    simt_switch(from, *to);
}

/* As simt_switch() would have left it: six registers, and where to return to. */
static void make_place(fiber_t *fiber)
{
    const uintptr_t top = (uintptr_t)(fiber->stack + STACK_BYTES) / 16 * 16;
    uintptr_t *at = (uintptr_t *)top - 8;

    memset(at, 0, 8 * sizeof(*at));
    at[6] = (uintptr_t)fiber_main;
    fiber->place = at;
}
#else
static void switch_to(place_t *from, const place_t *to)
{
    swapcontext(from, to);
}

static void make_place(fiber_t *fiber)
{
    getcontext(&fiber->place);
    fiber->place.uc_stack.ss_sp = fiber->stack;
    fiber->place.uc_stack.ss_size = STACK_BYTES;
    fiber->place.uc_link = NULL;
    makecontext(&fiber->place, fiber_main, 0);
}
#endif

static fiber_t *current_fiber(void)
{
    return running->fibers[running->current];
}

static void yield_fiber(fiber_state state)
{
    fiber_t *fiber = current_fiber();

    fiber->state = state;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fiber->fake_stack, running->bottom, running->bottom_bytes);
#endif
    switch_to(&fiber->place, &running->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber->fake_stack, &running->bottom, &running->bottom_bytes);
#endif
    threadIdx = fiber->index;
}

static void fiber_main(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &running->bottom, &running->bottom_bytes);
#endif
    for (;;) {
        threadIdx = current_fiber()->index;
        (*running->body)();
        for (const copy_t &copy : current_fiber()->copies) {
            if (copy.to != NULL) die("a thread ends before its copies arrived");
        }
        current_fiber()->copies.clear();
        yield_fiber(FIBER_DONE);
    }
}

static void resume(machine_t *machine, size_t index)
{
    fiber_t *fiber = machine->fibers[index];

    machine->current = index;
    fiber->state = FIBER_READY;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&machine->fake_stack, fiber->stack, STACK_BYTES);
#endif
    switch_to(&machine->scheduler, &fiber->place);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(machine->fake_stack, NULL, NULL);
#endif
}

/* ---- Meeting --------------------------------------------------------------------------------- */

/* If every thread of the fiber's warp that it meets with is there, those get a copy of what was
 * given, so that the quickest may give something new. */
static void release_fiber(machine_t *machine, size_t index)
{
    const size_t base = index / WARP * WARP;
    const unsigned mask = machine->fibers[index]->mask;

    for (size_t lane = 0; lane < WARP; lane++) {
        if ((mask >> lane & 1u) == 0) continue;
        if (base + lane >= machine->fibers.size()) continue;
        if (machine->fibers[base + lane]->state != FIBER_AT_WARP) return;
        if (machine->fibers[base + lane]->mask != mask) return;
    }
    for (size_t lane = 0; lane < WARP && base + lane < machine->fibers.size(); lane++) {
        fiber_t *fiber = machine->fibers[base + lane];

        if ((mask >> lane & 1u) == 0) continue;
        memcpy(fiber->kept, fiber->given, GIVEN_BYTES);
        fiber->state = FIBER_READY;
        machine->ready++;
        machine->at_warp[base / WARP]--;
    }
}

static void release_warps(machine_t *machine)
{
    const size_t count = machine->fibers.size();

    for (size_t warp = 0; warp * WARP < count; warp++) {
        for (size_t i = warp * WARP;
             machine->at_warp[warp] > 0 && i < count && i < (warp + 1) * WARP; i++) {
            if (machine->fibers[i]->state == FIBER_AT_WARP) release_fiber(machine, i);
        }
    }
}

static void release_block(machine_t *machine)
{
    const size_t count = machine->fibers.size();

    if (machine->at_barrier == 0 || machine->at_barrier + machine->done < count) return;
    if (machine->done != 0) die("some threads wait at a barrier of the block, others have ended");
    for (fiber_t *fiber : machine->fibers)
        fiber->state = FIBER_READY;
    machine->ready = count;
    machine->at_barrier = 0;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Once for all blocks of a grid. */
static void start_grid(machine_t *machine)
{
    const unsigned columns = blockDim.x, rows = blockDim.y;
    const unsigned count = (unsigned)machine->fibers.size();

    machine->order.resize(count);
    machine->at_warp.assign((count + WARP - 1) / WARP, 0);
    for (unsigned i = 0; i < count; i++) {
        machine->fibers[i]->index =
            simt_index{i % columns, i / columns % rows, i / (columns * rows)};
        machine->order[i] = simt_order == 1 ? count - 1 - i : i;
    }
}

static void start_block(machine_t *machine)
{
    for (fiber_t *fiber : machine->fibers)
        fiber->state = FIBER_READY;
    machine->ready = machine->fibers.size();
    machine->at_barrier = machine->done = 0;
}

static uint64_t draw(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 32;
}

/* The fiber whose turn it is; in shuffled orders any that had none in this round. */
static size_t next_in_order(machine_t *machine, size_t turn, uint64_t *random)
{
    std::vector<unsigned> &order = machine->order;

    if (simt_order > 1) {
        std::swap(order[turn], order[turn + (size_t)(draw(random) * (order.size() - turn) >> 32)]);
    }
    return order[turn];
}

/* Warps that have no turn in this round of a shuffled order: one in four, so that warps which only
 * meet at barriers of the block get ahead of each other. */
static uint64_t resting_warps(uint64_t *random)
{
    const uint64_t first = draw(random), second = draw(random);

    return simt_order > 1 ? first & second : 0;
}

/* In shuffled orders one warp of each block lags: it moves only when all others wait, so those are
 * ahead of it by a whole way to the next barrier of the block. */
static size_t lagging_warp(size_t count)
{
    if (simt_order <= 1 || count <= WARP) return SIZE_MAX;
    return (simt_order + blockIdx.x) % (count / WARP);
}

/* Runs a fiber to its next barrier or its end. */
static void take_turn(machine_t *machine, size_t index)
{
    resume(machine, index);
    machine->ready--;
    switch (machine->fibers[index]->state) {
    case FIBER_AT_BARRIER:
        machine->at_barrier++;
        break;
    case FIBER_AT_WARP:
        machine->at_warp[index / WARP]++;
        break;
    case FIBER_DONE:
        machine->done++;
        break;
    case FIBER_READY:
        die("a thread gave way without a reason");
    }
}

static size_t count_ready_of_warp(const machine_t *machine, size_t warp)
{
    size_t ready = 0;

    for (size_t i = warp * WARP; i < machine->fibers.size() && i < (warp + 1) * WARP; i++)
        ready += machine->fibers[i]->state == FIBER_READY;
    return ready;
}

static void run_block(machine_t *machine)
{
    const size_t count = machine->fibers.size(), laggard = lagging_warp(count);
    uint64_t random = simt_order * 0x9e3779b97f4a7c15u + blockIdx.x;
    bool is_laggards_turn = false;

    /* Blocks find what others left; all ones are NaN in every type. */
    memset(machine->shared.data(), 0xff, machine->shared.size());
    machine->random = random;
    start_block(machine);
    while (machine->done < count) {
        const uint64_t resting = resting_warps(&random);

        for (size_t turn = 0; turn < count; turn++) {
            const size_t at = next_in_order(machine, turn, &random), warp = at / WARP;

            if (machine->fibers[at]->state != FIBER_READY || (resting >> warp % 32 & 1u) != 0)
                continue;
            if (warp != laggard || is_laggards_turn) take_turn(machine, at);
        }
        release_warps(machine);
        release_block(machine);
        if (machine->ready == 0 && machine->done < count)
            die("threads wait for each other: a barrier or shuffle that not all reach");
        is_laggards_turn =
            laggard != SIZE_MAX && machine->ready == count_ready_of_warp(machine, laggard);
    }
}

static fiber_t *make_fiber(void)
{
    fiber_t *fiber = new fiber_t();

    fiber->stack = (char *)malloc(STACK_BYTES);
    make_place(fiber);
    return fiber;
}

/* A thread's fibers that run nothing, kept until it ends. */
typedef struct pool {
    std::vector<fiber_t *> fibers;

    ~pool()
    {
        for (fiber_t *fiber : fibers) {
            free(fiber->stack);
            delete fiber;
        }
    }
} pool_t;
static thread_local pool_t idle;

static void take_fibers(machine_t *machine, size_t count)
{
    while (machine->fibers.size() < count) {
        if (idle.fibers.empty()) idle.fibers.push_back(make_fiber());
        machine->fibers.push_back(idle.fibers.back());
        idle.fibers.pop_back();
    }
}

void simt_run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body)
{
    machine_t machine;
    machine_t *before = running;

    take_fibers(&machine, (size_t)block.x * block.y * block.z);
    machine.shared.resize(shared_bytes + 128);
    machine.shared_bytes = shared_bytes;
    machine.body = &body;
    running = &machine;
    gridDim = grid;
    blockDim = block;
    start_grid(&machine);
    for (unsigned z = 0; z < grid.z; z++) {
        for (unsigned y = 0; y < grid.y; y++) {
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = simt_index{x, y, z};
                if (simt_wants == NULL || simt_wants(blockIdx)) run_block(&machine);
            }
        }
    }
    running = before;
    idle.fibers.insert(idle.fibers.end(), machine.fibers.begin(), machine.fibers.end());
}

/* ---- Launching ------------------------------------------------------------------------------- */

#define SHARED_ALWAYS ((size_t)48 * 1024) /* what no kernel need be allowed */

static std::mutex allowed_lock;

static std::map<const void *, size_t> &allowed(void)
{
    static std::map<const void *, size_t> *const bytes = new std::map<const void *, size_t>;

    return *bytes;
}

void simt_allow_shared(const void *kernel, size_t bytes)
{
    std::unique_lock<std::mutex> guard(allowed_lock);

    allowed()[kernel] = bytes;
}

static size_t shared_limit(const void *kernel)
{
    std::unique_lock<std::mutex> guard(allowed_lock);
    const auto found = allowed().find(kernel);

    return found != allowed().end() && found->second > SHARED_ALWAYS ? found->second
                                                                     : SHARED_ALWAYS;
}

/* One question to a launch: 0, or the reason was told. */
static int is_beyond(const simt_site_t &site, const char *what, unsigned long long value,
                     unsigned long long most)
{
    if (value <= most) return 0;
    fprintf(stderr, "simt: %s:%d: %s: %s %llu, at most %llu\n", site.file, site.line, site.name,
            what, value, most);
    return 1;
}

cudaError_t simt_launch(const simt_site_t &site, dim3 grid, dim3 block, size_t shared_bytes,
                        void *stream, std::function<void()> body)
{
    const unsigned long long threads = (unsigned long long)block.x * block.y * block.z;

    if (threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        is_beyond(site, "threads", threads, 1024) || is_beyond(site, "block.z", block.z, 64) ||
        is_beyond(site, "grid.x", grid.x, 0x7fffffffu) ||
        is_beyond(site, "grid.y", grid.y, 65535) || is_beyond(site, "grid.z", grid.z, 65535)) {
        return cudaErrorInvalidConfiguration;
    }
    if (is_beyond(site, "dynamic shared memory", shared_bytes, shared_limit(site.kernel))) {
        return cudaErrorInvalidValue;
    }
    const simt_site_t own = site;
    const auto run = [=] {
        simt_running = own;
        simt_run(grid, block, shared_bytes, body);
        simt_running = simt_site_t{};
    };
    if (simt_enqueue != NULL) return simt_enqueue(stream, run);
    run();
    return cudaSuccess;
}

/* ---- What kernels call ----------------------------------------------------------------------- */

void *simt_dynamic_shared(void)
{
    const uintptr_t at = (uintptr_t)running->shared.data();

    return (void *)((at + 127) / 128 * 128);
}

unsigned long long simt_global_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

unsigned simt_lane(void)
{
    return (unsigned)(running->current % WARP);
}

void simt_barrier(void)
{
    yield_fiber(FIBER_AT_BARRIER);
}

void simt_warp_barrier(unsigned mask)
{
    current_fiber()->mask = mask;
    yield_fiber(FIBER_AT_WARP);
}

void simt_exchange(unsigned mask, const void *give, void *take, size_t bytes, unsigned lane)
{
    fiber_t *fiber = current_fiber();
    const size_t from = running->current / WARP * WARP + lane;

    if (bytes > GIVEN_BYTES) die("an exchange is too large");
    if ((mask >> lane & 1u) == 0) die("a shuffle reads from a thread that takes no part");
    memcpy(fiber->given, give, bytes);
    simt_warp_barrier(mask);
    memcpy(take, running->fibers[from < running->fibers.size() ? from : running->current]->kept,
           bytes);
}

void simt_exchange_all(const void *give, void *take, size_t bytes)
{
    const size_t base = running->current / WARP * WARP;

    if (bytes > GIVEN_BYTES) die("an exchange is too large");
    memcpy(current_fiber()->given, give, bytes);
    simt_warp_barrier(0xffffffffu);
    for (size_t lane = 0; lane < WARP && base + lane < running->fibers.size(); lane++)
        memcpy((char *)take + lane * bytes, running->fibers[base + lane]->kept, bytes);
}

/* ---- Copies in flight ------------------------------------------------------------------------ */

void simt_check_shared(const void *at, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)simt_dynamic_shared(), first = (uintptr_t)at;

    if (first % bytes != 0) die("an access to shared memory is not aligned");
    if (first < begin || first + bytes > begin + running->shared_bytes) {
        die("an access lies outside of shared memory");
    }
}

static void land(const copy_t *copy)
{
    if (copy->to == NULL) return;
    memset(copy->to, 0, copy->bytes);
    memcpy(copy->to, copy->from, copy->taken);
}

/* On a device a copy lands at any time up to the wait. Order 0 takes the latest, which shows a wait
 * that is missing; 1 the earliest, which shows what is overwritten while others still read. */
void simt_async_copy(void *to, const void *from, size_t bytes, size_t taken)
{
    const copy_t copy = {to, from, bytes, taken};

    simt_check_shared(to, bytes);
    if (taken != 0 && (uintptr_t)from % bytes != 0) die("a copy's source is not aligned");
    running->random = running->random * 6364136223846793005u + 1442695040888963407u;
    if (simt_order == 1 || (simt_order > 1 && running->random >> 63 != 0)) {
        land(&copy);
    } else {
        current_fiber()->copies.push_back(copy);
    }
}

void simt_async_commit(void)
{
    current_fiber()->copies.push_back(copy_t{NULL, NULL, 0, 0});
}

void simt_async_wait(size_t left)
{
    std::vector<copy_t> &copies = current_fiber()->copies;
    size_t groups = 0, landed = 0;

    for (const copy_t &copy : copies)
        groups += copy.to == NULL;
    for (; groups > left; landed++) {
        land(&copies[landed]);
        groups -= copies[landed].to == NULL;
    }
    copies.erase(copies.begin(), copies.begin() + (ptrdiff_t)landed);
}
