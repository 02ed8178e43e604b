// A persistent kernel: the kernels of a whole decode step as functions of one kernel, whose workgroups stay on the GPU and
// wait for each other between the phases. `targets/cuda/persistent_source.py` adds the functions and the kernel itself,
// and describes how it works.
//
// One thread: a part of a team, which has the threads and the shared memory of one workgroup of the kernel whose function
// it calls. One workgroup: as many teams as fit, each of which computes every so many tiles of the phase.

#ifndef NEARFAR_DEVICE
// Adds 1 to a counter. All that this workgroup wrote before its last barrier is visible to those that acquire the counter.
__device__ __forceinline__ void release_add(uint* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ uint load_acquire(const uint* counter) {
  uint value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
__device__ __forceinline__ uint load_relaxed(const uint* word) {
  uint value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(uint* word, uint value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
// Barriers of some warps of a workgroup. Number 0 is that of `__syncthreads`.
__device__ __forceinline__ void sync_team(uint barrier, uint threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ int any_of(uint barrier, uint threads, int condition) {
  int any;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.s32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.s32 %0, 1, 0, q; }"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(condition)
      : "memory");
  return any;
}
#endif

// The largest number of parameters of a kernel.
#define MOST_VALUES 30
// One kernel of the step, as the host describes it: the number of its function, its tiles, of which a row has `columns`,
// and the values of its parameters.
struct __align__(16) Phase {
  uint function, tiles, columns, padding;
  unsigned long long values[MOST_VALUES];
};

static_assert(sizeof(Phase) == 256);
__device__ __forceinline__ void load_phase(Phase* shared, const Phase* global) {
  if (threadIdx.x < sizeof(Phase) / 16) copy_16_bytes((uint4*)shared + threadIdx.x, (const uint4*)global + threadIdx.x, 1);
}

// What all workgroups share. `arrivals` is never reset: before a launch it is `first`.
struct Rendezvous {
  uint* arrivals;
  // Not 0 if a launch has given up: 1 more than the number of its phase. Launches then do nothing.
  uint* failed;
  uint first;
  long long patience_cycles;
};

struct Team {
  // The threads of a workgroup of the kernel, and this one's number among them.
  uint threads, thread;
  uint barrier;
  char* shared;
  // The tile, as the kernel's blockIdx.
  uint x, y;
  const Rendezvous* all;
  uint phase;
  bool waited, gave_up;

  __device__ __forceinline__ void sync() { sync_team(barrier, threads); }

  // Waits until all workgroups have ended the phase before, and what they wrote is visible. False: it took too long, and
  // the caller must return. All threads of the workgroup call it in each phase, so that one of them reads the counter.
  __device__ __forceinline__ bool may_go_on() {
    if (waited) return !gave_up;
    waited = true;
    bool late = false;
    if (threadIdx.x == 0) {
      const uint expected = all->first + phase * gridDim.x;
      const long long start = clock64();
      while (!late && (int)(load_acquire(all->arrivals) - expected) < 0) late = clock64() - start > all->patience_cycles;
      if (late) store_relaxed(all->failed, phase + 1);
      if (phase == 0) late = load_relaxed(all->failed) != 0;
    }
    gave_up = any_of(0, blockDim.x, late);
    return !gave_up;
  }
};

// A phase's tiles, computed by the first `teams` teams of the workgroup, each with `kernel_threads` threads and `bytes` of
// shared memory; the rest is the call of the kernel's function for one tile. Sets `gave_up`. A macro, because a function
// of this size would not be inlined with certainty.
#define COMPUTE_TILES(kernel_threads, teams, bytes, ...)                                                     \
  {                                                                                                          \
    const uint index = threadIdx.x / kernel_threads;                                                         \
    const uint end = index < teams ? phase.tiles : 0;                                                        \
    Team team = {kernel_threads, threadIdx.x % kernel_threads, index + 1, shared + index * bytes, 0, 0, &all, \
                 number, false, false};                                                                      \
    _Pragma("unroll 1") for (uint tile = index * gridDim.x + blockIdx.x; tile < end && !team.gave_up;        \
                             tile += teams * gridDim.x) {                                                    \
      if (team.waited) team.sync();                                                                          \
      team.x = tile % phase.columns;                                                                         \
      team.y = tile / phase.columns;                                                                         \
      __VA_ARGS__;                                                                                           \
    }                                                                                                        \
    gave_up = !team.may_go_on();                                                                             \
  }
