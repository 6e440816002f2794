// Memory for tensors on CPUs, in huge pages where the system has them, kept for the next tensor of the size.
#pragma once
#include <cstddef>
#include <cstdint>

struct Arena;

// What an arena keeps in front of a block.
struct BlockHeader {
  Arena* arena;
  // The block in front of this one in the same chunk of memory, null at its start.
  BlockHeader* previous;
  // Bytes with the header. The lowest bits say whether it is free and whether it is its chunk's last.
  uint64_t size_and_flags;
};

// At least `bytes` of memory, the header among them, aligned to 64 bytes. Throws where the system has no memory.
BlockHeader* arena_allocate(size_t bytes);
void arena_free(BlockHeader* block);

// Whether blocks of this many bytes come from an arena: smaller ones are malloc's.
inline bool is_for_arena(size_t bytes) { return bytes >= 1024; }
