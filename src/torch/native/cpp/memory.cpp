// The allocation record: which thread, and what for, allocated the memory of every tensor. On the CPU libtorch allocates
// through an allocator of ours, which writes in front of each block to whose account it counts; so a block that another
// thread frees is taken off the account of the thread that made it. The allocator of a GPU tells what it does to a reporter of the
// thread, which autograd takes along to the threads where it computes gradients.
#include "arena.h"
#include "common.h"
#include <atomic>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <cstdlib>
#include <mutex>
#include <sys/mman.h>
#include <unordered_map>

// As `Purpose` in native/memory.rs numbers them.
constexpr int PURPOSES = 5;

// Counts what a thread allocates while it is installed there. It lives as long as a watch or a block needs it.
struct Account {
  Account* outer;
  std::atomic<int64_t> references{1}, total{0};
  std::atomic<int64_t> held[PURPOSES] = {};
  int64_t peak = 0, at_peak[PURPOSES] = {};
  // What the thread allocates for, while this is its account.
  std::atomic<int> purpose;

  Account(Account* outer, int purpose) : outer(outer), purpose(purpose) {
    if (outer) outer->references++;
  }
  void release() {
    if (--references > 0) return;
    if (outer) outer->release();
    delete this;
  }
  // Only on the thread where it is installed.
  void charge(int64_t bytes, int purpose) {
    references++;
    add(bytes, purpose);
  }
  void add(int64_t bytes, int purpose) {
    held[purpose] += bytes;
    if ((total += bytes) > peak) note_peak();
    if (outer) outer->add(bytes, purpose);
  }
  void note_peak() {
    peak = total;
    for (int i = 0; i < PURPOSES; i++) at_peak[i] = held[i];
  }
  void take_off(int64_t bytes, int purpose) {
    held[purpose] -= bytes;
    total -= bytes;
    if (outer) outer->take_off(bytes, purpose);
  }
};
static thread_local Account* account = nullptr;
static thread_local int purpose = 0;

enum class Source : int32_t { Malloc, Arena, DryRun };

// In front of every block; as long as the alignment that libtorch asks for.
struct alignas(64) Header {
  BlockHeader block;  // the arena's, for what comes from there
  Account* account;
  int64_t bytes;
  int32_t purpose;
  Source source;
  void* begin;  // malloc's, for what comes from there
};
static_assert(sizeof(Header) == 64, "blocks stay aligned");

static void free_block(void* data) {
  if (!data) return;
  auto* header = static_cast<Header*>(data) - 1;
  if (header->account) {
    header->account->take_off(header->bytes, header->purpose);
    header->account->release();
  }
  switch (header->source) {
    case Source::Malloc: return std::free(header->begin);
    case Source::Arena: return arena_free(&header->block);
    case Source::DryRun: munmap(header, header->bytes + sizeof(Header));
  }
}

static Header* make_block(size_t bytes) {
  const size_t size = bytes + sizeof(Header);
  Header* header;
  if (lf_is_dry && bytes >= (1 << 16)) {
    // Memory of a dry run is addresses alone: pages that nobody touches, however many.
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(mapped != MAP_FAILED, "no address space for ", bytes, " bytes of a dry run");
    header = static_cast<Header*>(mapped);
    header->source = Source::DryRun;
  } else if (is_for_arena(bytes)) {
    header = reinterpret_cast<Header*>(arena_allocate(size));
    header->source = Source::Arena;
  } else {
    // posix_memalign, which libtorch calls, passes by the thread's own lists of free blocks.
    void* begin = std::malloc(size + alignof(Header) - 1);
    TORCH_CHECK(begin, "not enough memory: ", bytes, " bytes for a tensor were asked for");
    const auto aligned = (reinterpret_cast<uintptr_t>(begin) + alignof(Header) - 1) / alignof(Header) * alignof(Header);
    header = reinterpret_cast<Header*>(aligned);
    header->begin = begin;
    header->source = Source::Malloc;
  }
  return header;
}

struct RecordingAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    auto* header = make_block(bytes);
    header->account = purpose < 0 ? nullptr : account;
    header->bytes = bytes;
    header->purpose = purpose;
    if (header->account) header->account->charge(header->bytes, purpose);
    return {header + 1, header + 1, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

static const bool is_installed = [] {
  static RecordingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  return true;
}();

// Blocks on GPUs by their addresses, whoever made them. A block that was freed where nobody reports is taken off when its
// address comes again.
struct DeviceBlocks {
  struct Block {
    Account* account;
    int64_t bytes;
    int purpose;
  };
  std::mutex mutex;
  std::unordered_map<void*, Block> blocks;

  void remove(void* at) {
    const auto found = blocks.find(at);
    if (found == blocks.end()) return;
    found->second.account->take_off(found->second.bytes, found->second.purpose);
    found->second.account->release();
    blocks.erase(found);
  }
};
static DeviceBlocks& device_blocks() {
  // Never destroyed: tensors may be freed while the process ends.
  static auto* all = new DeviceBlocks();
  return *all;
}

// Where GPUs' memory is counted that the thread of a watch asks for, and autograd's threads on its behalf while it waits.
// libtorch's own profiler uses the same place of a thread: profiles are begun on a thread of their own (profile.rs).
struct Reporter : c10::MemoryReportingInfoBase {
  Account* own;
  explicit Reporter(Account* own) : own(own) { own->references++; }
  ~Reporter() override { own->release(); }

  void reportMemoryUsage(void* at, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.is_cpu()) return;
    auto& all = device_blocks();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.remove(at);
    const int purpose = own->purpose;
    if (bytes <= 0 || purpose < 0) return;
    own->charge(bytes, purpose);
    all.blocks.emplace(at, DeviceBlocks::Block{own, bytes, purpose});
  }
  bool memoryProfilingEnabled() const override { return true; }
};

struct Watch {
  Account* own = new Account(account, purpose);
  Account* former = std::exchange(account, own);
  Watch() { c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reporter>(own)); }
  ~Watch() {
    c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
    account = former;
    own->release();
  }
};

LF_API void* lf_memory_watch_start() {
  return lf_guard<void*>(nullptr, [] { return is_installed ? new Watch() : nullptr; });
}
LF_API int64_t lf_memory_watch_current(void* watch) { return static_cast<Watch*>(watch)->own->total; }
LF_API int64_t lf_memory_watch_peak(void* watch) { return static_cast<Watch*>(watch)->own->peak; }
// By purpose, when the peak was.
LF_API void lf_memory_watch_at_peak(void* watch, int64_t* bytes) {
  for (int i = 0; i < PURPOSES; i++) bytes[i] = static_cast<Watch*>(watch)->own->at_peak[i];
}
LF_API void lf_memory_watch_reset_peak(void* watch) { static_cast<Watch*>(watch)->own->note_peak(); }
LF_API void lf_memory_watch_stop(void* watch) { delete static_cast<Watch*>(watch); }

// What this thread allocates from now on is for this, below 0: is not counted. Returns what it was for.
LF_API int lf_memory_purpose(int next) {
  if (account) account->purpose = next;
  return std::exchange(purpose, next);
}
// For tests: tells this thread's reporter what a GPU's allocator would, of memory that there is not.
LF_API void lf_memory_report(void* at, int64_t bytes) {
  c10::reportMemoryUsageToProfiler(at, bytes, 0, 0, c10::Device(c10::DeviceType::CUDA, 0));
}
