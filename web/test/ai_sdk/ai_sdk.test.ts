// Tests the provider with the `ai` package. generateObject and streamObject are deprecated, but many applications still
// use them.
/* oxlint-disable typescript/no-deprecated */

import type { LanguageModelV4, LanguageModelV4StreamPart, ProviderV4 } from "@ai-sdk/provider";
import { Output, embedMany, generateObject, generateText, isStepCount, streamObject, streamText, tool } from "ai";
import { expect, expectTypeOf, test, vi } from "vitest";
import { z } from "zod";

import type { NearfarProvider } from "../../src/ai_sdk/index.js";
import { createNearfar } from "../../src/ai_sdk/index.js";
import type { ChatSource } from "../../src/api/chat_source.js";
import type { EngineApi } from "../../src/api/engine_api.js";
import { DeviceError, RequestError } from "../../src/errors.js";
import type { Hybrid } from "../../src/router/hybrid.js";
import { connectEngine } from "../../src/worker/connect_engine.js";
import {
  adapterEngine,
  adapterEngineOver,
  fileText,
  hearingEngine,
  hermesCall,
  seeingEngine,
  take,
} from "../api/adapter_engine.js";
import { FakeSource } from "../api/fake_model.js";
import { setUp } from "../router/hybrid_set_up.js";
import { fakeWorker } from "../worker/fake_worker.js";
import { waitFor } from "../wait_for.js";

// The tests check the warnings, so they are not printed.
globalThis.AI_SDK_LOG_WARNINGS = false;

const weather = tool({
  description: "the weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => Promise.resolve({ city, degrees: 21 }),
});
const ROUTED = { policy: { retries: 0, escalation: { then: "restart", max_mean_entropy: null } } };

test("engines and hybrids have the type of a source, and the provider has the AI SDK's type", () => {
  expectTypeOf<EngineApi>().toExtend<ChatSource>();
  expectTypeOf<Hybrid>().toExtend<ChatSource>();
  expectTypeOf<NearfarProvider>().toExtend<ProviderV4>();
});

test("generateText returns text, finish reason, usage, timings and the model's name", async () => {
  const { engine, prompt, source } = adapterEngine("hello");
  const result = await generateText({
    model: createNearfar(engine)(),
    instructions: "be brief",
    prompt: "hi",
    temperature: 0,
    topK: 3,
    seed: 7,
    maxOutputTokens: 9,
  });
  expect(result).toMatchObject({
    text: "hello",
    finishReason: "stop",
    usage: { inputTokens: 35, outputTokens: 5, totalTokens: 40 },
    warnings: [],
  });
  expect(result.usage.inputTokenDetails.cacheReadTokens).toBe(3);
  expect(result.finalStep.response.modelId).toBe("fake");
  expect(result.finalStep.providerMetadata?.nearfar).toHaveProperty("timings.total_ms");
  expect(prompt(0)).toBe("[system]be brief[user]hi[assistant]");
  expect(source.requests[0]).toMatchObject({ maxTokens: 9, sampling: { temperature: 0, topK: 3, seed: 7 } });
});

test("an answer that reaches max tokens has the finish reason length, streamed and complete", async () => {
  const model = createNearfar(adapterEngine("hello").engine)();
  expect((await generateText({ model, prompt: "hi", maxOutputTokens: 2 })).finishReason).toBe("length");
  expect(await streamText({ model, prompt: "hi", maxOutputTokens: 2 }).finishReason).toBe("length");
});

test("streamText streams the text while it is generated, then usage", async () => {
  const result = streamText({ model: createNearfar(adapterEngine("héllo").engine)(), prompt: "hi" });
  const deltas: string[] = [];
  for await (const text of result.textStream) deltas.push(text);
  expect(deltas).toEqual(["h", "é", "l", "l", "o"]);
  expect(await result.usage).toMatchObject({ outputTokens: 6 });
});

test.each(["generateText", "streamText"] as const)(
  "%s runs tools and passes their results to the next step",
  async (which) => {
    const { engine, prompt } = adapterEngine(`I look. ${hermesCall("weather", { city: "Rome" })}`, "21 degrees");
    const options = { model: createNearfar(engine)(), prompt: "Rome?", tools: { weather }, stopWhen: isStepCount(3) };
    const result = which === "generateText" ? await generateText(options) : streamText(options);
    expect(await result.text).toBe("21 degrees");
    const [first] = await result.steps;
    expect(first?.finishReason).toBe("tool-calls");
    expect(first?.toolCalls[0]).toMatchObject({ toolName: "weather", input: { city: "Rome" } });
    expect(first?.toolResults[0]).toMatchObject({ output: { degrees: 21 } });
    expect(prompt(1)).toContain('[tool]{"city":"Rome","degrees":21}');
  },
);

