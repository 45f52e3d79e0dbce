/*
 * operation.h - an operation of libdp in flight, and the world that it belongs to.
 *
 * A World belongs to one dp_context_t and has one thread, which completes the futures of operations
 * and keeps the memory of those whose Work was dropped. Works and the backends of a context's
 * groups share it. An Operation owns one handle of libdp. Any thread may wait, with or without the
 * GIL.
 */
#ifndef DP_TORCH_OPERATION_H
#define DP_TORCH_OPERATION_H

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <ATen/ATen.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dp.h"

namespace dp_torch
{

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

/* A wait looks so often for Ctrl-C and the end of the world. */
constexpr double kSliceSeconds = 0.25;
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

    dp_handle_t *handle = nullptr;
    Tensors keeps;
    std::vector<size_t> counts; /* libdp writes what came from each rank */
    /* Called once with them, after success, by a thread that waits. */
    std::function<void(const std::vector<size_t> &)> finish;

  private:
    std::shared_ptr<World> world_;
    std::timed_mutex mutex_; /* one thread at a time may wait for a handle */
    std::atomic<bool> is_over_{false};
    std::string error_; /* written before is_over_ is stored, read after it is loaded */
};

using Operations = std::vector<std::shared_ptr<Operation>>;

/* Functions of Python: the end of the dp.Context, bytes in memory that ranks share, and a backend
 * over ranks of the world, which meet in a store of theirs, with a timeout in ms. */
using Finalize = std::function<void()>;
using Allocate = std::function<at::Tensor(int64_t)>;
using Split = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store> &, const std::vector<int> &, int64_t)>;

/* A dp_context_t, and the thread that waits where no thread of the program does. */
class World
{
  public:
    World(uintptr_t context, Finalize finalize, Allocate allocate, Split split)
        : context_(reinterpret_cast<dp_context_t *>(context)), finalize_(std::move(finalize)),
          allocate_(std::move(allocate)), split_(std::move(split))
    {
    }

    ~World()
    {
        close();
    }

    dp_context_t *context() const
    {
        return context_;
    }

    /* False once dp_finalize() may have freed its handles, and in a forked child. */
    bool is_open() const
    {
        return is_open_ && getpid() == pid_;
    }

    void finalize()
    {
        auto call = finalize_; /* close() clears it meanwhile */
        if (is_open() && call) call();
    }

    at::Tensor allocate(int64_t bytes) const
    {
        if (!is_open()) fail(kDestroyed);
        return allocate_(bytes);
    }

    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                            const std::vector<int> &members,
                                            int64_t timeout_ms) const
    {
        if (!is_open()) fail(kDestroyed);
        return split_(store, members, timeout_ms);
    }

    /* Keeps the operations until they are over, and calls done then. The first call starts the
     * thread, which serves them in the order of the calls. */
    void wait_for(Operations operations, std::function<void()> done)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!is_open()) return;
        if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
        queue_.push_back({std::move(operations), std::move(done)});
        changed_.notify_one();
    }

    /* Ends the thread before dp_finalize(). What is in flight keeps its memory until clear(). */
    void close()
    {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_open_ = false;
            changed_.notify_one();
        }
        if (getpid() != pid_) {
            if (thread_.joinable()) thread_.detach(); /* it lives in the parent */
            return;
        }
        if (thread_.joinable()) thread_.join();
        finalize_ = nullptr; /* Python's, which may be gone when the world goes */
        allocate_ = nullptr;
        split_ = nullptr;
    }

    /* After dp_finalize(): nothing is in flight any more, and futures learn that they failed. */
    void clear()
    {
        std::deque<Pending> left;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            left.swap(queue_);
        }
        for (Pending &one : left) {
            for (auto &operation : one.operations)
                operation->abandon(kDestroyed);
            if (one.done) one.done();
        }
    }

  private:
    struct Pending {
        Operations operations;
        std::function<void()> done;
    };

    void run()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return !is_open_ || !queue_.empty(); });
            if (!is_open_) return;
            Pending one = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            bool is_over = wait_until_closed(one.operations);
            if (is_over && one.done) one.done();
            if (is_over) one = Pending();
            lock.lock();
            if (!is_over) queue_.push_front(std::move(one));
        }
    }

    bool wait_until_closed(const Operations &operations) const
    {
        for (const auto &operation : operations) {
            while (!operation->wait(kSliceSeconds)) {
                if (!is_open_) return false;
            }
        }
        return true;
    }

    dp_context_t *context_; /* dp.Context's, which finalizes it between close() and clear() */
    Finalize finalize_;
    Allocate allocate_;
    Split split_;
    const pid_t pid_ = getpid();
    std::atomic<bool> is_open_{true};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Pending> queue_; /* guarded by mutex_ */
    std::thread thread_;
};

inline Operation::~Operation()
{
    if (is_over_ || handle == nullptr || !world_->is_open()) return;
    auto heir = std::make_shared<Operation>(world_);
    heir->handle = handle;
    heir->keeps = std::move(keeps);
    heir->counts = std::move(counts);
    heir->finish = std::move(finish);
    world_->wait_for({heir}, nullptr);
}

inline bool Operation::wait(double seconds)
{
    if (is_over_.load(std::memory_order_acquire)) return true;
    std::unique_lock<std::timed_mutex> lock(mutex_, std::chrono::duration<double>(seconds));
    if (!lock.owns_lock()) return false;
    if (is_over_.load(std::memory_order_relaxed)) return true;
    dp_result_t result = DP_RESULT_INIT;
    if (!world_->is_open()) {
        error_ = kDestroyed;
    } else {
        dp_status_t status = dp_wait(handle, seconds, &result);
        if (status == DP_ERR_TIMEOUT) return false;
        if (status != DP_OK) {
            error_ = *result.text ? result.text : dp_error_text(world_->context());
            if (error_.empty()) error_ = dp_status_string(status);
        } else if (finish) {
            at::AutoDispatchBelowAutograd no_autograd;
            try {
                finish(counts);
            } catch (const std::exception &failure) {
                error_ = failure.what();
            }
        }
    }
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
