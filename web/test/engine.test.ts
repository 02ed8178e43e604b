// The complete package on a device: Dawn in Node, on any adapter that Vulkan finds.

import { beforeAll, expect, test } from "vitest";

import type { GeneratedToken, TokenRequest, TokenSource } from "../src/engine/request.js";
import type { GenerationEvent, LoadProgress } from "../src/index.js";
import { Engine } from "../src/index.js";
import { planOf } from "../src/runtime/plan.js";
import { dawn } from "../tools/dawn.js";
import { lettersBundle, memorySource } from "./letters_bundle.js";
import { vectorLetters } from "./vector_letters.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const REASON = "Dawn finds no adapter; set VK_ICD_FILENAMES to a Vulkan driver such as SwiftShader";
if (!hasAdapter && process.env.CI !== undefined) throw new Error(`${REASON} (CI is set, so this is not skipped)`);
if (!hasAdapter) console.warn(`skipped: ${REASON}`);

const { manifest, files } = lettersBundle();

async function collect(events: AsyncIterable<GenerationEvent>): Promise<GenerationEvent[]> {
  const all: GenerationEvent[] = [];
  for await (const event of events) all.push(event);
  return all;
}

test.runIf(hasAdapter)("a flipped byte in a shard fails the load", async () => {
  const shard = (files["weights/00000.bin"] ?? new Uint8Array()).slice();
  shard[3] = 1;
  const loading = Engine.load(memorySource({ ...files, "weights/00000.bin": shard }), { gpu });
  await expect(loading).rejects.toMatchObject({ code: "bundle_error", details: { file: "weights/00000.bin" } });
});

test.runIf(hasAdapter)("a damaged tokenizer fails the load", async () => {
  const loading = Engine.load(memorySource({ ...files, "tokenizer.json": new Uint8Array(3) }), { gpu });
  await expect(loading).rejects.toMatchObject({ code: "bundle_error", details: { file: "tokenizer.json" } });
});

test.runIf(hasAdapter)("an aborted load ends with the signal's reason", async () => {
  const controller = new AbortController();
  const loading = Engine.load(memorySource(files), {
    gpu,
    signal: controller.signal,
    onProgress: ({ phase }) => {
      if (phase === "download") controller.abort();
    },
  });
  await expect(loading).rejects.toHaveProperty("name", "AbortError");
});

test.runIf(hasAdapter)("a request to a destroyed engine fails with a DeviceError", async () => {
  const gone = await Engine.load(memorySource(files), { gpu });
  gone.destroy();
  await expect(collect(gone.generate("a"))).rejects.toHaveProperty("code", "device_error");
});

test.runIf(hasAdapter)("a kernel binding that its step does not have is a BundleError", async () => {
  const plan = planOf(manifest);
  const steps = plan.steps.map((step) =>
    step.op === "embed" ? { ...step, inputs: { table: "table", sampled: "sampled" } } : step,
  );
  const broken = lettersBundle({ plans: { generate: { ...plan, steps } } });
  await expect(Engine.load(memorySource(broken.files), { gpu })).rejects.toThrow(
    /kernels\.embed\w* must be consistent with the rest of the manifest, not "token_ids"/,
  );
});

test.runIf(hasAdapter)("a kernel that the device refuses is a DeviceError that names it", async () => {
  const entries = Object.entries(manifest.kernels).map(([name, kernel]) => [
    name,
    { ...kernel, entry: name === "sample" ? "nowhere" : kernel.entry },
  ]);
  const broken = lettersBundle({ kernels: Object.fromEntries(entries) as typeof manifest.kernels });
  await expect(Engine.load(memorySource(broken.files), { gpu })).rejects.toMatchObject({
    code: "device_error",
    details: { kernel: "sample" },
  });
});

const withEngine = test.runIf(hasAdapter);
let engine: Engine;
const reports: LoadProgress[] = [];

