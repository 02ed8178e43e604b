// A libcuda.so.1 for machines without a GPU, as far as targets/cuda/driver.py calls it: device memory is host memory, and everything happens
// when it is asked for. Kernels are those of the libraries that NEARFAR_EMULATED lists; see prelude.hpp.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

typedef int Result;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };
typedef void (*Launch)(void**, const unsigned*, unsigned);
struct Function { Launch launch; unsigned parameters; };
struct Call { const Function* function; unsigned grid[2], threads; std::vector<uint64_t> values; };
typedef std::vector<Call> Graph;

static std::vector<void*> libraries;
static Graph* capturing;
static size_t free_bytes = size_t(1) << 32;
static int contexts;

static void run(const Call& call) {
  std::vector<void*> pointers;
  for (const uint64_t& value : call.values) pointers.push_back((void*)&value);
  call.function->launch(pointers.data(), call.grid, call.threads);
}

extern "C" {
Result cuInit(unsigned flags) {
  if (flags) return INVALID_VALUE;
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
Result cuDevicePrimaryCtxRetain(void** context, int device) { *context = &contexts; contexts++; return device == 7 ? SUCCESS : INVALID_VALUE; }
Result cuDevicePrimaryCtxRelease(int device) { return device == 7 && contexts-- > 0 ? SUCCESS : INVALID_VALUE; }
Result cuCtxSetCurrent(void* context) { return context == &contexts ? SUCCESS : INVALID_VALUE; }
Result cuStreamCreate(void** stream, unsigned flags) { *stream = new int; return flags == 1 ? SUCCESS : INVALID_VALUE; }
Result cuStreamDestroy(void* stream) { delete (int*)stream; return SUCCESS; }
Result cuStreamSynchronize(void* stream) { return stream ? SUCCESS : INVALID_VALUE; }
Result cuMemAlloc(uint64_t* address, size_t size) {
  if (size > free_bytes) return OUT_OF_MEMORY;
  *address = (uint64_t)aligned_alloc(256, (size + 255) / 256 * 256);
  memset((void*)*address, 0xff, size);
  return SUCCESS;
}
Result cuMemFree(uint64_t address) { free((void*)address); return SUCCESS; }
Result cuMemAllocHost(void** pointer, size_t size) { *pointer = malloc(size); return SUCCESS; }
Result cuMemFreeHost(void* pointer) { free(pointer); return SUCCESS; }
Result cuMemcpyHtoDAsync(uint64_t to, const void* from, size_t size, void* stream) {
  memcpy((void*)to, from, size);
  return stream && !capturing ? SUCCESS : INVALID_VALUE;
}
Result cuMemcpyDtoHAsync(void* to, uint64_t from, size_t size, void* stream) {
  memcpy(to, (const void*)from, size);
  return stream && !capturing ? SUCCESS : INVALID_VALUE;
}
Result cuMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t size, void* stream) {
  memcpy((void*)to, (const void*)from, size);
  return stream && !capturing ? SUCCESS : INVALID_VALUE;
}
Result cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, void* stream) {
  memset((void*)address, value, size);
  return stream ? SUCCESS : INVALID_VALUE;
}
Result cuModuleLoadData(void** module, const void* image) {
  *module = new int;
  return memcmp(image, "\x7f" "ELF", 4) ? INVALID_VALUE : SUCCESS;
}
Result cuModuleUnload(void* module) { delete (int*)module; return SUCCESS; }
Result cuModuleGetFunction(void** function, void*, const char* name) {
  for (void* library : libraries) {
    void* launch = dlsym(library, (std::string("launch_") + name).c_str());
    if (!launch) continue;
    *function = new Function{(Launch)launch, *(const unsigned*)dlsym(library, (std::string("parameters_") + name).c_str())};
    return SUCCESS;
  }
  return NOT_FOUND;
}
Result cuLaunchKernel(const Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                      unsigned shared, void* stream, void** parameters, void** extra) {
  if (!x || !y || z != 1 || threads_y != 1 || threads_z != 1 || shared || !stream || extra || y > 65535 || threads > 1024) return INVALID_VALUE;
  Call call{function, {x, y}, threads, {}};
  for (unsigned i = 0; i < function->parameters; i++) call.values.push_back(*(const uint64_t*)parameters[i]);
  if (capturing) capturing->push_back(call);
  else run(call);
  return SUCCESS;
}
Result cuStreamBeginCapture(void* stream, int mode) {
  if (capturing || !stream || mode != 2) return INVALID_VALUE;
  capturing = new Graph;
  return SUCCESS;
}
Result cuStreamEndCapture(void*, Graph** graph) {
  if (!capturing) return INVALID_VALUE;
  *graph = capturing;
  capturing = nullptr;
  return SUCCESS;
}
Result cuGraphInstantiateWithFlags(Graph** instance, Graph* graph, unsigned long long flags) { *instance = new Graph(*graph); return flags ? INVALID_VALUE : SUCCESS; }
Result cuGraphDestroy(Graph* graph) { delete graph; return SUCCESS; }
Result cuGraphExecDestroy(Graph* graph) { delete graph; return SUCCESS; }
Result cuGraphLaunch(Graph* graph, void*) {
  for (const Call& call : *graph) run(call);
  return capturing ? INVALID_VALUE : SUCCESS;
}
Result cuEventCreate(void** event, unsigned flags) { *event = new int; return flags == 3 ? SUCCESS : INVALID_VALUE; }
Result cuEventRecord(void* event, void* stream) { return event && stream && !capturing ? SUCCESS : INVALID_VALUE; }
Result cuEventSynchronize(void* event) { return event ? SUCCESS : INVALID_VALUE; }
Result cuEventDestroy(void* event) { delete (int*)event; return SUCCESS; }
Result cuGetErrorString(Result status, const char** text) { *text = status == OUT_OF_MEMORY ? "out of memory" : "something else"; return SUCCESS; }

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
