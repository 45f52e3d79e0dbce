/*
 * world.h - a dp_context_t with its threads, which complete futures of operations.
 *
 * Works and the backends of a context's groups share it. Any thread may call, with or without the
 * GIL. The part that operations need stands at the end.
 */
#ifndef DP_TORCH_WORLD_H
#define DP_TORCH_WORLD_H

#include <c10/core/StreamGuard.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>

#include "operation.h"

namespace dp_torch
{

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
 * program's functions (then()). So such a function may wait for other futures, or submit. The other
 * threads name one that does not return within DP_STALL_WARN.
 */
class World
{
  public:
    /* blocks: waits for operations on a GPU are the host's, not its stream's. */
    World(uintptr_t context, bool blocks, Finalize finalize, Allocate allocate, Split split)
        : context_(reinterpret_cast<dp_context_t *>(context)), blocks_(blocks),
          finalize_(std::move(finalize)), allocate_(std::move(allocate)), split_(std::move(split))
    {
        const char *wire = dp_setting(context_, "WIRE");
        scales_wire_ = wire != nullptr && std::strcmp(wire, "fp16") == 0;
        stall_seconds_ = seconds_of(dp_setting(context_, "STALL_WARN"));
    }

    ~World()
    {
        close();
    }

    dp_context_t *context() const
    {
        return context_;
    }

    bool blocks() const
    {
        return blocks_;
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

    /* A stream waits for it, and the program goes on: it is kept until it is over. */
    void add_joined(std::shared_ptr<Operation> operation)
    {
        std::lock_guard<std::mutex> lock(joined_mutex_);
        drop_joined();
        joined_.push_back(std::move(operation));
        has_joined_ = true;
    }

    /* Those of them that are not over. */
    Operations joined()
    {
        std::lock_guard<std::mutex> lock(joined_mutex_);
        drop_joined();
        return {joined_.begin(), joined_.end()};
    }

    /* Throws how one of them has failed, once: the program has used its result. */
    void check_joined()
    {
        if (!has_joined_) return;
        std::lock_guard<std::mutex> lock(joined_mutex_);
        drop_joined();
        if (joined_failure_.empty()) return;
        const std::string failure = std::move(joined_failure_);
        joined_failure_.clear();
        fail(failure);
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
     * after the time limit with the text `late`. `whose`: "rank 1: ", and what the program called.
     * device: a GPU; done is called once the current stream of the thread waits for them there. */
    void wait_for(Operations operations, Done done, Milliseconds limit = kNoLimit,
                  std::string late = "", std::string whose = "",
                  std::optional<c10::Device> device = std::nullopt)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!is_open()) {
            lock.unlock();
            if (done) done(kDestroyed);
            return;
        }
        const auto until = limit >= kNoLimit ? Clock::time_point::max() : Clock::now() + limit;
        queue_.push_back({std::move(operations), std::move(done), until, std::move(late),
                          std::move(whose), device});
        call_server();
    }

    /* Ends the threads before dp_finalize(). Operations in flight keep memory until clear(). */
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
        std::lock_guard<std::mutex> lock(joined_mutex_);
        for (auto &operation : joined_)
            operation->abandon(kDestroyed);
        joined_.clear();
    }

  private:
    struct Pending {
        Operations operations;
        Done done;
        Clock::time_point until;
        std::string late;
        std::string whose;
        std::optional<c10::Device> device;
    };

    /* The completion under way: it completes a future and runs the program's functions. */
    struct Telling {
        std::string whose;
        Clock::time_point since;
        bool is_named;
    };

    /* "10s" as libdp writes times; 0: never. */
    static double seconds_of(const char *text)
    {
        static const std::pair<const char *, double> units[] = {
            {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}};
        char *end = nullptr;
        const double number = text == nullptr ? 0 : std::strtod(text, &end);
        for (auto &[unit, seconds] : units) {
            if (number > 0 && std::strcmp(end, unit) == 0) return number * seconds;
        }
        return 0;
    }

