/*
 * group.h - the operations of libdp on tensors, among the ranks of one process group.
 *
 * A Group turns tensors into calls of dp.h: their memory, names, the order of ranks, and what is
 * left to do when an operation is over. backend.cc calls it on any thread, with or without the GIL.
 * It knows nothing of c10d's lists, options and Works.
 */
#ifndef DP_TORCH_GROUP_H
#define DP_TORCH_GROUP_H

#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "memory.h"
#include "turns.h"
#include "world.h"

namespace dp_torch
{

/* Names that pairs take turns with, as TURNS in group.py. */
constexpr uint64_t kPairTurns = 8;
constexpr auto kPause = std::chrono::microseconds(20); /* between two looks if a name is free */
constexpr auto kLookForSignals = std::chrono::milliseconds(250); /* meanwhile */

class Group
{
  public:
    using Pending = std::shared_ptr<Operation>;

    enum Kind {
        kAllreduce,
        kReduce,
        kReduceScatter,
        kReduceScatterV,
        kBroadcast,
        kAllgather,
        kAllgatherV,
        kGatherV,
        kScatter,
        kAlltoallV,
        kBarrier
    };

    /* to_group: the number in the group of libdp of each rank of the process group. */
    Group(std::shared_ptr<World> world, dp_group_t *group, int rank, std::vector<int> to_group)
        : world_(std::move(world)), group_(group), rank_(rank), to_group_(std::move(to_group)),
          from_group_(to_group_.size())
    {
        for (size_t i = 0; i < to_group_.size(); i++) {
            from_group_[to_group_[i]] = (int)i;
            is_ordered_ = is_ordered_ && to_group_[i] == (int)i;
        }
    }

    dp_group_t *pointer() const
    {
        return group_;
    }

    int size() const
    {
        return (int)to_group_.size();
    }

    /* The rank of the world of a rank of the process group. */
    int world_rank(int rank) const
    {
        return dp_group_world_rank(group_, to_group_.at(rank));
    }

    /* ---- Reductions ---- */

    Pending allreduce(const at::Tensor &tensor, const ReduceOp &op)
    {
        if (is_bitwise(op)) return allreduce_bits(tensor, op);
        Memory memory = memory_of(tensor);
        dp_options_t options = reduction_for(memory, op);
        auto operation = submit_next(kAllreduce, &memory, &options, -1, [&](auto *name, auto **h) {
            return dp_allreduce(group_, name, memory.data, memory.data, memory.count, memory.dtype,
                                &options, h);
        });
        keep_output(*operation, memory, tensor, true);
        return operation;
    }

    Pending reduce(const at::Tensor &tensor, const ReduceOp &op, int root)
    {
        if (is_bitwise(op)) return allreduce_bits(tensor, op);
        Memory memory = memory_of(tensor);
        dp_options_t options = reduction_for(memory, op);
        void *out = rank_ == root ? memory.data : nullptr;
        auto operation = submit_next(kReduce, &memory, &options, root, [&](auto *name, auto **h) {
            return dp_reduce(group_, name, memory.data, out, memory.count, memory.dtype,
                             to_group_.at(root), &options, h);
        });
        keep_output(*operation, memory, tensor, rank_ == root);
        return operation;
    }

    /* The sum of a sparse tensor: the coordinates and the values of all ranks are gathered. Two
     * operations, to be waited for in this order. */
    Operations allreduce_sparse(const at::Tensor &tensor)
    {
        TORCH_CHECK(tensor.is_cpu(), "dp: the sum of a sparse tensor on a GPU; make it dense");
        at::Tensor own = tensor.detach().coalesce();
        uint64_t tag = tag_of(tensor);
        auto [first, places] = gather_all(own.indices().t().contiguous(), tag);
        auto [second, values] = gather_all(own.values().contiguous(), tag);
        second->finish = [tensor, places = places, values = values](auto &) {
            at::Tensor every =
                at::sparse_coo_tensor(places->value().t(), values->value(), tensor.sizes(),
                                      values->value().options().layout(at::kSparse));
            at::Tensor to = tensor; /* a detached one would keep its coordinates to itself */
            to.copy_(every.coalesce());
        };
        return {first, second};
    }

