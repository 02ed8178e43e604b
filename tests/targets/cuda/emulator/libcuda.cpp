// A libcuda.so.1 for machines without a GPU, for the calls that targets/cuda/driver.py makes. Device memory is host
// memory, and kernels are those of the libraries that NEARFAR_EMULATED lists; see prelude.hpp.
//
// It enforces the rules of NVIDIA's driver API documentation that one thread on one idle GPU would not show:
// - A context is current per thread. Handles are checked for use after destruction and in another context.
// - A stream runs its work as late as it may. Host memory that changes before it was copied is an error
//   (CUDA_ERROR_UNKNOWN), and memory that a copy will fill holds 0xdd until then.
// - An access outside an allocation, or to freed memory, is CUDA_ERROR_ILLEGAL_ADDRESS, also for a kernel's arguments.
//   Freeing does not wait for the work that uses the memory.
// - After a fault every call returns it. Every launch faults once the file NEARFAR_FAULT exists.
// - Stream capture follows its modes. A forbidden call invalidates the capture, and cuStreamEndCapture then fails.
// - The driver's CUDA version is NEARFAR_CUDA_VERSION, 13000 by default. It rejects cubins of a later major version.
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <cstdlib>

#include "handles.hpp"
#include "streams.hpp"

static std::vector<void*> libraries;
static const unsigned MULTIPROCESSORS = 3;
// Launches of workgroups together so far, which are the seeds of their orders.
static unsigned together;

static int version() {
  const char* text = getenv("NEARFAR_CUDA_VERSION");
  return text ? atoi(text) : 13000;
}

// A grid without a second dimension: workgroups that run together.
static void run(const Function* function, const unsigned* grid, unsigned threads, std::vector<uint64_t> values) {
  const char* file = getenv("NEARFAR_FAULT");
  if (file && !access(file, F_OK)) return fail(ILLEGAL_ADDRESS, "the file NEARFAR_FAULT exists");
  if (!function->module->alive) return fail(UNKNOWN, function->name + " ran after its module was unloaded");
  std::vector<const Ranges::value_type*> used;
  std::vector<void*> pointers;
  for (unsigned i = 0; i < function->parameters; i++) {
    pointers.push_back(&values[i]);
    if (!(function->pointers >> i & 1)) continue;
    used.push_back(range_of(allocated, values[i]));
    if (!used.back()) used.back() = range_of(pinned, values[i]);
    if (!used.back())
      return fail(ILLEGAL_ADDRESS, "parameter " + std::to_string(i) + " of " + function->name + " is not an allocation");
  }
  if (grid[1]) {
    function->launch(pointers.data(), grid, threads);
  } else {
    std::vector<uint64_t> memory;
    for (const auto& range : allocated) memory.insert(memory.end(), {range.first, range.second.size});
    const char* wrong = function->together(pointers.data(), grid[0], threads, together++, memory.data(), memory.size() / 2);
    if (wrong) return fail(UNKNOWN, wrong);
  }
  for (const auto* range : used) check_behind(*range);
}

static bool is_pinned(const void* address, size_t size) { return within(pinned, (uint64_t)address, size); }

// Host memory: not the device's, and pinned if the copy is captured, because a graph copies from it at each launch.
static Result check_host(const void* address, size_t size, Stream* stream) {
  if (range_of(allocated, (uint64_t)address)) return INVALID_VALUE;
  if (!stream->capture || is_pinned(address, size)) return SUCCESS;
  invalidate(stream->capture);
  return CAPTURE_UNSUPPORTED;
}

