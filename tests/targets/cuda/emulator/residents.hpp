// Resident blocks, for `prelude.hpp`: blocks of one launch that run at the same time and wait for each other. Their warps
// run in an order that a seed determines, sometimes one block as far as it can, sometimes all in turn. Each block has its
// own shared memory, which holds no zeros at first. `races.cpp`, which sees every access to global memory, reports those
// that no chain of barriers, releases and acquires orders: a GPU may then read what was there before.
//
// If no warp can go on, the clock jumps, so that a kernel that bounds its waiting gives up; if it does not, the launch
// ends with an error, as after every fault.

// In a turn of all, a thread may go on without moving: from one load of a word to the next.
static const uint PATIENT_TURNS = 3;
static const uint MOST_BLOCKS = 64, MOST_BARRIERS = 16;
static std::vector<uint4> block_memory[MOST_BLOCKS];
// The threads that have arrived at a barrier of a block, and whether a condition held for one of them.
struct Meeting { std::vector<uint> members; uint threads; int any; };
static Meeting meetings[MOST_BLOCKS][MOST_BARRIERS];
static int meeting_results[MOST_FIBERS];
static uint64_t clock_cycles, random_state;

extern "C" {
extern unsigned watched_warp;
void watch_start(unsigned warps, const uint64_t* ranges, unsigned count);
const char* watch_end();
void watch_meeting(const unsigned* fibers, unsigned count);
void watch_release(const void* counter);
void watch_acquire(const void* counter);
}
#define UNWATCHED __attribute__((no_sanitize("thread")))

static void enter_block() {
  blockIdx.x = current / blockDim.x;
  dynamic_shared = block_memory[blockIdx.x].data();
  watched_warp = current / 32;
}

// Waits for `threads` threads of the block, whole warps; returns whether the condition holds for one of them.
static inline int any_of(uint barrier, uint threads, int condition) {
  Meeting& meeting = meetings[blockIdx.x][barrier];
  if (barrier >= MOST_BARRIERS || threads % 32) stop("a GPU does not have this barrier");
  if (!meeting.members.empty() && meeting.threads != threads) stop("threads wait at one barrier for different numbers");
  meeting.threads = threads;
  meeting.any |= condition;
  meeting.members.push_back(current);
  if (meeting.members.size() < threads) {
    wait_at(AT_BLOCK);
    return meeting_results[current];
  }
  for (uint member : meeting.members) {
    meeting_results[member] = meeting.any;
    fibers[member].state = READY;
  }
  watch_meeting(meeting.members.data(), threads);
  const int result = meeting.any;
  meeting = {};
  return result;
}
static inline void sync_team(uint barrier, uint threads) { any_of(barrier, threads, 0); }
static inline void __syncthreads() { any_of(0, blockDim.x, 0); }

UNWATCHED static inline uint arrive(uint* counter) {
  watch_acquire(counter);
  watch_release(counter);
  return (*counter)++;
}
UNWATCHED static inline void release_add(uint* counter) {
  watch_release(counter);
  ++*counter;
}
// Other warps may run before each load.
UNWATCHED static inline uint load_acquire(const uint* counter) {
  wait_at(POLLING);
  watch_acquire(counter);
  return *counter;
}
// Orders nothing. Other warps may run before the load.
UNWATCHED static inline uint load_relaxed(const uint* word) {
  wait_at(POLLING);
  return *word;
}
UNWATCHED static inline void store_relaxed(uint* word, uint value) { *word = value; }
static inline long long clock64() { return clock_cycles; }

static uint random_below(uint bound) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint)(random_state >> 33) % bound;
}

// Returns a description of the first race, or else of a fault that ended the launch; null for neither. `ranges`: the global memory, as addresses and sizes in order.
template <auto kernel>
static const char* launch_together(void** values, uint blocks, uint threads, uint seed, const uint64_t* ranges, uint count) {
  blockDim = {threads, 1, 1};
  gridDim = {blocks, 1, 1};
  blockIdx = {0, 0, 0};
  const uint total = blocks * threads, warps = total / 32;
  if (blocks > MOST_BLOCKS || total > MOST_FIBERS || threads % 32) stop("so many resident threads are not emulated");
  body = Caller<kernel>::run;
  arguments = values;
  random_state = seed;
  backwards = random_below(2), copies_at_once = random_below(2);
  while (fibers.size() < total) fibers.push_back({DONE, {}, std::vector<char>(STACK_BYTES)});
  for (uint block = 0; block < blocks; block++) block_memory[block].assign(SHARED_BYTES / 16, {~0u, ~0u, ~0u, ~0u});
  for (uint i = 0; i < total; i++) copies[i] = {}, products[i] = {};
  for (auto& of_block : meetings)
    for (Meeting& meeting : of_block) meeting = {};
  watch_start(warps, ranges, count);
  if (_setjmp(before_launch)) {
    dynamic_shared = one_shared;
    const char* race = watch_end();
    return race ? race : fault;
  }
  std::vector<uint> order(warps);
  std::vector<bool> started(warps);
  for (uint i = 0; i < warps; i++) order[i] = i;
  for (uint i = 0; i < total; i++) fibers[i].state = READY;
  for (uint left = total, idle = 0; left;) {
    const uint chosen = random_below(blocks + 1);
    bool moved = false;
    for (uint i = 0; i < warps; i++) {
      std::swap(order[i], order[i + random_below(warps - i)]);
      const uint warp = order[i];
      if (chosen < blocks && chosen != warp * 32 / threads) continue;
      moved |= run_warp(warp * 32, warp * 32 + 32, !started[warp]);
      started[warp] = true;
    }
    left = 0;
    for (uint i = 0; i < total; i++) left += fibers[i].state != DONE;
    if (moved) idle = 0;
    else if (chosen == blocks && left && ++idle > PATIENT_TURNS) {
      if (idle > 2 * PATIENT_TURNS) stop("resident blocks wait for each other");
      clock_cycles += 1ull << 40;
    }
  }
  dynamic_shared = one_shared;
  return watch_end();
}
#define RESIDENT_KERNEL(name) \
  extern "C" const bool waits_##name = false; \
  extern "C" const unsigned parameters_##name = Caller<name>::parameters; \
  extern "C" const uint64_t pointers_##name = Caller<name>::pointers(); \
  extern "C" const char* together_##name(void** values, uint blocks, uint threads, uint seed, const uint64_t* ranges, uint count) { \
    return launch_together<name>(values, blocks, threads, seed, ranges, count); \
  }
