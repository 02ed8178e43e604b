import { expect, test } from "vitest";

import { Stream } from "../../src/api/stream.js";
import { DeviceError, RequestError, WorkerError } from "../../src/errors.js";
import { Remote } from "../../src/worker/remote.js";
import { serve } from "../../src/worker/serve.js";
import { waitFor } from "../wait_for.js";

const pause = (ms = 0): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Counts for ever, and records the last number and whether the iteration was ended. */
class Counter {
  made = 0;
  returned = false;

  async *count(options: { readonly signal?: AbortSignal } = {}): AsyncGenerator<number, void, undefined> {
    try {
      for (;;) {
        await pause();
        options.signal?.throwIfAborted();
        yield this.made++;
      }
    } finally {
      this.returned = true;
    }
  }
}

function connect(target: object): { readonly remote: Remote; readonly stop: () => void } {
  const { port1, port2 } = new MessageChannel();
  return { stop: serve(port2, target), remote: new Remote(port1) };
}

async function using(target: object, use: (remote: Remote) => Promise<void>): Promise<void> {
  const { remote, stop } = connect(target);
  await use(remote);
  remote.close(new WorkerError("over"));
  stop();
}

const iterable = (value: unknown): Stream<unknown> => {
  expect(value).toBeInstanceOf(Stream);
  return value as Stream<unknown>;
};

test("a call reaches a method of an object in the target, and its result comes back", async () => {
  const target = {
    deep: {
      base: 2,
      add(a: number, b: { readonly c: readonly number[] }) {
        return this.base + a + (b.c[1] ?? 0);
      },
    },
  };
  await using(target, async (remote) => {
    expect(await remote.call(["deep", "add"], [1, { c: [0, 10] }])).toBe(13);
  });
});

test("functions in the arguments are called back", async () => {
  const target = {
    load: ({ onProgress }: { onProgress: (at: number, rest: object) => void }) => {
      onProgress(1, { of: 2 });
      onProgress(2, { of: 2 });
    },
  };
  await using(target, async (remote) => {
    const seen: unknown[] = [];
    await remote.call(["load"], [{ onProgress: (...args: readonly unknown[]) => seen.push(args) }]);
    expect(seen).toEqual([
      [1, { of: 2 }],
      [2, { of: 2 }],
    ]);
  });
});

test.each([
  [
    new DeviceError("lost", { adapter: "x", limits: ["a"] }),
    { code: "device_error", details: { adapter: "x", limits: ["a"] }, status: 500 },
  ],
  [new RequestError("no", { param: "n" }), { code: "request_error", param: "n", status: 400 }],
  [new DOMException("stop", "AbortError"), { name: "AbortError" }],
  [new TypeError("wrong"), { name: "TypeError" }],
  [Object.assign(new Error("odd"), { name: "OddError" }), { name: "OddError" }],
])("an error arrives with its original class: %s", async (error, fields) => {
  await using({ fail: () => Promise.reject(error) }, async (remote) => {
    const failing = remote.call(["fail"], []);
    await expect(failing).rejects.toBeInstanceOf(error.constructor);
    await expect(failing).rejects.toMatchObject({ message: error.message, ...fields });
  });
});

test("an unknown path is a RequestError", async () => {
  await using({}, async (remote) => {
    await expect(remote.call(["a", "b"], [])).rejects.toThrow("has no function 'a.b'");
  });
});

test("an argument that cannot be sent is a RequestError, and the port still works", async () => {
  await using({ same: (value: unknown) => value }, async (remote) => {
    await expect(remote.call(["same"], [new WeakMap()])).rejects.toMatchObject({ code: "request_error" });
    expect(await remote.call(["same"], [new Map([[1, 2]])])).toEqual(new Map([[1, 2]]));
  });
});

