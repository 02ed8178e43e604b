import { getEventListeners } from "node:events";

import { expect, test } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import type { LanguageModel, LanguageModelCreateOptions, LanguageModelPrompt } from "../../src/language_model/index.js";
import { createLanguageModel } from "../../src/language_model/index.js";
import type { Model } from "../../src/api/model.js";
import { FakeSource, fakeEngine, fakeModel, modelOf, promptText } from "../api/fake_model.js";

interface Made {
  readonly session: LanguageModel;
  readonly prompts: () => readonly string[];
  readonly source: FakeSource;
}

async function session(
  answers: readonly string[],
  options: LanguageModelCreateOptions = {},
  context = 1000,
): Promise<Made> {
  const { model, source } = fakeModel(...answers);
  const made = await createLanguageModel(fakeEngine(model, context)).create(options);
  return { session: made, source, prompts: () => source.requests.map((request) => promptText(model, request)) };
}

test("a session remembers the conversation and counts its tokens", async () => {
  const { session: chat, prompts } = await session(["yes", "no"], {
    initialPrompts: [{ role: "system", content: "S" }],
  });
  expect(chat.contextUsage).toBe("[system]S[assistant]".length);
  expect(await chat.prompt("a")).toBe("yes");
  expect(
    await chat.prompt([
      {
        role: "user",
        content: [
          { type: "text", value: "b" },
          { type: "text", value: "c" },
        ],
      },
    ]),
  ).toBe("no");
  expect(prompts()).toEqual(["[system]S[user]a[assistant]", "[system]S[user]a[assistant]yes[user]bc[assistant]"]);
  expect(chat.contextUsage).toBe("[system]S[user]a[assistant]yes[user]bc[assistant]no[assistant]".length);
  expect(chat.contextWindow).toBe(1000);
});

test("promptStreaming returns a ReadableStream of pieces of text", async () => {
  const { session: chat, prompts } = await session(["abc", "d"]);
  const pieces: string[] = [];
  for await (const piece of chat.promptStreaming("x")) pieces.push(piece);
  expect(pieces).toEqual(["a", "b", "c"]);
  await chat.prompt("y");
  expect(prompts()[1]).toBe("[user]x[assistant]abc[user]y[assistant]");
});

test("calls run in the order in which they were started", async () => {
  const { session: chat, prompts } = await session(["one", "two"]);
  await Promise.all([chat.prompt("1"), chat.append("+"), chat.prompt("2")]);
  expect(prompts()[1]).toBe("[user]1[assistant]one[user]+[user]2[assistant]");
});

test("a prefix starts the answer", async () => {
  const { session: chat, prompts } = await session([" sir", "x"]);
  const prompt: LanguageModelPrompt = [
    { role: "user", content: "a" },
    { role: "assistant", content: "Dear", prefix: true },
  ];
  expect(await chat.prompt(prompt)).toBe(" sir");
  await chat.prompt("b");
  expect(prompts()).toEqual(["[user]a[assistant]Dear", "[user]a[assistant]Dear sir[user]b[assistant]"]);
});

test("a clone and its original continue independently", async () => {
  const { session: chat, prompts } = await session(["1", "2", "3"]);
  await chat.prompt("a");
  const copy = await chat.clone();
  expect(copy.contextUsage).toBe(chat.contextUsage);
  await copy.prompt("b");
  await chat.prompt("c");
  expect(prompts().slice(1)).toEqual([
    "[user]a[assistant]1[user]b[assistant]",
    "[user]a[assistant]1[user]c[assistant]",
  ]);
});

test("the oldest turns are dropped, the system message stays, and an event is dispatched", async () => {
  const { session: chat, prompts } = await session(
    ["1", "2"],
    { initialPrompts: [{ role: "system", content: "S" }] },
    50,
  );
  const events: string[] = [];
  chat.addEventListener("contextoverflow", () => events.push("listener"));
  chat.oncontextoverflow = () => events.push("handler");
  await chat.prompt("aaaaaaaaaa");
  expect(events).toEqual([]);
  await chat.prompt("bbbbbbbbbb");
  expect(events).toEqual(["listener", "handler"]);
  expect(prompts()[1]).toBe("[system]S[user]bbbbbbbbbb[assistant]");
});

