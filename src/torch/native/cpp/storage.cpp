// Memory of a tensor that is given back while views of it, and graphs that saved them, live on.
#include "common.h"
#include <c10/core/StorageImpl.h>

using at::Tensor;

// Gives the storage of `tensor` this many bytes, whatever was in it; all tensors that share the storage see the new ones.
LF_API int lf_resize_storage(Tensor* tensor, int64_t bytes) {
  return lf_guard(-1, [&] {
    auto* storage = tensor->storage().unsafeGetStorageImpl();
    auto* allocator = storage->allocator();
    TORCH_CHECK(allocator, "a storage without an allocator");
    storage->set_data_ptr_noswap(allocator->allocate(0)); // the old bytes go before the new ones come
    storage->set_nbytes(0);
    if (bytes > 0) storage->set_data_ptr_noswap(allocator->allocate(bytes));
    storage->set_nbytes(bytes);
    return 0;
  });
}
