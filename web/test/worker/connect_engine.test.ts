import { afterEach, expect, test, vi } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import type {
  SoundSource,
  Transcribe,
  TranscribeOptions,
  Transcript,
  TranscriptSegment,
} from "../../src/audio/index.js";
import { createLanguageModel } from "../../src/language_model/index.js";
import type { ChatCompletionCreateParamsNonStreaming } from "../../src/api/types.js";
import type { LoadOptions } from "../../src/load_options.js";
import type { GeneratedToken } from "../../src/engine/request.js";
import { BundleError, RequestError } from "../../src/errors.js";
import type { WorkerLike, WorkerTokenRequest } from "../../src/worker/connect_engine.js";
import { connectEngine } from "../../src/worker/connect_engine.js";
import type { LoadEngine } from "../../src/worker/shared_engines.js";
import { FakeSource, fakeEngine, fakeModel, modelOf } from "../api/fake_model.js";
import { fakeWorker } from "./fake_worker.js";
import { waitFor } from "../wait_for.js";

const BUNDLE = "https://example.org/bundle/";
const messages = [{ role: "user", content: "hi" }] as const;
const pause = (ms = 5): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

interface Loads {
  readonly load: LoadEngine;
  readonly loads: string[];
  readonly sources: FakeSource[];
  destroyed: number;
}

function loader(...answers: readonly string[]): Loads {
  const made: Loads = {
    loads: [],
    sources: [],
    destroyed: 0,
    load: async (bundles, { onProgress }) => {
      made.loads.push(...bundles);
      await pause();
      onProgress?.({
        phase: "ready",
        loadedBytes: 5,
        storedBytes: 0,
        totalBytes: 5,
        compiledKernels: 1,
        totalKernels: 1,
      });
      const { model, source } = fakeModel(...answers);
      made.sources.push(source);
      return { ...fakeEngine(model), destroy: () => made.destroyed++ };
    },
  };
  return made;
}

afterEach(() => {
  vi.useRealTimers();
});

test("an engine in a worker answers like a local one, complete and streamed, with progress", async () => {
  const { load, loads } = loader("hello");
  const phases: string[] = [];
  const engine: EngineApi = await connectEngine(fakeWorker(load), BUNDLE, {
    onProgress: ({ phase }) => phases.push(phase),
  });
  expect([engine.info.model, loads, phases]).toEqual(["fake", [BUNDLE], ["ready"]]);
  const whole = await engine.chat.completions.create({ messages, stop: "l" });
  expect(whole.choices[0]?.message.content).toBe("he");
  let text = "";
  const received: (readonly number[])[] = [];
  const promptLogprobs = { tokens: 1, onLogprobs: (values: readonly number[]) => received.push(values) };
  for await (const { choices } of await engine.chat.completions.create({ messages, stream: true }, { promptLogprobs }))
    text += choices[0]?.delta.content ?? "";
  expect([text, received]).toEqual(["hello", [[-93]]]);
  expect((await engine.completions.create({ prompt: "x" })).choices[0]?.text).toBe("hello");
  expect(await engine.countTokens("abc")).toBe(4);
  await expect(engine.embeddings.create({ input: "x" })).rejects.toMatchObject({
    name: "RequestError",
    message: expect.stringContaining("makes no embeddings") as string,
  });
  engine.destroy();
});

test("a session of the Prompt API works on an engine in a worker", async () => {
  const engine = await connectEngine(fakeWorker(loader("yes").load), BUNDLE);
  const session = await createLanguageModel(engine).create();
  const pieces: string[] = [];
  for await (const piece of session.promptStreaming("x")) pieces.push(piece);
  expect(pieces).toEqual(["y", "e", "s"]);
  engine.destroy();
});

test("typed errors cross the port with their fields", async () => {
  const engine = await connectEngine(fakeWorker(loader("x").load), BUNDLE);
  const wrong = { messages, temperature: 9 } as ChatCompletionCreateParamsNonStreaming;
  await expect(engine.chat.completions.create(wrong)).rejects.toMatchObject({
    name: "RequestError",
    status: 400,
    param: "temperature",
  });
  engine.destroy();
  const failing = connectEngine(
    fakeWorker(() => Promise.reject(new BundleError("no manifest", { file: "manifest.json" }))),
    BUNDLE,
  );
  await expect(failing).rejects.toBeInstanceOf(BundleError);
  await expect(failing).rejects.toMatchObject({ details: { file: "manifest.json" } });
});

