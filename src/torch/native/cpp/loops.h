// What loops over elements share: float32 arithmetic on float32 or bfloat16 memory, compiled for several machines.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#if defined(__x86_64__)
#define LF_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LF_CLONES
#endif
// A body that takes either kind of memory is inlined into one function for each, since clones cannot be templates.
#define LF_BODY template <typename T> static inline __attribute__((always_inline))

struct bf16 {
  uint16_t bits;
};

static inline __attribute__((always_inline)) float load(const float& x) { return x; }
static inline __attribute__((always_inline)) float load(const bf16& x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
static inline __attribute__((always_inline)) void store(float& to, float x) { to = x; }
// To the nearest, ties to even; a NaN stays one.
static inline __attribute__((always_inline)) void store(bf16& to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

// Cephes' expf, as a loop that vectorises; relative error below 2e-7.
static inline __attribute__((always_inline)) float fast_exp(float x) {
  x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return p * scale;
}

// Memory that begins at a line of the cache: a register that lies across two of them is read and written in two parts. In front of it is the
// address that `new` gave, a multiple of 16.
static inline void* new_at_line(size_t bytes) {
  char* begin = static_cast<char*>(::operator new(bytes + 64));
  char* at = begin + 64 - reinterpret_cast<uintptr_t>(begin) % 64;
  std::memcpy(at - sizeof(begin), &begin, sizeof(begin));
  return at;
}
static inline void delete_at_line(void* at) {
  char* begin;
  std::memcpy(&begin, static_cast<char*>(at) - sizeof(begin), sizeof(begin));
  ::operator delete(begin);
}
template <typename T> struct AtLine {
  using value_type = T;
  AtLine() = default;
  template <typename U> AtLine(const AtLine<U>&) {}
  T* allocate(size_t num) { return static_cast<T*>(new_at_line(num * sizeof(T))); }
  void deallocate(T* at, size_t) { delete_at_line(at); }
};
template <typename T, typename U> bool operator==(const AtLine<T>&, const AtLine<U>&) { return true; }
template <typename T, typename U> bool operator!=(const AtLine<T>&, const AtLine<U>&) { return false; }
template <typename T> using LineVector = std::vector<T, AtLine<T>>;
