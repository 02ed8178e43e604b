// A port whose messages go out and come in through functions, for the calls of @nearfar/web.

import type { WirePort } from "@nearfar/web/calls";

export class FramePort implements WirePort {
  readonly #listeners: ((event: { readonly data: unknown }) => void)[] = [];
  #isClosed = false;

  constructor(private readonly send: (message: unknown) => void) {}

  postMessage(message: unknown): void {
    if (!this.#isClosed) this.send(message);
  }

  receive(message: unknown): void {
    if (this.#isClosed) return;
    for (const listener of this.#listeners) listener({ data: message });
  }

  addEventListener(_: "message", listener: (event: { readonly data: unknown }) => void): void {
    this.#listeners.push(listener);
  }

  start(): void {
    // Whoever makes the port hands messages to it only once somebody listens.
  }

  close(): void {
    this.#isClosed = true;
  }
}
