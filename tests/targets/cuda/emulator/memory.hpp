// The emulated GPU's memory and faults. An allocation ends at a page that cannot be accessed, and all its pages become
// inaccessible when it is freed, so a kernel or a copy that leaves its allocation faults at that very access. The fault
// becomes CUDA_ERROR_ILLEGAL_ADDRESS, as on a GPU, and stays for the rest of the process.
#pragma once
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>

typedef int Result;
enum : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  COOPERATIVE_LAUNCH_TOO_LARGE = 720,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  CONTEXT_IS_DESTROYED = 709,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_MERGE = 902,
  CAPTURE_ISOLATION = 905,
  CAPTURED_EVENT = 907,
  CAPTURE_WRONG_THREAD = 908,
  UNKNOWN = 999,
};
typedef std::function<void()> Work;

static const size_t PAGE = 4096, ALIGNMENT = 256;
static const unsigned char BEHIND = 0xa5;

// After a fault every call returns it. `explanation` is what cuGetErrorString adds.
static Result fault;
static std::string explanation;

static void fail(Result status, const std::string& text) {
  if (fault) return;
  fault = status;
  explanation = text;
}

struct Range {
  size_t size, mapped;
  char* mapping;
};
typedef std::map<uint64_t, Range> Ranges;
static Ranges allocated, pinned;
static size_t free_bytes = size_t(1) << 32;

static size_t rounded(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

// The allocation that contains an address, or null.
static const Ranges::value_type* range_of(const Ranges& ranges, uint64_t address) {
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return nullptr;
  const auto& range = *std::prev(next);
  return address < range.first + range.second.size ? &range : nullptr;
}
static bool within(const Ranges& ranges, uint64_t address, size_t size) {
  const auto* range = range_of(ranges, address);
  return range && size <= range->first + range->second.size - address;
}

// Memory that starts as 0xff, which is NaN in every float format.
static uint64_t allocate(Ranges& ranges, size_t size) {
  const size_t held = rounded(size, ALIGNMENT), accessible = rounded(held, PAGE);
  void* mapping = mmap(nullptr, accessible + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, accessible, PROT_READ | PROT_WRITE)) return 0;
  char* start = (char*)mapping + accessible - held;
  memset(start, 0xff, size);
  memset(start + size, BEHIND, held - size);
  ranges[(uint64_t)start] = {size, accessible, (char*)mapping};
  return (uint64_t)start;
}
static bool release(Ranges& ranges, uint64_t address) {
  auto range = ranges.find(address);
  if (range == ranges.end()) return false;
  // The addresses stay reserved, so no later allocation makes a use of freed memory look valid.
  mmap(range->second.mapping, range->second.mapped, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  ranges.erase(range);
  return true;
}
static void check_behind(const Ranges::value_type& range) {
  const size_t held = rounded(range.second.size, ALIGNMENT);
  for (size_t i = range.second.size; i < held; i++)
    if (((unsigned char*)range.first)[i] != BEHIND) fail(ILLEGAL_ADDRESS, "a kernel wrote behind an allocation");
}

// --- running work that may access what it must not ---

static thread_local sigjmp_buf escape;
static thread_local bool guarded;
static struct sigaction previous_action;

static void on_segfault(int number, siginfo_t*, void*) {
  if (guarded) siglongjmp(escape, 1);
  // Not ours: the access is repeated and reaches the previous handler.
  sigaction(number, &previous_action, nullptr);
}
static void run_guarded(const Work& work) {
  if (fault) return;
  struct sigaction action = {};
  action.sa_sigaction = on_segfault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &previous_action);
  if (!sigsetjmp(escape, 1)) {
    guarded = true;
    work();
  } else {
    fail(ILLEGAL_ADDRESS, "an access beyond an allocation, or to freed memory");
  }
  guarded = false;
  sigaction(SIGSEGV, &previous_action, nullptr);
}

// FNV-1a over words: whether an array changed between its submission and its copy.
static uint64_t hash_of(const void* data, size_t size) {
  uint64_t hash = 14695981039346656037ull;
  const char* bytes = (const char*)data;
  for (size_t i = 0; i < size; i += 8) {
    uint64_t word = 0;
    memcpy(&word, bytes + i, size - i < 8 ? size - i : 8);
    hash = (hash ^ word) * 1099511628211ull;
  }
  return hash;
}
