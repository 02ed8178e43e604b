// Replaces CUDA on machines without a GPU, so that a host compiler compiles the same source as NVRTC: CUDA's built-in
// types, variables and functions, the functions for which `device.cuh` uses PTX, and threads. A block's threads are
// fibers, which run one after the other from one barrier to the next; a barrier that some threads of a warp or block do
// not reach stops the program, and so does waiting for what nobody does. Blocks run one after the other, except those of a
// launch of resident blocks (`residents.hpp`), whose fibers run interleaved.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#define NEARFAR_DEVICE
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
// Blocks run one after the other, so one copy is enough. Resident blocks have only `dynamic_shared`, each its own.
#define __shared__ static
// As an attribute, it may also follow `static`.
#define alignas(bytes) __attribute__((aligned(bytes)))

typedef unsigned int uint;
struct uint3_ { uint x, y, z; };
static uint3_ threadIdx, blockIdx, blockDim, gridDim;

template <typename T> struct __align__(2 * sizeof(T)) vec2 { T x, y; };
template <typename T> struct __align__(4 * sizeof(T)) vec4 { T x, y, z, w; };
typedef vec2<float> float2;
typedef vec4<float> float4;
typedef vec2<int> int2;
typedef vec4<int> int4;
typedef vec2<uint> uint2;
typedef vec4<uint> uint4;
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(uint x, uint y) { return {x, y}; }
static inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }

// The maximum that a launch can add on any GPU.
static const size_t SHARED_BYTES = 227 << 10;
alignas(1024) static uint4 one_shared[SHARED_BYTES / 16];
static uint4* dynamic_shared = one_shared;

