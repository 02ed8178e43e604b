// Compiles compute shaders with one Vulkan driver, and prints what its compiler says of each: one JSON object a line.
//
//     statistics DRIVER.so < list of SPIR-V files, one a line
//
// The first line is {"device": name}. A shader's line has its file, and "error" or "executables", each of which maps the
// names of VK_KHR_pipeline_executable_properties to numbers. A line is complete before the next shader is compiled, so
// that whoever reads them knows the shader at which a driver crashed.
//
// The driver is opened itself, without Vulkan's loader, whose list of drivers is that of the machine.

#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

enum { MAX_SETS = 4, MAX_BINDINGS = 16, MAX_PATH_BYTES = 4096, MAX_NAME_BYTES = 256 };

// Numbers of the SPIR-V specification.
enum {
  SPIRV_MAGIC = 0x07230203, FIRST_WORD = 5, OP_ENTRY_POINT = 15, OP_VARIABLE = 59, OP_DECORATE = 71,
  DECORATION_BINDING = 33, DECORATION_SET = 34, CLASS_UNIFORM = 2, CLASS_STORAGE = 12
};

static PFN_vkGetInstanceProcAddr instance_function;
static PFN_vkGetDeviceProcAddr device_function;
static VkInstance instance;
static VkDevice device;

#define OF_INSTANCE(name) ((PFN_##name)instance_function(instance, #name))
#define OF_DEVICE(name) ((PFN_##name)device_function(device, #name))

static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (memory == NULL) fail("out of memory");
  return memory;
}

static void print_text(const char *text) {
  putchar('"');
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    if ((unsigned char)*text >= 32) putchar(*text);
  }
  putchar('"');
}

// --- the device ---

static int has_extension(VkPhysicalDevice physical, const char *name) {
  uint32_t count = 0;
  PFN_vkEnumerateDeviceExtensionProperties enumerate = OF_INSTANCE(vkEnumerateDeviceExtensionProperties);
  enumerate(physical, NULL, &count, NULL);
  VkExtensionProperties *known = allocate(count, sizeof *known);
  enumerate(physical, NULL, &count, known);
  int found = 0;
  for (uint32_t i = 0; i < count; i++) found |= strcmp(known[i].extensionName, name) == 0;
  free(known);
  return found;
}

// With every feature of Vulkan 1.1 to 1.3 that the driver has, bounds checks of buffers among them.
static void open_device(void) {
  VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_3};
  VkInstanceCreateInfo of_instance = {
      .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
  PFN_vkCreateInstance create_instance = OF_INSTANCE(vkCreateInstance);
  VkResult result = create_instance(&of_instance, NULL, &instance);
  if (result != VK_SUCCESS) fail("vkCreateInstance returned %d", result);

  VkPhysicalDevice physical;
  uint32_t count = 1;
  result = OF_INSTANCE(vkEnumeratePhysicalDevices)(instance, &count, &physical);
  if (result < 0 || count == 0) fail("the driver finds no device (%d)", result);
  const char *extension = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
  if (!has_extension(physical, extension)) fail("the driver lacks %s", extension);

  VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR statistics = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR};
  VkPhysicalDeviceVulkan13Features vulkan13 = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES, .pNext = &statistics};
  VkPhysicalDeviceVulkan12Features vulkan12 = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .pNext = &vulkan13};
  VkPhysicalDeviceVulkan11Features vulkan11 = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &vulkan12};
  VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &vulkan11};
  OF_INSTANCE(vkGetPhysicalDeviceFeatures2)(physical, &features);

  float priority = 1;
  VkDeviceQueueCreateInfo queue = {
      .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
  VkDeviceCreateInfo of_device = {
      .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features, .queueCreateInfoCount = 1,
      .pQueueCreateInfos = &queue, .enabledExtensionCount = 1, .ppEnabledExtensionNames = &extension};
  result = OF_INSTANCE(vkCreateDevice)(physical, &of_device, NULL, &device);
  if (result != VK_SUCCESS) fail("vkCreateDevice returned %d", result);
  device_function = OF_INSTANCE(vkGetDeviceProcAddr);

  VkPhysicalDeviceProperties properties;
  OF_INSTANCE(vkGetPhysicalDeviceProperties)(physical, &properties);
  printf("{\"device\": ");
  print_text(properties.deviceName);
  printf("}\n");
  fflush(stdout);
}

// --- a shader ---

typedef struct {
  uint32_t *words;
  size_t count;
  char entry[MAX_NAME_BYTES];
  VkDescriptorSetLayoutBinding bindings[MAX_SETS][MAX_BINDINGS];
  uint32_t used[MAX_SETS];
} Shader;

static const char *read_words(const char *path, Shader *shader) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return "cannot be opened";
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  shader->count = size / sizeof(uint32_t);
  shader->words = allocate(shader->count, sizeof(uint32_t));
  size_t read = fread(shader->words, sizeof(uint32_t), shader->count, file);
  fclose(file);
  if (read != shader->count || read < FIRST_WORD || shader->words[0] != SPIRV_MAGIC) return "is not SPIR-V";
  return NULL;
}

