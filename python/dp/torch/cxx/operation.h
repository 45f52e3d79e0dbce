/*
 * operation.h - an operation of libdp in flight, and the world that it belongs to.
 *
 * A World belongs to one dp_context_t and has threads, which complete the futures of operations and
 * keep the memory of those whose Work was dropped. Works and the backends of a context's groups
 * share it. An Operation owns one handle of libdp. Any thread may wait, with or without the GIL.
 */
#ifndef DP_TORCH_OPERATION_H
#define DP_TORCH_OPERATION_H

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dp.h"
#include "turns.h"

namespace dp_torch
{

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

/* A wait looks so often for Ctrl-C and the end of the world. */
constexpr double kSliceSeconds = 0.25;
constexpr double kQueueSeconds = 0.002;
constexpr double kGroupsEndSeconds = 10; /* that the end of a world waits for those of its groups */
constexpr auto kLookAgain = std::chrono::microseconds(200); /* for what has not begun, at first */
constexpr auto kLookSeldom = std::chrono::milliseconds(5);  /* later */
constexpr Milliseconds kNoLimit = std::chrono::hours(24 * 365);
constexpr const char *kShared =
    "; several threads of this process have called collectives of this group: if they do so at the "
    "same time, as dcp.async_save() does beside training, each wants a group of its own "
    "(process_group=dist.new_group())";
constexpr const char *kDestroyed = "the process group was destroyed";

[[noreturn]] inline void fail(const std::string &text)
{
    C10_THROW_ERROR(DistBackendError, text);
}

/* Lets other threads of Python run while this one waits, whoever called. */
class WithoutGil
{
  public:
    WithoutGil()
    {
        if (PyGILState_Check()) release_.emplace();
    }

