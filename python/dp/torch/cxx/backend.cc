/*
 * backend.cc - the backend "dp" of torch.distributed as a c10d::Backend of C++, for torch 2.4 and
 * later.
 *
 * native.py compiles it for the installed torch and backend.py makes the objects. torch calls the
 * methods of Backend on any thread, with or without the GIL. Nothing is decided here: each method
 * turns tensors into a call of dp.h.
 */
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <ATen/ATen.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <set>
#include <sstream>

#include "any_source.h"
#include "group.h"
#include "monitored.h"
#include "work.h"

namespace dp_torch
{

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/* "gloo:all_reduce", as torch's profiler shows it. Not copied there: so it is never freed. */
inline const char *title_of(const std::string &name, const char *kind)
{
    static std::mutex mutex;
    static auto *titles = new std::set<std::string>;
    std::lock_guard<std::mutex> lock(mutex);
    return titles->insert(name + ":" + kind).first->c_str();
}

constexpr bool kHasAnySource = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14;

class DpBackend : public c10d::Backend
{
  public:
    /* ranks: the number in the group of libdp of each rank of the process group; title: what stands
     * before its operations in torch's profiler; store: of the group's ranks. */
    DpBackend(std::shared_ptr<World> world, uintptr_t group, int rank, std::vector<int> ranks,
              Milliseconds timeout, bool owns_world, std::string title,
              c10::intrusive_ptr<c10d::Store> store)
        : Backend(rank, (int)ranks.size()), world_(std::move(world)), owns_world_(owns_world),
          group_(std::make_shared<Group>(world_, reinterpret_cast<dp_group_t *>(group), rank,
                                         std::move(ranks))),
          limit_(timeout), title_(std::move(title)),
          options_(c10::make_intrusive<Options>("dp", timeout)),
          any_source_(std::make_shared<AnySource>(world_, group_, store, rank)),
          monitored_(std::move(store), rank, size_)
    {
        std::ostringstream members;
        for (int i = 0; i < size_; i++)
            members << (i > 0 ? ", " : "the group of ranks [") << group_->world_rank(i);
        place_ =
            std::make_shared<Place>(Place{"rank " + std::to_string(rank), members.str() + "]"});
    }

    const std::string getBackendName() const override
    {
        return "dp";
    }

    uint64_t getSequenceNumberForGroup() override
    {
        return sequence_;
    }

    void setSequenceNumberForGroup() override
    {
    }

    bool supportsSplitting() const override
    {
        return true;
    }

    void startCoalescing() override
    {
        coalesced_.emplace();
    }

    WorkPointer endCoalescing() override
    {
        TORCH_CHECK(coalesced_, "dp: endCoalescing() without startCoalescing()");
        auto [operations, outputs] = std::move(*coalesced_);
        coalesced_.reset();
        return make_work(OpType::COALESCED, "coalesced", std::move(operations), std::move(outputs),
                         {}, c10d::kUnsetTimeout);
    }

    /* The following override virtual methods from torch 2.7 and 2.9 on. */
    bool supportsCoalescing() const
    {
        return true;
    }

    bool supportsTensorAlloc(c10::DeviceIndex)
    {
        return true;
    }

    /* Memory that the ranks of a node reduce and gather where it lies; of any contents. */
    at::Tensor allocateTensor(long size, at::TensorOptions options = {})
    {
        if (!options.device().is_cpu()) return at::empty({size}, options);
        return world_->allocate(size, c10::typeMetaToScalarType(options.dtype()));
    }

    c10::intrusive_ptr<Options> getBackendOptions()
    {
        return options_;
    }

    /* ranks: of this group, in the order of the new one; called on all its ranks. */
    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                      const std::vector<int> &ranks,
                                      const c10::intrusive_ptr<Options> &opts)
    {
        if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
        std::vector<int> members;
        for (int rank : ranks)
            members.push_back(group_->world_rank(rank));
        Milliseconds timeout = opts ? opts->timeout : Milliseconds(limit_);
        return world_->split(store, members, timeout.count());
    }

