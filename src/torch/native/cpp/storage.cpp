// Memory of a tensor that is given back, or that somebody else has lent, while views of it, and graphs that saved them,
// live on.
#include "common.h"
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <cstring>

using at::Tensor;

// Gives the storage of `tensor` this many bytes, whatever was in it; all tensors that share the storage see the new ones.
LF_API int lf_resize_storage(Tensor* tensor, int64_t bytes) {
  return lf_guard(-1, [&] {
    auto* storage = tensor->storage().unsafeGetStorageImpl();
    auto* allocator = storage->allocator();
    TORCH_CHECK(allocator, "a storage without an allocator");
    // The allocator of GPUs takes memory of the thread's present one.
    const c10::DeviceGuard guard(tensor->device());
    storage->set_data_ptr_noswap(allocator->allocate(0)); // the old bytes go before the new ones come
    storage->set_nbytes(0);
    if (bytes > 0) storage->set_data_ptr_noswap(allocator->allocate(bytes));
    storage->set_nbytes(bytes);
    return 0;
  });
}

// A tensor on memory of somebody else, of this scalar type; `release(owner)` is called when its storage is done with it.
LF_API Tensor* lf_borrow(void* data, const int64_t* shape, int num_dims, int8_t scalar_type, void* owner,
                         void (*release)(void*)) {
  return lf_guard<Tensor*>(nullptr, [&] {
    auto done = [owner, release](void*) { release(owner); };
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type));
    return new Tensor(at::from_blob(data, at::IntArrayRef(shape, num_dims), done, options));
  });
}

// Moves the contents of the storage of `tensor` to memory of its own where they are on somebody else's, which is then
// released. Returns the number of bytes moved; all tensors that share the storage see the new memory.
LF_API int64_t lf_own(Tensor* tensor) {
  return lf_guard<int64_t>(-1, [&]() -> int64_t {
    auto* storage = tensor->storage().unsafeGetStorageImpl();
    if (storage->allocator()) return 0;
    const auto bytes = storage->nbytes();
    auto* allocator = c10::GetCPUAllocator();
    auto own = allocator->allocate(bytes);
    // In a dry run integers alone have values: tokens tell where features go.
    const bool has_values = !lf_is_dry || !at::isFloatingType(tensor->scalar_type());
    if (has_values && bytes > 0) std::memcpy(own.get(), storage->data(), bytes);
    storage->set_data_ptr_noswap(std::move(own));
    storage->set_allocator(allocator);
    return static_cast<int64_t>(bytes);
  });
}
