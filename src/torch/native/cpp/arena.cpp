// Two-level segregated fit (Masmano et al., "TLSF", 2004): free blocks in lists by size, 16 lists for each power of two, the
// first list that is not empty found by two words of bits; neighbors that are free become one block.
//
// Why not malloc: a step allocates and frees the same sizes again and again. glibc gives the top of its heap back to the
// system whenever it is free, and maps what is over 32 MiB anew each time, so that each step pays for the pages of its
// tensors, 4 KiB at a time; and products over small pages miss the translation buffer. Each thread has an arena, so that
// memory stays near the core that touched it first; a thread that ends leaves its arena to the next one.
#include "arena.h"
#include "common.h"
#include <algorithm>
#include <atomic>
#include <mutex>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace {

constexpr uint64_t FREE = 1, LAST = 2, FLAGS = 63, UNIT = 64, PAGE = 4096, HUGE_PAGE = 2 << 20, CHUNK = 32 << 20;
// A rest of a block that is smaller stays with it: 16 units, below which the lists of a power of two would coincide.
constexpr uint64_t SMALLEST = 16 * UNIT;
constexpr int LOG_LISTS = 4, LISTS = 1 << LOG_LISTS, POWERS = 48;
// Chunks that are free as a whole are kept up to this many bytes, or half of what is in use if that is more.
constexpr int64_t KEPT = 256 << 20;

std::atomic<int64_t> bytes_in_use{0}, bytes_idle{0};

// In a free block, after its header.
struct Links {
  BlockHeader *next, *previous;
};

uint64_t size_of(const BlockHeader* block) { return block->size_and_flags & ~FLAGS; }
bool is_free(const BlockHeader* block) { return block->size_and_flags & FREE; }
bool is_last(const BlockHeader* block) { return block->size_and_flags & LAST; }
bool is_whole_chunk(const BlockHeader* block) { return !block->previous && is_last(block); }
char* bytes_of(BlockHeader* block) { return reinterpret_cast<char*>(block); }
// The block behind one that is not its chunk's last.
BlockHeader* behind(BlockHeader* block) { return reinterpret_cast<BlockHeader*>(bytes_of(block) + size_of(block)); }
Links& links(BlockHeader* block) { return *reinterpret_cast<Links*>(bytes_of(block) + UNIT); }

int log_of(uint64_t number) { return 63 - __builtin_clzll(number); }

struct List {
  int power, of_power;
};
// The list of blocks of at least this size, and less than the next list's.
List list_of(uint64_t size) {
  const uint64_t units = size / UNIT;
  const int power = log_of(units);
  return {power, static_cast<int>((units >> (power - LOG_LISTS)) - LISTS)};
}
// Up to the least size of a list, so that a block that is freed is found for the same size again.
uint64_t rounded(uint64_t bytes) {
  const uint64_t units = std::max((bytes + UNIT - 1) / UNIT, SMALLEST / UNIT);
  const uint64_t step = uint64_t{1} << (log_of(units) - LOG_LISTS);
  return (units + step - 1) / step * step * UNIT;
}

// A chunk of memory for a block of this size, as one block that is not free.
BlockHeader* map_chunk(uint64_t size) {
  size = (std::max(size, CHUNK) + PAGE - 1) / PAGE * PAGE;
  const uint64_t room = size + HUGE_PAGE;
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(mapped != MAP_FAILED, "not enough memory: ", size, " bytes for a tensor were asked for");
  const auto begin = reinterpret_cast<uint64_t>(mapped), aligned = (begin + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  if (aligned > begin) munmap(mapped, aligned - begin);
  const uint64_t behind = begin + room - (aligned + size);
  if (behind) munmap(reinterpret_cast<void*>(aligned + size), behind);
  // Where the system has no huge pages this fails, and small ones serve.
  madvise(reinterpret_cast<void*>(aligned), size, MADV_HUGEPAGE);
  auto* block = reinterpret_cast<BlockHeader*>(aligned);
  *block = {nullptr, nullptr, size | LAST};
  return block;
}

}  // namespace

struct Arena {
  std::mutex mutex;
  uint64_t powers = 0;
  uint32_t lists[POWERS] = {};
  BlockHeader* first[POWERS][LISTS] = {};

  void insert(BlockHeader* block) {
    const auto [power, of_power] = list_of(size_of(block));
    block->size_and_flags |= FREE;
    auto*& head = first[power][of_power];
    links(block) = {head, nullptr};
    if (head) links(head).previous = block;
    head = block;
    powers |= uint64_t{1} << power;
    lists[power] |= 1u << of_power;
    if (is_whole_chunk(block)) bytes_idle += size_of(block);
  }

