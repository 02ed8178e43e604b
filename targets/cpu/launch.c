/* The functions of a bundle's library besides kernels: a batch's launches, and the threads that share their loops.

   Python calls nearfar_launch once per batch and releases the GIL meanwhile. Each loop that TVM's kernels run in
   parallel has one task a thread: the first is the caller's, the others those of the threads in nearfar_work. A loop
   takes some microseconds, so threads spin between two of them, and sleep only when no batch follows for long.

   Kernels take their arguments as TVM FFI's 16-byte values. */
#include <stdatomic.h>
#include <stdint.h>

typedef struct { int32_t type; uint32_t padding; int64_t value; } argument;
typedef int (*kernel)(void *self, const argument *arguments, int32_t count, argument *result);
typedef struct { kernel function; const argument *arguments; int64_t count; } launch;
/* TVMParallelGroupEnv and FTVMParallelLambda of TVM's runtime. */
typedef struct { void *handle; int32_t num_task; } group;
typedef int (*task)(int index, group *tasks, void *closure);

/* Of the C library, which the process has loaded; and the numbers of Linux's system call futex. */
extern long syscall(long number, ...);
extern int sched_yield(void);
#if defined(__x86_64__)
enum { FUTEX = 202, WAIT = 128, WAKE = 129 };
#else
enum { FUTEX = 98, WAIT = 128, WAKE = 129 };
#endif

/* How often a thread looks for the next loop before it lets others run, and before it sleeps: about 1 us and 5 ms. On a
   machine with more work than cores, the thread that it waits for may need its core: with 500 instead of 40, a token took
   1.2 to 1.4 times as long there, and 0.99 times where nothing else wanted the cores. */
enum { SPINS = 40, YIELDS = 20000 };

/* `loop` counts the loops that began, on the cache line of what they run. */
static struct {
  _Alignas(64) atomic_uint loop;
  task function;
  void *closure;
  int32_t threads;
  atomic_int stopped;
  _Alignas(64) atomic_int running;
  atomic_int failed;
  atomic_int asleep;
} pool = {.threads = 1};

static void pause_thread(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  __asm__ volatile("yield");
#endif
}

/* What kernels call as TVMBackendParallelLaunch. Returns when all tasks are done; zero if none failed. */
static int run_tasks(task function, void *closure, int num_task) {
  (void)num_task;
  group tasks = {0, pool.threads};
  pool.function = function, pool.closure = closure;
  atomic_store_explicit(&pool.failed, 0, memory_order_relaxed);
  atomic_store_explicit(&pool.running, pool.threads - 1, memory_order_relaxed);
  /* Either a thread that falls asleep finds the new number, or it is counted here. */
  atomic_fetch_add(&pool.loop, 1);
  if (atomic_load(&pool.asleep)) syscall(FUTEX, &pool.loop, WAKE, INT32_MAX, 0, 0, 0);
  int failed = function(0, &tasks, closure);
  for (int i = 0; atomic_load_explicit(&pool.running, memory_order_acquire) > 0; i++)
    i < SPINS ? pause_thread() : (void)sched_yield();
  return failed ? failed : atomic_load_explicit(&pool.failed, memory_order_relaxed);
}

__attribute__((visibility("hidden"))) int (*__TVMBackendParallelLaunch)(task, void *, int) = run_tasks;

/* Kernels call it if their arguments are wrong; nearfar_launch returns which kernel that was. */
__attribute__((visibility("hidden"))) void TVMFFIErrorSetRaisedFromCStrParts(void) {}

/* The number of threads that run loops, with the caller of nearfar_launch. */
void nearfar_set_threads(int32_t threads) { pool.threads = threads; }

/* Run the tasks of a thread of the pool, from one on, until nearfar_stop. */
void nearfar_work(int32_t index) {
  unsigned last = 0;
  for (;;) {
    unsigned now;
    for (int i = 0; (now = atomic_load_explicit(&pool.loop, memory_order_acquire)) == last; i++) {
      if (i < SPINS) {
        pause_thread();
      } else if (i < SPINS + YIELDS) {
        sched_yield();
      } else {
        atomic_fetch_add(&pool.asleep, 1);
        syscall(FUTEX, &pool.loop, WAIT, last, 0, 0, 0);
        atomic_fetch_sub(&pool.asleep, 1);
      }
    }
    if (atomic_load(&pool.stopped)) return;
    group tasks = {0, pool.threads};
    last = now;
    int failed = pool.function(index, &tasks, pool.closure);
    if (failed) atomic_store_explicit(&pool.failed, failed, memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool.running, 1, memory_order_release);
  }
}

/* End the threads of the pool. No batch may be running; those that follow run on their callers alone. */
void nearfar_stop(void) {
  pool.threads = 1;
  atomic_store(&pool.stopped, 1);
  atomic_fetch_add(&pool.loop, 1);
  syscall(FUTEX, &pool.loop, WAKE, INT32_MAX, 0, 0, 0);
}

/* Call the kernels of a batch one after the other. Returns zero, or the number of the failed launch, from one on. */
int32_t nearfar_launch(const launch *launches, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    argument result = {0, 0, 0};
    if (launches[i].function(0, launches[i].arguments, (int32_t)launches[i].count, &result) != 0) return i + 1;
  }
  return 0;
}