// The entry point and the buffers that a module declares.
static const char *read_interface(Shader *shader) {
  uint32_t ids = shader->words[3];
  struct Place { uint32_t set, binding; int has_set, has_binding; } *places = allocate(ids, sizeof *places);
  const char *error = NULL;
  for (size_t at = FIRST_WORD; at < shader->count && error == NULL;) {
    const uint32_t *word = shader->words + at;
    uint32_t length = word[0] >> 16, op = word[0] & 0xffff;
    if (length == 0 || at + length > shader->count) { error = "has an instruction that ends beyond the file"; break; }
    if (op == OP_ENTRY_POINT) {
      snprintf(shader->entry, sizeof shader->entry, "%s", (const char *)(word + 3));
    } else if (op == OP_DECORATE && word[1] < ids && word[2] == DECORATION_SET) {
      places[word[1]].set = word[3], places[word[1]].has_set = 1;
    } else if (op == OP_DECORATE && word[1] < ids && word[2] == DECORATION_BINDING) {
      places[word[1]].binding = word[3], places[word[1]].has_binding = 1;
    } else if (op == OP_VARIABLE && (word[3] == CLASS_STORAGE || word[3] == CLASS_UNIFORM)) {
      struct Place place = places[word[2]];
      if (!place.has_set || !place.has_binding) error = "has a buffer without a binding";
      else if (place.set >= MAX_SETS || shader->used[place.set] == MAX_BINDINGS) error = "has too many buffers";
      else
        shader->bindings[place.set][shader->used[place.set]++] = (VkDescriptorSetLayoutBinding){
            .binding = place.binding, .descriptorCount = 1, .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
            .descriptorType = word[3] == CLASS_STORAGE ? VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
                                                       : VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER};
    }
    at += length;
  }
  free(places);
  return error;
}

static void print_statistics(VkPipeline pipeline) {
  VkPipelineInfoKHR of_pipeline = {.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = pipeline};
  uint32_t executables = 0;
  OF_DEVICE(vkGetPipelineExecutablePropertiesKHR)(device, &of_pipeline, &executables, NULL);
  printf(", \"executables\": [");
  for (uint32_t i = 0; i < executables; i++) {
    VkPipelineExecutableInfoKHR which = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, .pipeline = pipeline, .executableIndex = i};
    uint32_t count = 0;
    OF_DEVICE(vkGetPipelineExecutableStatisticsKHR)(device, &which, &count, NULL);
    VkPipelineExecutableStatisticKHR *values = allocate(count, sizeof *values);
    for (uint32_t k = 0; k < count; k++) values[k].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    OF_DEVICE(vkGetPipelineExecutableStatisticsKHR)(device, &which, &count, values);
    printf(i ? ", {" : "{");
    for (uint32_t k = 0; k < count; k++) {
      if (k) printf(", ");
      print_text(values[k].name);
      switch (values[k].format) {
      case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: printf(": %u", values[k].value.b32); break;
      case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: printf(": %lld", (long long)values[k].value.i64); break;
      case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
        printf(": %llu", (unsigned long long)values[k].value.u64);
        break;
      default: printf(": %.17g", values[k].value.f64);
      }
    }
    putchar('}');
    free(values);
  }
  putchar(']');
}

// The error of a Vulkan call; objects live until the process ends.
static const char *compile(Shader *shader, VkPipeline *pipeline) {
  VkDescriptorSetLayout sets[MAX_SETS];
  for (uint32_t i = 0; i < MAX_SETS; i++) {
    VkDescriptorSetLayoutCreateInfo of_set = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = shader->used[i],
        .pBindings = shader->bindings[i]};
    if (OF_DEVICE(vkCreateDescriptorSetLayout)(device, &of_set, NULL, &sets[i])) return "vkCreateDescriptorSetLayout";
  }
  VkPipelineLayoutCreateInfo of_layout = {
      .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = MAX_SETS, .pSetLayouts = sets};
  VkPipelineLayout layout;
  if (OF_DEVICE(vkCreatePipelineLayout)(device, &of_layout, NULL, &layout)) return "vkCreatePipelineLayout";
  VkShaderModuleCreateInfo of_module = {
      .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = shader->count * sizeof(uint32_t),
      .pCode = shader->words};
  VkShaderModule module;
  if (OF_DEVICE(vkCreateShaderModule)(device, &of_module, NULL, &module)) return "vkCreateShaderModule";
  VkComputePipelineCreateInfo of_pipeline = {
      .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
      .flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR,
      .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                .module = module, .pName = shader->entry},
      .layout = layout};
  if (OF_DEVICE(vkCreateComputePipelines)(device, VK_NULL_HANDLE, 1, &of_pipeline, NULL, pipeline))
    return "vkCreateComputePipelines";
  return NULL;
}

int main(int count, char **arguments) {
  if (count != 2) fail("usage: statistics DRIVER.so < files");
  void *driver = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (driver == NULL) fail("%s", dlerror());
  // The interface between Vulkan's loader and drivers; a driver with version 5 implements Vulkan 1.1 or later.
  VkResult (*negotiate)(uint32_t *) = (VkResult(*)(uint32_t *))dlsym(driver, "vk_icdNegotiateLoaderICDInterfaceVersion");
  instance_function = (PFN_vkGetInstanceProcAddr)dlsym(driver, "vk_icdGetInstanceProcAddr");
  uint32_t version = 5;
  if (instance_function == NULL || (negotiate != NULL && negotiate(&version) != VK_SUCCESS))
    fail("%s is not a Vulkan driver", arguments[1]);
  open_device();

  char path[MAX_PATH_BYTES];
  while (fgets(path, sizeof path, stdin) != NULL) {
    path[strcspn(path, "\n")] = 0;
    Shader shader = {0};
    VkPipeline pipeline;
    const char *error = read_words(path, &shader);
    if (error == NULL) error = read_interface(&shader);
    if (error == NULL) error = compile(&shader, &pipeline);
    printf("{\"file\": ");
    print_text(path);
    if (error == NULL) {
      print_statistics(pipeline);
    } else {
      printf(", \"error\": ");
      print_text(error);
    }
    printf("}\n");
    fflush(stdout);
    free(shader.words);
  }
  return 0;
}
