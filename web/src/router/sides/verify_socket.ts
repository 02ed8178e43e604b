// The messages of /v1/nearfar/verify over a WebSocket: server_fallback/schema/verify.py says what they are. Every failure is one of our errors: RequestError
// where the server blames the request or the key, Unavailable where it cannot be reached, breaks off, or has too much to do.

import type { FinishReason } from "../../engine/request.js";
import type { NearfarError } from "../../errors.js";
import { RequestError, Unavailable } from "../../errors.js";

/** The platform's, as far as it is needed here. */
export interface SocketLike {
  onopen: (() => void) | null;
  onmessage: ((event: { readonly data: unknown }) => void) | null;
  onclose: ((event: { readonly code: number }) => void) | null;
  onerror: (() => void) | null;
  send(text: string): void;
  close(): void;
}

export type SocketClass = new (url: string, protocols: string[]) => SocketLike;

export interface Opening {
  readonly model: string;
  readonly tokenizer_sha256: string;
  readonly prompt: readonly number[];
  readonly max_tokens?: number | undefined;
  readonly temperature?: number | undefined;
  readonly top_p?: number | undefined;
  readonly top_k?: number | undefined;
  readonly min_p?: number | undefined;
  readonly seed?: number | undefined;
  readonly priority?: number | undefined;
}

export interface Opened {
  readonly type: "opened";
  readonly version: number;
  readonly context: number;
  readonly max_drafts: number;
}

export interface Accepted {
  readonly type: "accepted";
  readonly tokens: readonly number[];
  readonly finish_reason?: FinishReason;
  readonly cached_tokens: number;
}

interface Refused {
  readonly type: "error";
  readonly error: { readonly message: string; readonly param?: string | null; readonly code?: string | null };
}

type Message = Opened | Accepted | Refused;

/** Of the messages. */
const VERSION = 1;
const PATH = "/v1/nearfar/verify";
const PROTOCOL = "nearfar.verify";
/** Pages cannot set headers, so the key is named as a protocol. */
const KEY_PROTOCOL = "nearfar.key.";
/** What the server closes with after an error is this and the error's HTTP status. */
const CLOSE_CODES = 4000;
const NOT_NOW: readonly number[] = [408, 429, 503];

export class VerifySocket {
  readonly #socket: SocketLike;
  readonly #url: string;
  readonly #messages: Message[] = [];
  #connected = false;
  #refused: Refused["error"] | null = null;
  /** Why nothing more comes; null while it may. */
  #end: NearfarError | null = null;
  #wake: () => void = () => undefined;

  /** ``baseURL`` with or without /v1 at its end. Throws RequestError for one that is none. */
  constructor(baseURL: string, apiKey: string | null, Socket: SocketClass) {
    const page = (globalThis as { readonly location?: { readonly href: string } }).location?.href;
    const parsed = URL.canParse(baseURL, page) ? new URL(baseURL, page) : null;
    if (parsed === null || !/^https?:$/.test(parsed.protocol))
      throw new RequestError(`far.baseURL '${baseURL}' is not the URL of a server; write http://host:port/v1`, {
        param: "far.baseURL",
      });
    this.#url = parsed.href.replace(/\/+$/, "").replace(/\/v1$/, "");
    const socket = new Socket(
      this.#url.replace(/^http/, "ws") + PATH,
      apiKey === null ? [PROTOCOL] : [PROTOCOL, KEY_PROTOCOL + base64url(apiKey)],
    );
    this.#socket = socket;
    socket.onopen = () => {
      this.#connected = true;
      this.#wake();
    };
    socket.onmessage = ({ data }) => {
      this.read(data);
    };
    // Browsers say nothing of why; the close that follows is what counts.
    socket.onerror = () => undefined;
    socket.onclose = ({ code }) => {
      this.#end ??= this.#connected ? this.ended(code) : this.unconnected();
      this.#wake();
    };
  }