    void setTimeout(Milliseconds timeout)
    {
        limit_ = timeout;
        options_->timeout = timeout;
    }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
    /* The error that an operation of this rank has found, in whichever group of the world. */
    c10d::ErrorType getError() override
    {
        switch (world_->failure()) {
        case DP_OK:
            return c10d::ErrorType::SUCCESS;
        case DP_ERR_STALLED:
            return c10d::ErrorType::TIMEOUT;
        default:
            return c10d::ErrorType::REMOTE_ERROR;
        }
    }
#endif

    /* Of the world: libdp has no other. */
    void abort()
    {
        if (!world_->is_open()) return;
        dp_abort(world_->context(), "torch.distributed aborted the process group");
        world_->note(DP_ERR_ABORTED);
    }

    /* Collective: all ranks of the process group call it, in destroy_process_group(). */
    void shutdown()
    {
        if (is_shut_down_.exchange(true)) return;
        if (owns_world_) {
            world_->finalize();
        } else {
            world_->end_group(group_->pointer());
        }
    }

    /* ---- Reductions ---- */

    WorkPointer allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        for (auto &tensor : tensors) {
            if (tensor.is_sparse()) return allreduce_sparse(tensors, opts);
            operations.push_back(group_->allreduce(tensor, opts.reduceOp));
        }
        return make_work(OpType::ALLREDUCE, "all_reduce", std::move(operations), tensors, tensors,
                         opts.timeout);
    }

    WorkPointer allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        if (opts.reduceOp != ReduceOp::SUM) {
            fail("dp: all_reduce of a sparse tensor can only sum");
        }
        Operations operations;
        for (auto &tensor : tensors) {
            for (auto &operation : group_->allreduce_sparse(tensor))
                operations.push_back(operation);
        }
        return make_work(OpType::_ALLREDUCE_SPARSE, "sparse_all_reduce", std::move(operations),
                         tensors, {}, opts.timeout);
    }

    WorkPointer allreduce_coalesced(Tensors &tensors,
                                    const c10d::AllreduceCoalescedOptions &opts) override
    {
        return allreduce(tensors, opts);
    }

    WorkPointer reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        auto operation = group_->reduce(tensors.at(0), opts.reduceOp, (int)opts.rootRank);
        return make_work(OpType::REDUCE, "reduce", {operation}, tensors, tensors, opts.timeout);
    }

    WorkPointer _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                     const c10d::ReduceScatterOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        return make_work(OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base",
                         {group_->reduce_scatter(output, input, opts.reduceOp)}, {output}, {input},
                         opts.timeout);
    }

    WorkPointer reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                const c10d::ReduceScatterOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        for (size_t i = 0; i < outputs.size(); i++) {
            operations.push_back(group_->reduce_scatter(outputs[i], inputs[i], opts.reduceOp));
        }
        return make_work(OpType::COALESCED, "reduce_scatter_coalesced", std::move(operations),
                         outputs, inputs, opts.timeout);
    }

    WorkPointer reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                               const c10d::ReduceScatterOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        for (size_t i = 0; i < outputs.size(); i++) {
            operations.push_back(group_->reduce_scatter_list(outputs[i], inputs[i], opts.reduceOp));
        }
        return make_work(OpType::REDUCE_SCATTER, "reduce_scatter", std::move(operations), outputs,
                         inputs.at(0), opts.timeout);
    }

    /* ---- Copies ---- */

    WorkPointer broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        auto operation = group_->broadcast(tensors.at(0), (int)opts.rootRank);
        return make_work(OpType::BROADCAST, "broadcast", {operation}, tensors, tensors,
                         opts.timeout);
    }

    WorkPointer _allgather_base(at::Tensor &output, at::Tensor &input,
                                const c10d::AllgatherOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        return make_work(OpType::_ALLGATHER_BASE, "_all_gather_base",
                         {group_->allgather(output, input)}, {output}, {input}, opts.timeout);
    }

    WorkPointer allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                const c10d::AllgatherOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        for (size_t i = 0; i < outputs.size(); i++) {
            operations.push_back(group_->allgather(outputs[i], inputs[i]));
        }
        return make_work(OpType::COALESCED, "all_gather_coalesced", std::move(operations), outputs,
                         inputs, opts.timeout);
    }

    WorkPointer allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                          const c10d::AllgatherOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        Tensors flat;
        for (size_t i = 0; i < inputs.size(); i++) {
            operations.push_back(group_->gather_list(outputs[i], inputs[i], -1));
            flat.insert(flat.end(), outputs[i].begin(), outputs[i].end());
        }
        return make_work(OpType::ALLGATHER, "all_gather", std::move(operations), std::move(flat),
                         inputs, opts.timeout);
    }

    /* outputs: for each rank a list of what it gave. */
    WorkPointer allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                    const c10d::AllgatherOptions &opts) override
    {
        std::vector<Tensors> rows(inputs.size());
        for (size_t i = 0; i < inputs.size(); i++) {
            for (auto &of_rank : outputs)
                rows[i].push_back(of_rank.at(i));
        }
        return allgather(rows, inputs, opts);
    }

    WorkPointer gather(std::vector<Tensors> &outputs, Tensors &inputs,
                       const c10d::GatherOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Tensors rows;
        if (rank_ == opts.rootRank) rows = outputs.at(0);
        auto operation = group_->gather_list(rows, inputs.at(0), (int)opts.rootRank);
        return make_work(OpType::GATHER, "gather", {operation}, rows, inputs, opts.timeout);
    }

    WorkPointer scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                        const c10d::ScatterOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Tensors rows;
        if (rank_ == opts.rootRank) rows = inputs.at(0);
        auto operation = group_->scatter(outputs.at(0), rows, (int)opts.rootRank);
        return make_work(OpType::SCATTER, "scatter", {operation}, outputs, outputs, opts.timeout);
    }

    WorkPointer alltoall_base(at::Tensor &output, at::Tensor &input,
                              std::vector<int64_t> &output_splits,
                              std::vector<int64_t> &input_splits,
                              const c10d::AllToAllOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        at::Tensor result = output.detach();
        auto operation = group_->alltoall_lists(group_->split_rows(result, output_splits),
                                                group_->split_rows(input, input_splits));
        return make_work(OpType::ALLTOALL_BASE, "all_to_all", {operation}, {output}, {input},
                         opts.timeout);
    }

    WorkPointer alltoall(Tensors &outputs, Tensors &inputs,
                         const c10d::AllToAllOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        return make_work(OpType::ALLTOALL, "all_to_all", {group_->alltoall_lists(outputs, inputs)},
                         outputs, inputs, opts.timeout);
    }

    /* ---- Pairs, and without data ---- */

    WorkPointer send(Tensors &tensors, int to, int tag) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        uint64_t number = group_->next_of_pair(rank_, to, tag);
        auto operation = group_->send(tensors.at(0), to, tag, number);
        any_source_->sent(operation, to, tag, number);
        return make_work(OpType::SEND, "send", {operation}, tensors, tensors, c10d::kUnsetTimeout);
    }

    WorkPointer recv(Tensors &tensors, int from, int tag) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        return make_work(OpType::RECV, "recv", {group_->recv(tensors.at(0), from, tag)}, tensors,
                         tensors, c10d::kUnsetTimeout, from);
    }

    /* Its Work says in sourceRank() whose message came. With torch 2.5 such a receive did not end,
     * for a reason that was not found; the versions between were not tried. */
    WorkPointer recvAnysource(Tensors &tensors, int tag) override
    {
        if (!kHasAnySource)
            fail("dp: receives from any rank want PyTorch 2.14 or later; name the sender");
        return make_work(OpType::RECVANYSOURCE, "recvAnySource",
                         {any_source_->recv(tensors.at(0), tag)}, tensors, tensors,
                         c10d::kUnsetTimeout);
    }

    /* Over when the results are there too for which only streams have waited. */
    WorkPointer barrier(const c10d::BarrierOptions &opts) override
    {
        Operations operations = world_->joined();
        operations.push_back(group_->barrier());
        return make_work(OpType::BARRIER, "barrier", std::move(operations), {}, {}, opts.timeout);
    }

    /* By the store: so ranks that are missing can be named, and nothing of it stays under way. */
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks) override
    {
        if (!world_->is_open()) fail(kDestroyed);
        monitored_.pass(opts.timeout >= kNoTimeout ? opts.timeout : Milliseconds(limit_),
                        wait_all_ranks);
    }

  private:
    WorkPointer make_work(OpType type, const char *kind, Operations operations, Tensors outputs,
                          const Tensors &inputs, Milliseconds timeout, int source = -1)
    {
        if (coalesced_) {
            auto &[all, written] = *coalesced_;
            all.insert(all.end(), operations.begin(), operations.end());
            written.insert(written.end(), outputs.begin(), outputs.end());
        }
        return c10::make_intrusive<DpWork>(rank_, type, title_for(kind), inputs, world_, place_,
                                           std::move(operations), std::move(outputs),
                                           timeout > kNoTimeout ? timeout : Milliseconds(limit_),
                                           sequence_++, source);
    }

    /* kind: a literal, so its address tells which. */
    const char *title_for(const char *kind)
    {
        std::lock_guard<std::mutex> lock(titles_mutex_);
        const char *&title = titles_[kind];
        if (title == nullptr) title = title_of(title_, kind);
        return title;
    }

    std::shared_ptr<World> world_;
    const bool owns_world_;
    std::shared_ptr<Group> group_;
    std::atomic<Milliseconds> limit_;
    const std::string title_;
    std::mutex titles_mutex_;
    std::unordered_map<const char *, const char *> titles_; /* guarded by titles_mutex_ */
    c10::intrusive_ptr<Options> options_;
    std::shared_ptr<AnySource> any_source_;
    MonitoredBarrier monitored_;
    std::shared_ptr<const Place> place_;
    std::atomic<uint64_t> sequence_{0};
    std::atomic<bool> is_shut_down_{false};
    std::optional<std::pair<Operations, Tensors>> coalesced_;
};

} // namespace dp_torch