test("a prompt that never fits is a QuotaExceededError with figures, and the session does not change", async () => {
  const { session: chat, prompts } = await session(["1"], {}, 40);
  await chat.append("a");
  const usage = chat.contextUsage;
  await expect(chat.prompt("b".repeat(40))).rejects.toMatchObject({
    name: "QuotaExceededError",
    requested: 57,
    quota: 40,
  });
  expect([chat.contextUsage, prompts()]).toEqual([usage, []]);
  await expect(session(["1"], { initialPrompts: "c".repeat(50) }, 40)).rejects.toMatchObject({
    name: "QuotaExceededError",
  });
});

test("measureContextUsage returns the number of tokens that a prompt would add", async () => {
  const { session: chat } = await session(["1"]);
  await chat.append("a");
  const before = chat.contextUsage;
  const measured = await chat.measureContextUsage("bcd");
  await chat.append("bcd");
  expect(chat.contextUsage).toBe(before + measured);
});

test("an aborted prompt ends with the signal's reason and does not change the session", async () => {
  const { session: chat, source, prompts } = await session(["abc", "d"]);
  const controller = new AbortController();
  const answer = chat.prompt("a", { signal: controller.signal });
  setTimeout(() => {
    controller.abort();
  }, 2);
  await expect(answer).rejects.toMatchObject({ name: "AbortError" });
  expect(await chat.prompt("b")).toBe("d");
  expect(prompts()[1]).toBe("[user]b[assistant]");
  expect(source.running).toBe(0);
});

test("a cancelled stream aborts its prompt", async () => {
  const { session: chat, prompts, source } = await session(["abcdef", "d"]);
  for await (const piece of chat.promptStreaming("a")) {
    expect(piece).toBe("a");
    break;
  }
  await chat.prompt("b");
  expect(prompts()[1]).toBe("[user]b[assistant]");
  expect(source.running).toBe(0);
});

test("destroy ends the running call and rejects later ones", async () => {
  const { session: chat } = await session(["abc"]);
  const answer = chat.prompt("a");
  chat.destroy();
  await expect(answer).rejects.toMatchObject({ name: "AbortError" });
  await expect(chat.prompt("b")).rejects.toMatchObject({ name: "AbortError" });
  await expect(chat.clone()).rejects.toMatchObject({ name: "AbortError" });
  await expect(chat.measureContextUsage("b")).rejects.toMatchObject({ name: "AbortError" });
});

test("the signal of create() destroys the session when it aborts later", async () => {
  const controller = new AbortController();
  const { session: chat, source } = await session(["abc"], { signal: controller.signal });
  const answer = chat.prompt("a");
  controller.abort(new Error("left the page"));
  await expect(answer).rejects.toThrow("left the page");
  await expect(chat.prompt("b")).rejects.toThrow("left the page");
  expect(source.running).toBe(0);
});

test("a signal that outlives its sessions does not keep them", async () => {
  const { signal } = new AbortController();
  for (let index = 0; index < 3; index++) {
    const { session: chat } = await session(["abc"], { signal });
    expect(getEventListeners(signal, "abort")).toHaveLength(1);
    await chat.prompt("a", { signal });
    chat.destroy();
    expect(getEventListeners(signal, "abort")).toHaveLength(0);
  }
});

test("sampling modes and raw parameters reach the engine", async () => {
  const { session: plain, source } = await session(["x"]);
  await plain.prompt("a");
  expect([plain.samplingMode, source.requests[0]?.sampling]).toMatchObject(["balanced", { temperature: 0.7 }]);
  const { session: raw, source: rawSource } = await session(["x"], { temperature: 9, topK: 3.7 });
  await raw.prompt("a");
  expect([raw.samplingMode, raw.temperature, raw.topK, rawSource.requests[0]?.sampling]).toMatchObject([
    null,
    2,
    3,
    { temperature: 2, topK: 3 },
  ]);
});

test("a constraint is described in the prompt, unless this is switched off, but not in the conversation", async () => {
  const specs: unknown[] = [];
  const constraint = {
    mask: () => null,
    accept: () => undefined,
    finished: false,
    complete: false,
    dispose: () => undefined,
  };
  const { source } = fakeModel("1", "2", "3");
  const model: Model = modelOf(source, {
    grammar: { constraint: (spec) => (specs.push(spec), Promise.resolve(constraint)) },
  });
  const chat = await createLanguageModel(fakeEngine(model)).create();
  await chat.prompt("a", { responseConstraint: { type: "number" } });
  await chat.prompt("b", { responseConstraint: /\d/, omitResponseConstraintInput: true });
  expect(new Set(specs)).toEqual(
    new Set([
      { kind: "json_schema", schema: { type: "number" } },
      { kind: "regex", pattern: "\\d" },
    ]),
  );
  expect(promptText(model, source.requests[0])).toBe(
    '[user]a\n\nAnswer with JSON of this schema: {"type":"number"}[assistant]',
  );
  expect(promptText(model, source.requests[1])).toBe("[user]a[assistant]1[user]b[assistant]");
});