extern "C" {
Result cuInit(unsigned flags) {
  if (flags) return INVALID_VALUE;
  std::lock_guard<std::mutex> guard(mutex);
  if (!libraries.empty()) return SUCCESS;
  const char* names = getenv("NEARFAR_EMULATED");
  if (!names) return NO_DEVICE;
  const std::string list = names;
  for (size_t start = 0; start < list.size();) {
    const size_t end = list.find(':', start);
    void* library = dlopen(list.substr(start, end - start).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return NOT_FOUND;
    libraries.push_back(library);
    start = end == std::string::npos ? list.size() : end + 1;
  }
  return SUCCESS;
}
Result cuDriverGetVersion(int* number) {
  *number = version();
  return SUCCESS;
}
Result cuGetErrorString(Result status, const char** text) {
  static thread_local std::string held;
  const char* known = status == OUT_OF_MEMORY         ? "out of memory"
                      : status == ILLEGAL_ADDRESS     ? "an illegal memory access was encountered"
                      : status == INVALID_IMAGE       ? "device kernel image is invalid"
                      : status == INVALID_HANDLE      ? "invalid resource handle"
                      : status == INVALID_CONTEXT     ? "invalid device context"
                      : status == CAPTURE_UNSUPPORTED ? "operation not permitted when stream is capturing"
                      : status == CAPTURE_INVALIDATED ? "operation failed due to a previous error during capture"
                                                      : "error of the emulated driver";
  held = status && status == fault ? std::string(known) + " (" + explanation + ")" : known;
  *text = held.c_str();
  return SUCCESS;
}

// --- the device and its primary context ---

Result cuDeviceGet(int* device, int ordinal) {
  *device = 7;
  return ordinal ? INVALID_VALUE : SUCCESS;
}
Result cuDeviceGetName(char* name, int length, int device) {
  strncpy(name, "emulated by libcuda.cpp", length);
  return device == 7 ? SUCCESS : INVALID_VALUE;
}
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  // Compute capability, major and minor; multiprocessors; whether workgroups can be launched together.
  const int known[][2] = {{75, 9}, {76, 0}, {16, MULTIPROCESSORS}, {95, 1}};
  for (const auto& pair : known)
    if (device == 7 && attribute == pair[0]) {
      *value = pair[1];
      return SUCCESS;
    }
  return INVALID_VALUE;
}
Result cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = size_t(1) << 32;
  return device == 7 ? SUCCESS : INVALID_VALUE;
}
Result cuDevicePrimaryCtxRetain(Context** context, int device) {
  std::lock_guard<std::mutex> guard(mutex);
  if (device != 7) return INVALID_VALUE;
  if (fault) return fault;
  if (!primary || !primary->references) primary = new Context{0};
  primary->references++;
  *context = primary;
  return SUCCESS;
}
Result cuDevicePrimaryCtxRelease(int device) {
  std::lock_guard<std::mutex> guard(mutex);
  if (device != 7 || !primary || primary->references <= 0) return INVALID_VALUE;
  if (--primary->references) return fault;
  // The last release destroys the context with its memory.
  for (Ranges* ranges : {&allocated, &pinned})
    while (!ranges->empty()) {
      if (ranges == &allocated) free_bytes += ranges->begin()->second.size;
      release(*ranges, ranges->begin()->first);
    }
  return fault;
}
Result cuCtxSetCurrent(Context* context) {
  std::lock_guard<std::mutex> guard(mutex);
  current = context;
  return context ? ready() : SUCCESS;
}
Result cuCtxSynchronize() {
  ENTER;
  // "It is also invalid to synchronize a broader handle which encompasses active stream capture."
  for (const auto& capture : captures) invalidate(capture);
  if (!captures.empty()) return CAPTURE_UNSUPPORTED;
  for (const Handle* handle : handles)
    if (usable(handle, Handle::STREAM)) drain((Stream*)handle, ((Stream*)handle)->submitted);
  return fault;
}

// --- memory ---