test("leaving a loop and aborting a signal end the generation in the worker", async () => {
  const { load, sources } = loader("a".repeat(1000));
  const engine = await connectEngine(fakeWorker(load), BUNDLE);
  for await (const { choices } of await engine.chat.completions.create({ messages, stream: true }))
    if (choices[0]?.delta.content === "a") break;
  expect(sources[0]?.running).toBe(0);
  const answer = engine.chat.completions.create({ messages }, { signal: AbortSignal.timeout(10) });
  await expect(answer).rejects.toMatchObject({ name: "TimeoutError" });
  await waitFor(() => {
    expect(sources[0]?.running).toBe(0);
  });
  engine.destroy();
});

test("pages that request the same bundle share its engine, and the last page that leaves frees it", async () => {
  const made = loader("x");
  const worker = fakeWorker(made.load);
  const [first, second] = await Promise.all([connectEngine(worker, BUNDLE), connectEngine(worker, BUNDLE)]);
  expect(made.loads).toEqual([BUNDLE]);
  first.destroy();
  await pause();
  expect(made.destroyed).toBe(0);
  expect((await second.completions.create({ prompt: "x" })).choices[0]?.text).toBe("x");
  second.destroy();
  await waitFor(() => {
    expect(made.destroyed).toBe(1);
  });
  (await connectEngine(worker, BUNDLE)).destroy();
  expect(made.loads).toEqual([BUNDLE, BUNDLE]);
});

test("a load ends when all callers that wait for it have aborted, and not before", async () => {
  let signal: AbortSignal | undefined;
  const worker = fakeWorker((_, options: LoadOptions) => {
    ({ signal } = options);
    return new Promise((_, reject) => {
      signal?.addEventListener("abort", () => {
        reject(new Error("load aborted"));
      });
    });
  });
  const [first, second] = [new AbortController(), new AbortController()];
  const loads = [
    connectEngine(worker, BUNDLE, { signal: first.signal }),
    connectEngine(worker, BUNDLE, { signal: second.signal }),
  ];
  await waitFor(() => {
    expect(signal).toBeDefined();
  });
  first.abort();
  await expect(loads[0]).rejects.toMatchObject({ name: "AbortError" });
  await pause();
  expect(signal?.aborted).toBe(false);
  second.abort();
  await expect(loads[1]).rejects.toMatchObject({ name: "AbortError" });
  await waitFor(() => {
    expect(signal?.aborted).toBe(true);
  });
});

test("connecting from a page that is not a secure context fails with the reason", async () => {
  vi.stubGlobal("isSecureContext", false);
  await expect(connectEngine(fakeWorker(loader("x").load), BUNDLE)).rejects.toMatchObject({
    code: "device_error",
    message: expect.stringContaining("https") as string,
  });
  vi.unstubAllGlobals();
});

test("a worker generates token ids, with the completion, log-probabilities of the prompt and a signal", async () => {
  const { model, source } = fakeModel("hello");
  const loaded = { ...fakeEngine(model), generateTokens: source.generateTokens.bind(source) };
  const engine = await connectEngine(
    fakeWorker(() => Promise.resolve(loaded)),
    BUNDLE,
  );
  const promptLogprobs: (readonly GeneratedToken[])[] = [];
  const request = { promptIds: [7, 8], maxTokens: 2, logprobs: 1, promptLogprobs: 1 } as const;
  const tokens = engine.generateTokens({ ...request, onPromptLogprobs: (values) => promptLogprobs.push(values) });
  const local = new FakeSource(["hello"]).generateTokens(request);
  for (let done = false; !done;) {
    const expected = await local.next();
    expect(await tokens.next()).toEqual(expected);
    done = expected.done === true;
  }
  expect(promptLogprobs).toEqual([[{ tokenId: 8, logprob: -8, alternatives: [] }]]);
  const controller = new AbortController();
  const aborted = engine.generateTokens({ promptIds: [1], signal: controller.signal });
  await aborted.next();
  controller.abort();
  await expect(aborted.next()).rejects.toMatchObject({ name: "AbortError" });
  await waitFor(() => {
    expect(source.running).toBe(0);
  });
  for (const option of ["constraint", "logitProcessor"]) {
    const wrong = { promptIds: [1], [option]: () => undefined } as WorkerTokenRequest;
    await expect(engine.generateTokens(wrong).next()).rejects.toMatchObject({ name: "RequestError", param: option });
  }
  engine.destroy();
});