static inline int min(int a, int b) { return b < a ? b : a; }
static inline int max(int a, int b) { return a < b ? b : a; }
// CUDA's function returns the number if the other argument is NaN.
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline uint max(uint a, uint b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline uint min(uint a, uint b) { return b < a ? b : a; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

static inline uint bits_of(float value) { uint bits; memcpy(&bits, &value, 4); return bits; }
static inline float float_of(uint bits) { float value; memcpy(&value, &bits, 4); return value; }

struct half {
  unsigned short bits;
  half() = default;
  explicit half(float x) { const _Float16 value = (_Float16)x; memcpy(&bits, &value, 2); }
  operator float() const { _Float16 value; memcpy(&value, &bits, 2); return (float)value; }
};
static inline unsigned short bfloat16_bits(float x) {
  uint bits = bits_of(x);
  if (x != x) return 0x7fff;
  return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
struct nv_bfloat16 {
  unsigned short bits;
  nv_bfloat16() = default;
  explicit nv_bfloat16(float x) : bits(bfloat16_bits(x)) {}
  operator float() const { return float_of((uint)bits << 16); }
};

static inline float number_of_half(uint bits) { _Float16 value; unsigned short low = bits; memcpy(&value, &low, 2); return (float)value; }
static inline uint half_bits(float x) { _Float16 value = (_Float16)x; unsigned short bits; memcpy(&bits, &value, 2); return bits; }
static inline float number_of_bfloat(uint bits) { return float_of(bits << 16); }
static inline uint pair_f16(float low, float high) { return half_bits(low) | half_bits(high) << 16; }
static inline uint pair_bf16(float low, float high) { return bfloat16_bits(low) | (uint)bfloat16_bits(high) << 16; }
static inline uint multiply_add_f16(uint a, uint b, uint c) {
  uint result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const double exact = (double)number_of_half(a >> shift) * number_of_half(b >> shift) + number_of_half(c >> shift);
    result |= half_bits((float)exact) << shift;
  }
  return result;
}
static inline uint multiply_add_bf16(uint a, uint b, uint c) {
  uint result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const double exact = (double)number_of_bfloat(a >> shift & 0xffff) * number_of_bfloat(b >> shift & 0xffff) + number_of_bfloat(c >> shift & 0xffff);
    result |= (uint)bfloat16_bits((float)exact) << shift;
  }
  return result;
}
// The instructions of sm_89 and later; without HAS_E4M3, `functions.cuh` computes the same.
#define HAS_E4M3
static inline float number_of_e4m3(uint code) {
  const uint exponent = code >> 3 & 15, mantissa = code & 7;
  const float size = exponent ? ldexpf(8.0f + mantissa, (int)exponent - 10) : ldexpf(mantissa, -9);
  return code & 128 ? -size : size;
}
static inline uint e4m3_bits(float x) {
  const float size = fabsf(x);
  uint nearest = 0;
  for (uint code = 1; code < 127; code++) {
    const float away = fabsf(size - number_of_e4m3(code)) - fabsf(size - number_of_e4m3(nearest));
    if (away < 0 || (away == 0 && code % 2 == 0)) nearest = code;
  }
  return nearest | (std::signbit(x) ? 128 : 0);
}
static inline unsigned short pair_e4m3(float low, float high) { return (unsigned short)(e4m3_bits(low) | e4m3_bits(high) << 8); }
static inline uint halves_of_e4m3(unsigned short pair) { return pair_f16(number_of_e4m3(pair & 255), number_of_e4m3(pair >> 8)); }
static inline uint __byte_perm(uint low, uint high, uint selector) {
  const uint64_t bytes = (uint64_t)high << 32 | low;
  uint result = 0;
  for (int i = 0; i < 4; i++) result |= (uint)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return result;
}
static inline float __uint_as_float(uint bits) { return float_of(bits); }
static inline uint __float_as_uint(float value) { return bits_of(value); }
static inline void* __cvta_global_to_generic(size_t address) { return (void*)address; }

// --- threads ---------------------------------------------------------------------------------------------------------------------------

enum State { READY, AT_WARP, AT_BLOCK, POLLING, DONE };
// The fibers of all resident blocks.
static const uint MOST_FIBERS = 4096;
struct Fiber {
  State state;
  jmp_buf place;
  std::vector<char> stack;
};
static std::vector<Fiber> fibers;
// The index of the running fiber: the thread's, or among those of all resident blocks.
static uint current;
static jmp_buf scheduler;
static void (*body)(void**);
static void** arguments;
static bool backwards, copies_at_once;
static uint launches;
// Asynchronous copies of each thread. `ended` counts those of each group that has ended.
struct Copy { void* to; const void* from; uint size; };
struct Copies { std::vector<Copy> started; std::vector<size_t> ended; };
static Copies copies[MOST_FIBERS];
// Asynchronous products of each thread, in groups as copies; `fenced` since the last group.
struct Product { float* sums; const uint *upper, *lower; const char* tile; uint rows; float (*number)(uint); };
struct Products { std::vector<Product> started; std::vector<size_t> ended; bool fenced; };
static Products products[MOST_FIBERS];
// The number of threads of this launch that waited for the previous kernel.
static uint64_t waits;
static const uint STACK_BYTES = 64 << 10;

#ifdef NEARFAR_RESIDENTS
// Ends the launch.
static jmp_buf before_launch;
#endif
static char fault[200];
[[noreturn]] static void stop(const char* what) {
  snprintf(fault, sizeof fault, "emulated CUDA: %s (block %u,%u thread %u)", what, blockIdx.x, blockIdx.y, threadIdx.x);
#ifdef NEARFAR_RESIDENTS
  _longjmp(before_launch, 1);
#else
  fprintf(stderr, "%s\n", fault);
  abort();
#endif
}

static void wait_at(State where) {
  fibers[current].state = where;
  if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}
#ifndef NEARFAR_RESIDENTS
static inline void __syncthreads() { wait_at(AT_BLOCK); }
static inline void enter_block() {}
static inline void watch_read(const void*, size_t) {}
#else
static inline void __syncthreads();
static void enter_block();
extern "C" void watch_read(const void*, size_t);
#endif
static inline void __syncwarp() { wait_at(AT_WARP); }

static void fiber_main() {
  body(arguments);
  if (!copies[current].started.empty()) stop("a thread ends before its copies have arrived");
  if (!products[current].started.empty()) stop("a thread ends before its products");
  copies[current].ended.clear();
  fibers[current].state = DONE;
  _longjmp(scheduler, 1);
}

// Run a thread until its next wait, or to its end.
static void resume(uint thread, bool first) {
  current = thread;
  threadIdx.x = thread % blockDim.x;
  enter_block();
  Fiber& fiber = fibers[thread];
  fiber.state = READY;
  if (_setjmp(scheduler)) return;
  if (!first) _longjmp(fiber.place, 1);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.data();
  context.uc_stack.ss_size = fiber.stack.size();
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
  setcontext(&context);
}

// Run the threads of a warp until all of them wait for the block, have ended, or wait for others that wait for something
// that another warp does. Returns whether any thread went on.
static bool run_warp(uint warp, uint end, bool first) {
  for (bool again = false, moved = false;; again = true) {
    uint counts[DONE + 1] = {};
    for (uint place = warp; place < end; place++) {
      const uint thread = backwards ? end - 1 - (place - warp) : place;
      const State before = fibers[thread].state;
      const bool starts = first && !again;
      if (starts || before == READY || before == POLLING) {
        resume(thread, starts);
        moved |= fibers[thread].state != POLLING;
      }
    }
    // The last thread at a barrier has changed the states of those before it.
    for (uint thread = warp; thread < end; thread++) counts[fibers[thread].state]++;
    if (counts[READY]) continue;
    if (counts[AT_WARP] == end - warp) {
      for (uint thread = warp; thread < end; thread++) fibers[thread].state = READY;
      continue;
    }
    if (counts[POLLING]) return moved;
    if (counts[AT_WARP]) stop("some threads of a warp wait for others, which went on");
    if (counts[DONE] && counts[AT_BLOCK]) stop("some threads of a warp end while others wait");
    return moved;
  }
}

static void run_block() {
  const uint threads = blockDim.x, warps = (threads + 31) / 32;
  for (bool first = true;; first = false) {
    bool moved = false;
    for (uint turn = 0; turn < warps; turn++) {
      // Every other launch runs from the last thread to the first, which reveals a missing barrier.
      const uint warp = (backwards ? warps - 1 - turn : turn) * 32;
      moved |= run_warp(warp, min(warp + 32, threads), first);
    }
    uint counts[DONE + 1] = {};
    for (uint thread = 0; thread < threads; thread++) counts[fibers[thread].state]++;
    if (counts[DONE] == threads) return;
    if (counts[AT_BLOCK] == threads) {
      for (uint thread = 0; thread < threads; thread++) fibers[thread].state = READY;
      continue;
    }
    if (moved) continue;
    if (counts[POLLING]) stop("some threads wait for arrivals or bytes that nobody sends");
    stop("some warps of a block wait for others, which have ended");
  }
}

template <typename... A, size_t... I> static void call(void (*kernel)(A...), void** values, std::index_sequence<I...>) {
  kernel(*(A*)values[I]...);
}
template <auto kernel> struct Caller;
template <typename... A, void (*kernel)(A...)> struct Caller<kernel> {
  static constexpr unsigned parameters = sizeof...(A);
  // Bit i: parameter i is a pointer.
  static constexpr uint64_t pointers() {
    uint64_t mask = 0, bit = 1;
    ((mask |= std::is_pointer<A>::value ? bit : 0, bit <<= 1), ...);
    return mask;
  }
  static void run(void** values) { call(kernel, values, std::index_sequence_for<A...>{}); }
};

// `values` point to the parameters. `alone`: the threads never wait for each other, so they need no fibers.
template <auto kernel> static void launch(void** values, const uint* grid, uint threads, bool alone) {
  blockDim = {threads, 1, 1};
  gridDim = {grid[0], grid[1], 1};
  body = Caller<kernel>::run;
  arguments = values;
  // Both vary over the runs of a case's kernels, whatever their number: one with every launch, the other with every
  // second one.
  backwards = (launches ^ launches >> 1) & 1;
  copies_at_once = (launches >> 1 ^ launches >> 2) & 1;
  launches++;
  while (!alone && fibers.size() < threads) fibers.push_back({DONE, {}, std::vector<char>(STACK_BYTES)});
  waits = 0;
  const uint64_t blocks = (uint64_t)grid[0] * grid[1];
  for (uint64_t turn = 0; turn < blocks; turn++) {
    // The order of blocks is not defined either.
    const uint64_t block = backwards ? blocks - 1 - turn : turn;
    blockIdx = {(uint)(block % grid[0]), (uint)(block / grid[0]), 0};
    if (!alone) run_block();
    else for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) body(values);
  }
  if (waits && waits != blocks * threads) stop("some threads did not wait for the previous kernel, or waited twice");
}
#define KERNEL(name, alone, waiting) \
  extern "C" const bool waits_##name = waiting; \
  extern "C" const unsigned parameters_##name = Caller<name>::parameters; \
  extern "C" const uint64_t pointers_##name = Caller<name>::pointers(); \
  extern "C" void launch_##name(void** values, const uint* grid, uint threads) { launch<name>(values, grid, threads, alone); }

