// GPU operations of generated kernels besides CUDA's built-ins, as PTX (PTX ISA 8.0; sm_80): 16-bit floats,
// asynchronous copies, tensor cores. No CUDA header is included, so NVRTC compiles kernels with its wheel alone.
typedef unsigned int uint;

// The shared memory that a launch adds for kernels that need more than they can declare. `wgmma.cuh` needs the alignment.
extern __shared__ __align__(1024) uint4 dynamic_shared[];

struct half {
  unsigned short bits;
  half() = default;
  __device__ __forceinline__ explicit half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  __device__ __forceinline__ operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};
struct nv_bfloat16 {
  unsigned short bits;
  nv_bfloat16() = default;
  __device__ __forceinline__ explicit nv_bfloat16(float value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  __device__ __forceinline__ operator float() const { return __uint_as_float((uint)bits << 16); }
};

// A pair of 16-bit floats is a word with the first one in the low half.
__device__ __forceinline__ uint pair_f16(float low, float high) {
  uint word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ uint pair_bf16(float low, float high) {
  uint word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
// 8-bit floats (E4M3), which sm_89 introduced; a pair is 16 bits with the first one in the low byte.
#if __CUDA_ARCH__ >= 890
#define HAS_E4M3
__device__ __forceinline__ unsigned short pair_e4m3(float low, float high) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ uint halves_of_e4m3(unsigned short pair) {
  uint word;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"(pair));
  return word;
}
#endif
__device__ __forceinline__ uint multiply_add_f16(uint a, uint b, uint c) {
  uint result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
__device__ __forceinline__ uint multiply_add_bf16(uint a, uint b, uint c) {
  uint result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// Copies 16 bytes to shared memory, or zeros if there is nothing to copy. The copy is complete for the calling thread
// after it has waited.
__device__ __forceinline__ void copy_16_bytes(void* shared, const void* global, int present) {
  const uint address = (uint)__cvta_generic_to_shared(shared);
  const int size = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(size) : "memory");
}
__device__ __forceinline__ void copy_8_bytes(void* shared, const void* global) {
  const uint address = (uint)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_4_bytes(void* shared, const void* global) {
  const uint address = (uint)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(global) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Groups of copies: all since the group before. A thread can wait for all groups but the last few.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups> __device__ __forceinline__ void wait_for_copies_before() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

__device__ __forceinline__ float fast_exp2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ float fast_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// Programmatic dependent launch (PTX ISA, griddepcontrol; sm_90): a kernel may start while the previous one still runs,
// and must wait for its end before it reads a result or writes anything. Older GPUs start it later.
#if __CUDA_ARCH__ >= 900
// The driver looks for this name in a cubin: all its kernels wait.
extern "C" __device__ uint every_kernel_waits = 1;
#endif
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Adds 1 to a counter that workgroups share and returns its former value. All that the calling thread wrote before is
// visible to a thread that sees the new value (PTX ISA, memory consistency model).
__device__ __forceinline__ uint arrive(uint* counter) {
  uint before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Loads four 8 by 8 matrices of 16-bit elements from shared memory, transposed. Thread i passes the address of row
// i % 8 of matrix i / 8.
__device__ __forceinline__ void load_transposed(uint* words, const void* row) {
  const uint address = (uint)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// sums (16, 8) += a (16, 16) @ b (16, 8), distributed over a warp as in PTX (PTX ISA, matrix fragments for
// mma.m16n8k16).
__device__ __forceinline__ void mma_f16(float* sums, const uint* a, const uint* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bf16(float* sums, const uint* a, const uint* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