    Pending reduce_scatter(const at::Tensor &output, const at::Tensor &input, const ReduceOp &op)
    {
        at::Tensor rows = input;
        if (!is_ordered_) {
            rows = input.contiguous()
                       .view({(int64_t)size(), -1})
                       .index_select(0, index(from_group_, input));
        }
        if (is_bitwise(op)) {
            return exchange_bits(output, rows, std::vector<size_t>(size(), items_of(output).second),
                                 op);
        }
        Memory source = memory_of(rows), target = memory_of(output);
        dp_options_t options = reduction_for(source, op);
        auto operation =
            submit_next(kReduceScatter, &target, &options, -1, [&](auto *name, auto **h) {
                return dp_reduce_scatter(group_, name, source.data, target.data, target.count,
                                         source.dtype, &options, h);
            });
        operation->keeps.push_back(source.tensor);
        keep_output(*operation, target, output, true);
        return operation;
    }

    /* rows: one for each rank; they may differ in size. */
    Pending reduce_scatter_list(const at::Tensor &output, const Tensors &rows, const ReduceOp &op)
    {
        Tensors parts = in_group_order(rows);
        at::Tensor all = at::cat(parts);
        bool is_even = true;
        std::vector<size_t> counts;
        for (auto &row : rows)
            is_even = is_even && row.sizes() == rows[0].sizes();
        for (auto &part : parts)
            counts.push_back(items_of(part).second);
        if (is_bitwise(op)) return exchange_bits(output, all, std::move(counts), op);
        Memory source = memory_of(all), target = memory_of(output);
        dp_options_t options = reduction_for(source, op);
        Kind kind = is_even ? kReduceScatter : kReduceScatterV;
        auto operation = submit_next(kind, &source, &options, -1, [&](auto *name, auto **h) {
            return is_even ? dp_reduce_scatter(group_, name, source.data, target.data, target.count,
                                               source.dtype, &options, h)
                           : dp_reduce_scatterv(group_, name, source.data, target.data,
                                                counts.data(), source.dtype, &options, h);
        });
        operation->keeps.push_back(source.tensor);
        keep_output(*operation, target, output, true);
        return operation;
    }

    /* ---- Copies ---- */

    Pending broadcast(const at::Tensor &tensor, int root)
    {
        Memory memory = memory_of(tensor);
        dp_options_t options = options_for(memory);
        auto operation =
            submit_next(kBroadcast, &memory, &options, root, [&](auto *name, auto **h) {
                return dp_broadcast(group_, name, memory.data, memory.data, memory.count,
                                    memory.dtype, to_group_.at(root), &options, h);
            });
        keep_output(*operation, memory, tensor, true);
        return operation;
    }

    Pending allgather(const at::Tensor &output, const at::Tensor &input)
    {
        Memory source = memory_of(input), target{};
        at::Tensor rows;
        if (!is_ordered_) rows = input.new_empty({(int64_t)size(), input.numel()});
        target = memory_of(is_ordered_ ? output : rows);
        dp_options_t options = options_for(source);
        auto operation = submit_next(kAllgather, &source, &options, -1, [&](auto *name, auto **h) {
            return dp_allgather(group_, name, source.data, target.data, source.count, source.dtype,
                                &options, h);
        });
        operation->keeps.push_back(source.tensor);
        keep_output(*operation, target, output, true);
        if (is_ordered_) return operation;
        operation->finish = [rows, to = output.detach(), order = index(to_group_, rows)](auto &) {
            to.copy_(rows.index_select(0, order).view(to.sizes()));
        };
        return operation;
    }

