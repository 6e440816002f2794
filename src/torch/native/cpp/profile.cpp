// What a process computes during a while, by libtorch's own profiler: operators of all threads, and kernels of its GPUs.
#include "common.h"
#include <kineto/ActivityType.h>
#include <kineto/libkineto.h>
#include <torch/csrc/autograd/profiler_kineto.h>

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

LF_API int lf_profile_start(bool gpu) {
  return lf_guard(-1, [&] {
    // Nobody asks a daemon for profiles, which would have to be prepared on the main thread and complains of another.
    libkineto::api().registerClient(nullptr);
    torch::profiler::impl::ExperimentalConfig all_threads;
    all_threads.profile_all_threads = true;
    const ProfilerConfig config(ProfilerState::KINETO, false, false, false, false, false, all_threads);
    std::set<ActivityType> activities{ActivityType::CPU};
    if (gpu) activities.insert(ActivityType::CUDA);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
    return 0;
  });
}

// Ends it, on the thread that began it. Where `path` is not null, a trace goes there, and `see` is told of every event.
LF_API int lf_profile_stop(const char* path, void* to, void (*see)(void* to, const char* name, int64_t nanoseconds, bool is_kernel)) {
  return lf_guard(-1, [&] {
    const auto found = profiler::disableProfiler();
    if (!path) return 0;
    found->save(path);
    for (const auto& event : found->events()) {
      const auto type = static_cast<libkineto::ActivityType>(event.activityType());
      const bool is_kernel = type == libkineto::ActivityType::CONCURRENT_KERNEL || type == libkineto::ActivityType::GPU_MEMCPY ||
                             type == libkineto::ActivityType::GPU_MEMSET;
      // Spans on a GPU cover kernels, which are told of themselves.
      if (is_kernel || event.deviceType() == at::kCPU) {
        see(to, event.name().c_str(), static_cast<int64_t>(event.durationNs()), is_kernel);
      }
    }
    return 0;
  });
}
