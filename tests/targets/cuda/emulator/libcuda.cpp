// A libcuda.so.1 for machines without a GPU, as far as targets/cuda/driver.py calls it. Device memory is host memory, and kernels are those
// of the libraries that NEARFAR_EMULATED lists; see prelude.hpp. It is as strict as a real driver where one GPU thread per process hides
// mistakes: a current context per thread, work that runs as late as it may (when somebody waits for it, even copies from unpinned memory),
// memory that is overwritten when it is freed, and a context that is lost for good after a fault (any launch once the file NEARFAR_FAULT exists).
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

typedef int Result;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, CONTEXT_IS_DESTROYED = 709 };
typedef void (*Launch)(void**, const unsigned*, unsigned);
struct Context { int references; };
struct Function { Launch launch; unsigned parameters; };
struct Call { const Function* function; unsigned grid[2], threads; std::vector<uint64_t> values; };
typedef std::vector<Call> Graph;
struct Stream { std::deque<std::function<void()>> queue; uint64_t submitted, done; Graph* capturing; };
struct Event { Stream* stream; uint64_t position; };

static std::mutex mutex;
static thread_local Context* current;
// A new one after the last release, so that nobody uses the old one by accident.
static Context* primary;
static std::vector<void*> libraries;
static std::set<Stream*> streams;
static std::map<uint64_t, size_t> allocated, pinned;
static size_t free_bytes = size_t(1) << 32;
static Result fault;

static Result ready() {
  if (!current) return INVALID_CONTEXT;
  return current->references ? fault : CONTEXT_IS_DESTROYED;
}
// What every call needs that works on a context.
#define ENTER std::lock_guard<std::mutex> guard(mutex); if (Result bad = ready()) return bad

static bool within(const std::map<uint64_t, size_t>& ranges, uint64_t address, size_t size) {
  auto next = ranges.upper_bound(address);
  return next != ranges.begin() && address + size <= std::prev(next)->first + std::prev(next)->second;
}
static void run(const Call& call) {
  const char* file = getenv("NEARFAR_FAULT");
  if (fault || (file && !access(file, F_OK))) { fault = ILLEGAL_ADDRESS; return; }
  std::vector<void*> pointers;
  for (const uint64_t& value : call.values) pointers.push_back((void*)&value);
  call.function->launch(pointers.data(), call.grid, call.threads);
}
static Result drain(Stream* stream, uint64_t position) {
  for (; stream->done < position; stream->done++) {
    stream->queue.front()();
    stream->queue.pop_front();
  }
  return fault;
}
static Result submit(Stream* stream, std::function<void()> work) {
  if (!streams.count(stream) || stream->capturing) return INVALID_VALUE;
  stream->queue.push_back(std::move(work));
  stream->submitted++;
  return SUCCESS;
}
static Result release(std::map<uint64_t, size_t>& ranges, uint64_t address) {
  if (!ranges.count(address)) return INVALID_VALUE;
  for (Stream* stream : streams) drain(stream, stream->submitted);
  memset((void*)address, 0xdd, ranges[address]);
  free((void*)address);
  ranges.erase(address);
  return fault;
}