    /* Parts may differ in size. root -1: on all ranks. rows is empty where nothing is received. */
    Pending gather_list(const Tensors &rows, const at::Tensor &input, int root)
    {
        Memory source = memory_of(input);
        dp_options_t options = options_for(source);
        int64_t total = 0;
        for (auto &row : rows)
            total += row.numel();
        at::Tensor flat = at::empty({total}, input.options());
        Memory target = memory_of(flat);
        std::vector<size_t> counts(size());
        size_t *came = counts.data(); /* its memory stays where it is when it moves */
        Kind kind = root < 0 ? kAllgatherV : kGatherV;
        auto operation = submit_next(kind, nullptr, &options, root, [&](auto *name, auto **h) {
            return root < 0 ? dp_allgatherv(group_, name, source.data, source.count, target.data,
                                            target.count, came, source.dtype, &options, h)
                            : dp_gatherv(group_, name, source.data, source.count, target.data,
                                         target.count, came, source.dtype, to_group_.at(root),
                                         &options, h);
        });
        operation->counts = std::move(counts);
        operation->keeps = {source.tensor, flat};
        if (rows.empty()) return operation;
        operation->finish = [flat, rows, order = from_group_](auto &counts) {
            divide(flat, rows, order, counts);
        };
        return operation;
    }

    /* rows: one for each rank, on the root. */
    Pending scatter(const at::Tensor &output, const Tensors &rows, int root)
    {
        Memory target = memory_of(output), source{};
        dp_options_t options = options_for(target);
        if (rank_ == root) source = memory_of(at::cat(in_group_order(rows)));
        auto operation = submit_next(kScatter, &target, &options, root, [&](auto *name, auto **h) {
            return dp_scatter(group_, name, source.data, target.data, target.count, target.dtype,
                              to_group_.at(root), &options, h);
        });
        operation->keeps.push_back(source.tensor);
        keep_output(*operation, target, output, true);
        return operation;
    }

