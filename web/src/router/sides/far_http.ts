// The far side's HTTP. Every failure is one of our errors: Unavailable if the server did not answer (``retryable`` if
// the same request may soon succeed), RequestError if it rejects the request or the key.

import { not_now_statuses as NOT_NOW, status_of_type } from "../../api/parameters.json";
import { NearfarError, RequestError, Unavailable, messageOf } from "../../errors.js";
import { isObject } from "../../shared/declared.js";
import type { Clock } from "./clock.js";
import type { KeptStream } from "./sides.js";
import { LEFT } from "./sides.js";

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;
export type JsonObject = Readonly<Record<string, unknown>>;

/** The part of an answer that is shown if it is not JSON. */
const SHOWN_CHARACTERS = 200;
const STATUS_OF_TYPE: Readonly<Record<string, number>> = status_of_type;

/** The time that an answer waits for the server's device, by the server's estimate; an integer in milliseconds. */
const QUEUE_HEADER = "X-Nearfar-Queue-Ms";
/** Names a stream. */
const KEY_HEADER = "Idempotency-Key";
/** The number of the last event that arrived of it. */
const LAST_HEADER = "Last-Event-ID";
/** The time for which a report of the queue is valid. */
const REPORT_MS = 30_000;

/** What has arrived of a streamed answer; ``last``: the number of its last event. */
interface Arrived {
  last: number;
  hasBegun: boolean;
  isDone: boolean;
  /** Called once the server has answered; nothing of the answer is read before its promise is kept. */
  readonly onBegun: () => Promise<void> | undefined;
}

export class FarHttp {
  readonly #root: string;
  #queue = { seconds: 0, reportedAt: -Infinity };

  /** ``baseURL`` with or without /v1 at its end, as in OpenAI's clients. Throws RequestError for an invalid URL. */
  constructor(
    baseURL: string,
    private readonly apiKey: string | null,
    private readonly fetch: Fetch,
    private readonly clock: Clock,
  ) {
    const page = (globalThis as { readonly location?: { readonly href: string } }).location?.href;
    const parsed = URL.canParse(baseURL, page) ? new URL(baseURL, page) : null;
    if (parsed === null || !/^https?:$/.test(parsed.protocol))
      throw new RequestError(`far.baseURL '${baseURL}' is not the URL of a server; write http://host:port/v1`, {
        param: "far.baseURL",
      });
    this.#root = parsed.href.replace(/\/+$/, "").replace(/\/v1$/, "");
  }

  /** The server's last report of its queue; 0 if it is too old, or if the server reports none. */
  get queueSeconds(): number {
    const { seconds, reportedAt } = this.#queue;
    return this.clock.now() - reportedAt <= REPORT_MS ? seconds : 0;
  }

