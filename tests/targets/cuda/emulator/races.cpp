// Finds races of resident blocks in global memory, by vector clocks of warps (Flanagan and Freund 2009, FastTrack). The
// compiler reports every access through the functions of -fsanitize=thread, which are defined here instead of in its own
// library. A warp's threads count as one. Two accesses of which one is a write race, unless the first one is before the
// second by a chain of barriers of a block and of releases and acquires of counters.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

typedef std::vector<uint32_t> Clock;
// The last accesses to two bytes, as the clock of the warp that made them; 0 for none. `reads` holds those of every warp
// once several have read.
struct Cell {
  uint32_t written, read;
  uint16_t writer, reader;
  uint32_t* reads;
};
struct Range { uint64_t start, size; Cell* cells; };

static std::vector<Range> ranges;
static std::vector<Clock> clocks;
static std::map<const void*, Clock> released;
static std::vector<uint32_t*> read_lists;
static char race[200];
static size_t last_range;

extern "C" unsigned watched_warp;
unsigned watched_warp;

static void join(Clock& clock, const Clock& other) {
  for (size_t i = 0; i < clock.size(); i++)
    if (clock[i] < other[i]) clock[i] = other[i];
}

static const Range* range_of(uint64_t address) {
  if (ranges.empty()) return nullptr;
  const Range& last = ranges[last_range];
  if (address - last.start < last.size) return &last;
  size_t low = 0, high = ranges.size();
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (ranges[middle].start <= address ? low : high) = middle;
  }
  if (address - ranges[low].start >= ranges[low].size) return nullptr;
  last_range = low;
  return &ranges[low];
}

static void report(const Range* range, uint64_t address, const char* does, unsigned other, const char* did) {
  if (race[0]) return;
  snprintf(race, sizeof race, "warp %u %s byte %llu of the array at %#llx, which warp %u %s without an order between them",
           watched_warp, does, (unsigned long long)(address - range->start), (unsigned long long)range->start, other, did);
}

static void access(const void* pointer, size_t size, bool writes) {
  const uint64_t address = (uint64_t)pointer;
  const Range* range = range_of(address);
  if (!range || race[0]) return;
  const unsigned warp = watched_warp;
  Clock& clock = clocks[warp];
  const uint64_t end = (address + size - 1 - range->start) / 2;
  for (uint64_t i = (address - range->start) / 2; i <= end && i < range->size / 2; i++) {
    Cell& cell = range->cells[i];
    if (cell.written > clock[cell.writer]) report(range, address, writes ? "writes" : "reads", cell.writer, "wrote");
    if (!writes) {
      if (cell.reads) cell.reads[warp] = clock[warp];
      else if (!cell.read || cell.reader == warp) cell.read = clock[warp], cell.reader = warp;
      else {
        cell.reads = (uint32_t*)calloc(clocks.size(), sizeof(uint32_t));
        read_lists.push_back(cell.reads);
        cell.reads[cell.reader] = cell.read;
        cell.reads[warp] = clock[warp];
      }
      continue;
    }
    if (!cell.reads && cell.read > clock[cell.reader]) report(range, address, "writes", cell.reader, "read");
    for (unsigned other = 0; cell.reads && other < clocks.size(); other++)
      if (cell.reads[other] > clock[other]) report(range, address, "writes", other, "read");
    cell.written = clock[warp], cell.writer = warp;
  }
}

extern "C" {
void watch_start(unsigned warps, const uint64_t* pairs, unsigned count) {
  race[0] = 0, last_range = 0;
  clocks.assign(warps, Clock(warps));
  for (unsigned warp = 0; warp < warps; warp++) clocks[warp][warp] = 1;
  for (unsigned i = 0; i < count; i++)
    ranges.push_back({pairs[2 * i], pairs[2 * i + 1], (Cell*)calloc(pairs[2 * i + 1] / 2 + 1, sizeof(Cell))});
}
const char* watch_end() {
  for (const Range& range : ranges) free(range.cells);
  for (uint32_t* reads : read_lists) free(reads);
  ranges.clear(), read_lists.clear(), released.clear();
  return race[0] ? race : nullptr;
}
void watch_meeting(const unsigned* fibers, unsigned count) {
  Clock all(clocks.size());
  for (unsigned i = 0; i < count; i++)
    if (i == 0 || fibers[i] / 32 != fibers[i - 1] / 32) join(all, clocks[fibers[i] / 32]);
  for (unsigned i = 0; i < count; i++) {
    const unsigned warp = fibers[i] / 32;
    if (i && warp == fibers[i - 1] / 32) continue;
    const uint32_t own = clocks[warp][warp];
    clocks[warp] = all;
    clocks[warp][warp] = own + 1;
  }
}
void watch_release(const void* counter) {
  Clock& mine = clocks[watched_warp];
  Clock& theirs = released.emplace(counter, Clock(clocks.size())).first->second;
  join(theirs, mine);
  mine[watched_warp]++;
}
void watch_acquire(const void* counter) {
  const auto found = released.find(counter);
  if (found != released.end()) join(clocks[watched_warp], found->second);
}
void watch_read(const void* address, size_t size) { access(address, size, false); }

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
void __tsan_read_range(void* address, size_t size) { access(address, size, false); }
void __tsan_write_range(void* address, size_t size) { access(address, size, true); }
#define WATCH(size) \
  void __tsan_read##size(void* address) { access(address, size, false); } \
  void __tsan_write##size(void* address) { access(address, size, true); } \
  void __tsan_unaligned_read##size(void* address) { access(address, size, false); } \
  void __tsan_unaligned_write##size(void* address) { access(address, size, true); }
WATCH(1)
WATCH(2)
WATCH(4)
WATCH(8)
WATCH(16)
// clang reports these as calls.
void* __tsan_memcpy(void* to, const void* from, size_t size) {
  access(from, size, false), access(to, size, true);
  return memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, size_t size) {
  access(from, size, false), access(to, size, true);
  return memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) {
  access(to, size, true);
  return memset(to, value, size);
}
}