test("buffers are copied, and streams are transferred, both ways", async () => {
  const bytes = Uint8Array.of(1, 2);
  await using({ same: (value: unknown) => value }, async (remote) => {
    expect(await remote.call(["same"], [bytes])).toEqual(bytes);
    expect(bytes.length).toBe(2);
    const stream = new Blob(["x"]).stream();
    const back = (await remote.call(["same"], [{ stream }])) as { stream: ReadableStream<Uint8Array> };
    expect((await back.stream.getReader().read()).value).toEqual(Uint8Array.of(120));
  });
});

test("a signal aborts on both sides, with its own reason on this one", async () => {
  let received: unknown = null;
  const target = {
    wait: ({ signal }: { signal: AbortSignal }) =>
      new Promise((_, reject) => {
        signal.addEventListener("abort", () => {
          received = signal.reason;
          reject(new Error("aborted"));
        });
      }),
  };
  await using(target, async (remote) => {
    const controller = new AbortController();
    const reason = new Error("enough");
    const waiting = remote.call(["wait"], [{ signal: controller.signal }]);
    controller.abort(reason);
    await expect(waiting).rejects.toBe(reason);
    await waitFor(() => {
      expect(received).toMatchObject({ message: "enough" });
    });
    await expect(remote.call(["wait"], [{ signal: controller.signal }])).rejects.toBe(reason);
  });
});

test("the items of a stream arrive one by one, and at most one window ahead of the reader", async () => {
  const counter = new Counter();
  await using(counter, async (remote) => {
    const seen: unknown[] = [];
    for await (const item of iterable(await remote.call(["count"], []))) {
      seen.push(item);
      if (seen.length === 1) await pause(200);
      if (seen.length === 1) expect(counter.made).toBeLessThanOrEqual(34);
      if (seen.length === 100) break;
    }
    expect(seen).toEqual(Array.from({ length: 100 }, (_, index) => index));
    expect(counter.returned).toBe(true);
  });
});

test("a stream without a reader does not start", async () => {
  const counter = new Counter();
  await using(counter, async (remote) => {
    await remote.call(["count"], []);
    await pause(5);
    expect(counter.made).toBe(0);
  });
});

test("a stream's controller ends it on the other side too", async () => {
  const counter = new Counter();
  await using(counter, async (remote) => {
    const stream = iterable(await remote.call(["count"], []));
    for await (const item of stream) if (item === 3) stream.controller.abort();
    expect(counter.returned).toBe(true);
  });
});

test("a signal ends a stream with its reason", async () => {
  const counter = new Counter();
  await using(counter, async (remote) => {
    const controller = new AbortController();
    const stream = iterable(await remote.call(["count"], [{ signal: controller.signal }]));
    const reading = (async () => {
      for await (const item of stream) if (item === 3) controller.abort(new Error("enough"));
    })();
    await expect(reading).rejects.toThrow("enough");
    await waitFor(() => {
      expect(counter.returned).toBe(true);
    });
  });
});

test("an error in a stream arrives after the items before it", async () => {
  const target = {
    async *some() {
      yield 1;
      await pause();
      throw new DeviceError("lost");
    },
  };
  await using(target, async (remote) => {
    const seen: unknown[] = [];
    const reading = (async () => {
      for await (const item of iterable(await remote.call(["some"], []))) seen.push(item);
    })();
    await expect(reading).rejects.toBeInstanceOf(DeviceError);
    expect(seen).toEqual([1]);
  });
});

test("closing fails waiting calls, running streams and later calls", async () => {
  const counter = new Counter();
  const { remote, stop } = connect({ never: () => new Promise(() => undefined), count: () => counter.count() });
  const gone = new WorkerError("gone");
  const waiting = remote.call(["never"], []);
  const reading = (async () => {
    for await (const item of iterable(await remote.call(["count"], []))) if (item === 2) remote.close(gone);
  })();
  await expect(reading).rejects.toBe(gone);
  await expect(waiting).rejects.toBe(gone);
  await expect(remote.call(["never"], [])).rejects.toBe(gone);
  stop();
});
