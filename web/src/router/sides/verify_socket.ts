// The messages of /v1/nearfar/verify over a WebSocket, as server_fallback/schema/verify.py defines them. Every failure
// is one of our errors: RequestError if the server rejects the request or the key, Unavailable if it cannot be reached,
// breaks off or is overloaded.

import { not_now_statuses as NOT_NOW } from "../../api/parameters.json";
import type { CommonParams } from "../../api/parameters.js";
import type { ErrorObject, VerifyAccepted, VerifyError, VerifyOpened } from "../../api/replies.js";
import type { NearfarError } from "../../errors.js";
import { RequestError, Unavailable } from "../../errors.js";

/** The part of the platform's WebSocket that is needed here. */
export interface SocketLike {
  onopen: (() => void) | null;
  onmessage: ((event: { readonly data: unknown }) => void) | null;
  onclose: ((event: { readonly code: number }) => void) | null;
  onerror: (() => void) | null;
  send(text: string): void;
  close(): void;
}

export type SocketClass = new (url: string, protocols: string[]) => SocketLike;

export interface Opening extends Pick<CommonParams, "temperature"> {
  readonly model: string;
  readonly tokenizer_sha256: string;
  readonly prompt: readonly number[];
  readonly max_tokens?: number | undefined;
  readonly priority?: number | undefined;
}

type Message = VerifyOpened | VerifyAccepted | VerifyError;

/** The version of the messages. */
const VERSION = 1;
const PATH = "/v1/nearfar/verify";
const PROTOCOL = "nearfar.verify";
/** Pages cannot set headers, so the key is sent as a protocol. */
const KEY_PROTOCOL = "nearfar.key.";
/** Added to the HTTP status of an error, it is the server's close code. */
const CLOSE_CODES = 4000;

export class VerifySocket {
  readonly #socket: SocketLike;
  readonly #url: string;
  readonly #messages: Message[] = [];
  #connected = false;
  #refused: ErrorObject | null = null;
  /** Why no more messages will come; null while they may. */
  #end: NearfarError | null = null;
  #wake: () => void = () => undefined;

  /** ``baseURL`` with or without /v1 at its end. Throws RequestError for an invalid URL. */
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
      this.#read(data);
    };
    // Browsers do not report the reason; the close event that follows matters.
    socket.onerror = () => undefined;
    socket.onclose = ({ code }) => {
      this.#end ??= this.#connected ? this.#ended(code) : this.#unconnected();
      this.#wake();
    };
  }

  /**
   * Sends the first message and returns the answer to it. Throws RequestError (``details.code``: tokenizer_differs,
   * verify_version, verify_unavailable, wrong_key), Unavailable.
   */
  async open(opening: Opening, signal: AbortSignal | undefined): Promise<VerifyOpened> {
    await this.#until(() => this.#connected, signal);
    this.#send({ type: "open", version: VERSION, ...opening });
    const opened = await this.#receive("opened", signal);
    if (opened.version !== VERSION) {
      throw new RequestError(
        `The far side uses version ${opened.version} of these messages, this client version ${VERSION}; ` +
          "update the older of them",
        { code: "verify_version" },
      );
    }
    return opened;
  }

  draft(tokens: readonly number[]): void {
    this.#send({ type: "draft", tokens });
  }

  async accepted(signal: AbortSignal | undefined): Promise<VerifyAccepted> {
    return this.#receive("accepted", signal);
  }

  close(): void {
    this.#socket.onmessage = null;
    this.#socket.onclose = null;
    this.#socket.close();
  }

  #send(message: object): void {
    // A message to a closing socket is lost; the next receive reports the reason.
    if (this.#end === null) this.#socket.send(JSON.stringify(message));
  }

  async #receive<T extends "opened" | "accepted">(
    type: T,
    signal: AbortSignal | undefined,
  ): Promise<Extract<Message, { type: T }>> {
    await this.#until(() => this.#messages.length > 0, signal);
    const message = this.#messages.shift();
    if (message?.type !== type) throw this.#nonsense();
    return message as Extract<Message, { type: T }>;
  }

  /** Resolves when the condition is true. Throws the reason why it cannot become true, or the signal's reason. */
  async #until(condition: () => boolean, signal: AbortSignal | undefined): Promise<void> {
    const wake = (): void => {
      this.#wake();
    };
    signal?.addEventListener("abort", wake);
    try {
      for (;;) {
        signal?.throwIfAborted();
        if (condition()) return;
        if (this.#end !== null) throw this.#end;
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
    } finally {
      signal?.removeEventListener("abort", wake);
    }
  }

  #read(data: unknown): void {
    let message: unknown = null;
    try {
      message = JSON.parse(String(data));
    } catch {
      // Reported below.
    }
    const type = (message as Partial<Message> | null)?.type;
    if (type === "error") {
      // Its status is known when the connection closes.
      this.#refused = (message as VerifyError).error;
    } else if (type === "opened" || type === "accepted") {
      this.#messages.push(message as Message);
    } else {
      this.#end ??= this.#nonsense();
    }
    this.#wake();
  }

  #ended(code: number): NearfarError {
    if (this.#refused === null)
      return new Unavailable(`${this.#url}: the connection broke (${code})`, { retryable: true });
    const { message, param, code: why } = this.#refused;
    const status = code - CLOSE_CODES;
    if (status === 401 || status === 403) {
      return new RequestError(`${this.#url}: rejects the API key (${message}); set far.apiKey to a valid key`, {
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

  /** A page cannot distinguish a missing server from one without this route. */
  #unconnected(): Unavailable {
    const message =
      `${this.#url}: no connection could be made; ` +
      "is it running, and does it allow WebSockets and this page's origin?";
    return new Unavailable(message, { code: "verify_unavailable", retryable: true });
  }

  #nonsense(): Unavailable {
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
