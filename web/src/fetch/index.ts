// @nearfar/web/fetch: a `fetch` that answers OpenAI's routes on this device, for clients of OpenAI's API that take one.

import type { ChatSource } from "../api/chat_source.js";
import { modelName } from "../api/chat_source.js";
import { RequestError, messageOf } from "../errors.js";
import { errorResponse, notFound, streamResponse, wrongMethod } from "./responses.js";
import { ROUTES } from "./routes.js";

export type { ChatSource } from "../api/chat_source.js";

/**
 * A `fetch` that answers POST `chat/completions`, `completions` and `embeddings` and GET `models` and `models/ID`, below any base URL, from an Engine, an
 * engine in a worker, or a Hybrid. It uses no network, except for what a Hybrid sends to its server. A wrong request is answered with OpenAI's error
 * object; an aborted one rejects with the signal's reason.
 */
export function createFetch(source: ChatSource): typeof fetch {
  return async (input, init) => {
    const request = new Request(input, init);
    const { pathname } = new URL(request.url);
    const route = ROUTES.find(({ path }) => path.test(pathname));
    if (route === undefined)
      return notFound(`There is no route ${pathname}; routes: chat/completions, completions, embeddings, models`);
    if (request.method !== route.method)
      return wrongMethod(`${pathname} takes ${route.method}, not ${request.method}`, route.method);
    // Not the request's own signal: in Node it may be collected while the answer streams.
    const given = init?.signal ?? request.signal;
    const left = new AbortController();
    const signal = AbortSignal.any([given, left.signal]);
    try {
      const body = route.method === "GET" ? {} : await jsonOf(request);
      const id = decodeURIComponent(route.path.exec(pathname)?.[1] ?? "");
      const answer = await route.answer(source, body, { signal, id });
      if (answer === null) return notFound(`There is no model '${id}'; this engine serves '${modelName(source)}'`);
      return Symbol.asyncIterator in answer ? streamResponse(answer, signal, left) : Response.json(answer);
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
