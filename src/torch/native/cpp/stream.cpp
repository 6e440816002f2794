// A stream of a device for one thread's copies. On a CPU, where there are no streams, every function does nothing.
// c10's guards are of no device in particular: CUDA's register when its library is loaded, so nothing of CUDA is linked.
#include "common.h"
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <ATen/Context.h>
#include <optional>

using at::Tensor;

struct Mark {
  std::optional<c10::Event> event;
};

static c10::Stream current(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Makes a new stream the current one of this thread, for good, on the device of `like`.
LF_API int lf_stream_enter(Tensor* like) {
  return lf_guard(-1, [&] {
    const auto device = like->device();
    if (device.is_cpu()) return 0;
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.setDevice(device);
    guard.exchangeStream(guard.getNewStream(device));
    return 0;
  });
}
// The point that this thread's stream has reached on the device of `like`.
LF_API void* lf_stream_mark(Tensor* like) {
  return lf_guard<void*>(nullptr, [&] {
    auto mark = std::make_unique<Mark>();
    if (!like->device().is_cpu()) {
      mark->event.emplace(like->device().type());
      mark->event->record(current(like->device()));
    }
    return mark.release();
  });
}
// This thread's stream waits for what came before the mark.
LF_API int lf_stream_await(void* mark, Tensor* like) {
  return lf_guard(-1, [&] {
    auto& event = static_cast<Mark*>(mark)->event;
    if (event) event->block(current(like->device()));
    return 0;
  });
}
LF_API void lf_mark_free(void* mark) { delete static_cast<Mark*>(mark); }
// Returns when this thread's stream has done all that it was given.
LF_API int lf_stream_synchronize(Tensor* like) {
  return lf_guard(-1, [&] {
    if (!like->device().is_cpu()) current(like->device()).synchronize();
    return 0;
  });
}
// Operators of GPUs that add by atomics, in any order, give way to those that add in a fixed one; where there is none they fail. A
// mere warning would leave some of attention's as they are.
LF_API void lf_deterministic() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}