test("several calls of one answer keep their order and their ids", async () => {
  const { engine } = adapterEngine(
    `${hermesCall("weather", { city: "Rome" })}\n${hermesCall("weather", { city: "Oslo" })}`,
  );
  const { toolCalls } = streamText({ model: createNearfar(engine)(), prompt: "?", tools: { weather } });
  const calls = await toolCalls;
  expect(calls.map(({ input }) => input)).toEqual([{ city: "Rome" }, { city: "Oslo" }]);
  expect(new Set(calls.map(({ toolCallId }) => toolCallId)).size).toBe(2);
});

test("a schema becomes response_format, for generateObject, streamObject and Output", async () => {
  const schema = z.object({ sum: z.number() });
  const { engine, grammars } = adapterEngine('{"sum": 85}');
  const model = createNearfar(engine)();
  expect((await generateObject({ model, schema, prompt: "27 + 58" })).object).toEqual({ sum: 85 });
  const streamed = streamObject({ model, schema, prompt: "27 + 58" });
  let partial: unknown;
  for await (partial of streamed.partialObjectStream);
  expect(partial).toEqual({ sum: 85 });
  expect((await generateText({ model, output: Output.object({ schema }), prompt: "27 + 58" })).output).toEqual({
    sum: 85,
  });
  expect((await generateObject({ model, output: "no-schema", prompt: "27 + 58" })).object).toEqual({ sum: 85 });
  const kinds = grammars.map((grammar) => (grammar.kind === "json_schema" ? grammar.schema : grammar.kind));
  expect(kinds[0]).toMatchObject({ type: "object", properties: { sum: { type: "number" } }, required: ["sum"] });
  expect(kinds.at(-1)).toBe("json_object");
});

test("an abort ends the engine's work, streamed and complete", async () => {
  const source = new FakeSource(["a".repeat(500)]);
  const model = createNearfar(adapterEngineOver(source).engine)();
  const complete = new AbortController();
  const pending = generateText({ model, prompt: "hi", abortSignal: complete.signal });
  setTimeout(() => {
    complete.abort();
  }, 10);
  await expect(pending).rejects.toHaveProperty("name", "AbortError");
  const streamed = new AbortController();
  const kinds: string[] = [];
  for await (const part of streamText({ model, prompt: "hi", abortSignal: streamed.signal }).stream) {
    kinds.push(part.type);
    if (part.type === "text-delta") streamed.abort();
  }
  expect(kinds).toContain("abort");
  await waitFor(() => {
    expect(source.running).toBe(0);
  });
  expect(source.tokens).toBeLessThan(400);
});

test("a reader that cancels the stream ends the engine's work", async () => {
  const source = new FakeSource(["a".repeat(500)]);
  const { stream } = await createNearfar(adapterEngineOver(source).engine)().doStream({
    prompt: [{ role: "user", content: [{ type: "text", text: "hi" }] }],
  });
  const reader = stream.getReader();
  for (let i = 0; i < 5; i++) await reader.read();
  await reader.cancel();
  await waitFor(() => {
    expect(source.running).toBe(0);
  });
  expect(source.tokens).toBeLessThan(100);
});

test("settings without effect are warnings, and the engine's own extensions reach the engine", async () => {
  const { engine, source } = adapterEngine("x");
  const result = await generateText({
    model: createNearfar(engine)("my-model"),
    prompt: "hi",
    tools: {
      search: {
        type: "provider",
        id: "other.search",
        args: {},
        isProviderExecuted: true,
        inputSchema: z.object({}),
        outputSchema: z.object({}),
      } as never,
    },
    providerOptions: { nearfar: { min_p: 0.25 } },
  });
  expect(result.warnings?.map((warning) => ("feature" in warning ? warning.feature : ""))).toEqual([
    "provider tool 'other.search'",
  ]);
  expect(source.requests[0]?.sampling?.minP).toBe(0.25);
});

test.each([
  ["high", {}, "high"],
  ["none", {}, "none"],
  ["provider-default", {}, undefined],
  [undefined, { reasoning_effort: "low" }, "low"],
  ["high", { reasoning_effort: "low" }, "low"],
] as const)(
  "reasoning %s with the provider options %j sets reasoning_effort to %s",
  async (reasoning, nearfar, effort) => {
    const create = vi.fn<(params: object) => unknown>();
    const source = { chat: { completions: { create } } } as unknown as ChatSource;
    create.mockRejectedValue(new RequestError("no answer"));
    await expect(
      generateText({
        model: createNearfar(source)(),
        prompt: "hi",
        ...(reasoning && { reasoning }),
        providerOptions: { nearfar },
      }),
    ).rejects.toThrow("no answer");
    expect(create.mock.calls[0]?.[0]).toHaveProperty("reasoning_effort", effort);
  },
);

