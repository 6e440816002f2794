// What the parts of the shim share: the last error of this thread, the frame around every entry point, gradients that
// are added in place, and loops that a dry run leaves out.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <exception>
#include <string>

extern thread_local std::string lf_error;

// Runs a body; an exception becomes `fail` and a message for lf_last_error.
template <typename T, typename F> T lf_guard(T fail, F body) {
  try {
    return body();
  } catch (const c10::Error& e) {
    lf_error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    lf_error = e.what();
  } catch (...) {
    lf_error = "unknown C++ exception";
  }
  return fail;
}

#define LF_API extern "C" __attribute__((visibility("default")))

// Names what follows in the function for whoever profiles (profile.cpp).
#define LF_RECORD(name) \
  RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::FUNCTION, "loongforge::" name, c10::ArrayRef<const c10::IValue>{})

// Where the backward that runs on this thread wants the gradient of `leaf` added, float32 of its shape; null where it
// is to be returned as usual.
const at::Tensor* lf_sink(const at::Tensor& leaf);

// Whether this thread makes a dry run: tensors are allocated, and nothing is computed (dry_run.cpp).
extern thread_local bool lf_is_dry;

// As at::parallel_for; a dry run does nothing here.
template <typename F> void lf_parallel_for(int64_t begin, int64_t end, int64_t grain, const F& body) {
  if (!lf_is_dry) at::parallel_for(begin, end, grain, body);
}