// --- operations of all threads of a warp ---------------------------------------------------------------------------

struct Exchange { uint words[32][8]; };
static Exchange exchanges[MOST_FIBERS / 32][2];
static uint turns[MOST_FIBERS];

// Every thread passes some words; returns the words of all threads. Two buffers alternate, so that no thread overwrites
// words that others still read.
static inline const Exchange& exchange(const uint* words, uint count) {
  Exchange& mine = exchanges[current / 32][turns[current]++ % 2];
  memcpy(mine.words[current % 32], words, 4 * count);
  __syncwarp();
  return mine;
}

static inline float __shfl_xor_sync(uint, float value, int step) {
  uint word = bits_of(value);
  return float_of(exchange(&word, 1).words[(current % 32) ^ step][0]);
}

static inline int __any_sync(uint, int condition) {
  uint word = condition != 0;
  const Exchange& all = exchange(&word, 1);
  for (uint lane = 0; lane < 32; lane++) word |= all.words[lane][0];
  return (int)word;
}

template <float (*number)(uint)> static inline void mma(float* sums, const uint* a, const uint* b) {
  uint words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const Exchange& all = exchange(words, 6);
  const uint lane = current % 32;
  for (uint i = 0; i < 4; i++) {
    const uint row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    float sum = sums[i];
    for (uint k = 0; k < 16; k++) {
      // PTX ISA, fragments of mma.m16n8k16: k 8 to 15 are in the next word, rows 8 to 15 in the one after that.
      const uint word_a = all.words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], word_b = all.words[column * 4 + k % 8 / 2][4 + k / 8];
      sum += number(word_a >> k % 2 * 16 & 0xffff) * number(word_b >> k % 2 * 16 & 0xffff);
    }
    sums[i] = sum;
  }
}
static inline void mma_f16(float* sums, const uint* a, const uint* b) { mma<number_of_half>(sums, a, b); }
static inline void mma_bf16(float* sums, const uint* a, const uint* b) { mma<number_of_bfloat>(sums, a, b); }

