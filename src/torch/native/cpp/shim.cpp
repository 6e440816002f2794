// What stock tch lacks: gradients for given output gradients, and any operator by its schema name.
// Every function returns a negative number or null on failure and leaves the message in lf_last_error.
#include "common.h"
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <cstdio>
#include <cstdlib>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>
#include <unordered_map>

using at::Tensor;
thread_local std::string lf_error;

LF_API const char* lf_last_error() { return lf_error.c_str(); }

// At its end a process would destroy the tables of libtorch, a tenth of a second of work, while other threads may compute. Handlers run
// in the order opposite to that of their registration: libtorch, which was loaded before, comes after this.
static const int ends_at_once = on_exit(
    [](int status, void*) {
      fflush(nullptr);
      _exit(status);
    },
    nullptr);

// ---- autograd ------------------------------------------------------------------------------------

// Where operators of this shim add the gradients of leaves in place, while a backward runs on this thread.
// By the leaves' memory: a leaf that was saved through hooks comes back as another tensor on the same memory.
static thread_local const std::unordered_map<const void*, Tensor>* sinks = nullptr;

const Tensor* lf_sink(const Tensor& leaf) {
  if (!sinks || !leaf.is_leaf()) return nullptr;
  const auto found = sinks->find(leaf.const_data_ptr());
  return found == sinks->end() || found->second.sizes() != leaf.sizes() ? nullptr : &found->second;
}

// Gradients of `inputs` for given gradients of `outputs`. `found[i]` is a new tensor, or null where
// input i does not take part, or where all of its gradient was added to `sums[i]`: float32, shaped as
// the input, or null where the gradient is to be returned. The graph is freed.
LF_API int lf_grad(Tensor* const* outputs, Tensor* const* grads, int num_outputs, Tensor* const* inputs,
                   Tensor* const* sums, int num_inputs, Tensor** found) {
  return lf_guard(-1, [&] {
    torch::autograd::variable_list y, dy, x;
    for (int i = 0; i < num_outputs; i++) {
      y.push_back(*outputs[i]);
      dy.push_back(*grads[i]);
    }
    std::unordered_map<const void*, Tensor> in_place;
    for (int i = 0; i < num_inputs; i++) {
      x.push_back(*inputs[i]);
      if (sums[i] && inputs[i]->numel() > 0) in_place.emplace(inputs[i]->const_data_ptr(), *sums[i]);
    }
    struct Installed {
      const std::unordered_map<const void*, Tensor>* former = sinks;
      ~Installed() { sinks = former; }
    } installed;
    sinks = &in_place;
    auto dx = torch::autograd::grad(y, x, dy, /*retain_graph=*/false, /*create_graph=*/false,
                                    /*allow_unused=*/true);
    for (int i = 0; i < num_inputs; i++) found[i] = dx[i].defined() ? new Tensor(dx[i]) : nullptr;
    return 0;
  });
}

// ---- operators by name -----------------------------------------------------------------------------

enum class Tag : int32_t { None, Tensor, Int, Double, Bool, Ints, Tensors };
struct Arg {
  Tag tag;
  int64_t integer; // Int, Bool; length of Ints and Tensors
  double real;
  const void* pointer;
};

static c10::IValue to_ivalue(const Arg& arg) {
  switch (arg.tag) {
    case Tag::None: return c10::IValue();
    case Tag::Tensor: return *static_cast<const Tensor*>(arg.pointer);
    case Tag::Int: return arg.integer;
    case Tag::Double: return arg.real;
    case Tag::Bool: return arg.integer != 0;
    case Tag::Ints:
      return c10::List<int64_t>(at::IntArrayRef(static_cast<const int64_t*>(arg.pointer), arg.integer));
    case Tag::Tensors: {
      c10::List<Tensor> list;
      auto tensors = static_cast<Tensor* const*>(arg.pointer);
      for (int64_t i = 0; i < arg.integer; i++) list.push_back(*tensors[i]);
      return list;
    }
  }
  TORCH_CHECK(false, "unknown argument tag");
}

// Null where libtorch has no such operator. The handle lives as long as the process.
LF_API void* lf_find_op(const char* name, const char* overload) {
  return lf_guard<void*>(nullptr, [&] {
    return new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
  });
}

// Calls an operator through the dispatcher; missing trailing arguments take the schema's defaults.
// Returns the number of tensors written to `outputs`; results that are not tensors are dropped.
LF_API int lf_call_op(void* handle, const Arg* args, int num_args, Tensor** outputs, int max_outputs) {
  return lf_guard(-1, [&] {
    auto* op = static_cast<c10::OperatorHandle*>(handle);
    const auto& arguments = op->schema().arguments();
    torch::jit::Stack stack;
    for (int i = 0; i < num_args; i++) stack.push_back(to_ivalue(args[i]));
    for (size_t i = num_args; i < arguments.size(); i++) {
      TORCH_CHECK(arguments[i].default_value(), "missing argument ", arguments[i].name());
      stack.push_back(*arguments[i].default_value());
    }
    op->callBoxed(&stack);
    std::vector<Tensor> found;
    for (auto& value : stack) {
      if (value.isTensor()) found.push_back(value.toTensor());
      if (value.isTensorList()) for (const Tensor& t : value.toTensorList()) found.push_back(t);
    }
    TORCH_CHECK(static_cast<int>(found.size()) <= max_outputs, "more than ", max_outputs, " outputs");
    int count = 0;
    for (auto& tensor : found) outputs[count++] = new Tensor(tensor);
    return count;
  });
}
