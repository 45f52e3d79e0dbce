/*
 * work.h - what torch waits for: a c10d::Work over operations of libdp.
 *
 * Its methods are called on any thread, with or without the GIL.
 */
#ifndef DP_TORCH_WORK_H
#define DP_TORCH_WORK_H

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <ATen/record_function.h>
#include <torch/version.h>

#include "world.h"

namespace dp_torch
{

/* The waiting rank and group, in words. */
struct Place {
    std::string rank;  /* "rank 1" */
    std::string group; /* "the group of ranks [0, 1]" */
};

/* The c10d::Work of one call: its operations, and the tensors that they write. */
class DpWork : public c10d::Work
{
  public:
    /* title: "dp:all_reduce", which lives as long as the process; place: the rank and its group,
     * for messages; source: -1, or the rank that a receive is from. */
    DpWork(int rank, c10d::OpType type, const char *title, const Tensors &inputs,
           std::shared_ptr<World> world, std::shared_ptr<const Place> place, Operations operations,
           Tensors outputs, Milliseconds limit, uint64_t sequence, int source)
        : Work(rank, type, is_profiled() ? title : nullptr,
               is_profiled() ? std::optional<Tensors>(inputs) : std::nullopt),
          world_(std::move(world)), place_(std::move(place)), title_(title),
          operations_(std::move(operations)), outputs_(std::move(outputs)), limit_(limit),
          sequence_(sequence), source_(source)
    {
    }

    /* On a GPU: the result is there. */
    bool isCompleted() override
    {
        for (auto &operation : operations_) {
            if (!operation->wait(0)) return false;
        }
        conclude();
        return true;
    }

    /* In the caller's thread, which does libdp's work meanwhile. On a GPU it lasts until the
     * operation was issued, and the current stream waits for the result; as with NCCL's backend the
     * host waits for it too where a timeout is given, in a barrier and where the world blocks. */
    bool wait(Milliseconds timeout) override
    {
        WithoutGil released;
        const bool blocks =
            timeout > kNoTimeout || world_->blocks() || retrieveOpType() == c10d::OpType::BARRIER;
        const Milliseconds limit = timeout > kNoTimeout ? timeout : limit_;
        const auto until = Clock::now() + limit;
        double seconds = slice(limit);
        for (auto &operation : operations_) {
            while (!operation->join(seconds) || (blocks && !operation->wait(seconds))) {
                raise_signals();
                const auto now = Clock::now();
                seconds = slice(until - now);
                if (now < until) continue;
                world_->add_late(operation);
                fail(lateness(limit));
            }
            if (operations_.size() > 1) seconds = slice(until - Clock::now());
        }
        conclude();
        if (exception_) std::rethrow_exception(exception_);
        world_->check_joined();
        return true;
    }

    void synchronize() override
    {
        wait(kNoTimeout);
    }

    std::vector<at::Tensor> result() override
    {
        wait(kNoTimeout);
        return outputs_;
    }

    int sourceRank() const override
    {
        if (source_ >= 0) return source_;
        if (operations_.size() == 1 && operations_[0]->is_over() && operations_[0]->source >= 0) {
            return operations_[0]->source;
        }
        return Work::sourceRank();
    }

    std::chrono::milliseconds getTimeout() const /* virtual from torch 2.14 on */
    {
        return limit_;
    }

    uint64_t getSequencenumber() const override
    {
        return sequence_;
    }

    /* Completed by a thread of the world's. */
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        std::lock_guard<std::mutex> lock(future_mutex_);
        if (future_) return future_;
        future_ = c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), devices());
        when_over([future = future_](const DpWork &self, std::exception_ptr failure) {
            if (failure) {
                future->setError(failure);
            } else {
                future->markCompleted(c10::IValue(self.outputs_));
            }
        });
        return future_;
    }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
    /* A future of a WorkResult, which never fails. */
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override
    {
        std::lock_guard<std::mutex> lock(future_mutex_);
        if (outcome_) return outcome_;
        outcome_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
        when_over([outcome = outcome_](const DpWork &, std::exception_ptr failure) {
            auto result = failure ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
            outcome->markCompleted(c10::IValue((int64_t)result));
        });
        return outcome_;
    }
#endif

  private:
    /* Calls it once all operations are over, on a thread of the world's or at once; or after the
     * time limit. It gets why they failed, or nothing. */
    template <typename Call> void when_over(Call call)
    {
        auto complete = [self = c10::intrusive_ptr<DpWork>::unsafe_reclaim_from_nonowning(this),
                         call](const std::string &reason) {
            if (reason.empty()) self->conclude();
            call(*self, reason.empty() ? self->exception_ : make_failure(reason));
        };
        if (isCompleted()) {
            for (auto &operation : operations_)
                operation->join(0);
            complete("");
        } else {
            world_->wait_for(operations_, complete, limit_, lateness(limit_),
                             place_->rank + ": " + name(), device_of(outputs_));
        }
    }

    /* "all_reduce of the group of ranks [0, 1]" */
    std::string name() const
    {
        const std::string kind = title_;
        return kind.substr(kind.find(':') + 1) + " of " + place_->group;
    }

    std::string lateness(Milliseconds limit) const
    {
        return place_->rank + ": Timed out waiting " + std::to_string(limit.count()) + "ms for " +
               name() + "; libdp's log says which ranks are missing";
    }

    static std::exception_ptr make_failure(const std::string &text)
    {
        try {
            fail(text);
        } catch (...) {
            return std::current_exception();
        }
    }

    /* Without a profiler the base class would make and drop a record of each operation. */
    static bool is_profiled()
    {
        return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
    }

    static double slice(std::chrono::duration<double> left)
    {
        return std::max(0.0, std::min(left.count(), kSliceSeconds));
    }

    /* The GPUs that outputs are on; works that were coalesced may have some in host memory too. */
    std::vector<c10::Device> devices() const
    {
        std::vector<c10::Device> found;
        for (auto &output : outputs_) {
            const c10::Device device = output.device();
            if (!output.is_cpu() && std::find(found.begin(), found.end(), device) == found.end())
                found.push_back(device);
        }
        return found;
    }

    /* All operations are over, or streams wait for them: tells the base class, once, which ends the
     * profiler's event. Not by std::call_once(), which wakes waiters by a system call also where
     * there are none. */
    void conclude()
    {
        if (is_concluded_.load(std::memory_order_acquire)) return;
        std::lock_guard<std::mutex> lock(conclusion_mutex_);
        if (is_concluded_.load(std::memory_order_relaxed)) return;
        std::exception_ptr failure;
        for (auto &operation : operations_) {
            if (failure || operation->error().empty()) continue;
            failure = make_failure(operation->error());
        }
        finish(failure);
        is_concluded_.store(true, std::memory_order_release);
    }

    std::shared_ptr<World> world_;
    std::shared_ptr<const Place> place_;
    const char *title_;
    const Operations operations_;
    const Tensors outputs_;
    const Milliseconds limit_;
    const uint64_t sequence_;
    const int source_;
    std::mutex conclusion_mutex_;
    std::atomic<bool> is_concluded_{false};
    std::mutex future_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_, outcome_; /* guarded by future_mutex_ */
};

} // namespace dp_torch

#endif
