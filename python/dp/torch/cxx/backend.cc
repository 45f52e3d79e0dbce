/*
 * backend.cc - the backend "dp" of torch.distributed as a c10d::Backend of C++, for torch 2.4 and
 * later.
 *
 * native.py compiles it for the installed torch and backend.py makes the objects. torch calls the
 * methods of Backend on any thread, with or without the GIL. Nothing is decided here: each method
 * turns tensors into a call of dp.h under the names that backend_python.py uses too. All ranks of a
 * world use one form.
 */
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <ATen/ATen.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "memory.h"
#include "operation.h"
#include "work.h"

namespace dp_torch
{

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/* Names that collectives and pairs take turns with, as TURNS in backend_python.py and group.py. */
constexpr uint64_t kTurns = 256, kPairTurns = 8;
constexpr auto kPause = std::chrono::microseconds(20); /* between two looks if a name is free */

class DpBackend : public c10d::Backend
{
  public:
    /* ranks: the number in the group of libdp of each rank of the process group. */
    DpBackend(std::shared_ptr<World> world, uintptr_t group, int rank, std::vector<int> ranks,
              Milliseconds timeout, bool owns_world)
        : Backend(rank, (int)ranks.size()), world_(std::move(world)), owns_world_(owns_world),
          group_(reinterpret_cast<dp_group_t *>(group)), to_group_(std::move(ranks)),
          from_group_(to_group_.size()), limit_(timeout),
          options_(c10::make_intrusive<Options>("dp", timeout))
    {
        for (size_t i = 0; i < to_group_.size(); i++) {
            from_group_[to_group_[i]] = (int)i;
            is_ordered_ = is_ordered_ && to_group_[i] == (int)i;
        }
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
        return make_work(OpType::COALESCED, "dp:coalesced", std::move(operations),
                         std::move(outputs), {}, c10d::kUnsetTimeout);
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

    /* Memory that the ranks of a node reduce and gather where it lies. */
    at::Tensor allocateTensor(long size, at::TensorOptions options = {})
    {
        if (!options.device().is_cpu() || size == 0) return at::empty({size}, options);
        auto type = c10::typeMetaToScalarType(options.dtype());
        return world_->allocate(size * (int64_t)c10::elementSize(type)).view(type);
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
            members.push_back(dp_group_world_rank(group_, to_group_.at(rank)));
        Milliseconds timeout = opts ? opts->timeout : Milliseconds(limit_);
        return world_->split(store, members, timeout.count());
    }

    void setTimeout(Milliseconds timeout)
    {
        limit_ = timeout;
    }

    void abort()
    {
        if (world_->is_open()) {
            dp_abort(world_->context(), "torch.distributed aborted the process group");
        }
    }

    /* Collective: all ranks of the process group call it, in destroy_process_group(). */
    void shutdown()
    {
        if (owns_world_) world_->finalize();
    }

    /* ---- Reductions ---- */

    WorkPointer allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        for (auto &tensor : tensors) {
            operations.push_back(is_bitwise(opts.reduceOp) ? allreduce_bits(tensor, opts.reduceOp)
                                                           : allreduce_one(tensor, opts.reduceOp));
        }
        return make_work(OpType::ALLREDUCE, "dp:all_reduce", std::move(operations), tensors,
                         tensors, opts.timeout);
    }

    WorkPointer allreduce_coalesced(Tensors &tensors,
                                    const c10d::AllreduceCoalescedOptions &opts) override
    {
        return allreduce(tensors, opts);
    }

    WorkPointer reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        auto &tensor = tensors.at(0);
        std::shared_ptr<Operation> operation;
        if (is_bitwise(opts.reduceOp)) {
            operation = allreduce_bits(tensor, opts.reduceOp);
        } else {
            Memory memory = memory_of(tensor);
            dp_options_t options = reduction_for(memory, opts.reduceOp);
            int root = to_group_.at(opts.rootRank);
            void *out = rank_ == opts.rootRank ? memory.data : nullptr;
            operation = submit(next_name(), [&](auto *name, auto **h) {
                return dp_reduce(group_, name, memory.data, out, memory.count, memory.dtype, root,
                                 &options, h);
            });
            keep_output(*operation, memory, tensor, rank_ == opts.rootRank);
        }
        return make_work(OpType::REDUCE, "dp:reduce", {operation}, tensors, tensors, opts.timeout);
    }

