// What both halves of the shim share: the last error of this thread, and the frame around every entry point.
#pragma once
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