    /* joined_mutex_ is held. They end in about the order in which they were joined. */
    void drop_joined()
    {
        for (; !joined_.empty() && joined_.front()->wait(0); joined_.pop_front()) {
            if (joined_.front()->has_failed_late()) joined_failure_ = joined_.front()->error();
        }
    }

    /* A stream of the world's threads becomes the current one: the program's must not wait for
     * what no thread of the program has waited for. */
    std::optional<c10::Stream> own_stream(std::optional<c10::Device> device)
    {
        if (!device) return std::nullopt;
        std::lock_guard<std::mutex> lock(streams_mutex_);
        auto found = streams_.find(device->index());
        if (found == streams_.end()) {
            c10::impl::VirtualGuardImpl gpu(device->type());
            found =
                streams_.emplace(device->index(), gpu.getStreamFromGlobalPool(*device, true)).first;
        }
        return found->second;
    }

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
            add_thread();
        }
    }

    /* mutex_ is held. */
    void add_thread()
    {
        is_served_ = true;
        threads_.emplace_back([this] { run(); });
    }

    /* mutex_ is held. The log of libdp has no function for others. */
    void name_stalled_functions()
    {
        for (Telling &one : telling_) {
            const std::chrono::duration<double> age = Clock::now() - one.since;
            if (one.is_named || stall_seconds_ <= 0 || age.count() < stall_seconds_) continue;
            one.is_named = true;
            std::fprintf(stderr,
                         "dp warn %s: a function of the program, of then() or a communication "
                         "hook, has not returned for %.0f s; what needs its result waits\n",
                         one.whose.c_str(), age.count());
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
                const auto telling =
                    telling_.insert(telling_.end(), {std::move(over->whose), Clock::now(), false});
                if (idle_ == 0 && !is_served_ && is_open_) add_thread(); /* to watch this one */
                lock.unlock();
                {
                    c10::OptionalStreamGuard guard(own_stream(over->device));
                    over->done(reason);
                }
                over.reset();
                lock.lock();
                telling_.erase(telling);
            }
            idle_++;
            while (!changed_->wait_for(lock, kLookAtFunctions, [this] {
                return !is_open_ || (!is_served_ && !queue_.empty());
            }))
                name_stalled_functions();
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
                const bool is_over = !over && is_over_within(one, seconds);
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
            name_stalled_functions();
        }
        return over;
    }

    /* The message that it took too long. Its operations go on, so they stay in the queue. */
    Pending give_up(Pending &one)
    {
        for (auto &operation : one.operations) {
            if (!operation->is_over()) add_late(operation);
        }
        Pending told{one.operations,      std::move(one.done), one.until,
                     std::move(one.late), one.whose,           one.device};
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

    bool is_over_within(const Pending &one, double seconds)
    {
        const bool joins = one.done && one.device && !blocks_;
        c10::OptionalStreamGuard guard(own_stream(one.device));
        return std::all_of(one.operations.begin(), one.operations.end(), [&](auto &operation) {
            return joins ? operation->join(seconds) : operation->wait(seconds);
        });
    }

    dp_context_t *context_; /* dp.Context's, which finalizes it between close() and clear() */
    const bool blocks_;
    Finalize finalize_;
    Allocate allocate_;
    Split split_;
    bool scales_wire_;
    double stall_seconds_;
    const ForkMark fork_mark_;
    std::atomic<bool> is_open_{true};
    std::atomic<dp_status_t> failure_{DP_OK};
    std::mutex mutex_;
    Condition changed_;
    /* guarded by mutex_ */
    std::deque<Pending> queue_;
    std::list<Telling> telling_;
    std::vector<std::shared_ptr<Operation>> late_;
    std::vector<std::function<void()>> stops_;
    std::vector<std::thread> enders_;
    int groups_ending_ = 0;
    std::vector<std::thread> threads_;
    int idle_ = 0;           /* of them, those that wait for something to do */
    bool is_served_ = false; /* one of them has the queue */
    std::mutex joined_mutex_;
    std::atomic<bool> has_joined_{false}; /* there was one */
    /* guarded by joined_mutex_ */
    std::deque<std::shared_ptr<Operation>> joined_;
    std::string joined_failure_;
    std::mutex streams_mutex_;
    std::map<c10::DeviceIndex, c10::Stream> streams_; /* guarded by streams_mutex_ */
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

/* Not locked: another thread waits for the handle. */
inline std::unique_lock<std::timed_mutex> Operation::lock_within(double seconds)
{
    std::unique_lock<std::timed_mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) (void)lock.try_lock_for(std::chrono::duration<double>(seconds));
    return lock;
}