Result cuMemGetInfo(size_t* available, size_t* total) {
  ENTER;
  *available = free_bytes;
  *total = size_t(1) << 32;
  return SUCCESS;
}
Result cuMemAlloc(uint64_t* address, size_t size) {
  ENTER;
  SAFE;
  if (!size) return INVALID_VALUE;
  if (size > free_bytes || !(*address = allocate(allocated, size))) return OUT_OF_MEMORY;
  free_bytes -= size;
  return SUCCESS;
}
Result cuMemFree(uint64_t address) {
  ENTER;
  SAFE;
  auto range = allocated.find(address);
  if (range == allocated.end()) return INVALID_VALUE;
  check_behind(*range);
  free_bytes += range->second.size;
  release(allocated, address);
  return fault;
}
Result cuMemAllocHost(void** pointer, size_t size) {
  ENTER;
  SAFE;
  if (!size) return INVALID_VALUE;
  *pointer = (void*)allocate(pinned, size);
  return *pointer ? SUCCESS : OUT_OF_MEMORY;
}
Result cuMemFreeHost(void* pointer) {
  ENTER;
  SAFE;
  return release(pinned, (uint64_t)pointer) ? SUCCESS : INVALID_VALUE;
}
Result cuMemcpyHtoDAsync(uint64_t to, const void* from, size_t size, Stream* stream) {
  ENTER;
  USE(stream, STREAM);
  if (!within(allocated, to, size)) return INVALID_VALUE;
  if (Result bad = check_host(from, size, stream)) return bad;
  // A captured copy reads what the memory holds at each launch.
  const bool captured = bool(stream->capture);
  const uint64_t hash = captured ? 0 : hash_of(from, size);
  return submit(stream, [=] {
    if (!within(allocated, to, size)) return fail(ILLEGAL_ADDRESS, "a copy to memory that was freed");
    if (!captured && hash_of(from, size) != hash)
      return fail(UNKNOWN, "host memory changed before it was copied to the device");
    memcpy((void*)to, from, size);
  });
}
Result cuMemcpyDtoHAsync(void* to, uint64_t from, size_t size, Stream* stream) {
  ENTER;
  USE(stream, STREAM);
  if (!within(allocated, from, size)) return INVALID_VALUE;
  if (Result bad = check_host(to, size, stream)) return bad;
  // Its contents are undefined until the copy is done.
  if (!stream->capture) memset(to, 0xdd, size);
  return submit(stream, [=] {
    if (!within(allocated, from, size)) return fail(ILLEGAL_ADDRESS, "a copy from memory that was freed");
    memcpy(to, (const void*)from, size);
  });
}
Result cuMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t size, Stream* stream) {
  ENTER;
  if (!within(allocated, from, size) || !within(allocated, to, size)) return INVALID_VALUE;
  return submit(stream, [=] {
    if (!within(allocated, from, size) || !within(allocated, to, size))
      return fail(ILLEGAL_ADDRESS, "a copy of memory that was freed");
    memcpy((void*)to, (const void*)from, size);
  });
}
Result cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, Stream* stream) {
  ENTER;
  if (!within(allocated, address, size)) return INVALID_VALUE;
  return submit(stream, [=] {
    if (!within(allocated, address, size)) return fail(ILLEGAL_ADDRESS, "a fill of memory that was freed");
    memset((void*)address, value, size);
  });
}
// The legacy default stream does not wait for streams that were created as CU_STREAM_NON_BLOCKING.
Result cuMemcpyHtoD(uint64_t to, const void* from, size_t size) {
  ENTER;
  SAFE;
  if (!within(allocated, to, size)) return INVALID_VALUE;
  run_guarded([=] { memcpy((void*)to, from, size); });
  return fault;
}
Result cuMemcpyDtoH(void* to, uint64_t from, size_t size) {
  ENTER;
  SAFE;
  if (!within(allocated, from, size)) return INVALID_VALUE;
  run_guarded([=] { memcpy(to, (const void*)from, size); });
  return fault;
}

// --- modules and launches ---