beforeAll(async () => {
  if (!hasAdapter) return;
  engine = await Engine.load(memorySource(files), { gpu, onProgress: (report) => reports.push(report) });
  return () => {
    engine.destroy();
  };
});

withEngine("progress starts with the manifest, counts every byte and kernel, and ends ready", () => {
  const total = manifest.shards.concat(manifest.files).reduce((sum, { size }) => sum + size, 0);
  expect(reports[0]?.phase).toBe("manifest");
  expect(reports.at(-1)).toEqual({
    phase: "ready",
    loadedBytes: total,
    storedBytes: 0,
    totalBytes: total,
    compiledKernels: 6,
    totalKernels: 6,
    selfTestRuns: 2,
  });
});

withEngine("info describes the model and the device", () => {
  expect(engine.info).toMatchObject({
    model: "letters",
    context: 256,
    activation: "float32",
    kernels: 6,
    dispatchesPerToken: 4,
    weightBytes: 256,
  });
  expect(engine.info.adapter).not.toBe("");
});

withEngine("a text is answered token by token, with timings at the end", async () => {
  const events = await collect(engine.generate("ha", { raw: true }));
  expect(events.slice(0, -1)).toEqual([
    { type: "token", text: "b", tokenId: 1 },
    { type: "token", text: "e", tokenId: 4 },
  ]);
  expect(events.at(-1)).toMatchObject({
    type: "done",
    text: "",
    finishReason: "stop",
    timings: { promptTokens: 2, completionTokens: 2 },
  });
});

withEngine("a prompt of several chunks gives the same answer as its end alone", async () => {
  const long = [...new Array<number>(130).fill(2), 0];
  const ids: number[] = [];
  for await (const { tokenId } of engine.generateTokens({ promptIds: long })) ids.push(tokenId);
  expect(ids).toEqual([1, 4]);
});

withEngine("several rows of a prompt return its log-probabilities, and the answer is the same", async () => {
  const received: (readonly number[])[] = [];
  const ids: number[] = [];
  // 7 follows 2, and 6 follows 7. Neither of the last two tokens follows its predecessor.
  const request = {
    promptIds: [3, 2, 7, 6, 2, 0],
    promptLogprobs: 4,
    onPromptLogprobs: (tokens: readonly GeneratedToken[]) => received.push(tokens.map(({ logprob }) => logprob ?? 0)),
  };
  for await (const { tokenId } of engine.generateTokens(request)) ids.push(tokenId);
  const likely = -Math.log(1 + 7 * Math.exp(-10));
  const values = [likely, likely, likely - 10, likely - 10].map((value) => expect.closeTo(value, 4) as number);
  expect([received, ids]).toEqual([[values], [1, 4]]);
});

withEngine(
  "a logit processor changes the device's logits before sampling, and does not change other answers",
  async () => {
    const seen: unknown[] = [];
    const logitProcessor = (logitsOrToken: Float32Array | number): void => {
      seen.push(typeof logitsOrToken === "number" ? logitsOrToken : logitsOrToken.indexOf(10));
      // Token 2 is much more likely; its bias still applies.
      if (typeof logitsOrToken !== "number") logitsOrToken.fill(20, 2, 4);
    };
    const ids = async (request: Partial<TokenRequest>): Promise<number[]> => {
      const all: number[] = [];
      for await (const { tokenId } of engine.generateTokens({ promptIds: [0], maxTokens: 3, ...request }))
        all.push(tokenId);
      return all;
    };
    const sampling = { logitBias: new Map([[3, 5]]) };
    const answers = await Promise.all([
      ids({ logitProcessor, sampling }),
      ids({ promptIds: [2] }),
      ids({ promptIds: [4, 1] }),
    ]);
    expect(answers).toEqual([[3, 3, 3], [7, 6, 3], [4]]);
    // The tokens that follow tokens 0 and 3.
    expect(seen).toEqual([1, 3, 2, 3, 2, 3]);
  },
);

