// Process groups: c10d's Gloo and NCCL backends with a rendezvous through a file, or through a store of the run's.
#include "common.h"
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <thread>

using at::Tensor;
using namespace c10d;
using std::chrono::milliseconds;

// c10d's flight recorder has one map of groups for the process, which it changes without a lock: where several threads have
// groups of their own, their first collectives crash. It is off unless asked for; set before there are threads.
__attribute__((constructor)) static void no_flight_recorder() { setenv("TORCH_FR_BUFFER_SIZE", "0", 0); }

// NCCL's backend watches its collectives on a thread of its own, which throws where one fails or is late and so ends the process, with all
// of its actors. lf_wait blocks and fails by itself; where waits are known to block there is no such thread.
__attribute__((constructor)) static void no_nccl_watchdog() { setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 0); }

// `path`: a file, or `tcp/HOST/PORT/KEY`: a store that listens there, and a prefix of keys.
static c10::intrusive_ptr<Store> open_store(const std::string& path, milliseconds timeout) {
  if (path.rfind("tcp/", 0) != 0) {
    auto file = c10::make_intrusive<FileStore>(path, -1); // -1: the file is not deleted with the last process
    file->setTimeout(timeout);
    return file;
  }
  auto port_at = path.find('/', 4) + 1, key_at = path.find('/', port_at) + 1;
  TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::stoi(path.substr(port_at)));
  options.timeout = timeout;
  options.waitWorkers = false;
  options.useLibUV = false;
  auto store = c10::make_intrusive<TCPStore>(path.substr(4, port_at - 5), options);
  return c10::make_intrusive<PrefixStore>(path.substr(key_at), store);
}

// A store for all processes of a run; `listener` is a bound and listening socket, which it takes. Null on failure.
LF_API void* lf_store_serve(const char* host, int port, int listener, int64_t timeout_ms) {
  return lf_guard<void*>(nullptr, [&] {
    TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = true;
    options.waitWorkers = false;
    options.useLibUV = false;
    options.masterListenFd = listener;
    options.timeout = milliseconds(timeout_ms);
    return new c10::intrusive_ptr<Store>(c10::make_intrusive<TCPStore>(host, options));
  });
}
LF_API void lf_store_free(void* store) { delete static_cast<c10::intrusive_ptr<Store>*>(store); }

struct Group {
  c10::intrusive_ptr<Backend> backend;
  milliseconds timeout;
  bool is_nccl = false;
  // NCCL's communicator is made; it was not made in time, and a thread is still at it.
  bool is_connected = false, is_given_up = false;
};

static c10::intrusive_ptr<Store> meet(const char* path, const char* name, milliseconds timeout) {
  return c10::make_intrusive<PrefixStore>(name, open_store(path, timeout));
}

// Joins `world` processes that name the same file and group. Null on failure.
LF_API void* lf_gloo_new(const char* path, const char* name, const char* host, int rank, int world, int64_t timeout_ms) {
  return lf_guard<void*>(nullptr, [&] {
    auto timeout = milliseconds(timeout_ms);
    auto store = meet(path, name, timeout);
    auto options = ProcessGroupGloo::Options::create(timeout);
    options->threads = 1;
    options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(host, /*lazyInit=*/false));
    return new Group{c10::make_intrusive<ProcessGroupGloo>(store, rank, world, options), timeout};
  });
}

// An object of a class derived from T, made by a constructor of which the address alone is known. Its size is not: `bytes` is
// more. The class's own destructor frees the memory.
template <typename T, typename F> static c10::intrusive_ptr<T> made(size_t bytes, F construct) {
  void* at = ::operator new(bytes);
  std::memset(at, 0, bytes);
  try {
    construct(at);
  } catch (...) {
    ::operator delete(at);
    throw;
  }
  return c10::intrusive_ptr<T>::unsafe_steal_from_new(static_cast<T*>(at));
}