  void remove(BlockHeader* block) {
    const auto [power, of_power] = list_of(size_of(block));
    const auto [next, previous] = links(block);
    if (next) links(next).previous = previous;
    if (previous) links(previous).next = next;
    else if (!(first[power][of_power] = next) && !(lists[power] &= ~(1u << of_power))) powers &= ~(uint64_t{1} << power);
    block->size_and_flags &= ~FREE;
    if (is_whole_chunk(block)) bytes_idle -= size_of(block);
  }

  // Takes a free block of at least this size out of its list; null where there is none.
  BlockHeader* take(uint64_t size) {
    auto [power, of_power] = list_of(size);
    uint32_t larger = lists[power] & (~0u << of_power);
    if (!larger) {
      const uint64_t above = powers & (~uint64_t{0} << (power + 1));
      if (!above) return nullptr;
      power = __builtin_ctzll(above);
      larger = lists[power];
    }
    BlockHeader* block = first[power][__builtin_ctz(larger)];
    // What was mapped for a large block waits for the next large one: a small block that lives long would keep all of it.
    if (size <= CHUNK / 2 && size_of(block) > CHUNK) return nullptr;
    remove(block);
    return block;
  }

  // What a block has beyond `size` becomes a block of its own, if that is worth one.
  void split(BlockHeader* block, uint64_t size) {
    const uint64_t rest = size_of(block) - size, last = block->size_and_flags & LAST;
    if (rest < SMALLEST) return;
    block->size_and_flags = size;
    BlockHeader* next = behind(block);
    *next = {this, block, rest | last};
    if (!last) behind(next)->previous = next;
    insert(next);
  }

  // Adds the block behind, which is in no list, to this one.
  void join(BlockHeader* block) {
    BlockHeader* next = behind(block);
    block->size_and_flags = (size_of(block) + size_of(next)) | (next->size_and_flags & LAST);
    if (!is_last(block)) behind(block)->previous = block;
  }
};

namespace {

// Arenas of threads that have ended. Never destroyed: tensors may be freed while the process ends.
struct Idle {
  std::mutex mutex;
  std::vector<Arena*> arenas;
};
Idle& idle() {
  static auto* all = new Idle();
  return *all;
}

// The arena of this thread. What it allocates after its lease has ended takes an arena anew, and keeps it.
thread_local Arena* own = nullptr;
struct Lease {
  bool is_held = true;
  ~Lease() {
    if (!own) return;
    const std::lock_guard<std::mutex> lock(idle().mutex);
    idle().arenas.push_back(std::exchange(own, nullptr));
  }
};
thread_local Lease lease;

Arena* own_arena() {
  if (own) return own;
  // Its first use makes the lease.
  lease.is_held = true;
  const std::lock_guard<std::mutex> lock(idle().mutex);
  auto& arenas = idle().arenas;
  if (arenas.empty()) return own = new Arena();
  own = arenas.back();
  arenas.pop_back();
  return own;
}

}  // namespace

BlockHeader* arena_allocate(size_t bytes) {
  TORCH_CHECK(bytes < uint64_t{1} << 46, "not enough memory: ", bytes, " bytes for a tensor were asked for");
  const uint64_t size = rounded(bytes);
  Arena* arena = own_arena();
  const std::lock_guard<std::mutex> lock(arena->mutex);
  BlockHeader* block = arena->take(size);
  if (!block) {
    block = map_chunk(size);
    block->arena = arena;
  }
  arena->split(block, size);
  bytes_in_use += size_of(block);
  return block;
}

void arena_free(BlockHeader* block) {
  Arena* arena = block->arena;
  const std::lock_guard<std::mutex> lock(arena->mutex);
  bytes_in_use -= size_of(block);
  if (!is_last(block) && is_free(behind(block))) {
    arena->remove(behind(block));
    arena->join(block);
  }
  if (block->previous && is_free(block->previous)) {
    block = block->previous;
    arena->remove(block);
    arena->join(block);
  }
  const auto size = static_cast<int64_t>(size_of(block));
  if (is_whole_chunk(block) && bytes_idle + size > std::max(KEPT, bytes_in_use / 2)) munmap(block, size);
  else arena->insert(block);
}

// For tests: bytes of the blocks in use, and of the chunks that are kept though all of them is free.
LF_API void lf_arena_bytes(int64_t* in_use, int64_t* kept) {
  *in_use = bytes_in_use;
  *kept = bytes_idle;
}
