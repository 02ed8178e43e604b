// Functions of generated kernels, based on `device.cuh` and CUDA's built-ins: vectors of 16-bit floats, WGSL's
// functions, and the weights of packed words as pairs of 16-bit floats.
struct __align__(4) half2 { half x, y; };
struct __align__(8) half4 { half x, y, z, w; };
struct __align__(4) nv_bfloat162 { nv_bfloat16 x, y; };
struct __align__(8) nv_bfloat164 { nv_bfloat16 x, y, z, w; };

__device__ __forceinline__ float low_half(uint word) {
  half value;
  value.bits = (unsigned short)word;
  return (float)value;
}
__device__ __forceinline__ float high_half(uint word) { return low_half(word >> 16); }

// --- WGSL's built-in functions (W3C, WGSL); for vectors, one function per lane ---
__device__ __forceinline__ float unpack2x16float_x(uint word) { return low_half(word); }
__device__ __forceinline__ float unpack2x16float_y(uint word) { return high_half(word); }
__device__ __forceinline__ uint pack2x16float(float2 value) { return pair_f16(value.x, value.y); }
// -128 counts as -127.
__device__ __forceinline__ float snorm(uint byte) { return fmaxf((float)(signed char)byte * (1.0f / 127.0f), -1.0f); }
__device__ __forceinline__ float unpack4x8snorm_x(uint word) { return snorm(word & 255u); }
__device__ __forceinline__ float unpack4x8snorm_y(uint word) { return snorm((word >> 8) & 255u); }
__device__ __forceinline__ float unpack4x8snorm_z(uint word) { return snorm((word >> 16) & 255u); }
__device__ __forceinline__ float unpack4x8snorm_w(uint word) { return snorm(word >> 24); }
__device__ __forceinline__ uint snorm_code(float value) {
  return (uint)(int)floorf(0.5f + 127.0f * fminf(fmaxf(value, -1.0f), 1.0f)) & 255u;
}
__device__ __forceinline__ uint pack4x8snorm(float4 value) {
  return snorm_code(value.x) | (snorm_code(value.y) << 8) | (snorm_code(value.z) << 16) | (snorm_code(value.w) << 24);
}
__device__ __forceinline__ float round_even(float value) { return rintf(value); }
__device__ __forceinline__ float subgroupAdd(float value) {
  for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}
__device__ __forceinline__ int any_in_warp(bool condition) { return __any_sync(0xffffffffu, condition); }
// A reduction over the four threads that hold a row of a tile (PTX ISA, matrix fragments).
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

__device__ __forceinline__ float pair_sum(float value) { return value + __shfl_xor_sync(0xffffffffu, value, 1); }
__device__ __forceinline__ float warp_max(float value) {
  for (int step = 16; step; step >>= 1) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}
__device__ __forceinline__ void warp_barrier() { __syncwarp(); }

// A block has no third dimension, which the compiler cannot know.
__device__ __forceinline__ uint unknown(uint value) { return value * blockDim.z; }

// One condition per lane.
struct bool2 { bool x, y; };
struct bool4 { bool x, y, z, w; };
__device__ __forceinline__ bool2 bools(bool x, bool y) { return {x, y}; }
__device__ __forceinline__ bool4 bools(bool x, bool y, bool z, bool w) { return {x, y, z, w}; }

// --- eight weights as pairs of 16-bit floats: weights 0 and 2, 1 and 3, 4 and 6, 5 and 7 ---
#define ONES_F16 0x3c003c00u
#define QUARTERS_F16 0x34003400u
#define SIXTEENTHS_F16 0x2c002c00u
#define ONES_BF16 0x3f803f80u
// Adding minus zero does not change any number.
#define NOTHING 0x80008000u

// Duplicates one of the two scales in a word.
__device__ __forceinline__ uint scale_f16(uint word, int odd) { return __byte_perm(word, 0u, odd ? 0x3232u : 0x1010u); }
__device__ __forceinline__ uint scale_bf16(uint word, int odd) {
  const float scale = odd ? high_half(word) : low_half(word);
  return pair_bf16(scale, scale);
}

__device__ __forceinline__ void scale_pairs_f16(uint* pairs, uint scale) {
  for (int i = 0; i < 4; i++) pairs[i] = multiply_add_f16(pairs[i], scale, NOTHING);
}
__device__ __forceinline__ void scale_pairs_bf16(uint* pairs, uint scale) {
  for (int i = 0; i < 4; i++) pairs[i] = multiply_add_bf16(pairs[i], scale, NOTHING);
}