  private:
    std::optional<py::gil_scoped_release> release_;
};

inline void raise_signals()
{
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/* finish() reads them on the current stream of the thread that waits. They were allocated on the
 * stream of the submission, where their memory is used anew once they are dropped, and need not be
 * the same one. */
inline void record_use(const Tensors &tensors)
{
    for (auto &tensor : tensors) {
        if (!tensor.defined() || tensor.is_cpu()) continue;
        c10::impl::VirtualGuardImpl device(tensor.device().type());
        tensor.record_stream(device.getStream(tensor.device()));
    }
}

/* Whether this is a forked child of the process that made it: a byte that the kernel clears in
 * children. To ask getpid() is a system call, which every operation would make three times. */
class ForkMark
{
  public:
    ForkMark() : pid_(getpid()), page_size_((size_t)sysconf(_SC_PAGESIZE))
    {
        void *page =
            mmap(nullptr, page_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return;
        if (madvise(page, page_size_, MADV_WIPEONFORK) != 0) { /* before Linux 4.14 */
            munmap(page, page_size_);
            return;
        }
        mark_ = static_cast<volatile char *>(page);
        *mark_ = 1;
    }

    ForkMark(const ForkMark &) = delete;
    ForkMark &operator=(const ForkMark &) = delete;

    ~ForkMark()
    {
        if (mark_ != nullptr) munmap(const_cast<char *>(mark_), page_size_);
    }

    bool is_forked() const
    {
        return mark_ != nullptr ? *mark_ == 0 : getpid() != pid_;
    }

  private:
    volatile char *mark_ = nullptr; /* a page of its own */
    const pid_t pid_;
    const size_t page_size_;
};

/* A condition variable. In a forked child its end would wait for threads of the parent. */
class Condition
{
  public:
    ~Condition()
    {
        if (getpid() == pid_) delete it_;
    }

    std::condition_variable *operator->() const
    {
        return it_;
    }

  private:
    std::condition_variable *it_ = new std::condition_variable;
    const pid_t pid_ = getpid();
};

class World;

/* One handle of libdp, the memory that it uses, and what is left to do when it is over. */
class Operation
{
  public:
    explicit Operation(std::shared_ptr<World> world) : world_(std::move(world))
    {
    }

    /* Dropped in flight: the memory must outlive the operation, so the world keeps it. */
    ~Operation();

    /* Waits at most so long; true when it is over, failed or not. Several threads may wait. */
    bool wait(double seconds);

    /* Over, with this error. Its handle is libdp's, which frees it in dp_finalize(). */
    void abandon(const char *error);

    const std::string &error() const /* of an operation that is over; "" is success */
    {
        return error_;
    }

    bool is_over() const
    {
        return is_over_.load(std::memory_order_acquire);
    }

    /* Of a receive from any rank, which is not yet submitted: wait() calls search again and again,
     * until some thread has stored source and handle, or refusal, and then has_begun. */
    std::function<void()> search;
    std::atomic<bool> has_begun{true};
    int source = -1;
    std::string refusal; /* why it could not be submitted */

    dp_handle_t *handle = nullptr;
    std::shared_ptr<Turns> turns; /* of a collective: they learn that it failed */
    uint64_t place = 0;           /* in the order of the group's collectives */
    Tensors keeps;
    std::vector<size_t> counts; /* libdp writes what came from each rank */
    /* Called once with them, after success, by a thread that waits. */
    std::function<void(const std::vector<size_t> &)> finish;

  private:
    bool await_begin(double seconds);

    std::shared_ptr<World> world_;
    std::timed_mutex mutex_; /* one thread at a time may wait for a handle */
    std::atomic<bool> is_over_{false};
    std::string error_; /* written before is_over_ is stored, read after it is loaded */
};

using Operations = std::vector<std::shared_ptr<Operation>>;

/* Functions of Python: the end of the dp.Context; elements in memory that the ranks of a node
 * share; and a backend over ranks of the world, which meet in a store of theirs, with a timeout in
 * ms. */
using Finalize = std::function<void()>;
using Allocate = std::function<at::Tensor(int64_t, at::ScalarType)>;
using Split = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store> &, const std::vector<int> &, int64_t)>;

/*
 * A dp_context_t, and the threads that wait where no thread of the program does.
 *
 * One of them at a time serves the queue of operations. When one is over whose future somebody has,
 * that thread leaves the queue to another one and completes the future itself, and with it runs the
 * program's functions (then()). So such a function may wait for other futures, or submit.
 */
class World
{
  public:
    World(uintptr_t context, Finalize finalize, Allocate allocate, Split split)
        : context_(reinterpret_cast<dp_context_t *>(context)), finalize_(std::move(finalize)),
          allocate_(std::move(allocate)), split_(std::move(split))
    {
        const char *wire = dp_setting(context_, "WIRE");
        scales_wire_ = wire != nullptr && std::strcmp(wire, "fp16") == 0;
    }

    ~World()
    {
        close();
    }

    dp_context_t *context() const
    {
        return context_;
    }

    /* Whether sums travel as fp16, scaled by the magnitude of the last one of their name. */
    bool scales_wire() const
    {
        return scales_wire_;
    }

    /* False once dp_finalize() may have freed its handles, and in a forked child. */
    bool is_open() const
    {
        return is_open_ && !is_forked();
    }

    bool is_forked() const
    {
        return fork_mark_.is_forked();
    }

    void finalize()
    {
        auto call = finalize_; /* close() clears it meanwhile */
        if (is_open() && call) call();
    }

    at::Tensor allocate(int64_t size, at::ScalarType type) const
    {
        if (!is_open()) fail(kDestroyed);
        return allocate_(size, type);
    }

    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                            const std::vector<int> &members,
                                            int64_t timeout_ms) const
    {
        if (!is_open()) fail(kDestroyed);
        return split_(store, members, timeout_ms);
    }

    /* How an operation ended that failed: the first status after which the world is unusable
     * stays. */
    void note(dp_status_t status)
    {
        dp_status_t none = DP_OK;
        if (status == DP_ERR_PEER_LOST || status == DP_ERR_ABORTED || status == DP_ERR_STALLED) {
            failure_.compare_exchange_strong(none, status);
        }
    }

    dp_status_t failure() const
    {
        return failure_;
    }

    /* A wait for it was too long: finalize() does not wait again. */
    void add_late(std::shared_ptr<Operation> operation)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        late_.push_back(std::move(operation));
    }

