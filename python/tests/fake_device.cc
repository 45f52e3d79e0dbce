/*
 * fake_device.cc - a GPU for torch whose streams do nothing, for test_stream_wait.py.
 *
 * Its tensors (device privateuseone:0) lie in the memory of ordinary ones. What is enqueued on a
 * stream is written into a log: "record 2", "block 0" (streams by number).
 */
#include <torch/csrc/utils/pybind.h>
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <mutex>

namespace
{

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kGpu(kType, 0);
thread_local c10::StreamId current_id = 0;
std::mutex mutex;
std::vector<std::string> lines; /* guarded by mutex */

void log(const std::string &what, c10::StreamId stream)
{
    std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(what + " " + std::to_string(stream));
}

c10::Stream stream(c10::StreamId id)
{
    return c10::Stream(c10::Stream::UNSAFE, kGpu, id);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override
    {
        return kType;
    }
    c10::Device exchangeDevice(c10::Device) const override
    {
        return kGpu;
    }
    c10::Device getDevice() const override
    {
        return kGpu;
    }
    void setDevice(c10::Device) const override
    {
    }
    void uncheckedSetDevice(c10::Device) const noexcept override
    {
    }
    c10::Stream getStream(c10::Device) const noexcept override
    {
        return stream(current_id);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override
    {
        return stream(9);
    }
    c10::Stream exchangeStream(c10::Stream now) const noexcept override
    {
        return stream(std::exchange(current_id, now.id()));
    }
    void record(void **event, const c10::Stream &on, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
        *event = this->events();
        log("record", on.id());
    }
    void block(void *, const c10::Stream &on) const override
    {
        log("block", on.id());
    }
    bool queryEvent(void *) const override
    {
        return true;
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return 1;
    }
    void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override
    {
    }
    static void *events()
    {
        static int event;
        return &event;
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void record_stream(at::Tensor &, c10::Stream on)
{
    log("use", on.id());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("record_stream", record_stream);
}

/* The memory of an ordinary tensor, which stays its owner. */
at::Tensor on_device(const at::Tensor &host)
{
    auto *keeper = new at::Tensor(host);
    c10::DataPtr memory(
        host.data_ptr(), keeper, [](void *kept) { delete static_cast<at::Tensor *>(kept); }, kGpu);
    c10::Storage storage(c10::Storage::use_byte_size_t(), host.nbytes(), std::move(memory));
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), host.dtype());
    made.unsafeGetTensorImpl()->set_sizes_contiguous(host.sizes());
    return made;
}

} // namespace

PYBIND11_MODULE(fake_device, module)
{
    module.def("on_device", &on_device);
    module.def("current", [] { return current_id; });
    module.def("set_current", [](c10::StreamId id) { current_id = id; });
    module.def("take_log", [] {
        std::lock_guard<std::mutex> lock(mutex);
        return std::exchange(lines, {});
    });
}