extern "C" {
Result cuInit(unsigned flags) {
  if (flags) return INVALID_VALUE;
  std::lock_guard<std::mutex> guard(mutex);
  if (!libraries.empty()) return SUCCESS;
  const std::string list = getenv("NEARFAR_EMULATED");
  for (size_t start = 0; start < list.size();) {
    const size_t end = list.find(':', start);
    void* library = dlopen(list.substr(start, end - start).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return NOT_FOUND;
    libraries.push_back(library);
    start = end == std::string::npos ? list.size() : end + 1;
  }
  return SUCCESS;
}
Result cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
Result cuDeviceGet(int* device, int ordinal) { *device = 7; return ordinal ? INVALID_VALUE : SUCCESS; }
Result cuDeviceGetName(char* name, int length, int device) {
  strncpy(name, "emulated by libcuda.cpp", length);
  return device == 7 ? SUCCESS : INVALID_VALUE;
}
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  // Compute capability, major and minor.
  *value = attribute == 75 ? 9 : 0;
  return device == 7 && (attribute == 75 || attribute == 76) ? SUCCESS : INVALID_VALUE;
}
Result cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = free_bytes; return device == 7 ? SUCCESS : INVALID_VALUE; }
Result cuDevicePrimaryCtxRetain(Context** context, int device) {
  std::lock_guard<std::mutex> guard(mutex);
  if (!primary || !primary->references) primary = new Context{0};
  primary->references++;
  *context = primary;
  return device == 7 ? SUCCESS : INVALID_VALUE;
}
Result cuDevicePrimaryCtxRelease(int device) {
  std::lock_guard<std::mutex> guard(mutex);
  return device == 7 && primary && primary->references-- > 0 ? SUCCESS : INVALID_VALUE;
}
Result cuCtxSetCurrent(Context* context) {
  std::lock_guard<std::mutex> guard(mutex);
  current = context;
  return ready();
}
Result cuStreamCreate(Stream** stream, unsigned flags) {
  ENTER;
  streams.insert(*stream = new Stream{});
  return flags == 1 ? SUCCESS : INVALID_VALUE;
}
Result cuStreamDestroy(Stream* stream) { ENTER; return streams.erase(stream) ? SUCCESS : INVALID_VALUE; }
Result cuStreamSynchronize(Stream* stream) { ENTER; return streams.count(stream) ? drain(stream, stream->submitted) : INVALID_VALUE; }
Result cuMemAlloc(uint64_t* address, size_t size) {
  ENTER;
  if (!size) return INVALID_VALUE;
  if (size > free_bytes) return OUT_OF_MEMORY;
  *address = (uint64_t)aligned_alloc(256, (size + 255) / 256 * 256);
  memset((void*)*address, 0xff, size);
  allocated[*address] = size;
  return SUCCESS;
}
Result cuMemFree(uint64_t address) { ENTER; return release(allocated, address); }
Result cuMemAllocHost(void** pointer, size_t size) {
  ENTER;
  pinned[(uint64_t)(*pointer = malloc(size))] = size;
  return SUCCESS;
}
Result cuMemFreeHost(void* pointer) { ENTER; return release(pinned, (uint64_t)pointer); }
Result cuMemcpyHtoDAsync(uint64_t to, const void* from, size_t size, Stream* stream) {
  ENTER;
  if (!within(allocated, to, size)) return INVALID_VALUE;
  return submit(stream, [=] { memcpy((void*)to, from, size); });
}
Result cuMemcpyDtoHAsync(void* to, uint64_t from, size_t size, Stream* stream) {
  ENTER;
  if (!within(allocated, from, size)) return INVALID_VALUE;
  return submit(stream, [=] { memcpy(to, (const void*)from, size); });
}
Result cuMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t size, Stream* stream) {
  ENTER;
  if (!within(allocated, from, size) || !within(allocated, to, size)) return INVALID_VALUE;
  return submit(stream, [=] { memcpy((void*)to, (const void*)from, size); });
}
Result cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, Stream* stream) {
  ENTER;
  if (!within(allocated, address, size)) return INVALID_VALUE;
  return submit(stream, [=] { memset((void*)address, value, size); });
}
Result cuModuleLoadData(void** module, const void* image) {
  ENTER;
  *module = new int;
  return memcmp(image, "\x7f" "ELF", 4) ? INVALID_VALUE : SUCCESS;
}
Result cuModuleUnload(void* module) { ENTER; delete (int*)module; return SUCCESS; }
Result cuModuleGetFunction(void** function, void*, const char* name) {
  ENTER;
  for (void* library : libraries) {
    void* launch = dlsym(library, (std::string("launch_") + name).c_str());
    if (!launch) continue;
    *function = new Function{(Launch)launch, *(const unsigned*)dlsym(library, (std::string("parameters_") + name).c_str())};
    return SUCCESS;
  }
  return NOT_FOUND;
}
Result cuLaunchKernel(const Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                      unsigned shared, Stream* stream, void** parameters, void** extra) {
  ENTER;
  if (!x || !y || z != 1 || threads_y != 1 || threads_z != 1 || shared || !stream || extra || y > 65535 || threads > 1024) return INVALID_VALUE;
  Call call{function, {x, y}, threads, {}};
  for (unsigned i = 0; i < function->parameters; i++) call.values.push_back(*(const uint64_t*)parameters[i]);
  if (!stream->capturing) return submit(stream, [call] { run(call); });
  stream->capturing->push_back(call);
  return SUCCESS;
}
Result cuStreamBeginCapture(Stream* stream, int mode) {
  ENTER;
  // Relaxed: in any other mode calls of other threads would fail meanwhile.
  if (!streams.count(stream) || stream->capturing || mode != 2) return INVALID_VALUE;
  stream->capturing = new Graph;
  return SUCCESS;
}
Result cuStreamEndCapture(Stream* stream, Graph** graph) {
  ENTER;
  if (!streams.count(stream) || !stream->capturing) return INVALID_VALUE;
  *graph = stream->capturing;
  stream->capturing = nullptr;
  return SUCCESS;
}
Result cuGraphInstantiateWithFlags(Graph** instance, Graph* graph, unsigned long long flags) {
  ENTER;
  *instance = new Graph(*graph);
  return flags ? INVALID_VALUE : SUCCESS;
}
Result cuGraphDestroy(Graph* graph) { ENTER; delete graph; return SUCCESS; }
Result cuGraphExecDestroy(Graph* graph) { ENTER; delete graph; return SUCCESS; }
Result cuGraphLaunch(Graph* graph, Stream* stream) {
  ENTER;
  return submit(stream, [graph] { for (const Call& call : *graph) run(call); });
}
Result cuEventCreate(Event** event, unsigned flags) { ENTER; *event = new Event{}; return flags == 3 ? SUCCESS : INVALID_VALUE; }
Result cuEventRecord(Event* event, Stream* stream) {
  ENTER;
  if (!streams.count(stream) || stream->capturing) return INVALID_VALUE;
  *event = {stream, stream->submitted};
  return SUCCESS;
}
Result cuEventSynchronize(Event* event) { ENTER; return event->stream ? drain(event->stream, event->position) : INVALID_VALUE; }
Result cuEventDestroy(Event* event) { ENTER; delete event; return SUCCESS; }
Result cuGetErrorString(Result status, const char** text) {
  *text = status == OUT_OF_MEMORY ? "out of memory" : status == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "something else";
  return SUCCESS;
}

Result cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* found) {
  *function = dlsym(RTLD_DEFAULT, symbol);
  Dl_info mine, theirs;
  dladdr((void*)cuInit, &mine);
  // The bindings export functions of the same names.
  if (!*function || !dladdr(*function, &theirs) || strcmp(mine.dli_fname, theirs.dli_fname)) {
    void* self = dlopen(mine.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = dlsym(self, symbol);
  }
  if (found) *found = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}
}