test("a worker transcribes what the page reads, complete and streamed with the transcript at its end", async () => {
  const asked: unknown[] = [];
  const transcript = { text: "one two" } as Transcript;
  const segments = async function* (): AsyncGenerator<TranscriptSegment, Transcript, undefined> {
    await pause();
    yield { id: 0, text: "one" } as TranscriptSegment;
    yield { id: 1, text: " two" } as TranscriptSegment;
    return transcript;
  };
  const transcribe = ((audio: SoundSource, options?: TranscribeOptions) => {
    asked.push(audio);
    if (options?.language === "xx") return Promise.reject(new RequestError("language 'xx' is not known"));
    return Promise.resolve(options?.stream ? segments() : transcript);
  }) as Transcribe;
  const engine = await connectEngine(
    fakeWorker(() => Promise.resolve({ ...fakeEngine(fakeModel("x").model), transcribe })),
    BUNDLE,
  );
  const samples = Float32Array.from([0, 0.5]);
  expect(await engine.transcribe({ samples, sampleRate: 8000 })).toEqual(transcript);
  const stream = await engine.transcribe(new Blob(["RIFF....WAVE"]), { stream: true });
  const texts: string[] = [];
  for (;;) {
    const { done, value } = await stream.next();
    if (done === true) {
      expect(value).toEqual(transcript);
      break;
    }
    texts.push(value.text);
  }
  expect(texts).toEqual(["one", " two"]);
  const decoded = { numberOfChannels: 1, sampleRate: 16_000, getChannelData: () => samples } as unknown as AudioBuffer;
  await engine.transcribe(decoded);
  expect(asked).toEqual([{ samples, sampleRate: 8000 }, expect.any(Blob), { samples, sampleRate: 16_000 }]);
  await expect(engine.transcribe({ samples, sampleRate: 8000 }, { language: "xx", stream: true })).rejects.toThrow(
    "language 'xx' is not known",
  );
  await expect(engine.transcribe(new Blob(["no sound"]))).rejects.toMatchObject({ name: "DeviceError" });
  engine.destroy();
});

test("the page decodes the recordings of messages for a worker", async () => {
  const heard: unknown[] = [];
  const transcribe = ((sound: unknown) => {
    heard.push(sound);
    return Promise.resolve({ task: "transcribe", language: "en", duration: 1, text: "hi", segments: [] });
  }) as never;
  const model = modelOf(new FakeSource(["yes"]), { transcribe });
  const engine = await connectEngine(
    fakeWorker(() => Promise.resolve(fakeEngine(model))),
    BUNDLE,
  );
  const samples = Float32Array.from([0, 0.5]);
  const decoded = { numberOfChannels: 1, sampleRate: 16_000, getChannelData: () => samples } as unknown as AudioBuffer;
  vi.stubGlobal(
    "OfflineAudioContext",
    class {
      readonly decodeAudioData = (file: ArrayBuffer) =>
        new TextDecoder().decode(file) === "ID3" ? Promise.resolve(decoded) : Promise.reject(new Error("no sound"));
    },
  );
  const wav = { data: btoa("RIFF....WAVE"), format: "wav" } as const;
  const content = [
    { type: "audio", audio: decoded },
    { type: "audio", audio: new Blob(["ID3"]) },
    { type: "input_audio", input_audio: { data: btoa("ID3"), format: "mp3" as const } },
    { type: "input_audio", input_audio: wav },
  ];
  const messages = [{ role: "user" as const, content }];
  expect((await engine.chat.completions.create({ messages })).transcripts?.length).toBe(4);
  const sent = { samples, sampleRate: 16_000 };
  expect(heard).toEqual([sent, sent, sent, new TextEncoder().encode("RIFF....WAVE")]);
  const broken = [{ role: "user" as const, content: [{ type: "audio", audio: new Blob(["text"]) }] }];
  await expect(engine.chat.completions.create({ messages: broken })).rejects.toThrow("is no sound in a format");
  vi.unstubAllGlobals();
  engine.destroy();
});

test("tuning is exported from a worker, and its engine is unloaded", async () => {
  const { model } = fakeModel("x");
  const record = { adapter: { vendor: "v" }, activation: "f16", variants: { step: "row" } };
  let unloads = 0;
  const loaded = {
    ...fakeEngine(model),
    exportTuning: () => Promise.resolve(record),
    // The second call comes while an answer is being generated.
    unload: () => unloads++ === 0,
  };
  const engine = await connectEngine(
    fakeWorker(() => Promise.resolve(loaded)),
    BUNDLE,
  );
  expect(await engine.exportTuning()).toEqual(record);
  expect([await engine.unload(), await engine.unload()]).toEqual([true, false]);
  engine.destroy();
  const plain = await connectEngine(fakeWorker(loader("x").load), BUNDLE);
  await expect(plain.unload()).rejects.toMatchObject({
    name: "RequestError",
    message: "The worker's engine has no unload; load it with Engine.load",
  });
  await expect(plain.generateTokens({ promptIds: [1] }).next()).rejects.toMatchObject({ name: "RequestError" });
  plain.destroy();
});