// As lf_gloo_new for NCCL's backend, of which the first two arguments are the constructors:
// Options(bool is_high_priority_stream) and ProcessGroupNCCL(intrusive_ptr<Store>, int, int, intrusive_ptr<Options>). What is
// not trivially copied goes by address, as the C++ ABI of x86-64 and of AArch64 has it.
LF_API void* lf_nccl_new(
    void* new_options, void* new_backend, const char* path, const char* name, int rank, int world, int64_t timeout_ms) {
  return lf_guard<void*>(nullptr, [&] {
    using NewOptions = void (*)(void*, bool);
    using NewBackend =
        void (*)(void*, c10::intrusive_ptr<Store>*, int, int, c10::intrusive_ptr<Backend::Options>*);
    auto timeout = milliseconds(timeout_ms);
    auto options = made<Backend::Options>(4096, [&](void* at) { reinterpret_cast<NewOptions>(new_options)(at, false); });
    options->timeout = timeout;
    auto store = meet(path, name, timeout);
    auto backend = made<Backend>(
        65536, [&](void* at) { reinterpret_cast<NewBackend>(new_backend)(at, &store, rank, world, &options); });
    return new Group{std::move(backend), timeout, /*is_nccl=*/true};
  });
}
// Collectives that were begun have been waited for. NCCL's backend gives its communicators back when it is told to; else its destructor
// does, with a warning that nobody has, and what fails meanwhile, as after a peer has died, leaves the destructor and ends the process.
LF_API void lf_group_free(void* group) {
  std::unique_ptr<Group> g(static_cast<Group*>(group));
  // Without a communicator there is nothing to give back.
  if (!g->is_nccl || g->is_given_up) return;
  lf_guard(-1, [&] {
    g->backend->abort();
    return 0;
  });
}

// A collective on its way. Holds what it reads and writes.
struct Pending {
  c10::intrusive_ptr<Work> work;
  std::vector<Tensor> tensors;
  milliseconds timeout;
};

// A count of the engine of this thread: while it is not 0 other ranks are waited for in vain, as far as the scheduler knows.
static thread_local const uint32_t* interrupts = nullptr;
LF_API void lf_interrupt_by(const uint32_t* count) { interrupts = count; }
static bool is_interrupted() { return interrupts != nullptr && __atomic_load_n(interrupts, __ATOMIC_RELAXED) != 0; }