  /** The first message and the answer to it. Throws RequestError (``details.code``: tokenizer_differs, verify_version, verify_unavailable, wrong_key), Unavailable. */
  async open(opening: Opening, signal: AbortSignal | undefined): Promise<Opened> {
    await this.until(() => this.#connected, signal);
    this.send({ type: "open", version: VERSION, ...opening });
    const opened = await this.hear("opened", signal);
    if (opened.version !== VERSION) {
      throw new RequestError(
        `The far side uses version ${opened.version} of these messages, this client version ${VERSION}; update the older of them`,
        { code: "verify_version" },
      );
    }
    return opened;
  }

  draft(tokens: readonly number[]): void {
    this.send({ type: "draft", tokens });
  }

  async accepted(signal: AbortSignal | undefined): Promise<Accepted> {
    return this.hear("accepted", signal);
  }

  close(): void {
    this.#socket.onmessage = null;
    this.#socket.onclose = null;
    this.#socket.close();
  }

  private send(message: object): void {
    // What is sent to a socket that closes is lost; why it does is heard next.
    if (this.#end === null) this.#socket.send(JSON.stringify(message));
  }

  private async hear<T extends "opened" | "accepted">(
    type: T,
    signal: AbortSignal | undefined,
  ): Promise<Extract<Message, { type: T }>> {
    await this.until(() => this.#messages.length > 0, signal);
    const message = this.#messages.shift();
    if (message?.type !== type) throw this.nonsense();
    return message as Extract<Message, { type: T }>;
  }

  /** Resolves when the fact holds. Throws why it cannot any more, or the signal's reason. */
  private async until(fact: () => boolean, signal: AbortSignal | undefined): Promise<void> {
    const woken = (): void => {
      this.#wake();
    };
    signal?.addEventListener("abort", woken);
    try {
      for (;;) {
        signal?.throwIfAborted();
        if (fact()) return;
        if (this.#end !== null) throw this.#end;
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
    } finally {
      signal?.removeEventListener("abort", woken);
    }
  }

  private read(data: unknown): void {
    let message: unknown = null;
    try {
      message = JSON.parse(String(data));
    } catch {
      // Told below.
    }
    const type = (message as Partial<Message> | null)?.type;
    if (type === "error") {
      // With which status is known when it closes.
      this.#refused = (message as Refused).error;
    } else if (type === "opened" || type === "accepted") {
      this.#messages.push(message as Message);
    } else {
      this.#end ??= this.nonsense();
    }
    this.#wake();
  }

  private ended(code: number): NearfarError {
    if (this.#refused === null)
      return new Unavailable(`${this.#url}: the connection broke (${code})`, { retryable: true });
    const { message, param, code: why } = this.#refused;
    const status = code - CLOSE_CODES;
    if (status === 401 || status === 403) {
      return new RequestError(`${this.#url}: refuses the API key (${message}); give the right one as far.apiKey`, {
        code: "wrong_key",
        param: "far.apiKey",
        status,
      });
    }
    if (status >= 400 && status < 500 && !NOT_NOW.includes(status)) {
      return new RequestError(message, {
        ...(typeof why === "string" ? { code: why } : {}),
        ...(typeof param === "string" ? { param } : {}),
        status,
      });
    }
    return new Unavailable(`${this.#url}: ${message}`, { status, retryable: NOT_NOW.includes(status) });
  }

  /** A page is not told whether there is no server, or one that knows nothing of this. */
  private unconnected(): Unavailable {
    const message = `${this.#url}: no connection could be made; is it running, and does it allow WebSockets and this page's origin?`;
    return new Unavailable(message, { code: "verify_unavailable", retryable: true });
  }

  private nonsense(): Unavailable {
    return new Unavailable(`${this.#url}: sent an invalid message of ${PATH}; is it nearfar serve?`, {
      retryable: false,
    });
  }
}

function base64url(text: string): string {
  const bytes = new TextEncoder().encode(text);
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