test("calls on a destroyed engine are a WorkerError", async () => {
  const engine = await connectEngine(fakeWorker(loader("x").load), BUNDLE);
  engine.destroy();
  await expect(engine.countTokens("a")).rejects.toMatchObject({ name: "WorkerError", code: "worker_error" });
});

test("a restarted worker does not know the page, and running calls fail with a WorkerError", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  let worker = fakeWorker(loader("a".repeat(1000)).load);
  const address: WorkerLike = {
    postMessage: (message, transfer) => {
      worker.postMessage(message, transfer);
    },
    addEventListener: () => undefined,
  };
  const engine = await connectEngine(address, BUNDLE);
  vi.advanceTimersByTime(5000);
  await pause();
  expect(await engine.countTokens("a")).toBe(2);
  worker = fakeWorker(loader("x").load);
  const answer = engine.chat.completions.create({ messages });
  vi.advanceTimersByTime(5000);
  await expect(answer).rejects.toMatchObject({
    name: "WorkerError",
    message: expect.stringContaining("The worker was restarted; connect again") as string,
  });
});

test("a worker that does not answer for 30 seconds fails with a WorkerError", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const connecting = connectEngine({ postMessage: () => undefined, addEventListener: () => undefined }, BUNDLE);
  connecting.catch(() => undefined);
  await pause(1);
  vi.advanceTimersByTime(30_000);
  expect(await Promise.race([connecting.catch(() => "failed"), pause(1).then(() => "waits")])).toBe("waits");
  vi.advanceTimersByTime(5000);
  await expect(connecting).rejects.toMatchObject({
    name: "WorkerError",
    message: expect.stringContaining("not answered for 30 seconds") as string,
  });
});

test("a worker whose script fails is a WorkerError immediately", async () => {
  const target = new EventTarget();
  const worker: WorkerLike = { postMessage: () => undefined, addEventListener: target.addEventListener.bind(target) };
  const connecting = connectEngine(worker, BUNDLE);
  target.dispatchEvent(Object.assign(new Event("error"), { message: "SyntaxError: x" }));
  await expect(connecting).rejects.toMatchObject({
    name: "WorkerError",
    message: expect.stringContaining("SyntaxError: x") as string,
  });
});

test("a logit processor is refused, because its changes would not be returned", async () => {
  const engine = await connectEngine(fakeWorker(loader("x").load), BUNDLE);
  const asking = engine.chat.completions.create({ messages }, { logitProcessor: () => undefined });
  await expect(asking).rejects.toMatchObject({ code: "request_error", details: { param: "logitProcessor" } });
  engine.destroy();
});

test("pictures of messages reach the worker: addresses of the page, and its Blobs", async () => {
  const received: unknown[] = [];
  const load: LoadEngine = () => {
    const engine = fakeEngine(fakeModel("yes").model);
    const create = ((params: unknown) => received.push(params) && Promise.resolve(null)) as never;
    return Promise.resolve({ ...engine, chat: { completions: { create } } });
  };
  const engine = await connectEngine(fakeWorker(load), BUNDLE);
  const file = new Blob(["picture"], { type: "image/png" });
  const address = URL.createObjectURL(file);
  vi.stubGlobal("document", { baseURI: "https://example.org/pages/chat.html" });
  const url = (text: string) => ({ type: "image_url", image_url: { url: text } });
  const content = [url("../cat.png"), url("data:,cat"), url(address), { type: "image", image: file }];
  const answer = engine.chat.completions.create({ messages: [{ role: "user", content }] });
  // A page that shows the picture no more.
  await Promise.resolve();
  URL.revokeObjectURL(address);
  await answer;
  const [{ messages: sent }] = received as [
    { messages: [{ content: { image?: Blob; image_url?: { url: string } }[] }] },
  ];
  const [cat, data, blob, own] = sent[0].content;
  expect([cat?.image_url?.url, data?.image_url?.url]).toEqual(["https://example.org/cat.png", "data:,cat"]);
  expect(await Promise.all([blob, own].map(async (part) => part?.image?.text()))).toEqual(["picture", "picture"]);
  const element = { type: "image", image: { nodeName: "IMG" } } as never;
  const refused = engine.chat.completions.create({ messages: [{ role: "user", content: [element] }] });
  await expect(refused).rejects.toThrow("cannot be sent to a worker; pass a Blob");
  const gone = engine.countTokens([{ role: "user", content: [url(address)] }]);
  await expect(gone).rejects.toThrow("cannot be fetched");
  vi.unstubAllGlobals();
  engine.destroy();
});