PYBIND11_MODULE(dp_torch_backend, module)
{
    using namespace dp_torch;
    py::class_<World, std::shared_ptr<World>>(module, "World")
        .def(py::init<uintptr_t, bool, Finalize, Allocate, Split>())
        .def("has_late", &World::has_late, py::call_guard<py::gil_scoped_release>())
        .def("await_groups", &World::await_groups, py::call_guard<py::gil_scoped_release>())
        .def("close", &World::close, py::call_guard<py::gil_scoped_release>())
        .def("clear", &World::clear, py::call_guard<py::gil_scoped_release>());
    py::class_<Turns>(module, "Turns") /* for test_turns.py */
        .def(py::init<>())
        .def("forget", &Turns::forget)
        .def("next", [](Turns &turns, uint64_t signature, uint64_t bytes) {
            uint64_t place;
            auto [number, is_known] = turns.next(signature, bytes, &place);
            return py::make_tuple(number, is_known, place);
        });
    module.def("make_backend", [](std::shared_ptr<World> world, uintptr_t group, int rank,
                                  std::vector<int> ranks, int64_t timeout_ms, bool owns_world,
                                  std::string title, c10::intrusive_ptr<c10d::Store> store) {
        return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<DpBackend>(
            std::move(world), group, rank, std::move(ranks), Milliseconds(timeout_ms), owns_world,
            std::move(title), std::move(store)));
    });
}
