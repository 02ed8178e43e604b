// A port for the calls of @nearfar/web that sends and receives messages through functions.

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
    // Nothing to do: the port receives messages only after a listener was added.
  }

  close(): void {
    this.#isClosed = true;
  }
}
