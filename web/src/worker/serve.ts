// The serving end of a port: receives calls, makes them on an object, and sends the results back.

import { RequestError } from "../errors.js";
import type { FromWorker, ToWorker, WirePort } from "./wire.js";
import { isA, packError, transferables, unpack, unpackError } from "./wire.js";

interface Running {
  readonly controllers: Map<number, AbortController>;
  /** The number of items that may be sent. */
  granted: number;
  left: boolean;
  /** Ends the iteration, if there is one. */
  stop(): void;
  wake(): void;
}

/**
 * Serves the functions of ``target``, and of the objects in it, until the port closes. Returns a function that ends all
 * running calls.
 */
export function serve(port: WirePort, target: object): () => void {
  const calls = new Map<number, Running>();
  const post = (message: FromWorker): void => {
    port.postMessage(message, [...transferables("value" in message ? message.value : null)]);
  };

  async function answer({ id, path, args }: Extract<ToWorker, { type: "call" }>): Promise<void> {
    const running: Running = {
      controllers: new Map(),
      granted: 0,
      left: false,
      stop: () => undefined,
      wake: () => undefined,
    };
    calls.set(id, running);
    const signalOf = (index: number): AbortSignal => {
      const controller = running.controllers.get(index) ?? new AbortController();
      running.controllers.set(index, controller);
      return controller.signal;
    };
    const callbackOf =
      (callback: number) =>
      (...values: readonly unknown[]) => {
        post({ type: "callback", id, callback, args: values });
      };
    try {
      const result = await find(target, path)(...unpack(args, signalOf, callbackOf));
      if (isIterable(result)) await send(id, result, running);
      else post({ type: "value", id, value: result });
    } catch (error) {
      post({ type: "error", id, error: packError(error) });
    } finally {
      calls.delete(id);
    }
  }

  async function send(id: number, iterable: AsyncIterable<unknown>, running: Running): Promise<void> {
    post({ type: "stream", id });
    let value: unknown;
    const isRequested = async (): Promise<boolean> => {
      while (running.granted === 0 && !running.left) await new Promise<void>((resolve) => (running.wake = resolve));
      return !running.left;
    };
    // Nothing starts before the caller reads.
    if (await isRequested()) {
      const iterator = iterable[Symbol.asyncIterator]();
      running.stop = () => {
        if ("controller" in iterable && iterable.controller instanceof AbortController) iterable.controller.abort();
      };
      try {
        while (await isRequested()) {
          const result: IteratorResult<unknown, unknown> = await iterator.next();
          if (result.done === true) {
            ({ value } = result);
            break;
          }
          running.granted--;
          post({ type: "item", id, value: result.value });
        }
      } finally {
        await iterator.return?.();
      }
    }
    post({ type: "end", id, value });
  }

  port.addEventListener("message", (event) => {
    const data = event.data as ToWorker;
    if (data.type === "call") {
      void answer(data);
      return;
    }
    const running = calls.get(data.id);
    if (running === undefined) return;
    switch (data.type) {
      case "more":
        running.granted += data.count;
        break;
      case "leave":
        running.left = true;
        running.stop();
        break;
      case "abort":
        running.controllers.get(data.signal)?.abort(unpackError(data.reason));
        break;
    }
    running.wake();
  });
  port.start();

  return () => {
    for (const running of calls.values()) {
      for (const controller of running.controllers.values()) controller.abort();
      running.left = true;
      running.stop();
      running.wake();
    }
    port.close();
  };
}

function find(target: object, path: readonly string[]): (...args: readonly unknown[]) => unknown {
  let owner: unknown = target;
  let member: unknown = target;
  for (const name of path) {
    owner = member;
    member = (Object(owner) as Record<string, unknown>)[name];
  }
  if (typeof member !== "function")
    throw new RequestError(
      `The worker has no function '${path.join(".")}'; load the same version of the package on both sides`,
    );
  const method = member as (...args: readonly unknown[]) => unknown;
  return (...args) => method.apply(owner, [...args]);
}

function isIterable(value: unknown): value is AsyncIterable<unknown> {
  return typeof value === "object" && value !== null && Symbol.asyncIterator in value && !isA("ReadableStream", value);
}
