/*
 * work.h - what torch waits for: a c10d::Work over operations of libdp.
 *
 * Its methods are called on any thread, with or without the GIL.
 */
#ifndef DP_TORCH_WORK_H
#define DP_TORCH_WORK_H

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "operation.h"

namespace dp_torch
{

/* The c10d::Work of one call: its operations, and the tensors that they write. */
class DpWork : public c10d::Work
{
  public:
    DpWork(int rank, c10d::OpType type, const char *title, const Tensors &inputs,
           std::shared_ptr<World> world, Operations operations, Tensors outputs, Milliseconds limit,
           uint64_t sequence, int source)
        : Work(rank, type, title, inputs), world_(std::move(world)),
          operations_(std::move(operations)), outputs_(std::move(outputs)), limit_(limit),
          sequence_(sequence), source_(source)
    {
    }

    bool isCompleted() override
    {
        for (auto &operation : operations_) {
            if (!operation->wait(0)) return false;
        }
        conclude();
        return true;
    }

    /* In the caller's thread, which does libdp's work meanwhile. */
    bool wait(Milliseconds timeout) override
    {
        WithoutGil released;
        const Milliseconds limit = timeout > kNoTimeout ? timeout : limit_;
        const auto until = Clock::now() + limit;
        for (auto &operation : operations_) {
            while (!operation->wait(slice(until))) {
                raise_signals();
                if (Clock::now() >= until) {
                    fail("dp: not over after " + std::to_string(limit.count()) +
                         " ms; the operation goes on");
                }
            }
        }
        conclude();
        if (exception_) std::rethrow_exception(exception_);
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
        return source_ >= 0 ? source_ : Work::sourceRank();
    }

    uint64_t getSequencenumber() const override
    {
        return sequence_;
    }

    /* Completed by the world's thread. */
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        std::lock_guard<std::mutex> lock(future_mutex_);
        if (future_) return future_;
        future_ = c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), devices());
        auto future = future_;
        auto self = c10::intrusive_ptr<DpWork>::unsafe_reclaim_from_nonowning(this);
        auto complete = [self, future] {
            self->conclude();
            if (self->exception_) {
                future->setError(self->exception_);
            } else {
                future->markCompleted(c10::IValue(self->outputs_));
            }
        };
        if (isCompleted()) {
            complete();
        } else {
            world_->wait_for(operations_, complete);
        }
        return future_;
    }

  private:
    static double slice(Clock::time_point until)
    {
        double left = std::chrono::duration<double>(until - Clock::now()).count();
        return std::max(0.0, std::min(left, kSliceSeconds));
    }

    std::vector<c10::Device> devices() const
    {
        if (outputs_.empty() || outputs_[0].is_cpu()) return {};
        return {outputs_[0].device()};
    }

    /* All operations are over: tells the base class, which ends the profiler's event. */
    void conclude()
    {
        std::call_once(concluded_, [this] {
            std::exception_ptr failure;
            for (auto &operation : operations_) {
                if (failure || operation->error().empty()) continue;
                try {
                    fail(operation->error());
                } catch (...) {
                    failure = std::current_exception();
                }
            }
            finish(failure);
        });
    }

    std::shared_ptr<World> world_;
    const Operations operations_;
    const Tensors outputs_;
    const Milliseconds limit_;
    const uint64_t sequence_;
    const int source_;
    std::once_flag concluded_;
    std::mutex future_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_; /* guarded by future_mutex_ */
};

} // namespace dp_torch

#endif