    WorkPointer _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                     const c10d::ReduceScatterOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        return make_work(OpType::_REDUCE_SCATTER_BASE, "dp:_reduce_scatter_base",
                         {reduce_scatter_one(output, input, opts.reduceOp)}, {output}, {input},
                         opts.timeout);
    }

    WorkPointer reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                const c10d::ReduceScatterOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        for (size_t i = 0; i < outputs.size(); i++) {
            operations.push_back(reduce_scatter_one(outputs[i], inputs[i], opts.reduceOp));
        }
        return make_work(OpType::COALESCED, "dp:reduce_scatter_coalesced", std::move(operations),
                         outputs, inputs, opts.timeout);
    }

    WorkPointer reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                               const c10d::ReduceScatterOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        for (size_t i = 0; i < outputs.size(); i++) {
            operations.push_back(reduce_scatter_list(outputs[i], inputs[i], opts.reduceOp));
        }
        return make_work(OpType::REDUCE_SCATTER, "dp:reduce_scatter", std::move(operations),
                         outputs, inputs.at(0), opts.timeout);
    }

    /* ---- Copies ---- */

    WorkPointer broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        auto &tensor = tensors.at(0);
        Memory memory = memory_of(tensor);
        dp_options_t options = options_for(memory);
        int root = to_group_.at(opts.rootRank);
        auto operation = submit(next_name(), [&](auto *name, auto **h) {
            return dp_broadcast(group_, name, memory.data, memory.data, memory.count, memory.dtype,
                                root, &options, h);
        });
        keep_output(*operation, memory, tensor, true);
        return make_work(OpType::BROADCAST, "dp:broadcast", {operation}, tensors, tensors,
                         opts.timeout);
    }

    WorkPointer _allgather_base(at::Tensor &output, at::Tensor &input,
                                const c10d::AllgatherOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        return make_work(OpType::_ALLGATHER_BASE, "dp:_all_gather_base",
                         {allgather_one(output, input)}, {output}, {input}, opts.timeout);
    }

    WorkPointer allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                const c10d::AllgatherOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        for (size_t i = 0; i < outputs.size(); i++) {
            operations.push_back(allgather_one(outputs[i], inputs[i]));
        }
        return make_work(OpType::COALESCED, "dp:all_gather_coalesced", std::move(operations),
                         outputs, inputs, opts.timeout);
    }

    WorkPointer allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                          const c10d::AllgatherOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Operations operations;
        Tensors flat;
        for (size_t i = 0; i < inputs.size(); i++) {
            operations.push_back(gather_list(outputs[i], inputs[i], -1));
            flat.insert(flat.end(), outputs[i].begin(), outputs[i].end());
        }
        return make_work(OpType::ALLGATHER, "dp:all_gather", std::move(operations), std::move(flat),
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
        auto operation = gather_list(rows, inputs.at(0), to_group_.at(opts.rootRank));
        return make_work(OpType::GATHER, "dp:gather", {operation}, rows, inputs, opts.timeout);
    }

    WorkPointer scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                        const c10d::ScatterOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Memory target = memory_of(outputs.at(0)), source{};
        dp_options_t options = options_for(target);
        int root = to_group_.at(opts.rootRank);
        if (rank_ == opts.rootRank) source = memory_of(at::cat(in_group_order(inputs.at(0))));
        auto operation = submit(next_name(), [&](auto *name, auto **h) {
            return dp_scatter(group_, name, source.data, target.data, target.count, target.dtype,
                              root, &options, h);
        });
        operation->keeps.push_back(source.tensor);
        keep_output(*operation, target, outputs[0], true);
        return make_work(OpType::SCATTER, "dp:scatter", {operation}, outputs, outputs,
                         opts.timeout);
    }

    WorkPointer alltoall_base(at::Tensor &output, at::Tensor &input,
                              std::vector<int64_t> &output_splits,
                              std::vector<int64_t> &input_splits,
                              const c10d::AllToAllOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        at::Tensor result = output.detach();
        auto operation =
            alltoall_lists(split_rows(result, output_splits), split_rows(input, input_splits));
        return make_work(OpType::ALLTOALL_BASE, "dp:all_to_all", {operation}, {output}, {input},
                         opts.timeout);
    }

    WorkPointer alltoall(Tensors &outputs, Tensors &inputs,
                         const c10d::AllToAllOptions &opts) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        return make_work(OpType::ALLTOALL, "dp:all_to_all", {alltoall_lists(outputs, inputs)},
                         outputs, inputs, opts.timeout);
    }

    /* ---- Pairs, and without data ---- */

    WorkPointer send(Tensors &tensors, int to, int tag) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Memory memory = memory_of(tensors.at(0));
        dp_options_t options = options_for(memory);
        int peer = to_group_.at(to);
        auto operation =
            submit(next_pair_name(to_group_[rank_], peer, tag), [&](auto *name, auto **h) {
                return dp_send(group_, name, memory.data, memory.count, memory.dtype, peer,
                               &options, h);
            });
        operation->keeps.push_back(memory.tensor);
        return make_work(OpType::SEND, "dp:send", {operation}, tensors, tensors,
                         c10d::kUnsetTimeout);
    }

    WorkPointer recv(Tensors &tensors, int from, int tag) override
    {
        at::AutoDispatchBelowAutograd no_autograd;
        Memory memory = memory_of(tensors.at(0));
        dp_options_t options = options_for(memory);
        int peer = to_group_.at(from);
        auto operation =
            submit(next_pair_name(peer, to_group_[rank_], tag), [&](auto *name, auto **h) {
                return dp_recv(group_, name, memory.data, memory.count, memory.dtype, peer,
                               &options, h);
            });
        keep_output(*operation, memory, tensors[0], true);
        return make_work(OpType::RECV, "dp:recv", {operation}, tensors, tensors,
                         c10d::kUnsetTimeout, from);
    }

    WorkPointer barrier(const c10d::BarrierOptions &opts) override
    {
        auto operation =
            submit(next_name(), [&](auto *name, auto **h) { return dp_barrier(group_, name, h); });
        return make_work(OpType::BARRIER, "dp:barrier", {operation}, {}, {}, opts.timeout);
    }

    void monitoredBarrier(const c10d::BarrierOptions &opts, bool) override
    {
        barrier(opts)->wait(kNoTimeout);
    }

  private:
    /* ---- How operations are submitted ---- */

    WorkPointer make_work(OpType type, const char *title, Operations operations, Tensors outputs,
                          const Tensors &inputs, Milliseconds timeout, int source = -1)
    {
        if (coalesced_) {
            auto &[all, written] = *coalesced_;
            all.insert(all.end(), operations.begin(), operations.end());
            written.insert(written.end(), outputs.begin(), outputs.end());
        }
        return c10::make_intrusive<DpWork>(
            rank_, type, title, inputs, world_, std::move(operations), std::move(outputs),
            timeout > kNoTimeout ? timeout : Milliseconds(limit_), sequence_++, source);
    }

    /* The nth collective of a group has one name on every rank, so that libdp finds ranks that
     * disagree about it. Names take turns, because libdp keeps them for ever. */
    std::string next_name()
    {
        return "c10d." + std::to_string(collectives_++ % kTurns);
    }

    /* Of a send and its receive, as dp.Group makes it. */
    std::string next_pair_name(int from, int to, int tag)
    {
        std::string parts = "send." + std::to_string(from) + '.' + std::to_string(to) + '.' +
                            std::to_string(tag) + '.';
        std::lock_guard<std::mutex> lock(pairs_mutex_);
        return parts + std::to_string(pairs_[parts]++ % kPairTurns);
    }

    /* A name that is still in flight is waited for: it comes to its launch by itself. */
    template <typename Call> std::shared_ptr<Operation> submit(const std::string &name, Call call)
    {
        if (!world_->is_open()) fail(kDestroyed);
        auto operation = std::make_shared<Operation>(world_);
        dp_status_t status = call(name.c_str(), &operation->handle);
        while (status == DP_ERR_BUSY) {
            std::this_thread::sleep_for(kPause);
            status = call(name.c_str(), &operation->handle);
        }
        if (status != DP_OK) fail(dp_error_text(world_->context()));
        return operation;
    }

    /* Keeps the memory, and brings the result to an output that is not dense. */
    static void keep_output(Operation &operation, const Memory &memory, const at::Tensor &output,
                            bool is_written)
    {
        operation.keeps.push_back(memory.tensor);
        if (!memory.is_copy || !is_written) return;
        operation.finish = [result = memory.tensor, to = output.detach()](auto &) {
            to.copy_(result);
        };
    }

    std::shared_ptr<Operation> allreduce_one(at::Tensor &tensor, const ReduceOp &op)
    {
        Memory memory = memory_of(tensor);
        dp_options_t options = reduction_for(memory, op);
        auto operation = submit(next_name(), [&](auto *name, auto **h) {
            return dp_allreduce(group_, name, memory.data, memory.data, memory.count, memory.dtype,
                                &options, h);
        });
        keep_output(*operation, memory, tensor, true);
        return operation;
    }

    /* libdp has no reductions by bits: the rows of all ranks are combined here. */
    std::shared_ptr<Operation> allreduce_bits(at::Tensor &tensor, const ReduceOp &op)
    {
        at::Tensor rows = tensor.new_empty({(int64_t)size_, tensor.numel()});
        auto operation = allgather_one(rows, tensor);
        auto gathered = std::move(operation->finish);
        operation->finish = [rows, to = tensor.detach(), kind = op.op_, gathered](auto &counts) {
            if (gathered) gathered(counts);
            at::Tensor total = rows[0];
            for (int64_t i = 1; i < rows.size(0); i++)
                total = combine_bits(total, rows[i], kind);
            to.copy_(total.view(to.sizes()));
        };
        return operation;
    }

    std::shared_ptr<Operation> reduce_scatter_one(at::Tensor &output, at::Tensor &input,
                                                  const ReduceOp &op)
    {
        at::Tensor rows = input;
        if (!is_ordered_) {
            rows =
                input.contiguous().view({(int64_t)size_, -1}).index_select(0, group_index(input));
        }
        Memory source = memory_of(rows), target = memory_of(output);
        dp_options_t options = reduction_for(source, op);
        auto operation = submit(next_name(), [&](auto *name, auto **h) {
            return dp_reduce_scatter(group_, name, source.data, target.data, target.count,
                                     source.dtype, &options, h);
        });
        operation->keeps.push_back(source.tensor);
        keep_output(*operation, target, output, true);
        return operation;
    }

    std::shared_ptr<Operation> reduce_scatter_list(at::Tensor &output, Tensors &rows,
                                                   const ReduceOp &op)
    {
        Tensors parts = in_group_order(rows);
        at::Tensor all = at::cat(parts);
        bool is_even = true;
        std::vector<size_t> counts;
        for (auto &row : rows)
            is_even = is_even && row.sizes() == rows[0].sizes();
        for (auto &part : parts)
            counts.push_back(items_of(part).second);
        Memory source = memory_of(all), target = memory_of(output);
        dp_options_t options = reduction_for(source, op);
        auto operation = submit(next_name(), [&](auto *name, auto **h) {
            return is_even ? dp_reduce_scatter(group_, name, source.data, target.data, target.count,
                                               source.dtype, &options, h)
                           : dp_reduce_scatterv(group_, name, source.data, target.data,
                                                counts.data(), source.dtype, &options, h);
        });
        operation->keeps.push_back(source.tensor);
        keep_output(*operation, target, output, true);
        return operation;
    }

    std::shared_ptr<Operation> allgather_one(at::Tensor &output, at::Tensor &input)
    {
        Memory source = memory_of(input), target{};
        at::Tensor rows;
        if (!is_ordered_) rows = input.new_empty({(int64_t)size_, input.numel()});
        target = memory_of(is_ordered_ ? output : rows);
        dp_options_t options = options_for(source);
        auto operation = submit(next_name(), [&](auto *name, auto **h) {
            return dp_allgather(group_, name, source.data, target.data, source.count, source.dtype,
                                &options, h);
        });
        operation->keeps.push_back(source.tensor);
        keep_output(*operation, target, output, true);
        if (is_ordered_) return operation;
        operation->finish = [rows, to = output.detach(), order = to_group_](auto &) {
            std::vector<int64_t> from(order.begin(), order.end());
            to.copy_(rows.index_select(0, at::tensor(from, rows.device())).view(to.sizes()));
        };
        return operation;
    }

    /* Parts may differ in size. root -1: on all ranks. rows is empty where nothing is received. */
    std::shared_ptr<Operation> gather_list(const Tensors &rows, at::Tensor &input, int root)
    {
        Memory source = memory_of(input);
        dp_options_t options = options_for(source);
        int64_t total = 0;
        for (auto &row : rows)
            total += row.numel();
        at::Tensor flat = at::empty({total}, input.options());
        Memory target = memory_of(flat);
        std::vector<size_t> counts(size_);
        size_t *came = counts.data(); /* its memory stays where it is when it moves */
        auto operation = submit(next_name(), [&](auto *name, auto **h) {
            return root < 0 ? dp_allgatherv(group_, name, source.data, source.count, target.data,
                                            target.count, came, source.dtype, &options, h)
                            : dp_gatherv(group_, name, source.data, source.count, target.data,
                                         target.count, came, source.dtype, root, &options, h);
        });
        operation->counts = std::move(counts);
        operation->keeps = {source.tensor, flat};
        if (rows.empty()) return operation;
        operation->finish = [flat, rows, order = from_group_](auto &counts) {
            divide(flat, rows, order, counts);
        };
        return operation;
    }

    std::shared_ptr<Operation> alltoall_lists(const Tensors &outputs, const Tensors &inputs)
    {
        std::vector<size_t> sends, counts(size_);
        size_t *came = counts.data();
        Tensors parts = in_group_order(inputs);
        for (auto &part : parts)
            sends.push_back(items_of(part).second);
        Memory source = memory_of(at::cat(parts));
        dp_options_t options = options_for(source);
        int64_t total = 0;
        for (auto &output : outputs)
            total += output.numel();
        at::Tensor flat = at::empty({total}, outputs.at(0).options());
        Memory target = memory_of(flat);
        auto operation = submit(next_name(), [&](auto *name, auto **h) {
            return dp_alltoallv(group_, name, source.data, sends.data(), target.data, target.count,
                                came, source.dtype, &options, h);
        });
        operation->counts = std::move(counts);
        operation->keeps = {source.tensor, flat};
        operation->finish = [flat, outputs, order = from_group_](auto &counts) {
            divide(flat, outputs, order, counts);
        };
        return operation;
    }

    /* ---- Ranks of the process group and of libdp's ---- */

    /* One flat tensor for each rank, by the numbers of libdp's group. */
    Tensors in_group_order(const Tensors &rows) const
    {
        TORCH_CHECK((int)rows.size() == size_, "dp: ", rows.size(), " tensors for ", size_,
                    " ranks");
        Tensors ordered;
        for (int at : from_group_)
            ordered.push_back(rows[at].detach().reshape({-1}));
        return ordered;
    }

    at::Tensor group_index(const at::Tensor &like) const
    {
        std::vector<int64_t> order(from_group_.begin(), from_group_.end());
        return at::tensor(order, like.device());
    }

    /* Rows of the first dimension for each rank: as many for all where splits is empty. */
    Tensors split_rows(const at::Tensor &tensor, const std::vector<int64_t> &splits) const
    {
        if (!splits.empty()) return tensor.split_with_sizes(splits);
        int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
        TORCH_CHECK(rows % size_ == 0, "dp: ", rows, " rows for ", size_, " ranks; give splits");
        return tensor.split_with_sizes(std::vector<int64_t>(size_, rows / size_));
    }

    std::shared_ptr<World> world_;
    const bool owns_world_;
    dp_group_t *group_;
    std::vector<int> to_group_, from_group_; /* numbers of ranks, both ways */
    bool is_ordered_ = true;                 /* they are the same */
    std::atomic<Milliseconds> limit_;
    c10::intrusive_ptr<Options> options_;
    std::atomic<uint64_t> sequence_{0};
    std::atomic<uint64_t> collectives_{0};
    std::mutex pairs_mutex_;
    std::unordered_map<std::string, uint64_t> pairs_; /* guarded by pairs_mutex_ */
    std::optional<std::pair<Operations, Tensors>> coalesced_;
};

} // namespace dp_torch

PYBIND11_MODULE(dp_torch_backend, module)
{
    using namespace dp_torch;
    py::class_<World, std::shared_ptr<World>>(module, "World")
        .def(py::init<uintptr_t, Finalize, Allocate, Split>())
        .def("close", &World::close, py::call_guard<py::gil_scoped_release>())
        .def("clear", &World::clear, py::call_guard<py::gil_scoped_release>());
    module.def("make_backend", [](std::shared_ptr<World> world, uintptr_t group, int rank,
                                  std::vector<int> ranks, int64_t timeout_ms, bool owns_world) {
        return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<DpBackend>(
            std::move(world), group, rank, std::move(ranks), Milliseconds(timeout_ms), owns_world));
    });
}
