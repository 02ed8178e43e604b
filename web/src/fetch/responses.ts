// Responses in OpenAI's format: streams of server-sent events, and error objects.

import type { ErrorObject } from "../api/replies.js";
import { RequestError, isNearfarError, messageOf } from "../errors.js";

/**
 * Streams chunks as server-sent events. If the reader cancels, ``cancelled`` aborts. A failure in mid-answer becomes an
 * event with an error, as OpenAI sends it.
 */
export function streamResponse(
  chunks: AsyncIterable<object>,
  signal: AbortSignal,
  cancelled: AbortController,
): Response {
  const events = eventsOf(chunks, signal);
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    async pull(controller) {
      const { done, value } = await events.next();
      if (done === true) controller.close();
      else controller.enqueue(encoder.encode(`data: ${value}\n\n`));
    },
    cancel() {
      cancelled.abort();
    },
  });
  return new Response(body, {
    headers: { "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache" },
  });
}

async function* eventsOf(chunks: AsyncIterable<object>, signal: AbortSignal): AsyncGenerator<string, void, undefined> {
  try {
    for await (const chunk of chunks) yield JSON.stringify(chunk);
  } catch (error) {
    signal.throwIfAborted();
    yield JSON.stringify({ error: errorObject(error) });
    return;
  }
  yield "[DONE]";
}

/**
 * OpenAI's client repeats requests that fail with a status of 500 or more. On this device, only a request that failed
 * with 503 may succeed the next time.
 */
export function errorResponse(error: unknown): Response {
  const status = isNearfarError(error) ? error.status : 500;
  return Response.json(
    { error: errorObject(error) },
    { status, headers: { "x-should-retry": String(status === 503) } },
  );
}

export function notFound(message: string): Response {
  return Response.json({ error: errorObject(new RequestError(message)) }, { status: 404 });
}

export function wrongMethod(message: string, allow: string): Response {
  return Response.json({ error: errorObject(new RequestError(message)) }, { status: 405, headers: { Allow: allow } });
}

function errorObject(error: unknown): ErrorObject {
  if (!isNearfarError(error)) return { message: messageOf(error), type: "server_error", param: null, code: null };
  const { message, type, param, code } = error;
  return { message, type, param, code };
}
