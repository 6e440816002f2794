// What autograd saves for a backward, kept where it can be taken away and put back: a list that the graph refers to by
// number. libtorch asks its engine for such hooks whenever it saves something; only Python's engine offers any, so an
// engine of ours, which leaves all else to the plain one, takes its place when the first list is opened.
#include "common.h"
#include <memory>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <vector>

using at::Tensor;
using torch::autograd::SavedVariableHooks;

using List = std::vector<Tensor>;
// The list that is open on this thread.
static thread_local std::shared_ptr<List> open_list;

struct Hooks : SavedVariableHooks {
  std::shared_ptr<List> list;
  size_t index = -1;
  explicit Hooks(std::shared_ptr<List> list) : list(std::move(list)) {}
  // A graph frees what it saved piece by piece while its backward runs.
  ~Hooks() override { if (index < list->size()) (*list)[index] = Tensor(); }
  // Without its graph: a tensor that an operation made would hold the operation, which holds these hooks.
  void call_pack_hook(const Tensor& tensor) override {
    index = list->size();
    list->push_back(tensor.variable_data());
  }
  Tensor call_unpack_hook() override {
    const Tensor& tensor = (*list)[index];
    TORCH_CHECK(tensor.defined(), "what autograd saved is not on the device");
    return tensor.variable_data();
  }
};

// Graphs are run by libtorch's own engine: the threads that it has for GPUs belong to the first engine of a process, and
// another one finds no queue of theirs.
struct SavingEngine : torch::autograd::Engine {
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return open_list ? std::make_unique<Hooks>(open_list) : nullptr;
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots, const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(const std::shared_ptr<torch::autograd::GraphTask>& task,
                                                                 std::shared_ptr<torch::autograd::Node> root,
                                                                 torch::autograd::InputBuffer&& input) override {
    return get_base_engine().execute_with_graph_task(task, std::move(root), std::move(input));
  }
};

static torch::autograd::Engine& saving_engine() {
  static SavingEngine* engine = new SavingEngine(); // as long as the process, like libtorch's own
  return *engine;
}

// Opens a list on this thread; null where one is open.
LF_API void* lf_saved_open() {
  return lf_guard<void*>(nullptr, [] {
    static const bool installed = (torch::autograd::set_default_engine_stub(saving_engine), true);
    TORCH_CHECK(installed && !open_list, "a list of saved tensors is open already");
    open_list = std::make_shared<List>();
    return new std::shared_ptr<List>(open_list);
  });
}
LF_API void lf_saved_close() { open_list.reset(); }
LF_API void lf_saved_free(void* list) { delete static_cast<std::shared_ptr<List>*>(list); }
LF_API int64_t lf_saved_len(void* list) { return static_cast<int64_t>((*static_cast<std::shared_ptr<List>*>(list))->size()); }
// A new handle; null where the tensor was taken away.
LF_API Tensor* lf_saved_get(void* list, int64_t index) {
  const Tensor& tensor = (**static_cast<std::shared_ptr<List>*>(list))[index];
  return tensor.defined() ? new Tensor(tensor) : nullptr;
}
// Null takes the tensor away.
LF_API void lf_saved_set(void* list, int64_t index, Tensor* tensor) {
  (**static_cast<std::shared_ptr<List>*>(list))[index] = tensor ? tensor->variable_data() : Tensor();
}

// Where a tensor's memory starts, how many bytes it has, how many tensors share it, and at which element this one begins.
LF_API void lf_storage(Tensor* tensor, int64_t* address, int64_t* bytes, int64_t* users, int64_t* offset) {
  const auto& storage = tensor->storage();
  *address = reinterpret_cast<int64_t>(storage.data());
  *bytes = static_cast<int64_t>(storage.nbytes());
  *users = static_cast<int64_t>(storage.use_count());
  *offset = tensor->storage_offset();
}
