// The emulated driver's objects: contexts, modules, functions, streams, events, captures, graphs. A handle is never
// reused, so a use after its destruction is always found, and each belongs to the context that was current at its
// creation.
#pragma once
#include <pthread.h>

#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "memory.hpp"

typedef void (*Launch)(void**, const unsigned*, unsigned);
typedef const char* (*LaunchTogether)(void**, unsigned, unsigned, unsigned, const uint64_t*, unsigned);
struct Context { int references; };
struct Handle {
  enum Kind { MODULE, FUNCTION, STREAM, EVENT, GRAPH, EXECUTABLE } kind;
  Context* context;
  bool alive;
};
struct Module : Handle { std::string image; };
struct Function : Handle {
  Module* module;
  std::string name;
  // A kernel has one of them.
  Launch launch;
  LaunchTogether together;
  unsigned parameters;
  // The maximum shared memory that a launch may add.
  unsigned shared;
  // Whether it waits for the previous kernel by itself.
  bool waits;
  // Bit i: parameter i is a pointer.
  uint64_t pointers;
};
typedef std::vector<Work> Nodes;
struct Graph : Handle { Nodes nodes; };
struct Executable : Handle {
  std::shared_ptr<const Nodes> nodes;
  size_t bytes;
};
enum Mode { GLOBAL, THREAD_LOCAL, RELAXED };
struct Capture {
  int mode;
  pthread_t thread;
  bool ongoing, invalidated;
  Nodes nodes;
};
struct Stream : Handle {
  std::deque<Work> queue;
  uint64_t submitted, done;
  std::shared_ptr<Capture> capture;
};
struct Event : Handle {
  Stream* stream;
  uint64_t position;
  // The capture in which it was last recorded.
  std::shared_ptr<Capture> capture;
};

static std::mutex mutex;
static thread_local Context* current;
static thread_local int thread_mode = GLOBAL;
// A new one after the last release, so that a use of the old one is found.
static Context* primary;
static std::set<const Handle*> handles;
static std::set<std::shared_ptr<Capture>> captures;

static Result ready() {
  if (!current) return INVALID_CONTEXT;
  return current->references ? fault : CONTEXT_IS_DESTROYED;
}
// The checks of every call that works on a context.
#define ENTER                                \
  std::lock_guard<std::mutex> guard(mutex); \
  if (Result bad = ready()) return bad
#define USE(handle, kind) \
  if (!usable(handle, Handle::kind)) return INVALID_HANDLE
#define SAFE \
  if (Result bad = unsafe_call()) return bad

template <class T> static T* create(Handle::Kind kind) {
  T* object = new T{};
  object->kind = kind;
  object->context = current;
  object->alive = true;
  handles.insert(object);
  return object;
}
static bool usable(const Handle* handle, Handle::Kind kind) {
  return handles.count(handle) && handle->kind == kind && handle->alive && handle->context == current;
}
static Result destroy(Handle* handle) {
  handle->alive = false;
  return SUCCESS;
}
static void invalidate(const std::shared_ptr<Capture>& capture) {
  if (capture) capture->invalidated = true;
}

// cuThreadExchangeStreamCaptureMode: which captures prohibit this thread's "potentially unsafe" calls. Such a call
// invalidates them.
static Result unsafe_call() {
  Result result = SUCCESS;
  for (const auto& capture : captures) {
    const bool mine = pthread_equal(capture->thread, pthread_self());
    const bool prohibits = mine ? capture->mode != RELAXED : thread_mode == GLOBAL && capture->mode == GLOBAL;
    if (thread_mode == RELAXED || !prohibits) continue;
    capture->invalidated = true;
    result = CAPTURE_UNSUPPORTED;
  }
  return result;
}

// Work runs as late as possible: when a thread waits for it.
static Result drain(Stream* stream, uint64_t position) {
  for (; stream->done < position; stream->done++) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    run_guarded(work);
  }
  return fault;
}
static Result submit(Stream* stream, Work work) {
  USE(stream, STREAM);
  if (stream->capture) {
    if (stream->capture->invalidated) return CAPTURE_INVALIDATED;
    stream->capture->nodes.push_back(std::move(work));
    return SUCCESS;
  }
  stream->queue.push_back(std::move(work));
  stream->submitted++;
  return SUCCESS;
}
// Calls that synchronize with or query a stream are forbidden while it captures.
static Result not_capturing(Stream* stream) {
  if (!stream->capture) return SUCCESS;
  invalidate(stream->capture);
  return CAPTURE_UNSUPPORTED;
}
