// Operations of Hopper GPUs, as PTX (PTX ISA 8.0; sm_90a): products by a group of four warps that read one operand from
// shared memory while the warps go on, copies of whole tiles, and barriers that count the bytes that have arrived.

// The matrix in shared memory: rows of 64 16-bit columns in groups of eight, 1,024 bytes apart, in which 16-byte units
// are exchanged ("128-byte swizzle": bits 4 to 6 of an address are XORed with bits 7 to 9). PTX ISA, matrix descriptor.
__device__ __forceinline__ unsigned long long tile_descriptor(const void* tile) {
  const uint address = (uint)__cvta_generic_to_shared(tile);
  return (unsigned long long)((address & 0x3ffffu) >> 4 | 1u << 16) | (unsigned long long)(1024u >> 4 | 1u << 30) << 32;
}

#define TEN(tens) "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, %" #tens "5, %" #tens "6, %" #tens "7, %" #tens "8, %" #tens "9, "
#define EIGHT_SUMS(s) "+f"((s)[0]), "+f"((s)[1]), "+f"((s)[2]), "+f"((s)[3]), "+f"((s)[4]), "+f"((s)[5]), "+f"((s)[6]), "+f"((s)[7])
#define SUMS_32(s) EIGHT_SUMS(s), EIGHT_SUMS((s) + 8), EIGHT_SUMS((s) + 16), EIGHT_SUMS((s) + 24)
#define OPERANDS(a, b, tile) "r"((a)[0]), "r"((b)[0]), "r"((a)[1]), "r"((b)[1]), "l"(tile_descriptor(tile))
#define WGMMA_64(type)                                                                                            \
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type \
               " {" TEN() TEN(1) TEN(2) "%30, %31}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;}"                    \
               : SUMS_32(sums)                                                                                    \
               : OPERANDS(upper, lower, tile)                                                                     \
               : "memory")
#define WGMMA_128(type)                                                                                            \
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
               " {" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)                                                       \
               "%60, %61, %62, %63}, {%64, %65, %66, %67}, %68, add, 1, 1, 0;}"                                    \
               : SUMS_32(sums), SUMS_32(sums + 32)                                                                 \
               : OPERANDS(upper, lower, tile)                                                                      \
               : "memory")

// sums (64, 64 or 128) += a (64, 16) @ b (64 or 128, 16).T, for a group of four warps (PTX ISA, register fragments for
// wgmma.mma_async.m64nNk16). A thread has two rows of a: `upper` and `lower` are two pairs each. The product is
// asynchronous: operands and sums belong to the tensor cores until the thread has waited.
__device__ __forceinline__ void wgmma_64_f16(float* sums, const uint* upper, const uint* lower, const void* tile) {
  WGMMA_64("f16");
}
__device__ __forceinline__ void wgmma_64_bf16(float* sums, const uint* upper, const uint* lower, const void* tile) {
  WGMMA_64("bf16");
}
__device__ __forceinline__ void wgmma_128_f16(float* sums, const uint* upper, const uint* lower, const void* tile) {
  WGMMA_128("f16");
}
__device__ __forceinline__ void wgmma_128_bf16(float* sums, const uint* upper, const uint* lower, const void* tile) {
  WGMMA_128("bf16");
}
// The compiler computes these words before whatever follows; computed between products, they would be waited for.
template <int count> __device__ __forceinline__ void compute_now(uint* words) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+r"(words[i])::"memory");
}
// The order between registers that were written before and products that read them.
__device__ __forceinline__ void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Groups of products: all since the group before. A thread can wait for all groups but the last few.
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int groups> __device__ __forceinline__ void wait_for_products_before() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}
// The compiler reads sums only after this, because it may have changed them.
template <int count> __device__ __forceinline__ void use_sums(float* sums) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// A barrier in 8 bytes of shared memory. Each of its phases ends after a number of arrivals of threads, once all bytes
// that they announced have arrived. `publish_barriers` makes new ones visible to copies.
__device__ __forceinline__ void create_barrier(void* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((uint)__cvta_generic_to_shared(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive_at(void* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((uint)__cvta_generic_to_shared(barrier)) : "memory");
}
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void expect_bytes(void* barrier, int count) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((uint)__cvta_generic_to_shared(barrier)), "r"(count) : "memory");
}
// Starts a copy to shared memory whose bytes a barrier counts. Both addresses and the size are multiples of 16.
__device__ __forceinline__ void copy_tile(void* shared, const void* global, int size, void* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"((uint)__cvta_generic_to_shared(shared)),
               "l"(global), "r"(size), "r"((uint)__cvta_generic_to_shared(barrier))
               : "memory");
}
// Waits for the end of a phase: 0 for the first one, then 1, then 0 and so on.
__device__ __forceinline__ void wait_for_phase(void* barrier, int phase) {
  const uint address = (uint)__cvta_generic_to_shared(barrier);
  uint ended;
  do {
    asm volatile("{.reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2; selp.u32 %0, 1, 0, ended;}"
                 : "=r"(ended)
                 : "r"(address), "r"(phase)
                 : "memory");
  } while (!ended);
}