    bool has_late()
    {
        std::vector<std::shared_ptr<Operation>> late;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            late = late_;
        }
        return std::any_of(late.begin(), late.end(), [](auto &one) { return !one->wait(0); });
    }

    /* Ends a group in the background, as its other ranks may do so much later. */
    void end_group(dp_group_t *group)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!is_open()) return;
        groups_ending_++;
        enders_.emplace_back([this, group] {
            dp_group_destroy(group); /* a failure: the world has ended, and its groups with it */
            std::lock_guard<std::mutex> inner(mutex_);
            groups_ending_--;
            changed_->notify_all();
        });
    }

    /* True when no group is ending any more. Ctrl-C ends the wait. */
    bool await_groups(double seconds)
    {
        const auto until = Clock::now() + std::chrono::duration<double>(seconds);
        for (;;) {
            const std::chrono::duration<double> left = until - Clock::now();
            if (have_groups_ended(std::min(left.count(), kSliceSeconds))) return true;
            if (left.count() <= kSliceSeconds) return false;
            raise_signals();
        }
    }

    /* close() calls it: ends a thread that uses the context. */
    void at_close(std::function<void()> stop)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stops_.push_back(std::move(stop));
    }

    /* Receives "" when all operations are over, which know how they ended; or why nobody waits for
     * them any longer. Called once, on a thread of the world's. */
    using Done = std::function<void(const std::string &)>;

    /* Keeps the operations until they are over. done may be null; otherwise it is called then, or
     * after the time limit with the text `late`. */
    void wait_for(Operations operations, Done done, Milliseconds limit = kNoLimit,
                  std::string late = "")
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!is_open()) {
            lock.unlock();
            if (done) done(kDestroyed);
            return;
        }
        const auto until = limit >= kNoLimit ? Clock::time_point::max() : Clock::now() + limit;
        queue_.push_back({std::move(operations), std::move(done), until, std::move(late)});
        call_server();
    }

    /* Ends the threads before dp_finalize(). What is in flight keeps its memory until clear(). */
    void close()
    {
        if (is_forked()) { /* they live in the parent */
            for (std::thread &thread : threads_)
                thread.detach();
            for (std::thread &ender : enders_)
                ender.detach();
            is_open_ = false;
            return;
        }
        if (is_open_ && !have_groups_ended(kGroupsEndSeconds)) {
            dp_abort(context_, "the end of the world: other ranks have not destroyed a group");
        }
        std::vector<std::function<void()>> stops;
        std::vector<std::thread> enders;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stops.swap(stops_);
            enders.swap(enders_);
        }
        for (auto &stop : stops)
            stop();
        std::vector<std::thread> threads;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            is_open_ = false;
            changed_->notify_all();
            changed_->wait(lock, [this] { return !is_served_; });
            threads.swap(threads_);
        }
        for (std::thread &ender : enders)
            ender.join();
        tell_all(kDestroyed); /* a function of the program may wait for one of these */
        for (std::thread &thread : threads)
            thread.join();
        finalize_ = nullptr; /* Python's, which may be gone when the world goes */
        allocate_ = nullptr;
        split_ = nullptr;
    }

    /* After dp_finalize(): nothing is in flight any more. */
    void clear()
    {
        std::deque<Pending> left;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            left.swap(queue_);
            late_.clear();
        }
        for (Pending &one : left) {
            for (auto &operation : one.operations)
                operation->abandon(kDestroyed);
        }
    }

  private:
    struct Pending {
        Operations operations;
        Done done;
        Clock::time_point until;
        std::string late;
    };

    bool have_groups_ended(double seconds)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        return changed_->wait_for(lock, std::chrono::duration<double>(seconds),
                                  [this] { return groups_ending_ == 0; });
    }

    /* mutex_ is held. Makes sure that a thread serves the queue, where there is something in it. */
    void call_server()
    {
        if (is_served_ || queue_.empty() || !is_open_) return;
        if (idle_ > 0) {
            changed_->notify_all();
        } else {
            is_served_ = true;
            threads_.emplace_back([this] { run(); });
        }
    }

    /* A thread, which serves first. */
    void run()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            std::optional<Pending> over = is_open_ ? serve(lock) : std::nullopt;
            is_served_ = false;
            if (!is_open_) changed_->notify_all(); /* close() waits for this */
            call_server();
            if (over) {
                const std::string reason = std::move(over->late);
                lock.unlock();
                over->done(reason);
                over.reset();
                lock.lock();
            }
            idle_++;
            changed_->wait(lock, [this] { return !is_open_ || (!is_served_ && !queue_.empty()); });
            idle_--;
            if (!is_open_) return;
            is_served_ = true;
        }
    }

    /* Waits for the first in the queue. Where there are more, it looks at all of them every other
     * millisecond, as the end of one may depend on what the program does at the end of another.
     * Returns one to be told, with the reason for it in `late`; nothing: the queue is empty, or the
     * world ends. */
    std::optional<Pending> serve(std::unique_lock<std::mutex> &lock)
    {
        std::optional<Pending> over;
        while (is_open_ && !over && !queue_.empty()) {
            std::deque<Pending> taken, kept;
            taken.swap(queue_);
            lock.unlock();
            double seconds = taken.size() > 1 ? kQueueSeconds : kSliceSeconds;
            for (Pending &one : taken) {
                const bool is_over = !over && is_over_within(one.operations, seconds);
                seconds = is_over ? kQueueSeconds : 0;
                if (is_over) {
                    one.late.clear();
                    if (one.done) over = std::move(one);
                    continue;
                }
                if (!over && one.done && Clock::now() >= one.until) {
                    over = give_up(one);
                }
                kept.push_back(std::move(one));
            }
            taken.clear(); /* also what a tensor's end may call */
            lock.lock();
            queue_.insert(queue_.begin(), std::make_move_iterator(kept.begin()),
                          std::make_move_iterator(kept.end()));
        }
        return over;
    }

    /* What tells that it was too long. The operations go on, so they stay in the queue. */
    Pending give_up(Pending &one)
    {
        for (auto &operation : one.operations) {
            if (!operation->is_over()) add_late(operation);
        }
        Pending told{one.operations, std::move(one.done), one.until, std::move(one.late)};
        one.done = nullptr;
        return told;
    }

    void tell_all(const std::string &reason)
    {
        std::vector<Done> done;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (Pending &one : queue_) {
                if (one.done) done.push_back(std::move(one.done));
                one.done = nullptr;
            }
        }
        for (Done &one : done)
            one(reason);
    }

    static bool is_over_within(const Operations &operations, double seconds)
    {
        return std::all_of(operations.begin(), operations.end(),
                           [&](auto &operation) { return operation->wait(seconds); });
    }

    dp_context_t *context_; /* dp.Context's, which finalizes it between close() and clear() */
    Finalize finalize_;
    Allocate allocate_;
    Split split_;
    bool scales_wire_;
    const ForkMark fork_mark_;
    std::atomic<bool> is_open_{true};
    std::atomic<dp_status_t> failure_{DP_OK};
    std::mutex mutex_;
    Condition changed_;
    /* guarded by mutex_ */
    std::deque<Pending> queue_;
    std::vector<std::shared_ptr<Operation>> late_;
    std::vector<std::function<void()>> stops_;
    std::vector<std::thread> enders_;
    int groups_ending_ = 0;
    std::vector<std::thread> threads_;
    int idle_ = 0;           /* of them, those that wait for something to do */
    bool is_served_ = false; /* one of them has the queue */
};

