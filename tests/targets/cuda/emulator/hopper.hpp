// The functions of `wgmma.cuh`, for `prelude.hpp`: asynchronous products of four warps, and copies of tiles that barriers
// count.

// PTX ISA, register fragments for wgmma.mma_async.m64nNk16: each warp has 16 rows, as mma.m16n8k16 has; and a matrix in
// shared memory with 128-byte swizzle: rows of 128 bytes, in which bits 4 to 6 of an address are XORed with bits 7 to 9.
static inline void run_product(const Product& product) {
  uint words[4] = {product.upper[0], product.lower[0], product.upper[1], product.lower[1]};
  const Exchange& all = exchange(words, 4);
  const uint lane = current % 32;
  float a[2][16];
  for (uint below = 0; below < 2; below++)
    for (uint k = 0; k < 16; k++)
      a[below][k] = product.number(all.words[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + below] >> k % 2 * 16 & 0xffff);
  for (uint i = 0; i < product.rows / 2; i++) {
    const uint row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = product.sums[i];
    for (uint k = 0; k < 16; k++) {
      uintptr_t address = (uintptr_t)product.tile + row * 128 + k * 2;
      address ^= address >> 3 & 0x70;
      sum += a[i / 2 % 2][k] * product.number(*(const unsigned short*)address);
    }
    product.sums[i] = sum;
  }
}
static inline void start_product(const Product& product) {
  if (!products[current].fenced) stop("a product reads registers without a fence");
  if ((uintptr_t)product.tile % 1024 >= 128 || (uintptr_t)product.tile % 32) stop("a tile of a product is not aligned");
  products[current].started.push_back(product);
  if (copies_at_once) run_product(product);
}
template <uint rows, float (*number)(uint)> static inline void wgmma(float* sums, const uint* upper, const uint* lower, const void* tile) {
  start_product({sums, upper, lower, (const char*)tile, rows, number});
}
#define wgmma_64_f16 wgmma<64, number_of_half>
#define wgmma_128_f16 wgmma<128, number_of_half>
#define wgmma_64_bf16 wgmma<64, number_of_bfloat>
#define wgmma_128_bf16 wgmma<128, number_of_bfloat>
template <int count> static inline void compute_now(uint*) {}
template <int count> static inline void use_sums(float*) {}
static inline void start_products() { products[current].fenced = true; }
static inline void commit_products() {
  Products& mine = products[current];
  size_t count = mine.started.size();
  for (size_t each : mine.ended) count -= each;
  mine.ended.push_back(count);
  mine.fenced = false;
}
template <size_t groups> static inline void wait_for_products_before() {
  Products& mine = products[current];
  while (mine.ended.size() > groups) {
    const size_t count = mine.ended.front();
    for (size_t i = 0; i < count && !copies_at_once; i++) run_product(mine.started[i]);
    mine.started.erase(mine.started.begin(), mine.started.begin() + count);
    mine.ended.erase(mine.ended.begin());
  }
}

// A barrier's copies happen when a thread waits for them, or immediately in other launches. `left` is the number of
// arrivals that this phase misses, and `bytes` how many are announced that no copy brings.
struct Barrier { uint identity : 16, arrivals : 8, phase : 1; uint left : 8, bytes : 24; };
static std::vector<std::pair<Barrier*, Copy>> tile_copies;
static const uint CREATED = 0x5ea1;
static inline Barrier* barrier_at(void* address) {
  Barrier* barrier = (Barrier*)address;
  if (barrier->identity != CREATED) stop("a barrier is used before it was created");
  return barrier;
}
// End the phase, if nothing is missing.
static inline void complete(Barrier* barrier) {
  if (barrier->left || barrier->bytes) return;
  for (size_t i = 0; i < tile_copies.size();) {
    if (tile_copies[i].first != barrier) { i++; continue; }
    run_copy(tile_copies[i].second);
    tile_copies.erase(tile_copies.begin() + i);
  }
  barrier->left = barrier->arrivals;
  barrier->phase ^= 1;
}
static inline void create_barrier(void* barrier, int arrivals) {
  *(Barrier*)barrier = {CREATED, (uint)arrivals, 0, (uint)arrivals, 0};
}
static inline void publish_barriers() {}
static inline void arrive_with(Barrier* barrier, uint bytes) {
  if (!barrier->left) stop("a thread arrives at a barrier before its last phase has ended");
  barrier->left--;
  barrier->bytes += bytes;
}
static inline void arrive_at(void* address) {
  Barrier* barrier = barrier_at(address);
  arrive_with(barrier, 0);
  complete(barrier);
}
static inline void expect_bytes(void* address, int count) { arrive_with(barrier_at(address), count); }
static inline void copy_tile(void* shared, const void* global, int size, void* address) {
  if (((uintptr_t)shared | (uintptr_t)global | (uintptr_t)size) % 16) stop("a copy of a tile is not aligned");
  Barrier* barrier = barrier_at(address);
  if (barrier->bytes < (uint)size) stop("a barrier does not expect the bytes of a copy");
  barrier->bytes -= size;
  const Copy copy = {shared, global, (uint)size};
  if (copies_at_once) run_copy(copy);
  else tile_copies.push_back({barrier, copy});
}
static inline void wait_for_phase(void* address, int phase) {
  Barrier* barrier = barrier_at(address);
  while (barrier->phase == (uint)phase) {
    complete(barrier);
    if (barrier->phase == (uint)phase) wait_at(POLLING);
  }
}
