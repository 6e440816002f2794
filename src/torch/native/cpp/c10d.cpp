// Process groups: c10d's Gloo backend with a rendezvous through a file.
#include "common.h"
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

using at::Tensor;
using namespace c10d;
using std::chrono::milliseconds;

struct Group {
  c10::intrusive_ptr<ProcessGroupGloo> gloo;
  milliseconds timeout;
};

// Joins `world` processes that name the same file and group. Null on failure.
LF_API void* lf_gloo_new(const char* path, const char* name, const char* host, int rank, int world, int64_t timeout_ms) {
  return lf_guard<void*>(nullptr, [&] {
    auto timeout = milliseconds(timeout_ms);
    auto file = c10::make_intrusive<FileStore>(path, -1); // -1: the file is not deleted with the last process
    file->setTimeout(timeout);
    auto store = c10::make_intrusive<PrefixStore>(name, file);
    auto options = ProcessGroupGloo::Options::create(timeout);
    options->threads = 1;
    options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(host, /*lazyInit=*/false));
    return new Group{c10::make_intrusive<ProcessGroupGloo>(store, rank, world, options), timeout};
  });
}
LF_API void lf_gloo_free(void* group) { delete static_cast<Group*>(group); }

template <typename F> static int run(void* group, F start) {
  return lf_guard(-1, [&] {
    auto& g = *static_cast<Group*>(group);
    start(*g.gloo)->wait(g.timeout);
    return 0;
  });
}

LF_API int lf_all_reduce_sum(void* group, Tensor* tensor) {
  return run(group, [&](ProcessGroupGloo& gloo) {
    std::vector<Tensor> tensors{*tensor};
    return gloo.allreduce(tensors, AllreduceOptions());
  });
}
// `output` is flat: the ranks' inputs one after the other.
LF_API int lf_all_gather(void* group, Tensor* output, Tensor* input) {
  return run(group, [&](ProcessGroupGloo& gloo) { return gloo._allgather_base(*output, *input); });
}
LF_API int lf_broadcast(void* group, Tensor* tensor, int root) {
  return run(group, [&](ProcessGroupGloo& gloo) {
    std::vector<Tensor> tensors{*tensor};
    BroadcastOptions options;
    options.rootRank = root;
    return gloo.broadcast(tensors, options);
  });
}
LF_API int lf_barrier(void* group) {
  return run(group, [&](ProcessGroupGloo& gloo) { return gloo.barrier(); });
}
