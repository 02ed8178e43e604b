/* The functions of a bundle's library besides kernels. Python calls nearfar_launch once per batch and releases
   the GIL meanwhile.

   Kernels take their arguments as TVM FFI's 16-byte values. */
#include <stdint.h>

typedef struct { int32_t type; uint32_t padding; int64_t value; } argument;
typedef int (*kernel)(void *self, const argument *arguments, int32_t count, argument *result);
typedef struct { kernel function; const argument *arguments; int64_t count; } launch;

/* Call the kernels of a batch one after the other. Returns zero, or the number of the failed launch, from one on;
   TVM FFI stores the reason. */
int32_t nearfar_launch(const launch *launches, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    argument result = {0, 0, 0};
    if (launches[i].function(0, launches[i].arguments, (int32_t)launches[i].count, &result) != 0) return i + 1;
  }
  return 0;
}

/* An empty task that creates a thread's pool. */
int nearfar_idle(int task, void *environment, void *data) {
  (void)task, (void)environment, (void)data;
  return 0;
}