    Pending alltoall_lists(const Tensors &outputs, const Tensors &inputs)
    {
        std::vector<size_t> sends, counts(size());
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
        auto operation = submit_next(kAlltoallV, nullptr, &options, -1, [&](auto *name, auto **h) {
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

    /* Rows of the first dimension for each rank: as many for all where splits is empty. */
    Tensors split_rows(const at::Tensor &tensor, const std::vector<int64_t> &splits) const
    {
        if (!splits.empty()) return tensor.split_with_sizes(splits);
        int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
        TORCH_CHECK(rows % size() == 0, "dp: ", rows, " rows for ", size(), " ranks; give splits");
        return tensor.split_with_sizes(std::vector<int64_t>(size(), rows / size()));
    }

    /* ---- Pairs, and without data ---- */

    Pending send(const at::Tensor &tensor, int to, int tag, uint64_t number)
    {
        Memory memory = memory_of(tensor);
        dp_options_t options = options_for(memory);
        auto operation = submit(pair_name(rank_, to, tag, number), [&](auto *name, auto **h) {
            return dp_send(group_, name, memory.data, memory.count, memory.dtype, to_group_.at(to),
                           &options, h);
        });
        operation->keeps.push_back(memory.tensor);
        return operation;
    }

    /* Submits it under this operation, which the caller has made. */
    void recv_as(Operation &operation, const at::Tensor &tensor, int from, int tag, uint64_t number)
    {
        Memory memory = memory_of(tensor);
        dp_options_t options = options_for(memory);
        submit_as(operation, pair_name(from, rank_, tag, number), [&](auto *name, auto **h) {
            return dp_recv(group_, name, memory.data, memory.count, memory.dtype,
                           to_group_.at(from), &options, h);
        });
        keep_output(operation, memory, tensor, true);
    }

    Pending recv(const at::Tensor &tensor, int from, int tag)
    {
        auto operation = std::make_shared<Operation>(world_);
        recv_as(*operation, tensor, from, tag, next_of_pair(from, rank_, tag));
        return operation;
    }

    Pending barrier()
    {
        return submit_next(kBarrier, nullptr, nullptr, -1,
                           [&](auto *name, auto **h) { return dp_barrier(group_, name, NULL, h); });
    }

    /* Counts the messages of a pair and a tag, on the sender's side and on the receiver's. */
    uint64_t next_of_pair(int from, int to, int tag)
    {
        std::lock_guard<std::mutex> lock(pairs_mutex_);
        return pairs_[pair_text(from, to, tag)]++;
    }

    /* How many of them there were. */
    uint64_t count_of_pair(int from, int to, int tag)
    {
        std::lock_guard<std::mutex> lock(pairs_mutex_);
        return pairs_[pair_text(from, to, tag)];
    }

  private:
    /* ---- How operations are submitted ---- */

    /* A send and its receive have one name, which dp.Group makes likewise. */
    std::string pair_text(int from, int to, int tag) const
    {
        return "send." + std::to_string(to_group_.at(from)) + '.' +
               std::to_string(to_group_.at(to)) + '.' + std::to_string(tag) + '.';
    }

    std::string pair_name(int from, int to, int tag, uint64_t number) const
    {
        return pair_text(from, to, tag) + std::to_string(number % kPairTurns);
    }

    template <typename Call> Pending submit(const std::string &name, Call call)
    {
        auto operation = std::make_shared<Operation>(world_);
        submit_as(*operation, name, call);
        return operation;
    }

    /* The next collective of the group, under the next name. memory: of which all ranks have as
     * much; nullptr: they may differ. A magnitude that libdp keeps under a name scales fp16 on the
     * wire, so a sum whose name is not known to be its own travels without. */
    template <typename Call>
    Pending submit_next(Kind kind, const Memory *memory, dp_options_t *options, int root, Call call)
    {
        auto operation = std::make_shared<Operation>(world_);
        const dp_options_t given = options ? *options : dp_options_t DP_OPTIONS_INIT;
        uint64_t prescale;
        std::memcpy(&prescale, &given.prescale, sizeof(prescale));
        uint64_t signature = 14695981039346656037u; /* FNV-1a, of words */
        for (uint64_t word : {(uint64_t)kind, (uint64_t)(memory ? memory->dtype : 0),
                              (uint64_t)(memory ? memory->count : 0), (uint64_t)given.reduce,
                              prescale, (uint64_t)root})
            signature = (signature ^ word) * 1099511628211u;
        auto [number, is_known] =
            turns_->next(signature, memory ? memory->tensor.nbytes() : 0, &operation->place);
        operation->turns = turns_;
        if (!is_known && options && world_->scales_wire()) options->wire = DP_WIRE_NONE;
        submit_as(*operation, "c10d." + std::to_string(number), call);
        return operation;
    }

    /* A name that is still in flight is waited for: it comes to its launch by itself, once the
     * other ranks have called it too. */
    template <typename Call>
    void submit_as(Operation &operation, const std::string &name, Call call)
    {
        if (!world_->is_open()) fail(kDestroyed);
        world_->check_joined();
        dp_status_t status = call(name.c_str(), &operation.handle);
        if (status == DP_ERR_BUSY) {
            WithoutGil released;
            auto look = Clock::now() + kLookForSignals;
            while (status == DP_ERR_BUSY) {
                std::this_thread::sleep_for(kPause);
                if (Clock::now() >= look) {
                    raise_signals();
                    look = Clock::now() + kLookForSignals;
                }
                status = call(name.c_str(), &operation.handle);
            }
        }
        world_->note(status);
        if (status != DP_OK) fail(dp_error_text(world_->context()));
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

    /* libdp has no reductions by bits: the rows of all ranks are combined here. */
    Pending allreduce_bits(const at::Tensor &tensor, const ReduceOp &op)
    {
        at::Tensor rows = tensor.new_empty({(int64_t)size(), tensor.numel()});
        auto operation = allgather(rows, tensor);
        auto gathered = std::move(operation->finish);
        operation->finish = [rows, to = tensor.detach(), kind = op.op_, gathered](auto &counts) {
            if (gathered) gathered(counts);
            to.copy_(combine_rows(rows, kind).view(to.sizes()));
        };
        return operation;
    }

    /* A reduce-scatter by bits: each rank gets its part from all. parts: in the group's order, one
     * behind the other; counts: how much of it goes to each rank. */
    Pending exchange_bits(const at::Tensor &output, const at::Tensor &parts,
                          std::vector<size_t> sends, const ReduceOp &op)
    {
        Memory source = memory_of(parts);
        dp_options_t options = options_for(source);
        at::Tensor rows = output.new_empty({(int64_t)size(), output.numel()});
        Memory target = memory_of(rows);
        std::vector<size_t> counts(size());
        size_t *came = counts.data();
        auto operation = submit_next(kAlltoallV, nullptr, &options, -1, [&](auto *name, auto **h) {
            return dp_alltoallv(group_, name, source.data, sends.data(), target.data, target.count,
                                came, source.dtype, &options, h);
        });
        operation->counts = std::move(counts);
        operation->keeps = {source.tensor, rows};
        operation->finish = [rows, to = output.detach(), kind = op.op_](auto &counts) {
            for (size_t i = 0; i < counts.size(); i++) {
                if (counts[i] == items_of(to).second) continue;
                fail("dp: reduce_scatter: rank " + std::to_string(i) + " of the group gave " +
                     std::to_string(counts[i]) + " elements, the output has room for " +
                     std::to_string(items_of(to).second));
            }
            to.copy_(combine_rows(rows, kind).view(to.sizes()));
        };
        return operation;
    }

    /* The first extents of what ranks give may differ; nobody knows the sum before. */
    std::pair<Pending, std::shared_ptr<Room>> gather_all(const at::Tensor &part, uint64_t tag)
    {
        Memory source = memory_of(part);
        dp_options_t options = options_for(source);
        auto room = std::make_shared<Room>(part);
        options.tag = tag;
        options.output = Room::make;
        options.user = room.get();
        std::vector<size_t> counts(size());
        size_t *came = counts.data();
        auto operation = submit_next(kAllgatherV, nullptr, &options, -1, [&](auto *name, auto **h) {
            return dp_allgatherv(group_, name, source.data, source.count, nullptr, 0, came,
                                 source.dtype, &options, h);
        });
        operation->counts = std::move(counts);
        operation->keeps = {source.tensor};
        operation->finish = [room](auto &) {}; /* keeps the room */
        return {operation, room};
    }

    /* ---- Ranks of the process group and of libdp's ---- */

    /* One flat tensor for each rank, by the numbers of libdp's group. */
    Tensors in_group_order(const Tensors &rows) const
    {
        TORCH_CHECK((int)rows.size() == size(), "dp: ", rows.size(), " tensors for ", size(),
                    " ranks");
        Tensors ordered;
        for (int at : from_group_)
            ordered.push_back(rows[at].detach().reshape({-1}));
        return ordered;
    }

    static at::Tensor index(const std::vector<int> &order, const at::Tensor &like)
    {
        std::vector<int64_t> rows(order.begin(), order.end());
        return at::tensor(rows, like.options().dtype(at::kLong));
    }

    std::shared_ptr<World> world_;
    dp_group_t *group_;
    const int rank_; /* of the process group */
    const std::vector<int> to_group_;
    std::vector<int> from_group_; /* the other way */
    bool is_ordered_ = true;      /* they are the same */
    const std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
    std::mutex pairs_mutex_;
    std::unordered_map<std::string, uint64_t> pairs_; /* guarded by pairs_mutex_ */
};

} // namespace dp_torch

#endif