/* Calls finish(), which works on the current stream. */
inline void Operation::call_finish()
{
    at::AutoDispatchBelowAutograd no_autograd;
    try {
        const auto device = device_of(keeps);
        finish(counts);
        record_use(keeps);
        if (device) {
            finished_.emplace(device->type());
            finished_->record(current_stream(*device));
        }
    } catch (const c10::Error &failure) {
        finish_error_ = failure.what_without_backtrace();
    } catch (const std::exception &failure) {
        finish_error_ = failure.what();
    }
    finish = nullptr;
}

/* The current stream goes on behind what finish() has enqueued, maybe on another one. */
inline void Operation::follow_finish()
{
    if (finished_) finished_->block(current_stream(finished_->device()));
}

inline bool Operation::wait(double seconds)
{
    if (is_over_.load(std::memory_order_acquire)) return true;
    auto lock = lock_within(seconds);
    return lock.owns_lock() && wait_locked(seconds);
}

inline bool Operation::join(double seconds)
{
    if (!is_over_.load(std::memory_order_acquire)) {
        auto lock = lock_within(seconds);
        if (!lock.owns_lock()) return false;
        if (!is_over_.load(std::memory_order_relaxed) && !await_begin(seconds)) return false;
        const auto device = is_joined_ ? device_ : device_of(keeps);
        if (is_over_.load(std::memory_order_relaxed) || !device || !counts.empty() ||
            !refusal.empty() || !world_->is_open()) {
            if (!wait_locked(seconds)) return false;
        } else {
            const dp_status_t status = dp_stream_wait(handle, native_stream(*device), seconds);
            if (status == DP_ERR_PENDING) return false;
            if (status != DP_OK) return wait_locked(seconds); /* tells the failure */
            if (!is_joined_) {
                if (finish) {
                    call_finish();
                } else {
                    record_use(keeps);
                }
                keeps.clear();
                device_ = device;
                is_joined_.store(true, std::memory_order_release);
                world_->add_joined(shared_from_this());
                return true;
            }
        }
    }
    follow_finish();
    return true;
}

/* mutex_ is held. */
inline bool Operation::wait_locked(double seconds)
{
    if (is_over_.load(std::memory_order_relaxed)) return true;
    if (!await_begin(seconds)) return false;
    dp_result_t result = DP_RESULT_INIT;
    if (!world_->is_open()) {
        error_ = kDestroyed;
    } else if (!refusal.empty()) {
        error_ = refusal;
    } else {
        dp_status_t status = dp_wait(handle, seconds, &result);
        if (status == DP_ERR_PENDING) return false;
        if (status != DP_OK) {
            world_->note(status);
            if (turns && status == DP_ERR_MISMATCH) turns->forget(place);
            error_ = *result.text ? result.text : dp_error_text(world_->context());
            if (error_.empty()) error_ = dp_status_string(status);
            if (turns && status == DP_ERR_MISMATCH && turns->is_shared()) error_ += kShared;
        } else {
            if (finish) call_finish();
            error_ = finish_error_;
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