const user = (content: unknown): LanguageModelPrompt => [{ role: "user", content }] as LanguageModelPrompt;

test.each<[LanguageModelPrompt, object, string]>([
  [
    [
      { role: "user", content: "a" },
      { role: "system", content: "b" },
    ],
    {},
    "TypeError",
  ],
  [[{ role: "tool", content: "a" }] as unknown as LanguageModelPrompt, {}, "TypeError"],
  [[{ role: "user", content: "a", prefix: true }], {}, "SyntaxError"],
  [
    [
      { role: "assistant", content: "a", prefix: true },
      { role: "user", content: "b" },
    ],
    {},
    "SyntaxError",
  ],
  [user([{ type: "text", value: 3 }]), {}, "TypeError"],
  [user([{ type: "image", value: 3 }]), {}, "NotSupportedError"],
  [user([{ type: "audio", value: new Blob() }]), {}, "NotSupportedError"],
  // The specification has no videos.
  [user([{ type: "video" as "image", value: new Blob() }]), {}, "NotSupportedError"],
  ["a", { omitResponseConstraintInput: true }, "TypeError"],
  ["a", { responseConstraint: "x" }, "TypeError"],
  ["a", { responseConstraint: /a/i }, "NotSupportedError"],
  ["a", { responseConstraint: {} }, "NotSupportedError"],
])("a wrong prompt rejects with the specification's exception: %#", async (prompt, options, name) => {
  const { session: chat } = await session(["x"]);
  await expect(chat.prompt(prompt, options)).rejects.toHaveProperty("name", name);
  expect(await chat.prompt("fine")).toBe("x");
});

test.each<[LanguageModelCreateOptions, string]>([
  [{ temperature: -1 }, "RangeError"],
  [{ topK: 0 }, "RangeError"],
  [{ topK: 1, samplingMode: "creative" }, "TypeError"],
  [{ samplingMode: "wild" as "creative" }, "TypeError"],
  [{ expectedInputs: [{ type: "image" }] }, "NotSupportedError"],
  [{ expectedInputs: [{ type: "audio" }] }, "NotSupportedError"],
  [{ expectedInputs: [{ type: "video" }] }, "NotSupportedError"],
  [{ tools: [{}] as never }, "TypeError"],
  [{ initialPrompts: user([{ type: "audio", value: 1 }]) }, "NotSupportedError"],
  [{ signal: AbortSignal.abort() }, "AbortError"],
])("create rejects values out of range: %#", async (options, name) => {
  await expect(session(["x"], options)).rejects.toHaveProperty("name", name);
});

test("images of the user reach a model that sees, if the session expects them", async () => {
  const { model } = fakeModel("yes");
  const engine = fakeEngine(model);
  const received: unknown[] = [];
  const expectedInputs = [{ type: "image" }];
  const seeing: EngineApi = {
    ...engine,
    info: { ...engine.info, images: true },
    countTokens: () => Promise.resolve(1),
    chat: {
      completions: {
        create: ((params: { readonly messages: unknown }) => {
          received.push(params.messages);
          const reply = async function* () {
            yield await Promise.resolve({ choices: [{ delta: { content: "a cat" } }] });
          };
          return Promise.resolve(reply());
        }) as never,
      },
    },
  };
  const factory = createLanguageModel(seeing);
  expect(await factory.availability({ expectedInputs })).toBe("available");
  expect(await createLanguageModel(engine).availability({ expectedInputs })).toBe("unavailable");
  const blind = createLanguageModel({ ...engine, info: { ...engine.info, images: false } });
  expect(await blind.availability({ expectedInputs })).toBe("unavailable");
  const chat = await factory.create({ expectedInputs });
  const file = new Blob(["cat"]);
  const image = { type: "image", value: file };
  const prompt = user([{ type: "text", value: "who?" }, image, { type: "image", value: new Uint8Array([1, 2]) }]);
  expect(await chat.prompt(prompt, { responseConstraint: /a/ })).toBe("a cat");
  const [content] = (received[0] as readonly { readonly content: readonly Record<string, unknown>[] }[]).map(
    (message) => message.content,
  );
  expect(content?.map(({ type }) => type)).toEqual(["text", "image", "image", "text"]);
  expect(content?.[1]?.image).toBe(file);
  expect(await (content?.[2]?.image as Blob | undefined)?.arrayBuffer()).toEqual(new Uint8Array([1, 2]).buffer);
  expect(content?.[3]?.text).toContain("Answer with a text that matches /a/");
  // The next prompt has the first one without its hint.
  const copy = await chat.clone();
  await copy.prompt(user([image]));
  expect((received[1] as readonly { readonly content: unknown }[])[0]?.content).toHaveLength(3);
  await expect(chat.prompt(user([{ type: "image", value: 3 }]))).rejects.toBeInstanceOf(TypeError);
  const answered = [{ role: "assistant" as const, content: [image] }];
  await expect(chat.prompt(answered)).rejects.toHaveProperty("name", "NotSupportedError");
});

