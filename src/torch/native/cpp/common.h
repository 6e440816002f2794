// What the parts of the shim share: the last error of this thread, the frame around every entry point, and gradients
// that are added in place.
#pragma once
#include <ATen/core/Tensor.h>
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

// Where the backward that runs on this thread wants the gradient of `leaf` added, float32 of its shape; null where it
// is to be returned as usual.
const at::Tensor* lf_sink(const at::Tensor& leaf);
