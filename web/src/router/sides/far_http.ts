// The far side's HTTP: bodies flow in, JSON objects flow out, one or a stream of them. Every failure is one of our errors: Unavailable where the server
// did not answer (``retryable`` where the same request may be answered in a moment), RequestError where it blames the request or the key.

import { NearfarError, RequestError, Unavailable, messageOf } from "../../errors.js";
import type { Clock } from "./clock.js";
import { events } from "./sse.js";

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;
export type JsonObject = Readonly<Record<string, unknown>>;

/** Of an answer that is no JSON, so much is shown. */
const SHOWN_CHARACTERS = 200;
/** The server, or a proxy before it, is not there or has too much to do. */
const NOT_NOW: readonly number[] = [408, 429, 502, 503, 504, 529];
/** In the middle of a stream an error has no status; OpenAI's types of errors stand for one. */
const STATUS_OF_TYPE: Readonly<Record<string, number>> = {
  invalid_request_error: 400,
  rate_limit_error: 429,
  timeout_error: 503,
};

/** How long an answer waits for the server's device, as it sees it; an integer, in milliseconds. */
const QUEUE_HEADER = "X-Nearfar-Queue-Ms";
/** So long a queue is taken for what it was. */
const QUEUE_KNOWN_MS = 30_000;

export class FarHttp {
  readonly #root: string;
  #queue = { seconds: 0, toldAt: -Infinity };

  /** ``baseURL`` with or without /v1 at its end, as OpenAI's clients write it. Throws RequestError for one that is none. */
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

  /** What the server last told of its queue; 0 where that is too long ago, and where it tells nothing. */
  get queueSeconds(): number {
    const { seconds, toldAt } = this.#queue;
    return this.clock.now() - toldAt <= QUEUE_KNOWN_MS ? seconds : 0;
  }

  /** The object at a route such as "/v1/models", null where there is no such route. */
  async get(route: string, signal: AbortSignal): Promise<JsonObject | null> {
    const response = await this.send(route, { method: "GET", signal });
    if (response.status === 404) return null;
    return this.object(await this.textOf(await this.checked(response)));
  }

  async post(route: string, body: JsonObject, signal: AbortSignal): Promise<JsonObject> {
    return this.object(await this.textOf(await this.checked(await this.send(route, this.posting(body, signal)))));
  }

  /** The objects of a streamed answer, up to "[DONE]". Leaving the loop closes the connection. */
  async *stream(route: string, body: JsonObject, signal: AbortSignal): AsyncGenerator<JsonObject, void, undefined> {
    const left = new AbortController();
    const either = AbortSignal.any([signal, left.signal]);
    try {
      const response = await this.checked(await this.send(route, this.posting(body, either)));
      if (response.body === null) throw this.broken("its answer has no body");
      for await (const data of events(response.body)) {
        if (data === "[DONE]") return;
        const value = this.object(data);
        if (typeof value.error === "object" && value.error !== null) throw this.streamed(value.error as JsonObject);
        yield value;
      }
      throw this.broken("its answer stopped before the end");
    } catch (error) {
      signal.throwIfAborted();
      throw error instanceof NearfarError ? error : this.broken(`the connection broke (${messageOf(error)})`, error);
    } finally {
      left.abort();
    }
  }

  private posting(body: JsonObject, signal: AbortSignal): RequestInit {
    return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  }

  private async send(route: string, init: RequestInit): Promise<Response> {
    const headers = {
      ...(init.headers as Record<string, string> | undefined),
      ...(this.apiKey === null ? {} : { Authorization: `Bearer ${this.apiKey}` }),
    };
    try {
      // No cookies: the key says who asks, and what the browser keeps for that origin is not ours to send.
      // No redirects: nobody has agreed to send anything to the address that they lead to.
      const response = await this.fetch(`${this.#root}${route}`, {
        ...init,
        headers,
        credentials: "omit",
        redirect: "manual",
      });
      const waitMs = response.headers.get(QUEUE_HEADER) ?? "";
      if (/^\d{1,12}$/.test(waitMs)) this.#queue = { seconds: Number(waitMs) / 1000, toldAt: this.clock.now() };
      return response;
    } catch (error) {
      init.signal?.throwIfAborted();
      throw this.broken(`no connection could be made (${messageOf(error)})`, error);
    }
  }