// PTX ISA, ldmatrix: transposed, thread i has rows 2 (i % 4) and the next of column i / 4 of each matrix.
static inline void load_transposed(uint* words, const void* row) {
  if ((uintptr_t)row % 16) stop("a row of a matrix is not aligned");
  uint address[2];
  memcpy(address, &row, 8);
  const Exchange& all = exchange(address, 2);
  for (uint matrix = 0; matrix < 4; matrix++) {
    words[matrix] = 0;
    for (uint i = 0; i < 2; i++) {
      const unsigned short* from;
      memcpy(&from, all.words[matrix * 8 + current % 4 * 2 + i], 8);
      words[matrix] |= (uint)from[current % 32 / 4] << 16 * i;
    }
  }
}

// A copy happens when the thread waits for it, or immediately in other launches: a GPU may do either.
static inline void run_copy(const Copy& copy) {
  if (copy.from) memcpy(copy.to, copy.from, copy.size);
  else memset(copy.to, 0, copy.size);
}
static inline void start_copy(void* shared, const void* global, uint size) {
  if (((uintptr_t)shared | (uintptr_t)global) % size) stop("an asynchronous copy is not aligned");
  const Copy copy = {shared, global, size};
  copies[current].started.push_back(copy);
  // A GPU may read the memory as soon as the copy has started.
  if (copy.from) watch_read(copy.from, size);
  if (copies_at_once) run_copy(copy);
}
static inline void copy_16_bytes(void* shared, const void* global, int present) { start_copy(shared, present ? global : nullptr, 16); }
static inline void copy_8_bytes(void* shared, const void* global) { start_copy(shared, global, 8); }
static inline void copy_4_bytes(void* shared, const void* global) { start_copy(shared, global, 4); }
static inline void complete_copies(size_t count) {
  std::vector<Copy>& started = copies[current].started;
  for (size_t i = 0; i < count && !copies_at_once; i++) run_copy(started[i]);
  started.erase(started.begin(), started.begin() + count);
}
static inline void wait_for_copies() {
  complete_copies(copies[current].started.size());
  copies[current].ended.clear();
}
static inline void commit_copies() {
  size_t count = copies[current].started.size();
  for (size_t each : copies[current].ended) count -= each;
  copies[current].ended.push_back(count);
}
template <size_t groups> static inline void wait_for_copies_before() {
  std::vector<size_t>& ended = copies[current].ended;
  while (ended.size() > groups) {
    complete_copies(ended.front());
    ended.erase(ended.begin());
  }
}

#include "hopper.hpp"

// Kernels and blocks run one after the other here, so there is nothing to wait for; `launch` counts the threads that
// waited.
static inline void wait_for_previous_kernel() { waits++; }
static inline void allow_next_kernel() {}
#ifdef NEARFAR_RESIDENTS
#include "residents.hpp"
#else
static inline uint arrive(uint* counter) { return (*counter)++; }
#endif

// PTX ISA, ex2.approx.ftz: results below the normal numbers are 0.
static inline float fast_exp2(float value) {
  const float result = exp2f(value);
  return result < 1.17549435e-38f ? 0.0f : result;
}
static inline float fast_reciprocal(float value) { return 1.0f / value; }