// Looks again and again whether something is done; false where the time is over before, or the thread is interrupted.
template <typename F> static bool is_done_within(milliseconds timeout, std::chrono::microseconds pause, F is_done) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!is_done()) {
    if (std::chrono::steady_clock::now() >= end || is_interrupted()) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

// Runs `body` on a thread of its own and waits for its end, at most `timeout`; false where it has not come, and the thread then goes on
// by itself. What the body throws is thrown here.
template <typename F> static bool ends_within(milliseconds timeout, F body) {
  std::packaged_task<void()> task(std::move(body));
  auto end = task.get_future();
  std::thread(std::move(task)).detach();
  auto has_ended = [&] { return end.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
  if (!is_done_within(timeout, std::chrono::microseconds(500), has_ended)) return false;
  end.get();
  return true;
}

// NCCL makes its communicator when the first collective is begun, and there waits for the other ranks without end: it does not notice one
// that has ended since the group was joined. So the communicator is made on a thread that is given up after the timeout. Such a thread
// still uses the backend, which is therefore never freed.
static void make_communicator(Group& g, const std::vector<Tensor>& tensors) {
  if (!g.is_nccl || g.is_connected || tensors.empty()) return;
  auto make = [backend = g.backend, device = tensors.front().device()] { backend->eagerConnectSingleDevice(device); };
  g.is_connected = !g.is_given_up && ends_within(g.timeout, std::move(make));
  if (g.is_connected) return;
  if (!g.is_given_up) (void)c10::intrusive_ptr<Backend>(g.backend).release();
  g.is_given_up = true;
  if (is_interrupted()) throw std::runtime_error("given up while NCCL's communicator was made: a rank is gone, or the run ends");
  throw std::runtime_error(
      "the ranks have not all come to make NCCL's communicator within " + std::to_string(g.timeout.count()) + " ms");
}
// For a test: whether a thread of so many milliseconds ends within others.
LF_API int lf_ends_within(int64_t timeout_ms, int64_t thread_ms) {
  return lf_guard(-1, [&] {
    auto sleep = [thread_ms] {
      if (thread_ms < 0) throw std::runtime_error("a thread of less than no time");
      std::this_thread::sleep_for(milliseconds(thread_ms));
    };
    return ends_within(milliseconds(timeout_ms), sleep) ? 1 : 0;
  });
}

template <typename F> static void* begin(void* group, std::vector<Tensor> tensors, F start) {
  return lf_guard<void*>(nullptr, [&] {
    auto& g = *static_cast<Group*>(group);
    make_communicator(g, tensors);
    auto pending = std::make_unique<Pending>(Pending{nullptr, std::move(tensors), g.timeout});
    pending->work = start(*g.backend, pending->tensors);
    return pending.release();
  });
}
// NCCL's own wait looks once in a millisecond or less often: longer than many collectives of a layer take. It still says what failed.
static void await_gpu(Pending& pending) {
  if (pending.tensors.empty() || !pending.tensors.front().is_cuda()) return;
  // Linux wakes a thread up to 50 us late, which is more than it sleeps here, and the GPU has nothing to do meanwhile.
  static thread_local const int asked = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  (void)asked;
  auto is_done = [&] { return pending.work->isCompleted(); };
  if (is_done_within(pending.timeout, std::chrono::microseconds(20), is_done) || !is_interrupted()) return;
  // NCCL gives it up as it does a collective that is late, unless it is done by now.
  try {
    pending.work->wait(milliseconds(1));
  } catch (const std::exception&) {
    throw std::runtime_error("given up before its timeout: a rank is gone, or the run ends");
  }
}
// Waits for a collective and frees it.
LF_API int lf_wait(void* pending) {
  std::unique_ptr<Pending> p(static_cast<Pending*>(pending));
  return lf_guard(-1, [&] {
    await_gpu(*p);
    p->work->wait(p->timeout);
    return 0;
  });
}

LF_API void* lf_all_reduce_sum(void* group, Tensor* tensor) {
  return begin(group, {*tensor}, [](auto& group, auto& t) { return group.allreduce(t, AllreduceOptions()); });
}
LF_API void* lf_all_reduce_max(void* group, Tensor* tensor) {
  return begin(group, {*tensor}, [](auto& group, auto& t) {
    AllreduceOptions options;
    options.reduceOp = ReduceOp::MAX;
    return group.allreduce(t, options);
  });
}
// `output` is flat: the ranks' inputs one after the other.
LF_API void* lf_all_gather(void* group, Tensor* output, Tensor* input) {
  return begin(group, {*output, *input}, [](auto& group, auto& t) { return group._allgather_base(t[0], t[1]); });
}
// `input` is flat: one output after the other for each rank.
LF_API void* lf_reduce_scatter_sum(void* group, Tensor* output, Tensor* input) {
  return begin(group, {*output, *input}, [](auto& group, auto& t) { return group._reduce_scatter_base(t[0], t[1]); });
}
// Rows of the first dimension: `sent[r]` of the input go to rank r, `taken[r]` of the output come from it.
LF_API void* lf_all_to_all(void* group, Tensor* output, Tensor* input, const int64_t* taken, const int64_t* sent, int world) {
  return begin(group, {*output, *input}, [&](auto& group, auto& t) {
    std::vector<int64_t> from(taken, taken + world), to(sent, sent + world);
    return group.alltoall_base(t[0], t[1], from, to);
  });
}
LF_API void* lf_broadcast(void* group, Tensor* tensor, int root) {
  return begin(group, {*tensor}, [&](auto& group, auto& t) {
    BroadcastOptions options;
    options.rootRank = root;
    return group.broadcast(t, options);
  });
}
LF_API void* lf_send(void* group, Tensor* tensor, int to, int tag) {
  return begin(group, {*tensor}, [&](auto& group, auto& t) { return group.send(t, to, tag); });
}
LF_API void* lf_recv(void* group, Tensor* tensor, int from, int tag) {
  return begin(group, {*tensor}, [&](auto& group, auto& t) { return group.recv(t, from, tag); });
}
LF_API void* lf_barrier(void* group) {
  return begin(group, {}, [](auto& group, auto&) { return group.barrier(); });
}