  /** The answer, where its status is a good one. */
  private async checked(response: Response): Promise<Response> {
    if (response.ok) return response;
    // A page sees the status of a redirect as 0.
    if (response.status < 400) {
      throw new Unavailable(
        `${this.#root}: answers with a redirect, which is not followed; give its target as far.baseURL`,
        { retryable: false },
      );
    }
    const said = errorObject(await response.text().catch(() => ""));
    throw this.byStatus(response.status, said, retryAfterMs(response.headers.get("Retry-After")));
  }

  private async textOf(response: Response): Promise<string> {
    try {
      return await response.text();
    } catch (error) {
      throw this.broken(`the connection broke (${messageOf(error)})`, error);
    }
  }

  private streamed(said: JsonObject): NearfarError {
    // Some servers give an HTTP status as the code; ours says so that another one may answer, which its type does not tell.
    const status =
      typeof said.code === "number"
        ? said.code
        : said.code === "unavailable"
          ? 503
          : (STATUS_OF_TYPE[String(said.type)] ?? 500);
    return this.byStatus(status, said, null);
  }

  private byStatus(status: number, said: JsonObject, retryAfter: number | null): NearfarError {
    const message = typeof said.message === "string" && said.message !== "" ? said.message : `status ${status}`;
    if (status === 401 || status === 403) {
      return new RequestError(`${this.#root}: refuses the API key (${message}); give the right one as far.apiKey`, {
        code: "wrong_key",
        param: "far.apiKey",
        status,
      });
    }
    if (status >= 400 && status < 500 && !NOT_NOW.includes(status)) {
      const code = typeof said.code === "string" ? { code: said.code } : {};
      return new RequestError(message, {
        ...code,
        ...(typeof said.param === "string" ? { param: said.param } : {}),
        status,
      });
    }
    const hint = retryAfter === null ? {} : { retryAfterMs: retryAfter };
    return new Unavailable(`${this.#root}: ${message}`, { status, retryable: NOT_NOW.includes(status), ...hint });
  }

  private broken(why: string, cause?: unknown): Unavailable {
    return new Unavailable(
      `${this.#root}: ${why}; is it running, and does it allow this page's origin?`,
      { retryable: true },
      { cause },
    );
  }

  private object(text: string): JsonObject {
    const value = parsed(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as JsonObject;
    throw new Unavailable(
      `${this.#root}: expected a JSON object, it sent '${text.slice(0, SHOWN_CHARACTERS)}'; is it a server of language models?`,
      { retryable: false },
    );
  }
}

function parsed(text: string): unknown {
  try {
    // The escape of a half of a surrogate pair is no text unless its other half follows.
    return JSON.parse(text, /\\u[dD][89a-fA-F]/.test(text) ? wellFormed : undefined);
  } catch {
    return undefined;
  }
}

function wellFormed(_: string, value: unknown): unknown {
  if (typeof value === "string" && /\p{Cs}/u.test(value)) throw new SyntaxError("half a surrogate pair");
  return value;
}

/** OpenAI's error object: under "error", or alone as some servers send it; what else there is becomes the message. */
function errorObject(text: string): JsonObject {
  const value = parsed(text);
  if (typeof value !== "object" || value === null) return { message: text.trim().slice(0, SHOWN_CHARACTERS) };
  const { error = value } = value as { readonly error?: unknown };
  if (typeof error === "object" && error !== null && "message" in error) return error;
  return { message: JSON.stringify(error).slice(0, SHOWN_CHARACTERS) };
}

/** Of the header's two forms, the seconds, in milliseconds. */
function retryAfterMs(header: string | null): number | null {
  const seconds = header === null || header.trim() === "" ? NaN : Number(header);
  return Number.isFinite(seconds) ? Math.max(0, seconds * 1000) : null;
}
