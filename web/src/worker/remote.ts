// The caller's end of a port: sends calls, and returns their results as promises and streams.

import { Stream } from "../api/stream.js";
import { RequestError, messageOf } from "../errors.js";
import type { FromWorker, ToWorker, WirePort } from "./wire.js";
import { pack, packError, unpackError } from "./wire.js";

/** Items of a stream that the worker may send ahead of the reader. */
const WINDOW = 32;

interface Call {
  resolve(value: unknown): void;
  reject(error: unknown): void;
  readonly callbacks: readonly ((...args: readonly unknown[]) => unknown)[];
  /** Aborts when the call has ended, which removes the listeners on its signals. */
  readonly ended: AbortController;
  readonly inbox: unknown[];
  /** Set when the inbox receives no more items, with the error, or what the generator returned. */
  closed: { readonly error?: unknown; readonly value?: unknown } | null;
  /** Wakes the reader of the inbox. */
  wake(): void;
}

export class Remote {
  readonly #calls = new Map<number, Call>();
  #nextId = 0;
  #closed: { readonly error: Error } | null = null;

  constructor(private readonly port: WirePort) {
    port.addEventListener("message", ({ data }) => {
      this.#receive(data as FromWorker);
    });
    port.start();
  }

  /**
   * Calls the function at ``path`` in the object that the other side serves. Signals and functions in the arguments
   * work across the port, but functions return nothing. An iterable result becomes a Stream, whose iteration returns what
   * a generator returns. Throws what the function throws, a signal's reason, or the error with which the port was closed.
   */
  async call(path: readonly string[], args: readonly unknown[]): Promise<unknown> {
    if (this.#closed !== null) throw this.#closed.error;
    const packed = pack(args);
    for (const signal of packed.signals) signal.throwIfAborted();
    const id = this.#nextId++;
    const { promise, resolve, reject } = deferred();
    const call: Call = {
      resolve,
      reject,
      callbacks: packed.callbacks,
      ended: new AbortController(),
      inbox: [],
      closed: null,
      wake: () => undefined,
    };
    try {
      this.#post({ type: "call", id, path, args: packed.args }, packed.transfer);
    } catch (error) {
      throw new RequestError(
        `${path.join(".")}: an argument cannot be sent: ${messageOf(error)}`,
        {},
        { cause: error },
      );
    }
    this.#calls.set(id, call);
    for (const [index, signal] of packed.signals.entries()) {
      const abort = (): void => {
        this.#post({ type: "abort", id, signal: index, reason: packError(signal.reason) });
        call.inbox.length = 0;
        this.#end(id, { error: signal.reason });
      };
      signal.addEventListener("abort", abort, { signal: call.ended.signal });
    }
    return promise;
  }

  /** Fails all calls that wait, and every later call. */
  close(error: Error): void {
    if (this.#closed !== null) return;
    this.#closed = { error };
    this.port.close();
    for (const id of [...this.#calls.keys()]) this.#end(id, { error });
  }

  #receive(message: FromWorker): void {
    const call = this.#calls.get(message.id);
    // The call was aborted on this side.
    if (call === undefined) return;
    switch (message.type) {
      case "value":
        call.resolve(message.value);
        this.#end(message.id, {});
        return;
      case "stream":
        call.resolve(new Stream((signal) => this.#read(message.id, call, signal)));
        return;
      case "item":
        call.inbox.push(message.value);
        call.wake();
        return;
      case "end":
        this.#end(message.id, { value: message.value });
        return;
      case "error":
        this.#end(message.id, { error: unpackError(message.error) });
        return;
      case "callback":
        call.callbacks[message.callback]?.(...message.args);
        return;
    }
  }

  async *#read(id: number, call: Call, signal: AbortSignal): AsyncGenerator<unknown, unknown, undefined> {
    signal.addEventListener("abort", () => {
      call.wake();
    });
    let granted = 0;
    try {
      while (!signal.aborted) {
        if (granted < WINDOW / 2 && call.closed === null) {
          this.#post({ type: "more", id, count: WINDOW - granted });
          granted = WINDOW;
        }
        if (call.inbox.length > 0) {
          granted--;
          yield call.inbox.shift();
        } else if (call.closed !== null) {
          if ("error" in call.closed) throw call.closed.error;
          return call.closed.value;
        } else {
          await new Promise<void>((resolve) => (call.wake = resolve));
        }
      }
      return undefined;
    } finally {
      if (call.closed === null) {
        this.#post({ type: "leave", id });
        // As without a worker, the answer has ended when the caller has left the loop.
        while ((call.closed as Call["closed"]) === null) await new Promise<void>((resolve) => (call.wake = resolve));
      }
    }
  }

  #end(id: number, how: NonNullable<Call["closed"]>): void {
    const call = this.#calls.get(id);
    if (call === undefined) return;
    this.#calls.delete(id);
    call.ended.abort();
    call.closed = how;
    // These two do nothing if the call already has its result.
    if ("error" in how) call.reject(how.error);
    call.wake();
  }

  #post(message: ToWorker, transfer: readonly Transferable[] = []): void {
    this.port.postMessage(message, [...transfer]);
  }
}

function deferred(): {
  readonly promise: Promise<unknown>;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
} {
  let settle: Pick<Call, "resolve" | "reject"> | null = null;
  const promise = new Promise<unknown>((resolve, reject) => (settle = { resolve, reject }));
  return { promise, ...(settle as unknown as Pick<Call, "resolve" | "reject">) };
}
