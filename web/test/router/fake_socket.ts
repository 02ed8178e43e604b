// A WebSocket whose server is the test: it records what a client sends, and answers.

import type { SocketLike } from "../../src/router/sides/verify_socket.js";

export interface Message {
  readonly type: string;
  readonly tokens?: readonly number[];
  readonly prompt?: readonly number[];
  readonly max_tokens?: number;
  readonly [key: string]: unknown;
}

export abstract class FakeSocket implements SocketLike {
  onopen: (() => void) | null = null;
  onmessage: ((event: { readonly data: unknown }) => void) | null = null;
  onclose: ((event: { readonly code: number }) => void) | null = null;
  onerror: (() => void) | null = null;
  closed = false;
  readonly sent: Message[] = [];

  constructor(
    readonly url: string,
    readonly protocols: string[],
  ) {
    queueMicrotask(() => {
      this.connect();
    });
  }

  send(text: string): void {
    const message = JSON.parse(text) as Message;
    this.sent.push(message);
    setImmediate(() => {
      this.answer(message);
    });
  }

  close(): void {
    this.closed = true;
  }

  protected connect(): void {
    this.onopen?.();
  }

  protected abstract answer(message: Message): void;

  protected reply(message: unknown): void {
    this.onmessage?.({ data: typeof message === "string" ? message : JSON.stringify(message) });
  }

  /** Send the reason, then close with the status, like the server. */
  protected refuse(code: string, status: number): void {
    this.reply({ type: "error", error: { message: code, type: "invalid_request_error", code } });
    this.onclose?.({ code: 4000 + status });
  }
}