inline Operation::~Operation()
{
    if (is_over_ || !has_begun || handle == nullptr || !world_->is_open()) return;
    auto heir = std::make_shared<Operation>(world_);
    heir->handle = handle;
    heir->turns = std::move(turns);
    heir->place = place;
    heir->keeps = std::move(keeps);
    heir->counts = std::move(counts);
    heir->finish = std::move(finish);
    world_->wait_for({heir}, nullptr);
}

/* True once there is a handle to wait for, or the world has ended. */
inline bool Operation::await_begin(double seconds)
{
    if (has_begun.load(std::memory_order_acquire)) return true;
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    std::chrono::microseconds pause = kLookAgain;
    while (!has_begun.load(std::memory_order_acquire) && world_->is_open()) {
        try {
            search();
        } catch (const c10::Error &failure) { /* of the store that ranks share */
            refusal = failure.what_without_backtrace();
            return true;
        } catch (const std::exception &failure) { /* of one in Python */
            refusal = failure.what();
            return true;
        }
        if (has_begun.load(std::memory_order_acquire)) break;
        if (Clock::now() >= until) return false;
        std::this_thread::sleep_for(pause);
        pause = std::min<std::chrono::microseconds>(2 * pause, kLookSeldom);
    }
    return true;
}

inline bool Operation::wait(double seconds)
{
    if (is_over_.load(std::memory_order_acquire)) return true;
    std::unique_lock<std::timed_mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() && !lock.try_lock_for(std::chrono::duration<double>(seconds)))
        return false;
    if (is_over_.load(std::memory_order_relaxed)) return true;
    if (!await_begin(seconds)) return false;
    dp_result_t result = DP_RESULT_INIT;
    if (!world_->is_open()) {
        error_ = kDestroyed;
    } else if (!refusal.empty()) {
        error_ = refusal;
    } else {
        dp_status_t status = dp_wait(handle, seconds, &result);
        if (status == DP_ERR_TIMEOUT) return false;
        if (status != DP_OK) {
            world_->note(status);
            if (turns && status == DP_ERR_MISMATCH) turns->forget(place);
            error_ = *result.text ? result.text : dp_error_text(world_->context());
            if (error_.empty()) error_ = dp_status_string(status);
            if (turns && status == DP_ERR_MISMATCH && turns->is_shared()) error_ += kShared;
        } else if (finish) {
            at::AutoDispatchBelowAutograd no_autograd;
            try {
                finish(counts);
                record_use(keeps);
            } catch (const c10::Error &failure) {
                error_ = failure.what_without_backtrace();
            } catch (const std::exception &failure) {
                error_ = failure.what();
            }
        }
    }
    search = nullptr;
    finish = nullptr;
    keeps.clear();
    is_over_.store(true, std::memory_order_release);
    return true;
}

inline void Operation::abandon(const char *error)
{
    std::lock_guard<std::timed_mutex> lock(mutex_);
    if (is_over_.load(std::memory_order_relaxed)) return;
    error_ = error;
    finish = nullptr;
    keeps.clear();
    is_over_.store(true, std::memory_order_release);
}

} // namespace dp_torch

#endif