  /** The object at a route such as "/v1/models"; null if the route does not exist. */
  async get(route: string, signal: AbortSignal): Promise<JsonObject | null> {
    const response = await this.#send(route, { method: "GET", signal });
    if (response.status === 404) return null;
    return this.objectOf(await this.#checked(response));
  }

  /** The answer to a request, before its body is read. */
  async open(route: string, body: JsonObject, signal: AbortSignal): Promise<Response> {
    return this.#checked(await this.#send(route, this.#posting(body, signal)));
  }

  /** The object that a response has. */
  async objectOf(response: Response): Promise<JsonObject> {
    return this.#object(await this.#textOf(response));
  }

  /**
   * The objects of a streamed answer, up to "[DONE]". Leaving the loop closes the connection, and ends the answer. A
   * server that ``isOurs`` keeps the answer while the connection is broken, so that the rest of it comes by another one;
   * with ``kept``, also if its reader has left.
   */
  async *stream(
    route: string,
    body: JsonObject,
    signal: AbortSignal,
    isOurs = false,
    kept?: KeptStream,
  ): AsyncGenerator<JsonObject, void, undefined> {
    const finished = new AbortController();
    // Pages over http have no crypto.randomUUID.
    const key = kept?.key ?? crypto.getRandomValues(new Uint32Array(4)).join("-");
    // The stream of an earlier page comes again from its start.
    const again = kept?.key === undefined ? {} : { [LAST_HEADER]: "0" };
    const named = isOurs ? { [KEY_HEADER]: key, ...again } : {};
    const request = this.#posting(body, AbortSignal.any([signal, finished.signal]), named);
    const onBegun = (): Promise<void> | undefined => (isOurs ? kept?.onKey?.(key) : undefined);
    const arrived: Arrived = { last: 0, hasBegun: false, isDone: false, onBegun };
    try {
      for (let before = -1; !arrived.isDone;) {
        if (arrived.last === before) throw this.#broken("its answer stopped before the end");
        before = arrived.last;
        try {
          yield* this.#connection(route, request, arrived, isOurs);
        } catch (error) {
          signal.throwIfAborted();
          if (error instanceof NearfarError) throw error;
          if (arrived.last === before) throw this.#broken(`the connection broke (${messageOf(error)})`, error);
        }
      }
    } finally {
      finished.abort();
      // A page that ends sees its connections break.
      const goesOn = kept !== undefined && (!signal.aborted || signal.reason === LEFT);
      if (isOurs && arrived.hasBegun && !arrived.isDone && !goesOn) this.end(key);
    }
  }

  /** End the answer that our server generates under a key. */
  end(key: string): void {
    const headers = { [KEY_HEADER]: key };
    void this.#send("/v1/cancel", { method: "POST", headers, keepalive: true }).catch(() => null);
  }

  /** The objects that one connection brings, from the event after the last one that has arrived. */
  async *#connection(
    route: string,
    request: RequestInit,
    arrived: Arrived,
    isOurs: boolean,
  ): AsyncGenerator<JsonObject, void, undefined> {
    const { body } = await this.#opened(route, request, arrived.last);
    if (body === null) throw this.#broken("its answer has no body");
    const begins = !arrived.hasBegun;
    arrived.hasBegun = true;
    if (begins) await arrived.onBegun();
    for await (const { id, data } of events(body)) {
      arrived.isDone = data === "[DONE]";
      if (arrived.isDone) return;
      const value = this.#object(data);
      if (typeof value.error === "object" && value.error !== null) throw this.#streamError(value.error as JsonObject);
      // An answer of another server is never continued; of ours, each event comes once, in its order.
      if (isOurs && (id !== null || arrived.last > 0) && id !== ++arrived.last)
        throw this.#broken(`event ${id ?? "without a number"} came in place of event ${arrived.last}`);
      yield value;
    }
  }

  async #opened(route: string, request: RequestInit, last: number): Promise<Response> {
    if (last === 0) return this.#checked(await this.#send(route, request));
    const headers = { ...(request.headers as Record<string, string>), [LAST_HEADER]: String(last) };
    try {
      return await this.#checked(await this.#send(route, { ...request, headers }));
    } catch (error) {
      // What the server says about the rest is no answer to the request.
      throw this.#broken("its answer stopped before the end", error);
    }
  }

  #posting(body: JsonObject, signal: AbortSignal, headers: Readonly<Record<string, string>> = {}): RequestInit {
    const type = { "Content-Type": "application/json" };
    return { method: "POST", headers: { ...type, ...headers }, body: JSON.stringify(body), signal };
  }

  async #send(route: string, init: RequestInit): Promise<Response> {
    const headers = {
      ...(init.headers as Record<string, string> | undefined),
      ...(this.apiKey === null ? {} : { Authorization: `Bearer ${this.apiKey}` }),
    };
    try {
      // No cookies: the key identifies the caller, and the browser's cookies for that origin are not ours to send. No
      // redirects: nobody has agreed to send anything to their target. Nor the page's address, which may be private.
      const response = await this.fetch(`${this.#root}${route}`, {
        ...init,
        headers,
        credentials: "omit",
        redirect: "manual",
        referrerPolicy: "no-referrer",
      });
      const waitMs = response.headers.get(QUEUE_HEADER) ?? "";
      if (/^\d{1,12}$/.test(waitMs)) this.#queue = { seconds: Number(waitMs) / 1000, reportedAt: this.clock.now() };
      return response;
    } catch (error) {
      init.signal?.throwIfAborted();
      throw this.#broken(`no connection could be made (${messageOf(error)})`, error);
    }
  }

  /** The response, if its status is a success. */
  async #checked(response: Response): Promise<Response> {
    if (response.ok) return response;
    // Pages see the status of a redirect as 0.
    if (response.status < 400) {
      throw new Unavailable(
        `${this.#root}: answers with a redirect, which is not followed; set far.baseURL to its target`,
        { retryable: false },
      );
    }
    const error = errorObject(await response.text().catch(() => ""));
    throw this.#byStatus(response.status, error, retryAfterMs(response.headers.get("Retry-After")));
  }

  async #textOf(response: Response): Promise<string> {
    try {
      return await response.text();
    } catch (error) {
      throw this.#broken(`the connection broke (${messageOf(error)})`, error);
    }
  }

  #streamError(error: JsonObject): NearfarError {
    // Some servers send an HTTP status as the code. Ours sends "unavailable" if another server may answer, which the
    // type does not express.
    const status =
      typeof error.code === "number"
        ? error.code
        : error.code === "unavailable"
          ? 503
          : (STATUS_OF_TYPE[String(error.type)] ?? 500);
    return this.#byStatus(status, error, null);
  }

  #byStatus(status: number, error: JsonObject, retryAfter: number | null): NearfarError {
    const message = typeof error.message === "string" && error.message !== "" ? error.message : `status ${status}`;
    if (status === 401 || status === 403) {
      return new RequestError(`${this.#root}: rejects the API key (${message}); set far.apiKey to a valid key`, {
        code: "wrong_key",
        param: "far.apiKey",
        status,
      });
    }
    if (status >= 400 && status < 500 && !NOT_NOW.includes(status)) {
      const code = typeof error.code === "string" ? { code: error.code } : {};
      return new RequestError(message, {
        ...code,
        ...(typeof error.param === "string" ? { param: error.param } : {}),
        status,
      });
    }
    const hint = retryAfter === null ? {} : { retry_after_ms: retryAfter };
    return new Unavailable(`${this.#root}: ${message}`, { status, retryable: NOT_NOW.includes(status), ...hint });
  }

  #broken(why: string, cause?: unknown): Unavailable {
    return new Unavailable(
      `${this.#root}: ${why}; is it running, and does it allow this page's origin?`,
      { retryable: true },
      { cause },
    );
  }

  #object(text: string): JsonObject {
    const value = parsed(text);
    if (isObject(value)) return value;
    throw new Unavailable(
      `${this.#root}: expected a JSON object, it sent '${text.slice(0, SHOWN_CHARACTERS)}'; ` +
        "is it a server of language models?",
      { retryable: false },
    );
  }
}