withEngine("a low temperature draws the most likely token", async () => {
  const events = await collect(engine.generate("a", { temperature: 0.1, seed: 5 }));
  expect(events.map((event) => event.text).join("")).toBe("be");
});

withEngine(
  "simultaneous answers equal those of single requests, and leaving a loop frees the engine for the others",
  async () => {
    const alone = await collect(engine.generate("a"));
    const both = await Promise.all([collect(engine.generate("a")), collect(engine.generate("c"))]);
    expect(both[0].map(({ text }) => text)).toEqual(alone.map(({ text }) => text));
    for await (const event of engine.generate("c")) {
      expect(event.type).toBe("token");
      break;
    }
    expect((await collect(engine.generate("a"))).length).toBe(3);
  },
);

withEngine("tokens of another source are decoded by this model, for this model's prompt", async () => {
  const messages = [{ role: "user" as const, content: "a" }];
  const requests: TokenRequest[] = [];
  const source: TokenSource = {
    async *generateTokens(request) {
      requests.push(request);
      yield { tokenId: 3, logprob: null, alternatives: [] };
      yield* engine.generateTokens({ ...request, maxTokens: 1 });
      return { finishReason: "stop", promptTokens: request.promptIds.length, cachedTokens: 0, completionTokens: 2 };
    },
  };
  const { choices, usage } = await engine.over(source).create({ messages, temperature: 0 });
  expect([choices[0]?.message.content, usage.completion_tokens]).toEqual(["db", 2]);
  expect(requests.map(({ promptIds }) => promptIds.length)).toEqual([await engine.countTokens(messages)]);
});

withEngine("raw with messages and continueFinalMessage without an answer's start are RequestErrors", async () => {
  const messages = [{ role: "user", content: "a" }];
  for (const [prompt, options] of [
    [messages, { raw: true }],
    ["a", { continueFinalMessage: true }],
    [messages, { continueFinalMessage: true }],
  ] as const)
    await expect(collect(engine.generate(prompt, options))).rejects.toHaveProperty("code", "request_error");
});

withEngine("a bundle of an embedding model returns vectors, also on a new device, and generates no text", async () => {
  const devices: GPUDevice[] = [];
  const watched = {
    requestAdapter: async (options?: GPURequestAdapterOptions) => {
      const adapter = await gpu.requestAdapter(options);
      if (adapter === null) return null;
      const requestDevice = adapter.requestDevice.bind(adapter);
      adapter.requestDevice = async (descriptor) => {
        const device = await requestDevice(descriptor);
        devices.push(device);
        return device;
      };
      return adapter;
    },
  } as GPU;
  const embeds = await Engine.load(memorySource(lettersBundle(vectorLetters()).files), { gpu: watched });
  // The fake model's vector is a row of its table with a single 10, whose index is the next letter.
  const indexes = async (input: number[][]): Promise<number[]> =>
    (await embeds.embeddings.create({ input })).data.map(({ embedding }) => embedding.indexOf(1));
  const input = [[0], [...new Array<number>(130).fill(2), 1], [1, 0], [1], [0, 1], [0]];
  expect(await indexes(input)).toEqual([1, 4, 1, 4, 4, 1]);
  devices.at(-1)?.destroy();
  expect(await indexes(input)).toEqual([1, 4, 1, 4, 4, 1]);
  expect(devices.length).toBe(2);
  expect(embeds.info.selfTest.state).toBe("untested");
  await expect(collect(embeds.generate("a"))).rejects.toMatchObject({
    code: "request_error",
    message: expect.stringContaining("generates no text") as string,
  });
  await expect(engine.embeddings.create({ input: "a" })).rejects.toThrow("makes no embeddings");
  await embeds.pause();
  const paused = expect(indexes(input)).rejects.toHaveProperty("code", "device_error");
  embeds.destroy();
  await paused;
  await expect(indexes(input)).rejects.toHaveProperty("code", "device_error");
});
