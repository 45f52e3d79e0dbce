/*
 * memory.h - tensors and reductions of torch as libdp takes them. No state, no threads.
 */
#ifndef DP_TORCH_MEMORY_H
#define DP_TORCH_MEMORY_H

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <ATen/ATen.h>

#include "world.h"

namespace dp_torch
{

using c10d::ReduceOp;

constexpr std::pair<at::ScalarType, dp_dtype_t> kTypes[] = {
    {at::kFloat, DP_F32},  {at::kBFloat16, DP_BF16}, {at::kHalf, DP_F16},   {at::kDouble, DP_F64},
    {at::kLong, DP_I64},   {at::kInt, DP_I32},       {at::kShort, DP_I16},  {at::kChar, DP_I8},
    {at::kByte, DP_U8},    {at::kBool, DP_BOOL},     {at::kUInt16, DP_U16}, {at::kUInt32, DP_U32},
    {at::kUInt64, DP_U64},
};

/* A tensor's type and count in libdp: complex numbers are pairs, types that it lacks are bytes. */
inline std::pair<dp_dtype_t, size_t> items_of(const at::Tensor &tensor)
{
    at::ScalarType type = tensor.scalar_type();
    size_t count = (size_t)tensor.numel();
    if (at::isComplexType(type)) {
        type = c10::toRealValueType(type);
        count *= 2;
    }
    for (auto [ours, dtype] : kTypes) {
        if (ours == type) return {dtype, count};
    }
    return {DP_U8, count * c10::elementSize(type)};
}

/* The dense memory of a tensor. */
struct Memory {
    at::Tensor tensor; /* the caller's, or a dense copy */
    void *data;
    size_t count; /* elements of dtype */
    dp_dtype_t dtype;
    bool is_copy;
};

inline Memory memory_of(const at::Tensor &given)
{
    TORCH_CHECK(!given.is_sparse(), "dp: sparse tensors; make it dense, or gather its values");
    Memory memory{given, nullptr, 0, DP_U8, !given.is_contiguous()};
    if (memory.is_copy) memory.tensor = given.contiguous();
    memory.data = memory.tensor.data_ptr();
    std::tie(memory.dtype, memory.count) = items_of(given);
    return memory;
}

inline dp_options_t options_for(const Memory &memory)
{
    dp_options_t options = DP_OPTIONS_INIT;
    if (!memory.tensor.is_cpu()) options.stream = native_stream(memory.tensor.device());
    return options;
}

inline bool is_bitwise(const ReduceOp &op)
{
    return op.op_ == ReduceOp::BAND || op.op_ == ReduceOp::BOR || op.op_ == ReduceOp::BXOR;
}

inline at::Tensor combine_bits(const at::Tensor &a, const at::Tensor &b, ReduceOp::RedOpType op)
{
    if (op == ReduceOp::BAND) return at::bitwise_and(a, b);
    return op == ReduceOp::BOR ? at::bitwise_or(a, b) : at::bitwise_xor(a, b);
}

/* The rows reduced to one. */
inline at::Tensor combine_rows(const at::Tensor &rows, ReduceOp::RedOpType op)
{
    at::Tensor total = rows[0];
    for (int64_t i = 1; i < rows.size(0); i++)
        total = combine_bits(total, rows[i], op);
    return total;
}

/* libdp gets complex numbers as pairs and types that it lacks as bytes, so it must not reduce them
 * as those. */
inline void check_reduction(const Memory &memory, const ReduceOp &op)
{
    const at::ScalarType type = memory.tensor.scalar_type();

    if (memory.dtype == DP_U8 && type != at::kByte)
        fail(std::string("dp: no reduction of ") + c10::toString(type));
    if (at::isComplexType(type) &&
        (op.op_ == ReduceOp::PRODUCT || op.op_ == ReduceOp::MIN || op.op_ == ReduceOp::MAX))
        fail("dp: complex numbers can only be summed and averaged");
}

inline dp_options_t reduction_for(const Memory &memory, const ReduceOp &op)
{
    check_reduction(memory, op);
    dp_options_t options = options_for(memory);
    switch (op.op_) {
    case ReduceOp::SUM:
        options.reduce = DP_SUM;
        break;
    case ReduceOp::AVG:
        options.reduce = DP_AVERAGE;
        break;
    case ReduceOp::PRODUCT:
        options.reduce = DP_PRODUCT;
        break;
    case ReduceOp::MIN:
        options.reduce = DP_MIN;
        break;
    case ReduceOp::MAX:
        options.reduce = DP_MAX;
        break;
    case ReduceOp::PREMUL_SUM: {
        auto *factor = dynamic_cast<c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
        TORCH_CHECK(factor != nullptr, "dp: a PREMUL_SUM without its factor");
        options.prescale = factor->tensor_factor.defined() ? factor->tensor_factor.item().toDouble()
                                                           : factor->double_factor;
        break;
    }
    default:
        fail("dp: a reduction that libdp lacks, number " + std::to_string(op.op_));
    }
    if (memory.dtype == DP_BOOL && options.reduce == DP_SUM) options.reduce = DP_MAX;
    if (memory.dtype == DP_BOOL && options.reduce == DP_PRODUCT) options.reduce = DP_MIN;
    return options;
}

/* A digest of the extents (FNV-1a), never 0. Ranks compare it beside the count. */
inline uint64_t tag_of(const at::Tensor &tensor)
{
    uint64_t digest = 14695981039346656037u;
    for (int64_t extent : tensor.sizes()) {
        digest = (digest ^ (uint64_t)extent) * 1099511628211u;
    }
    return digest | 1;
}

/* The output of an operation whose size is known on arrival only: host memory, on which the ranks
 * agree by then. The caller keeps it until the operation is over. */
class Room
{
  public:
    /* part: what this rank gives; the parts of others may differ in the first extent. */
    explicit Room(const at::Tensor &part)
        : shape_(part.sizes().vec()), type_(part.scalar_type()),
          bytes_per_item_(items_of(part).first == DP_U8 ? 1 : item_bytes(part))
    {
    }