test("errors of the engine are thrown unchanged and are not retried", async () => {
  const source = new FakeSource(["x"], new DeviceError("the device was lost"));
  const model = createNearfar(adapterEngineOver(source).engine)();
  await expect(generateText({ model, prompt: "hi" })).rejects.toBeInstanceOf(DeviceError);
  expect(source.requests.length).toBe(1);
  const image = [
    { role: "user" as const, content: [{ type: "file" as const, data: new Uint8Array([1]), mediaType: "image/png" }] },
  ];
  await expect(generateText({ model, messages: image })).rejects.toBeInstanceOf(RequestError);
  const pdf = [
    {
      role: "user" as const,
      content: [{ type: "file" as const, data: new Uint8Array([1]), mediaType: "application/pdf" }],
    },
  ];
  await expect(generateText({ model, messages: pdf })).rejects.toThrow(
    "messages[0].content[0].file is 'file' of type 'application/pdf': text, Markdown, JSON and CSV are read",
  );
});

test("a model that sees receives files of images: bytes and base64", async () => {
  const { engine, prompt, sources } = seeingEngine("a cat", "two");
  const model = createNearfar(engine)();
  const parts = [
    { type: "file" as const, data: new Uint8Array([1, 2, 3]), mediaType: "image/webp" },
    { type: "image" as const, image: "data:image/png;base64,BBBB" },
    { type: "text" as const, text: "who?" },
  ];
  const { text } = await generateText({ model, messages: [{ role: "user", content: parts }] });
  expect([text, prompt(0)]).toEqual(["a cat", "[user]((0))((1))who?[assistant]"]);
  expect(sources).toEqual(["data:image/webp;base64,AQID", "data:image/png;base64,BBBB"]);
});

test("a model that sees receives files of videos: bytes, base64 and addresses", async () => {
  const { engine, prompt, sources, kinds } = seeingEngine("a boat", "two");
  const model = createNearfar(engine)();
  const content = [
    { type: "file" as const, data: new Uint8Array([1, 2, 3]), mediaType: "video/webm" },
    { type: "file" as const, data: "BBBB", mediaType: "video/mp4" },
    { type: "text" as const, text: "what?" },
  ];
  const { text } = await generateText({ model, messages: [{ role: "user", content }] });
  expect([text, prompt(0)]).toEqual(["a boat", "[user]((0))((1))what?[assistant]"]);
  const url = new URL("https://host/a.webm");
  const files = [
    { type: "file" as const, mediaType: "video/webm", data: { type: "url" as const, url } },
    { type: "file" as const, mediaType: "video/*", data: { type: "data" as const, data: "CCCC" } },
  ];
  await model.doGenerate({ prompt: [{ role: "user", content: files }] });
  const inline = ["data:video/webm;base64,AQID", "data:video/mp4;base64,BBBB"];
  expect(sources).toEqual([...inline, url.href, "data:video/mp4;base64,CCCC"]);
  expect(kinds).toEqual(["video", "video", "video", "video"]);
  const blind = createNearfar(adapterEngine("x").engine)();
  await expect(generateText({ model: blind, messages: [{ role: "user", content }] })).rejects.toThrow(
    "is a video, and this model reads texts only",
  );
});