Result cuModuleLoadData(Module** module, const void* image) {
  ENTER;
  SAFE;
  const auto* header = (const Elf64_Ehdr*)image;
  if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return INVALID_IMAGE;
  // For GPUs before sm_100, CUDA 13 raised the version of a cubin's ABI from 7 to 8.
  if (header->e_ident[EI_ABIVERSION] > 7 && version() < 13000) return INVALID_IMAGE;
  *module = create<Module>(Handle::MODULE);
  (*module)->image.assign((const char*)image, header->e_shoff + header->e_shnum * header->e_shentsize);
  return SUCCESS;
}
Result cuModuleUnload(Module* module) {
  ENTER;
  SAFE;
  USE(module, MODULE);
  return destroy(module);
}
Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
  ENTER;
  USE(module, MODULE);
  // With its NUL, so that it is a complete name of the image's symbols.
  if (module->image.find(std::string(name) + '\0') == std::string::npos) return NOT_FOUND;
  for (void* library : libraries) {
    void* launch = dlsym(library, (std::string("launch_") + name).c_str());
    void* together = dlsym(library, (std::string("together_") + name).c_str());
    if (!launch && !together) continue;
    *function = create<Function>(Handle::FUNCTION);
    (*function)->module = module;
    (*function)->name = name;
    (*function)->launch = (Launch)launch;
    (*function)->together = (LaunchTogether)together;
    (*function)->parameters = *(const unsigned*)dlsym(library, (std::string("parameters_") + name).c_str());
    (*function)->shared = 48 << 10;
    (*function)->waits = *(const bool*)dlsym(library, (std::string("waits_") + name).c_str());
    (*function)->pointers = *(const uint64_t*)dlsym(library, (std::string("pointers_") + name).c_str());
    return SUCCESS;
  }
  return NOT_FOUND;
}
// Attribute 8 is the maximum shared memory that launches may add.
Result cuFuncSetAttribute(Function* function, int attribute, int value) {
  ENTER;
  USE(function, FUNCTION);
  if (attribute != 8 || value < 0 || value > 227 << 10) return INVALID_VALUE;
  function->shared = value;
  return SUCCESS;
}
Result cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                      unsigned threads_z, unsigned shared, Stream* stream, void** parameters, void** extra) {
  ENTER;
  USE(function, FUNCTION);
  if (!function->module->alive) return INVALID_HANDLE;
  if (!function->launch) return INVALID_VALUE;
  if (!x || !y || z != 1 || threads_y != 1 || threads_z != 1 || shared > function->shared || extra) return INVALID_VALUE;
  if (x > 0x7fffffff || y > 65535 || !threads || threads > 1024) return INVALID_VALUE;
  std::vector<uint64_t> values;
  for (unsigned i = 0; i < function->parameters; i++) values.push_back(*(const uint64_t*)parameters[i]);
  return submit(stream, [=] {
    const unsigned grid[] = {x, y};
    run(function, grid, threads, values);
  });
}

Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, Function* function, int threads, size_t shared) {
  ENTER;
  USE(function, FUNCTION);
  *count = threads <= 1024 && shared <= function->shared;
  return SUCCESS;
}
// Workgroups run together only if it is asked for, and if all fit.
Result cuLaunchCooperativeKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads,
                                 unsigned threads_y, unsigned threads_z, unsigned shared, Stream* stream,
                                 void** parameters) {
  ENTER;
  USE(function, FUNCTION);
  USE(stream, STREAM);
  if (Result bad = not_capturing(stream)) return bad;
  if (!function->module->alive) return INVALID_HANDLE;
  if (!function->together || y != 1 || z != 1 || threads_y != 1 || threads_z != 1) return INVALID_VALUE;
  if (!x || !threads || threads > 1024 || shared > function->shared) return INVALID_VALUE;
  if (x > MULTIPROCESSORS) return COOPERATIVE_LAUNCH_TOO_LARGE;
  std::vector<uint64_t> values;
  for (unsigned i = 0; i < function->parameters; i++) values.push_back(*(const uint64_t*)parameters[i]);
  return submit(stream, [=] {
    const unsigned grid[] = {x, 0};
    run(function, grid, threads, values);
  });
}

// cuda.h: of the attributes only that of programmatic dependent launch. Kernels run one after the other here, so one
// that starts early makes no difference.
struct LaunchAttribute { int id; char padding[4]; union { char bytes[64]; int value; }; };
struct LaunchConfig { unsigned grid[3], block[3], shared; Stream* stream; LaunchAttribute* attributes; unsigned count; };
// The number of launches that were allowed to start early, for tests.
unsigned early_launches;
Result cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** parameters, void** extra) {
  if (config->count != 1 || config->attributes->id != 6 || config->attributes->value != 1) return INVALID_VALUE;
  // A kernel that does not wait must not start early.
  if (!function->waits) return INVALID_VALUE;
  early_launches++;
  const unsigned *grid = config->grid, *block = config->block;
  return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared,
                        config->stream, parameters, extra);
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
