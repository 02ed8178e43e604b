// @nearfar/web/fetch: a `fetch` that answers OpenAI's routes on this device, for clients of OpenAI's API.

import type { ChatSource } from "../api/chat_source.js";
import { modelName } from "../api/chat_source.js";
import { RequestError, messageOf } from "../errors.js";
import { errorResponse, notFound, streamResponse, wrongMethod } from "./responses.js";
import { ROUTES } from "./routes.js";

export type { ChatSource } from "../api/chat_source.js";

/**
 * Makes a `fetch` that answers POST `chat/completions`, `completions` and `embeddings` and GET `models` and `models/ID`
 * below any base URL, with an Engine, an engine in a worker, or a Hybrid. Only the requests of a Hybrid to its server
 * use the network. The response to a wrong request is OpenAI's error object. An aborted request rejects with the
 * signal's reason.
 */
export function createFetch(source: ChatSource): typeof fetch {
  return async (input, init) => {
    const request = new Request(input, init);
    const { pathname } = new URL(request.url);
    const route = ROUTES.find(({ path }) => path.test(pathname));
    if (route === undefined)
      return notFound(`There is no route ${pathname}; routes: chat/completions, completions, embeddings, models`);
    if (request.method !== route.method)
      return wrongMethod(`${pathname} accepts ${route.method}, not ${request.method}`, route.method);
    // The caller's signal comes first: Node may collect the request, and its signal, while the answer streams.
    const callerSignal = init?.signal ?? request.signal;
    const cancelled = new AbortController();
    const signal = AbortSignal.any([callerSignal, cancelled.signal]);
    try {
      const body = route.method === "GET" ? {} : await jsonOf(request);
      const id = decodeURIComponent(route.path.exec(pathname)?.[1] ?? "");
      const answer = await route.answer(source, body, { signal, id });
      if (answer === null) return notFound(`There is no model '${id}'; this engine serves '${modelName(source)}'`);
      return Symbol.asyncIterator in answer ? streamResponse(answer, signal, cancelled) : Response.json(answer);
    } catch (error) {
      signal.throwIfAborted();
      return errorResponse(error);
    }
  };
}

async function jsonOf(request: Request): Promise<object> {
  const text = await request.text();
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch (error) {
    throw new RequestError(`The body is not valid JSON: ${messageOf(error)}`, {}, { cause: error });
  }
  if (typeof body !== "object" || body === null || Array.isArray(body))
    throw new RequestError("The body must be a JSON object of parameters");
  return body;
}
