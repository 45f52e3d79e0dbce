/*
 * operation.h - an operation of libdp in flight.
 *
 * An Operation owns one handle of libdp, and belongs to a World (world.h), which keeps the memory
 * of those whose Work was dropped. Any thread may wait, with or without the GIL.
 */
#ifndef DP_TORCH_OPERATION_H
#define DP_TORCH_OPERATION_H

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
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
constexpr auto kLookAtFunctions = std::chrono::seconds(1);  /* for those that do not return */
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

/* Lets other threads of Python run while this one waits, if it holds the GIL. */
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

/* The current stream of this thread on a GPU. */
inline c10::Stream current_stream(c10::Device device)
{
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/* The same stream as libdp knows it, which calls the default one 1 (cudaStreamLegacy), as ops.py
 * finds it. By way of Python, so that this file compiles without CUDA's headers; but once for each
 * stream, as torch never destroys one. */
inline void *native_stream(c10::Device device)
{
    static std::mutex mutex;
    static auto *known = new std::map<std::pair<c10::DeviceIndex, c10::StreamId>, void *>;
    const std::pair<c10::DeviceIndex, c10::StreamId> key{device.index(),
                                                         current_stream(device).id()};
    {
        std::lock_guard<std::mutex> lock(mutex);
        auto found = known->find(key);
        if (found != known->end()) return found->second;
    }
    py::gil_scoped_acquire gil;
    py::object stream =
        py::module_::import("torch").attr("cuda").attr("current_stream")((int)device.index());
    const auto number = stream.attr("cuda_stream").cast<uintptr_t>();
    void *native =
        reinterpret_cast<void *>(number != 0 ? number : 1); // NOLINT(performance-no-int-to-ptr)
    std::lock_guard<std::mutex> lock(mutex);
    return (*known)[key] = native;
}

/* The GPU that holds some of them. */
inline std::optional<c10::Device> device_of(const Tensors &tensors)
{
    for (auto &tensor : tensors) {
        if (tensor.defined() && !tensor.is_cpu()) return tensor.device();
    }
    return std::nullopt;
}

/* The current stream is behind the operation, and may read them: for finish(), or for the program.
 * They were allocated on the stream of the submission, which need not be this one, and where their
 * memory is used anew once they are dropped. */
inline void record_use(const Tensors &tensors)
{
    for (auto &tensor : tensors) {
        if (tensor.defined() && !tensor.is_cpu())
            tensor.record_stream(current_stream(tensor.device()));
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
class Operation : public std::enable_shared_from_this<Operation>
{
  public:
    explicit Operation(std::shared_ptr<World> world) : world_(std::move(world))
    {
    }

    /* Dropped in flight: the memory must outlive the operation, so the world keeps it. */
    ~Operation();

    /* Waits at most so long; true when it is over, failed or not. Several threads may wait. */
    bool wait(double seconds);

    /* Waits at most so long until what is enqueued on the current stream of its GPU from now on
     * finds the result; true also when it has failed. In host memory, and where the host needs the
     * counts of what came, this is wait(). */
    bool join(double seconds);

    /* Over, with this error. Its handle is libdp's, which frees it in dp_finalize(). */
    void abandon(const char *error);

    const std::string &error() const /* as far as it is known by now; "" is success */
    {
        return is_over() ? error_ : finish_error_;
    }

    /* It is over, and join() had not known yet that it would fail. */
    bool has_failed_late() const
    {
        return error_ != finish_error_;
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
    std::unique_lock<std::timed_mutex> lock_within(double seconds);
    bool wait_locked(double seconds);
    void follow_finish();
    void call_finish();

    std::shared_ptr<World> world_;
    std::timed_mutex mutex_; /* one thread at a time may wait for a handle */
    std::atomic<bool> is_over_{false};
    std::string error_; /* written before is_over_ is stored, read after it is loaded */
    /* The following are written by one thread, before it stores is_joined_ or is_over_. */
    std::atomic<bool> is_joined_{false}; /* a stream waits for it */
    std::optional<c10::Device> device_;  /* of its tensors, when is_joined_ */
    std::optional<c10::Event> finished_; /* behind what finish() has enqueued */
    std::string finish_error_;
};

} // namespace dp_torch

#endif
