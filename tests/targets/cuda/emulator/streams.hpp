// The calls on streams, events, captures and graphs; see libcuda.cpp.
#pragma once
#include "handles.hpp"

extern "C" {
// --- streams and events ---

Result cuStreamCreate(Stream** stream, unsigned flags) {
  ENTER;
  SAFE;
  // Only non-blocking streams: the others wait for the legacy default stream, which is not emulated.
  if (flags != 1) return flags ? INVALID_VALUE : NOT_SUPPORTED;
  *stream = create<Stream>(Handle::STREAM);
  return SUCCESS;
}
Result cuStreamDestroy(Stream* stream) {
  ENTER;
  USE(stream, STREAM);
  // The driver releases a stream once its work is done.
  drain(stream, stream->submitted);
  if (stream->capture) captures.erase(stream->capture);
  destroy(stream);
  return fault;
}
Result cuStreamSynchronize(Stream* stream) {
  ENTER;
  USE(stream, STREAM);
  if (Result bad = not_capturing(stream)) return bad;
  SAFE;
  return drain(stream, stream->submitted);
}
Result cuStreamQuery(Stream* stream) {
  ENTER;
  USE(stream, STREAM);
  if (Result bad = not_capturing(stream)) return bad;
  SAFE;
  if (stream->done == stream->submitted) return fault;
  // Time passes between queries.
  return drain(stream, stream->done + 1) ? fault : NOT_READY;
}
Result cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  ENTER;
  USE(stream, STREAM);
  USE(event, EVENT);
  if (event->capture == stream->capture && event->capture) return SUCCESS;
  if (stream->capture || event->capture) {
    invalidate(stream->capture);
    invalidate(event->capture);
    if (stream->capture) return event->capture ? CAPTURE_MERGE : CAPTURE_ISOLATION;
    // It would join the capture, which is not emulated.
    return NOT_SUPPORTED;
  }
  Stream* other = event->stream;
  const uint64_t position = event->position;
  if (!other || other == stream) return SUCCESS;
  return submit(stream, [=] {
    while (other->done < position && !fault) {
      const Work work = std::move(other->queue.front());
      other->queue.pop_front();
      work();
      other->done++;
    }
  });
}
Result cuEventCreate(Event** event, unsigned flags) {
  ENTER;
  if (flags != 3) return flags ? INVALID_VALUE : NOT_SUPPORTED;
  *event = create<Event>(Handle::EVENT);
  return SUCCESS;
}
Result cuEventRecord(Event* event, Stream* stream) {
  ENTER;
  USE(event, EVENT);
  USE(stream, STREAM);
  if (stream->capture && stream->capture->invalidated) return CAPTURE_INVALIDATED;
  event->stream = stream;
  event->capture = stream->capture;
  event->position = stream->submitted;
  return SUCCESS;
}
static Result check_event(Event* event) {
  USE(event, EVENT);
  if (event->capture) {
    invalidate(event->capture);
    return CAPTURED_EVENT;
  }
  SAFE;
  // The driver returns at once for an event that was not recorded. Nobody means to wait for one.
  return event->stream ? SUCCESS : INVALID_VALUE;
}
Result cuEventSynchronize(Event* event) {
  ENTER;
  if (Result bad = check_event(event)) return bad;
  return drain(event->stream, event->position);
}
Result cuEventQuery(Event* event) {
  ENTER;
  if (Result bad = check_event(event)) return bad;
  if (event->stream->done >= event->position) return fault;
  return drain(event->stream, event->stream->done + 1) ? fault : NOT_READY;
}
Result cuEventDestroy(Event* event) {
  ENTER;
  USE(event, EVENT);
  return destroy(event);
}

// --- captures and graphs ---

Result cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < GLOBAL || *mode > RELAXED) return INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return SUCCESS;
}
Result cuStreamBeginCapture(Stream* stream, int mode) {
  ENTER;
  USE(stream, STREAM);
  if (mode < GLOBAL || mode > RELAXED) return INVALID_VALUE;
  if (stream->capture) {
    invalidate(stream->capture);
    return ILLEGAL_STATE;
  }
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = pthread_self();
  captures.insert(stream->capture);
  return SUCCESS;
}
Result cuStreamEndCapture(Stream* stream, Graph** graph) {
  ENTER;
  *graph = nullptr;
  USE(stream, STREAM);
  if (!stream->capture) return ILLEGAL_STATE;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->mode != RELAXED && !pthread_equal(capture->thread, pthread_self())) {
    invalidate(capture);
    return CAPTURE_WRONG_THREAD;
  }
  captures.erase(capture);
  stream->capture = nullptr;
  if (capture->invalidated) return CAPTURE_INVALIDATED;
  *graph = create<Graph>(Handle::GRAPH);
  (*graph)->nodes = std::move(capture->nodes);
  return SUCCESS;
}
Result cuStreamIsCapturing(Stream* stream, int* status) {
  ENTER;
  USE(stream, STREAM);
  *status = !stream->capture ? 0 : stream->capture->invalidated ? 2 : 1;
  return SUCCESS;
}
Result cuGraphInstantiateWithFlags(Executable** executable, Graph* graph, unsigned long long flags) {
  ENTER;
  USE(graph, GRAPH);
  if (flags) return INVALID_VALUE;
  const size_t bytes = rounded(graph->nodes.size() * 1024, 64 << 10);
  if (bytes > free_bytes) return OUT_OF_MEMORY;
  free_bytes -= bytes;
  *executable = create<Executable>(Handle::EXECUTABLE);
  (*executable)->nodes = std::make_shared<const Nodes>(graph->nodes);
  (*executable)->bytes = bytes;
  return SUCCESS;
}
Result cuGraphDestroy(Graph* graph) {
  ENTER;
  USE(graph, GRAPH);
  return destroy(graph);
}
Result cuGraphExecDestroy(Executable* executable) {
  ENTER;
  USE(executable, EXECUTABLE);
  // Launches that are under way keep the nodes.
  free_bytes += executable->bytes;
  executable->nodes = nullptr;
  return destroy(executable);
}
Result cuGraphUpload(Executable* executable, Stream* stream) {
  ENTER;
  USE(executable, EXECUTABLE);
  USE(stream, STREAM);
  if (Result bad = not_capturing(stream)) return bad;
  return submit(stream, [] {});
}
Result cuGraphLaunch(Executable* executable, Stream* stream) {
  ENTER;
  USE(executable, EXECUTABLE);
  USE(stream, STREAM);
  // In a capture it would become a child graph, which is not emulated.
  if (Result bad = not_capturing(stream)) return bad;
  return submit(stream, [nodes = executable->nodes] {
    for (const Work& node : *nodes)
      if (!fault) node();
  });
}
}