test("recordings and files of text reach the engine, as bytes, base64 and text", async () => {
  const { engine, prompt, heard } = hearingEngine("yes", "no", "so");
  const model = createNearfar(engine)();
  const file = (mediaType: string, data: string | Uint8Array, filename?: string) => ({
    type: "file" as const,
    mediaType,
    data,
    ...(filename !== undefined && { filename }),
  });
  const text = (content: string) => new TextEncoder().encode(content);
  const content = [
    file("audio/wav", new Uint8Array([1])),
    file("audio/mpeg", btoa("\u0002")),
    file("audio/ogg", new Uint8Array([3])),
    file("audio/x-wav", btoa("\u0004")),
    file("text/markdown", text("# Boats"), "notes.md"),
    file("text/plain", btoa("plain")),
    file("application/json", text("{}"), "a.json"),
    file("text/csv", text("id\nä"), "a.csv"),
    { type: "text" as const, text: "what?" },
  ];
  const { providerMetadata } = await generateText({ model, messages: [{ role: "user", content }] });
  expect(heard).toEqual([[1], [2], [3], [4]]);
  const transcripts = [0, 1, 2, 3].map((part) => ({ param: `messages[0].content[${part}]`, text: `take ${part + 1}` }));
  expect(providerMetadata?.nearfar).toMatchObject({ transcripts });
  const files = [
    fileText("notes.md", "# Boats"),
    fileText("file", "plain"),
    fileText("a.json", "{}"),
    fileText("a.csv", "id\nä"),
  ];
  expect(prompt(0)).toBe(`[user]${[1, 2, 3, 4].map(take).join("")}${files.join("")}what?[assistant]`);
  const deaf = createNearfar(adapterEngine("x").engine)();
  const sound = [{ role: "user" as const, content: [file("audio/wav", new Uint8Array([1]))] }];
  const streamed = streamText({ model, messages: sound });
  expect(await streamed.text).toBe("no");
  expect((await streamed.finalStep).providerMetadata?.nearfar).toMatchObject({ transcripts: [{ text: "take 5" }] });
  await expect(generateText({ model: deaf, messages: sound })).rejects.toThrow(
    "messages[0].content[0] is a recording, and this model hears nothing",
  );
  // What the SDK passes on as text, and what it does not download.
  const call = async (data: object, mediaType: string) =>
    model.doGenerate({
      prompt: [{ role: "user", content: [{ type: "file", mediaType, data: data as never, filename: "b.txt" }] }],
    });
  await call({ type: "text", text: "inline" }, "text");
  expect(prompt(2)).toBe(`[user]${fileText("b.txt", "inline")}[assistant]`);
  await expect(call({ type: "url", url: new URL("https://host/a.wav") }, "audio/wav")).rejects.toThrow(
    "the address of a file of type 'audio/wav' is not supported",
  );
});

test("embedMany embeds values in one request", async () => {
  const { engine } = adapterEngine("x");
  const { embeddings, usage } = await embedMany({ model: createNearfar(engine).embeddingModel(), values: ["a", "bc"] });
  expect([embeddings, usage.tokens]).toEqual([
    [
      [2, 0, 0, 1],
      [3, 0, 0, 1],
    ],
    5,
  ]);
});

test("an engine in a worker is a source", async () => {
  const engine = await connectEngine(
    fakeWorker(() => Promise.resolve(adapterEngine("from afar").engine as never)),
    "https://host/bundle/",
  );
  const model = createNearfar(engine)();
  expect((await generateText({ model, prompt: "hi" })).text).toBe("from afar");
  expect(await streamText({ model, prompt: "hi" }).text).toBe("from afar");
});

test("a hybrid is a source: the route is in the metadata, and providerOptions set the routing", async () => {
  const { nf } = await setUp(ROUTED);
  const result = await generateText({
    model: createNearfar(nf)(),
    prompt: "hi",
    providerOptions: { nearfar: { pin: "far" } },
  });
  expect(result.text).toBe("far away");
  expect(result.finalStep.providerMetadata?.nearfar).toMatchObject({ route: { side: "far" } });
  expect(createNearfar(nf).embeddingModel()).toMatchObject({ provider: "nearfar", modelId: "small" });
  expect(() => createNearfar({ chat: nf.chat }).embeddingModel()).toThrow(RequestError);
});

test("a stream whose start is withdrawn is an error, because its reader cannot remove the text", async () => {
  const chunk = (delta: object, switchedAt: number | null) => ({
    id: "1",
    created: 1,
    model: "m",
    object: "chat.completion.chunk",
    choices: [{ index: 0, delta, logprobs: null, finish_reason: null }],
    ...(switchedAt === null ? {} : { route: { side: "far", reason: "", scores: {}, switched_at: switchedAt } }),
  });
  // oxlint-disable-next-line typescript/require-await
  async function* chunks() {
    yield* [chunk({ content: "near" }, null), chunk({ content: "far" }, 0)];
  }
  const source = { chat: { completions: { create: () => Promise.resolve(chunks()) } } } as unknown as ChatSource;
  const parts: LanguageModelV4StreamPart[] = [];
  const reading = async (model: LanguageModelV4): Promise<void> => {
    for await (const part of (await model.doStream({ prompt: [] })).stream) parts.push(part);
  };
  await expect(reading(createNearfar(source)())).rejects.toMatchObject({ code: "unavailable" });
  expect(parts.filter(({ type }) => type === "text-delta").length).toBe(1);
});