function parsed(text: string): unknown {
  try {
    // The escape of half a surrogate pair is not text unless the other half follows.
    return JSON.parse(text, /\\u[dD][89a-fA-F]/.test(text) ? wellFormed : undefined);
  } catch {
    return undefined;
  }
}

function wellFormed(_: string, value: unknown): unknown {
  if (typeof value === "string" && /\p{Cs}/u.test(value)) throw new SyntaxError("half a surrogate pair");
  return value;
}

/** OpenAI's error object: under "error", or alone as some servers send it; anything else becomes the message. */
function errorObject(text: string): JsonObject {
  const value = parsed(text);
  if (typeof value !== "object" || value === null) return { message: text.trim().slice(0, SHOWN_CHARACTERS) };
  const { error = value } = value as { readonly error?: unknown };
  if (typeof error === "object" && error !== null && "message" in error) return error;
  return { message: JSON.stringify(error).slice(0, SHOWN_CHARACTERS) };
}

/** The seconds form of the header, in milliseconds. */
function retryAfterMs(header: string | null): number | null {
  const seconds = header === null || header.trim() === "" ? NaN : Number(header);
  return Number.isFinite(seconds) ? Math.max(0, seconds * 1000) : null;
}

// Server-sent events from the bytes of a connection. The format is that of the HTML standard (section 9.2.6) with lines
// that end in \n or \r\n; only the fields ``data`` and ``id`` matter here.

/** A server that never ends its line must not fill the memory. */
const MAX_EVENT_CHARACTERS = 8 << 20;

/** ``id``: the event's number, null if it has none. */
interface SentEvent {
  readonly id: number | null;
  readonly data: string;
}

/**
 * All events. One that is cut off by the end of the connection is left out, as the standard says.
 * Leaving the loop closes the connection.
 */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<SentEvent, void, undefined> {
  // Not every browser iterates a stream.
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  let data: string[] = [];
  let id: number | null = null;
  let size = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const text = decoder.decode(value, { stream: true });
      const lines = (pending + text).split("\n");
      pending = lines.pop() ?? "";
      size += text.length;
      for (const ended of lines) {
        const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
        if (line.startsWith("data:")) data.push(line.slice("data:".length).replace(/^ /, ""));
        else if (/^id: \d{1,9}$/.test(line)) id = Number(line.slice(3));
        else if (line === "" && data.length > 0) {
          yield { id, data: data.join("\n") };
          [data, id] = [[], null];
          size = pending.length;
        }
      }
      if (size > MAX_EVENT_CHARACTERS)
        throw new Unavailable(
          `The far side sent an event of over ${MAX_EVENT_CHARACTERS >> 20} MB; is it a server of language models?`,
        );
    }
  } finally {
    // Nothing waits for the connection to close, and its failure has been reported.
    reader.cancel().catch(() => undefined);
  }
}