/** A factory over an engine with a transcriber, which hears the samples or the bytes of a recording. */
function hearing(...answers: readonly string[]) {
  const heard: unknown[] = [];
  const transcribe = (async (sound: unknown) => {
    heard.push(sound instanceof Blob ? [...new Uint8Array(await sound.arrayBuffer())] : sound);
    return { task: "transcribe", language: "en", duration: 1, text: ` take ${heard.length}`, segments: [] };
  }) as never;
  const source = new FakeSource(answers);
  const model = modelOf(source, { transcribe, heard: new Map() });
  const engine = fakeEngine(model, 1000);
  const hearingEngine: EngineApi = { ...engine, info: { ...engine.info, sound: true } };
  const prompts = () => source.requests.map((request) => promptText(model, request));
  return { factory: createLanguageModel(hearingEngine), heard, prompts };
}

const AUDIO = { expectedInputs: [{ type: "audio" }] };
const take = (number: number) => `[Transcript of a recording]\ntake ${number}\n[End of transcript]\n`;

test("audio of the user is heard once by a model with a transcriber, if the session expects it", async () => {
  const { factory, heard, prompts } = hearing("hello", "again", "well");
  expect(await factory.availability(AUDIO)).toBe("available");
  const chat = await factory.create(AUDIO);
  const channels = [Float32Array.of(0.5, 0.25), Float32Array.of(0, 1)];
  const decoded = (count: number) => ({
    numberOfChannels: count,
    sampleRate: 16_000,
    getChannelData: (index: number) => channels[index],
  });
  const bytes = new Uint8Array([1, 2]);
  await chat.append(user([{ type: "audio", value: bytes }]));
  // Neither the page's own bytes nor its samples are kept.
  bytes.fill(9);
  expect(
    await chat.prompt(
      user([
        { type: "text", value: "and?" },
        { type: "audio", value: new Blob(["ab"]) },
      ]),
    ),
  ).toBe("hello");
  expect(prompts()[0]).toBe(`[user]${take(1)}[user]and?${take(2)}[assistant]`);
  expect(await chat.prompt(user([{ type: "audio", value: decoded(1) }]))).toBe("again");
  channels[0]?.fill(9);
  expect(heard).toEqual([[1, 2], [97, 98], { samples: Float32Array.of(0.5, 0.25), sampleRate: 16_000 }]);
  // A later prompt, and a clone, hear nothing again.
  const copy = await chat.clone();
  expect(await copy.prompt("b")).toBe("well");
  expect(prompts()[2]).toBe(
    `[user]${take(1)}[user]and?${take(2)}[assistant]hello[user]${take(3)}[assistant]again[user]b[assistant]`,
  );
  expect(heard.length).toBe(3);
  expect(chat.contextUsage).toBe(
    `[user]${take(1)}[user]and?${take(2)}[assistant]hello[user]${take(3)}[assistant]again[assistant]`.length,
  );
  await chat.prompt(user([{ type: "audio", value: decoded(2) }]));
  expect(heard.at(-1)).toEqual({ samples: channels, sampleRate: 16_000 });
  for (const value of [3, "a.mp3", {}, null])
    await expect(chat.prompt(user([{ type: "audio", value }]))).rejects.toBeInstanceOf(TypeError);
  const answered = [{ role: "assistant" as const, content: [{ type: "audio", value: new Blob() }] }];
  await expect(chat.prompt(answered)).rejects.toHaveProperty("name", "NotSupportedError");
  const images = { expectedInputs: [{ type: "audio" }, { type: "image" }] };
  expect(await factory.availability(images)).toBe("unavailable");
  await expect(factory.create(images)).rejects.toMatchObject({ name: "NotSupportedError" });
});