// Codes are converted to floats by their bits: 0x6400 is 1,024, and OR adds the code to it. See quant/q4.py for the
// order of nibbles, and quant/codes.py for that of two bits, of which a word holds eight in its bytes' low nibbles.
__device__ __forceinline__ void unpack_q2_f16(uint* pairs, uint word) {
  const uint next = word >> 8;
  pairs[0] = multiply_add_f16((word & 0x00030003u) | 0x64006400u, ONES_F16, 0xe402e402u);
  pairs[1] = multiply_add_f16((next & 0x00030003u) | 0x64006400u, ONES_F16, 0xe402e402u);
  // (1,024 + 4 c) / 4 - 258 is c - 2.
  pairs[2] = multiply_add_f16((word & 0x000c000cu) | 0x64006400u, QUARTERS_F16, 0xdc08dc08u);
  pairs[3] = multiply_add_f16((next & 0x000c000cu) | 0x64006400u, QUARTERS_F16, 0xdc08dc08u);
}
__device__ __forceinline__ void unpack_q2_bf16(uint* pairs, uint word) {
  for (int i = 0; i < 4; i++) {
    const uint codes = (word >> (i % 2 * 8 + i / 2 * 2)) & 0x00030003u;
    pairs[i] = multiply_add_bf16(codes | 0x43004300u, ONES_BF16, 0xc302c302u);
  }
}
__device__ __forceinline__ void unpack_q4_f16(uint* pairs, uint word) {
  const uint next = word >> 8;
  pairs[0] = multiply_add_f16((word & 0x000f000fu) | 0x64006400u, ONES_F16, 0xe408e408u);
  pairs[1] = multiply_add_f16((next & 0x000f000fu) | 0x64006400u, ONES_F16, 0xe408e408u);
  // High nibbles represent 16 times their code: (1,024 + 16 c) / 16 - 72 is c - 8.
  pairs[2] = multiply_add_f16((word & 0x00f000f0u) | 0x64006400u, SIXTEENTHS_F16, 0xd480d480u);
  pairs[3] = multiply_add_f16((next & 0x00f000f0u) | 0x64006400u, SIXTEENTHS_F16, 0xd480d480u);
}
// The same, but the high nibbles' weights are 72 more: 0x5400 is 64, and OR adds a code in bits 4 to 7 to it. The caller
// holds the masks, 0x000f000f and 0x00f000f0, in registers.
__device__ __forceinline__ void unpack_raised_q4_f16(uint* pairs, uint word, uint low, uint high) {
  const uint next = word >> 8;
  pairs[0] = multiply_add_f16((word & low) | 0x64006400u, ONES_F16, 0xe408e408u);
  pairs[1] = multiply_add_f16((next & low) | 0x64006400u, ONES_F16, 0xe408e408u);
  pairs[2] = (word & high) | 0x54005400u;
  pairs[3] = (next & high) | 0x54005400u;
}
// 0x4300 is 128.
__device__ __forceinline__ void unpack_q4_bf16(uint* pairs, uint word) {
  pairs[0] = (word & 0x000f000fu) | 0x43004300u;
  pairs[1] = ((word >> 8) & 0x000f000fu) | 0x43004300u;
  pairs[2] = ((word >> 4) & 0x000f000fu) | 0x43004300u;
  pairs[3] = ((word >> 12) & 0x000f000fu) | 0x43004300u;
  for (int i = 0; i < 4; i++) pairs[i] = multiply_add_bf16(pairs[i], ONES_BF16, 0xc308c308u);
}
__device__ __forceinline__ void unpack_q8_f16(uint* pairs, uint first, uint second) {
  pairs[0] = (first & 0x00ff00ffu) | 0x64006400u;
  pairs[1] = ((first >> 8) & 0x00ff00ffu) | 0x64006400u;
  pairs[2] = (second & 0x00ff00ffu) | 0x64006400u;
  pairs[3] = ((second >> 8) & 0x00ff00ffu) | 0x64006400u;
  for (int i = 0; i < 4; i++) pairs[i] = multiply_add_f16(pairs[i], ONES_F16, 0xe480e480u);
}
// Inverting the highest bit of a signed byte adds 128 to it; one operation does so, selects bytes, and adds 1,024.
__device__ __forceinline__ void unpack_signed_f16(uint* pairs, uint first, uint second) {
  pairs[0] = (first & 0x00ff00ffu) ^ 0x64806480u;
  pairs[1] = ((first >> 8) & 0x00ff00ffu) ^ 0x64806480u;
  pairs[2] = (second & 0x00ff00ffu) ^ 0x64806480u;
  pairs[3] = ((second >> 8) & 0x00ff00ffu) ^ 0x64806480u;
  for (int i = 0; i < 4; i++) pairs[i] = multiply_add_f16(pairs[i], ONES_F16, 0xe480e480u);
}
// --- 8-bit floats (E4M3), rounded to nearest, ties to even, and limited to 448 ---
// As a float16 with the same bits, a byte's sign, exponent and mantissa represent its number divided by 256.
#define TIMES_256_F16 0x5c005c00u
__device__ __forceinline__ void unpack_e4m3_f16(uint* pairs, uint first, uint second) {
  for (int i = 0; i < 2; i++) {
    const uint word = i ? second : first;
#ifdef HAS_E4M3
    const uint ordered = __byte_perm(word, 0u, 0x3120u);
    pairs[i * 2] = halves_of_e4m3((unsigned short)ordered);
    pairs[i * 2 + 1] = halves_of_e4m3((unsigned short)(ordered >> 16));
#else
    const uint even = ((word << 8) & 0x80008000u) | ((word << 7) & 0x3f803f80u);
    const uint odd = (word & 0x80008000u) | ((word >> 1) & 0x3f803f80u);
    pairs[i * 2] = multiply_add_f16(even, TIMES_256_F16, NOTHING);
    pairs[i * 2 + 1] = multiply_add_f16(odd, TIMES_256_F16, NOTHING);
#endif
  }
}
__device__ __forceinline__ float e4m3_number(uint byte) {
#ifdef HAS_E4M3
  return low_half(halves_of_e4m3((unsigned short)byte));
#else
  return low_half(((byte << 8) & 0x8000u) | ((byte << 7) & 0x3f80u)) * 256.0f;
#endif
}
__device__ __forceinline__ float unpack4xe4m3_x(uint word) { return e4m3_number(word & 255u); }
__device__ __forceinline__ float unpack4xe4m3_y(uint word) { return e4m3_number((word >> 8) & 255u); }
__device__ __forceinline__ float unpack4xe4m3_z(uint word) { return e4m3_number((word >> 16) & 255u); }
__device__ __forceinline__ float unpack4xe4m3_w(uint word) { return e4m3_number(word >> 24); }
#ifndef HAS_E4M3
__device__ __forceinline__ uint e4m3_code(float value) {
  const float size = fminf(fabsf(value), 448.0f);
  const uint bits = __float_as_uint(size);
  // Numbers below 2^-6 are multiples of 2^-9, the distance of floats from 2^14 on. The others keep 3 bits of mantissa,
  // and 120 less in the exponent.
  const uint small = __float_as_uint(size + 16384.0f) - 0x46800000u;
  const uint normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - 960u;
  return (size < 0.015625f ? small : normal) | ((__float_as_uint(value) >> 24) & 0x80u);
}
__device__ __forceinline__ unsigned short pair_e4m3(float low, float high) {
  return (unsigned short)(e4m3_code(low) | (e4m3_code(high) << 8));
}
#endif
__device__ __forceinline__ uint pack4xe4m3(float4 value) {
  return (uint)pair_e4m3(value.x, value.y) | ((uint)pair_e4m3(value.z, value.w) << 16);
}
// A byte in the low bits of a float with exponent 23 represents 2^23 plus the byte.
__device__ __forceinline__ float code_minus_128(uint word, uint byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540u | byte)) - 8388736.0f;
}
__device__ __forceinline__ void unpack_q8_bf16(uint* pairs, uint first, uint second) {
  pairs[0] = pair_bf16(code_minus_128(first, 0), code_minus_128(first, 2));
  pairs[1] = pair_bf16(code_minus_128(first, 1), code_minus_128(first, 3));
  pairs[2] = pair_bf16(code_minus_128(second, 0), code_minus_128(second, 2));
  pairs[3] = pair_bf16(code_minus_128(second, 1), code_minus_128(second, 3));
}
// Bytes times a scale plus an offset.
__device__ __forceinline__ float scaled_code(uint word, uint byte, float scale, float offset) {
  const float code = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540u | byte)) - 8388608.0f;
  return fmaf(code, scale, offset);
}
#define SCALE_CODES(name, pair)                                                                              \
  __device__ __forceinline__ void name(uint* pairs, uint first, uint second, float scale, float offset) {    \
    for (int i = 0; i < 4; i++) {                                                                            \
      const uint word = i < 2 ? first : second;                                                              \
      const uint byte = i % 2;                                                                               \
      pairs[i] = pair(scaled_code(word, byte, scale, offset), scaled_code(word, byte + 2, scale, offset));   \
    }                                                                                                        \
  }
SCALE_CODES(scale_codes_f16, pair_f16)
SCALE_CODES(scale_codes_bf16, pair_bf16)
__device__ __forceinline__ void unpack_f16_f16(uint* pairs, uint a, uint b, uint c, uint d) {
  pairs[0] = __byte_perm(a, b, 0x5410u);
  pairs[1] = __byte_perm(a, b, 0x7632u);
  pairs[2] = __byte_perm(c, d, 0x5410u);
  pairs[3] = __byte_perm(c, d, 0x7632u);
}
__device__ __forceinline__ void unpack_f16_bf16(uint* pairs, uint a, uint b, uint c, uint d) {
  pairs[0] = pair_bf16(low_half(a), low_half(b));
  pairs[1] = pair_bf16(high_half(a), high_half(b));
  pairs[2] = pair_bf16(low_half(c), low_half(d));
  pairs[3] = pair_bf16(high_half(c), high_half(d));
}