    /* A dp_output_fn, on a thread of libdp; user: the Room. */
    static void *make(void *user, size_t count) noexcept
    {
        auto *self = static_cast<Room *>(user);
        try {
            self->bytes_ = at::empty({(int64_t)(count * self->bytes_per_item_)}, at::kByte);
            return self->bytes_.data_ptr();
        } catch (const std::exception &) {
            return nullptr; /* libdp tells every rank that there was no memory */
        }
    }

    at::Tensor value() const
    {
        std::vector<int64_t> shape = shape_;
        int64_t row = (int64_t)c10::elementSize(type_);
        for (size_t i = 1; i < shape.size(); i++)
            row *= shape[i];
        shape[0] = row > 0 ? bytes_.numel() / row : 0;
        return bytes_.view(type_).view(shape);
    }

  private:
    static size_t item_bytes(const at::Tensor &part)
    {
        size_t bytes = c10::elementSize(part.scalar_type());
        return at::isComplexType(part.scalar_type()) ? bytes / 2 : bytes;
    }

    const std::vector<int64_t> shape_;
    const at::ScalarType type_;
    const size_t bytes_per_item_; /* of what libdp counts */
    at::Tensor bytes_ = at::empty({0}, at::kByte);
};

/* Cuts flat memory into the tensors of a list, in the order of the ranks of the group. */
inline void divide(const at::Tensor &flat, const Tensors &rows, const std::vector<int> &order,
                   const std::vector<size_t> &counts)
{
    int64_t at = 0;
    for (size_t i = 0; i < order.size(); i++) {
        at::Tensor row = rows[order[i]].detach();
        int64_t count = row.numel();
        size_t items = items_of(row).second;
        if (counts[i] != items) {
            fail("dp: rank " + std::to_string(order[i]) + " of the group gave " +
                 std::to_string(counts[i]) + " elements, the output has room for " +
                 std::to_string(items));
        }
        row.copy_(flat.narrow(0, at, count).view(row.sizes()));
        at += count;
    }
}

} // namespace dp_torch

#endif
