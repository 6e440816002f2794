// Dry runs: a thread goes through a computation with all of its tensors and none of its work. Below autograd every
// operator comes here first: what only views, what has integers alone and what allocates is done as ever; what would
// write is left out; and of what would compute, results of the right shape are allocated, which libtorch's own functions for
// the `meta` device tell. Memory of a dry run is never touched, so that its size does not matter.
#include "common.h"
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/WrapDimUtils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <set>

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;
thread_local bool lf_is_dry = false;

template <typename F> static void each_tensor(const IValue& value, F see) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) see(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& t : value.toTensorList()) see(t);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) each_tensor(element, see);
  }
}

static Tensor on_meta(const Tensor& t) {
  if (!t.defined()) return t;
  auto shape = at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) shape.unsafeGetTensorImpl()->set_wrapped_number(true);
  return shape;
}

static IValue on_meta(const IValue& value) {
  if (value.isTensor()) return on_meta(value.toTensor());
  if (value.isDevice()) return c10::Device(at::kMeta);
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorList()) list.push_back(on_meta(t));
    return list;
  }
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    c10::List<std::optional<Tensor>> list;
    for (const IValue& element : value.toListRef()) {
      if (element.isNone()) list.push_back(std::nullopt);
      else if (element.isTensor()) list.push_back(on_meta(element.toTensor()));
      else return value;
    }
    return list;
  }
  return value;
}

// Integers may be indices: whoever reads them finds them in range.
static void clear_indices(const Tensor& t) {
  if (!t.is_floating_point() && t.nbytes() > 0 && t.is_contiguous()) std::memset(t.mutable_data_ptr(), 0, t.nbytes());
}

static Tensor allocated(const Tensor& shape) {
  if (!shape.defined()) return shape;
  Tensor t = at::detail::empty_strided_cpu(shape.sizes(), shape.strides(), shape.scalar_type());
  clear_indices(t);
  return t;
}

static IValue allocated(const IValue& value) {
  if (value.isTensor()) return allocated(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorList()) list.push_back(allocated(t));
    return list;
  }
  return value;
}

// The chosen experts of routers, for instance: as if all were chosen equally often.
static void choose_evenly(const Tensor& indices, int64_t of) {
  const auto flat = indices.view({-1});
  auto* to = flat.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); i++) to[i] = i % of;
}

// What these have no kernel for on the meta device, in libtorch without Python.
static bool shape_by_hand(const c10::OperatorHandle& op, Stack* stack, size_t first) {
  const auto& name = op.schema().name();
  const auto arg = [&](size_t i) -> const IValue& { return (*stack)[first + i]; };
  const auto finish = [&](std::vector<IValue> results) {
    stack->resize(first);
    for (auto& result : results) stack->push_back(std::move(result));
    return true;
  };
  const auto made = [](const Tensor& like, at::IntArrayRef sizes, std::optional<at::ScalarType> type = std::nullopt) -> Tensor {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(1, sizes[i]);
    return allocated(Tensor(at::detail::empty_strided_meta(sizes, strides, type.value_or(like.scalar_type()))));
  };
  if (name == "aten::index_select") {
    const auto& x = arg(0).toTensor();
    auto sizes = x.sizes().vec();
    if (!sizes.empty()) sizes[at::maybe_wrap_dim(arg(1).toInt(), x.dim())] = arg(2).toTensor().numel();
    return finish({made(x, sizes)});
  }
  if (name == "aten::embedding_dense_backward") {
    const auto& dy = arg(0).toTensor();
    return finish({made(dy, {arg(2).toInt(), dy.size(-1)})});
  }
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    const Tensor &q = arg(0).toTensor(), &v = arg(2).toTensor();
    // As libtorch lays it out: [batch, length, heads, width] behind a transposed view.
    auto y = made(q, {q.size(0), q.size(2), q.size(1), v.size(3)}).transpose(1, 2);
    const auto sums = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    auto lse = made(q, {q.size(0), q.size(2), q.size(1)}, sums).transpose(1, 2);
    return finish({y, lse});
  }
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") {
    std::vector<IValue> grads;
    for (size_t i = 1; i < 4; i++) {
      const auto& x = arg(i).toTensor();
      grads.push_back(made(x, {x.size(0), x.size(2), x.size(1), x.size(3)}).transpose(1, 2));
    }
    return finish(std::move(grads));
  }
  return false;
}

static bool is_resize(const std::string& name) {
  static const std::set<std::string> names{"aten::resize_", "aten::resize_as_", "aten::set_", "aten::set_data",
                                           "aten::requires_grad_", "aten::detach_", "aten::retain_grad"};
  return names.count(name) > 0;
}

static void dry(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  bool has_reals = false, writes = false, views = false, gives_tensors = false, fills = true;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool is_written = alias && alias->isWrite();
    writes |= is_written;
    each_tensor((*stack)[first + i], [&](const Tensor& t) {
      has_reals |= t.is_floating_point();
      fills &= !is_written || t.numel() > 0; // else the operator gives it its size
    });
  }
  for (const auto& result : schema.returns()) {
    views |= result.alias_info() && !result.alias_info()->isWrite();
    gives_tensors |= result.type()->kind() == c10::TypeKind::TensorType || result.type()->kind() == c10::TypeKind::ListType;
  }
  const auto as_ever = [&] {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, DispatchKey::Fake), stack);
  };
  if (!lf_is_dry || !has_reals || views || is_resize(schema.name())) return as_ever();
  if (writes && !fills) return as_ever();
  if (writes) {
    std::vector<IValue> written;
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (!alias || !alias->isWrite()) continue;
      written.push_back((*stack)[first + i]);
      each_tensor(written.back(), [](const Tensor& t) { clear_indices(t); });
    }
    written.resize(schema.returns().size());
    stack->resize(first);
    for (auto& value : written) stack->push_back(std::move(value));
    return;
  }
  // An operator that is made of others: they come here one by one.
  const bool is_composite = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  if (!gives_tensors || (is_composite && !op.hasKernelForDispatchKey(DispatchKey::CPU))) return as_ever();
  if (shape_by_hand(op, stack, first)) return;
  if (!op.hasComputedKernelForDispatchKey(DispatchKey::Meta)) return as_ever();
  const auto chosen_from = schema.name() == "aten::topk" ? (*stack)[first].toTensor() : Tensor();
  const int64_t dim = chosen_from.defined() ? (*stack)[first + 2].toInt() : 0;
  const std::vector<IValue> arguments(stack->begin() + first, stack->end());
  for (size_t i = first; i < stack->size(); i++) (*stack)[i] = on_meta((*stack)[i]);
  try {
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard no_dry(DispatchKey::Fake);
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    // Nobody knows its shapes without Python: it is computed, of whatever values there are.
    stack->resize(first);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    return as_ever();
  }
  for (size_t i = first; i < stack->size(); i++) (*stack)[i] = allocated((*stack)[i]);
  if (chosen_from.defined()) choose_evenly((*stack)[first + 1].toTensor(), std::max<int64_t>(1, chosen_from.size(dim)));
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&dry>()); }

// Begins (or ends) a dry run on this thread.
LF_API void lf_dry_run(bool on) {
  lf_is_dry = on;
  c10::impl::tls_set_dispatch_key_included(DispatchKey::Fake, on);
}
