import { beforeEach, expect, test, vi } from "vitest";

import { Engine } from "../../src/engine.js";
import type { Model } from "../../src/api/model.js";
import type { LogitProcessor as EngineProcessor } from "../../src/engine/request.js";
import type {
  ChatCompletionRequestNonStreaming,
  ChatCompletionUserMessageParam,
  ChatOptions,
  InitProgressReport,
  LogitProcessor,
} from "../../src/webllm/index.js";
import { CreateMLCEngine, MLCEngine, prebuiltAppConfig } from "../../src/webllm/index.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import type { FakeSource } from "../api/fake_model.js";
import { modelOf, promptText } from "../api/fake_model.js";
import { templateEntry } from "../text/template_trees.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";
import { encoderOf } from "../../src/encoders/index.js";
import { fakeEncoder } from "../encoders/fake_encoder.js";
import { fakeLoad } from "./fake_load.js";

const messages: ChatCompletionRequestNonStreaming["messages"] = [{ role: "user", content: "hi" }];

async function ready(...answers: readonly string[]): Promise<MLCEngine> {
  const engine = new MLCEngine({}, fakeLoad(...answers).load);
  await engine.reload("/x/");
  return engine;
}

beforeEach(() => () => {
  vi.restoreAllMocks();
});

test("reload finds the model in the list, reports progress, and replaces the previous model", async () => {
  const { load, loaded, destroyed } = fakeLoad("a");
  const reports: InitProgressReport[] = [];
  const appConfig = {
    model_list: [{ model_id: "tiny", model: "/bundles/tiny/", model_lib: "tiny.wasm", vram_required_MB: 1 }],
  };
  const engine = new MLCEngine(
    { appConfig, initProgressCallback: (report) => reports.push(report), logLevel: "INFO" },
    load,
  );
  await engine.reload("tiny");
  await engine.reload(["/other/"]);
  expect([loaded, destroyed]).toEqual([["/bundles/tiny/", "/other/"], ["/bundles/tiny/"]]);
  expect(reports.slice(0, 3).map(({ progress, text }) => [progress, text])).toEqual([
    [0, "Start to load tiny"],
    [0.25, "Loading weights: 1.0 MB of 4.0 MB; compiling kernels: 1 of 2"],
    [1, "Finish loading tiny on a GPU"],
  ]);
  expect(reports.every(({ timeElapsed }) => timeElapsed >= 0 && timeElapsed < 10)).toBe(true);
});

test("a complete answer to a chat has WebLLM's usage figures and the id of its model", async () => {
  const engine = await ready("hello");
  expect(await engine.runtimeStatsText()).toBe("prefill: not yet, decoding: not yet");
  const { choices, usage, model } = await engine.chat.completions.create({ messages });
  expect(choices[0]).toMatchObject({ message: { content: "hello" }, finish_reason: "stop" });
  expect([model, usage?.completion_tokens]).toEqual(["/x/", 5]);
  expect(usage?.extra.decode_tokens_per_s).toBeCloseTo(1 / (usage?.extra.time_per_output_token_s ?? 0), 6);
  expect(await engine.getMessage()).toBe("hello");
  expect(await engine.runtimeStatsText()).toMatch(
    /^prefill: [1-9]\d*\.\d{4} tokens\/sec, decoding: [1-9]\d*\.\d{4} tokens\/sec$/,
  );
  await engine.resetChat(true);
  expect([await engine.getMessage(), await engine.runtimeStatsText()]).toEqual([
    "",
    expect.not.stringContaining("not yet"),
  ]);
  await engine.resetChat();
  expect(await engine.runtimeStatsText()).toBe("prefill: not yet, decoding: not yet");
});

test("a streamed chat has its usage in the last chunk only, and only with include_usage", async () => {
  const engine = await ready("hello", "there");
  const usages = async (options: { include_usage?: boolean }): Promise<unknown[]> => {
    const usages: unknown[] = [];
    for await (const chunk of await engine.chat.completions.create({ messages, stream: true, stream_options: options }))
      usages.push("usage" in chunk ? chunk.usage.completion_tokens : null);
    return usages;
  };
  const all = await usages({ include_usage: true });
  expect([all.at(-1), all.slice(0, -1).every((usage) => usage === null)]).toEqual([5, true]);
  expect((await usages({})).every((usage) => usage === null)).toBe(true);
  expect([await engine.getMessage(), await engine.runtimeStatsText()]).toEqual([
    "there",
    expect.not.stringContaining("not yet"),
  ]);
});

test("text completions have the log-probabilities of chats", async () => {
  const engine = await ready("ab", "cd");
  const { choices, object, usage } = await engine.completions.create({ prompt: "x", logprobs: true, top_logprobs: 2 });
  expect(object).toBe("text_completion");
  expect([
    choices[0]?.text,
    choices[0]?.logprobs?.content?.map(({ token, bytes, top_logprobs: top }) => [token, bytes, top.length]),
  ]).toEqual([
    "ab",
    [
      ["a", [97], 2],
      ["b", [98], 2],
    ],
  ]);
  expect(usage?.extra.e2e_latency_s).toBeGreaterThan(0);
  let text = "";
  for await (const chunk of await engine.completions.create({ prompt: "x", stream: true }))
    text += chunk.choices[0]?.text ?? "";
  expect([text, await engine.getMessage()]).toEqual(["cd", "cd"]);
  await expect(engine.completions.create({ prompt: "x", top_logprobs: 2 })).rejects.toThrow(
    "top_logprobs needs logprobs: true",
  );
});

test("interruptGenerate ends an answer with abort, and its text stays, streamed or not", async () => {
  const engine = await ready("a".repeat(1000));
  const reasons: unknown[] = [];
  for await (const { choices } of await engine.chat.completions.create({ messages, stream: true })) {
    reasons.push(choices[0]?.finish_reason);
    if ((await engine.getMessage()).length === 5) engine.interruptGenerate();
  }
  expect(reasons.at(-1)).toBe("abort");
  expect((await engine.getMessage()).length).toBeLessThan(20);
  const answer = engine.chat.completions.create({ messages });
  setTimeout(() => {
    engine.interruptGenerate();
  }, 20);
  const { choices, usage } = await answer;
  expect(choices[0]?.finish_reason).toBe("abort");
  expect(choices[0]?.message.content?.length).toBe(usage?.completion_tokens);
});

test("getMessage returns the last of several answers to a request", async () => {
  const engine = await ready("first", "second");
  const { choices } = await engine.chat.completions.create({ messages, n: 2 });
  expect([choices.length, await engine.getMessage()]).toEqual([2, choices[1]?.message.content]);
});

test("chat options are the defaults of requests and override the model's record", async () => {
  const { load, source } = fakeLoad("a");
  const appConfig = {
    model_list: [{ model_id: "x", model: "/x/", overrides: { temperature: 0.7, frequency_penalty: 1 } }],
  };
  const engine = new MLCEngine({ appConfig }, load);
  await engine.reload("x", { temperature: 0.5, top_p: 0.9 });
  await engine.chat.completions.create({ messages, top_p: 0.1, temperature: null });
  expect(source("/x/").requests[0]?.sampling).toMatchObject({ temperature: 0.5, topP: 0.1, frequencyPenalty: 1 });
});

test("an engine has several models, and a call names one of them", async () => {
  const { load, destroyed } = fakeLoad("one", "two");
  const engine = new MLCEngine({}, load);
  await engine.reload(["/a/", "/b/"], [{ temperature: 0 }, {}]);
  const answeredBy = async (model?: string): Promise<unknown> =>
    (await engine.chat.completions.create({ messages, model })).model;
  expect(await Promise.all([answeredBy("/a/"), answeredBy("/b/")])).toEqual(["/a/", "/b/"]);
  expect(await engine.getMessage("/b/")).toBe("one");
  for (const call of [
    answeredBy(),
    engine.getMessage(),
    engine.runtimeStatsText(),
    engine.resetChat(),
    engine.completions.create({ prompt: "a" }),
  ]) {
    await expect(call).rejects.toThrow("Several models are loaded; name one of them: /a/, /b/");
  }
  await expect(answeredBy("/c/")).rejects.toThrow("Model '/c/' is not loaded; name one of those that are: /a/, /b/");
  await expect(engine.reload(["/a/", "/a/"])).rejects.toThrow("pass one or several different ids");
  await expect(engine.reload(["/a/", "/b/"], [{}])).rejects.toThrow("chatOpts has 1 entries for 2 models");
  expect(destroyed).toEqual([]);
  await engine.unload();
  expect(destroyed).toEqual(["/a/", "/b/"]);
});

// As in WebLLM's example abort-reload, which does not await `reload`: a rejection would be unhandled.
test("unload and another reload end a running load, which resolves without a model", async () => {
  const { load, destroyed } = fakeLoad("a");
  const texts: string[] = [];
  const engine = new MLCEngine({ initProgressCallback: ({ text }) => texts.push(text) }, load);
  const loading = engine.reload("/a/");
  await engine.unload();
  await loading;
  expect([destroyed, texts.at(-1)]).toEqual([["/a/"], "The load of /a/ was ended"]);
  await expect(engine.getMessage()).rejects.toThrow("No model is loaded");
  const first = engine.reload(["/b/", "/c/"]);
  await engine.reload("/d/");
  await first;
  expect(destroyed).toEqual(["/a/", "/b/"]);
  expect(await engine.getMessage("/d/")).toBe("");
});

test("a load that hangs ends with unload, and one that fails still rejects", async () => {
  let started = (): void => undefined;
  const isLoading = new Promise<void>((resolve) => (started = resolve));
  const hanging = new MLCEngine(
    {},
    (_, { signal }) =>
      new Promise((_resolve, reject) => {
        started();
        signal?.addEventListener("abort", () => {
          reject(signal.reason as Error);
        });
      }),
  );
  const loading = hanging.reload("/a/");
  await isLoading;
  await hanging.unload();
  await loading;
  await expect(new MLCEngine({}, () => Promise.reject(new Error("gone"))).reload("/a/")).rejects.toThrow("gone");
});

test.each<[ChatOptions, string]>([
  [{ sliding_window_size: 1024 as never }, "chatOpts.sliding_window_size is compiled into a bundle"],
  [{ attention_sink_size: 4 as never }, "chatOpts.attention_sink_size is compiled into a bundle"],
  [{ context_window_size: 0 }, "chatOpts.context_window_size is 0; use a number of tokens above 0"],
  [{ conv_template: {} as never }, "chatOpts.conv_template is not supported; supported: temperature"],
])("the chat options %j are an error that names the option", async (options, message) => {
  await expect(new MLCEngine({}, fakeLoad("a").load).reload("/a/", options)).rejects.toThrow(message);
});

test("a context window of -1 is the bundle's own", async () => {
  const { load, loaded } = fakeLoad("a");
  await new MLCEngine({}, load).reload("/a/", {
    context_window_size: -1,
    sliding_window_size: -1,
    attention_sink_size: -1,
  });
  expect(loaded).toEqual(["/a/"]);
});

test("a context window is whole pages, and the bundle's context is its limit", async () => {
  const plans: number[] = [];
  // A page has 16 tokens, the bundle a context of 256.
  vi.spyOn(Engine, "plan").mockImplementation((_bundle, { pages = 0 } = {}) =>
    Promise.resolve({ context: Math.min(256, 16 * pages) } as never),
  );
  const engine = new MLCEngine({}, (_bundle, { pages = 0 }) => {
    plans.push(pages);
    return fakeLoad("a").load("/a/", {});
  });
  for (const size of [256, 100, 16]) await engine.reload("/a/", { context_window_size: size });
  expect(plans).toEqual([16, 6, 1]);
  await expect(engine.reload("/a/", { context_window_size: 15 })).rejects.toThrow(
    "context_window_size is 15, but a page of keys and values has 16 tokens",
  );
  await expect(engine.reload("/a/", { context_window_size: 4096 })).rejects.toThrow(
    "context_window_size is 4096, but the bundle is compiled for 256",
  );
});

test("unknown options are errors, and so are requests without a model", async () => {
  expect(() => new MLCEngine({ logLevel: "LOUD" as never })).toThrow("logLevel is 'LOUD', it must be one of TRACE");
  expect(() => new MLCEngine({ extensionId: "x" } as never)).toThrow("engineConfig.extensionId is not supported");
  const record = { model_id: "x", model: "/x/" };
  expect(() => new MLCEngine({ appConfig: { model_list: [{ ...record, integrity: {} as never }] } })).toThrow(
    "appConfig.model_list[0].integrity is not supported",
  );
  expect(
    () => new MLCEngine({ appConfig: { model_list: [{ ...record, overrides: { vocab_size: 1 as never } }] } }),
  ).toThrow("overrides.vocab_size is not supported");
  const engine = new MLCEngine({}, fakeLoad("a").load);
  await expect(engine.chat.completions.create({ messages })).rejects.toThrow("call reload(modelId) first");
  await engine.resetChat();
  await engine.resetChat(false, "unknown");
  await expect(engine.reload("Llama-3.1-8B-Instruct-q4f32_1-MLC")).rejects.toThrow(
    'is not in appConfig.model_list (it has: none); add { model_id: "Llama-3.1-8B-Instruct-q4f32_1-MLC", model:',
  );
  await engine.reload("/a/");
  await engine.unload();
  await expect(engine.completions.create({ prompt: "x" })).rejects.toThrow("call reload(modelId) first");
});

test.each<[object, string]>([
  [{ extra_body: { enable_latency_breakdown: true } }, "extra_body.enable_latency_breakdown: true is not supported"],
  [{ extra_body: { resumable: { enabled: true } } }, 'extra_body.resumable: {"enabled":true} is not supported'],
  [{ extra_body: { seed: 1 } }, "extra_body.seed is not supported; supported: enable_thinking"],
  [{ ignore_eos: true }, "ignore_eos: true is not supported"],
  [{ response_format: { type: "structural_tag" } }, "it must be text, json_object, json_schema, regex or grammar"],
  [{ response_format: { type: "text", schema: "{}" } }, "response_format.schema needs type json_object, not text"],
  [
    { response_format: { type: "json_object", schema: "{" } },
    "response_format.schema must be the text of a JSON schema",
  ],
  [
    { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "data:," } }] }] },
    "messages[0].content[0] is a picture",
  ],
  [{ best_of: 2 }, "'best_of' is not supported"],
])("a request with %j is an error that names the field", async (params, message) => {
  const engine = await ready("a");
  await expect(engine.chat.completions.create({ messages, ...params })).rejects.toThrow(message);
});

test("a video is a part of a message, which a model that reads none refuses by name", async () => {
  const engine = await ready("a");
  const content: Exclude<ChatCompletionUserMessageParam["content"], string> = [
    { type: "video_url", video_url: { url: "data:video/mp4;base64,AA==" } },
    { type: "text", text: "what?" },
  ];
  await expect(engine.chat.completions.create({ messages: [{ role: "user", content }] })).rejects.toThrow(
    "messages[0].content[0] is a video, and this model reads texts only",
  );
});

test("recordings and files of text reach an engine that is loaded with a transcriber", async () => {
  const transcribe = (() => Promise.resolve({ text: "hello", language: "en", duration: 1, segments: [] })) as never;
  const { load, source } = fakeLoad("yes", { transcribe });
  const engine = new MLCEngine({}, load);
  await engine.reload("/a/");
  const content: Exclude<ChatCompletionUserMessageParam["content"], string> = [
    { type: "input_audio", input_audio: { data: "AAAA", format: "wav" } },
    { type: "file", file: { filename: "a.txt", file_data: `data:text/plain;base64,${btoa("one")}` } },
    { type: "text", text: "what?" },
  ];
  const { choices } = await engine.chat.completions.create({ messages: [{ role: "user", content }] });
  expect(choices[0]?.message.content).toBe("yes");
  const [request] = source("/a/").requests;
  expect(new TextDecoder().decode(Uint8Array.from(request?.promptIds ?? []))).toContain(
    "[Transcript of a recording]\nhello\n[End of transcript]\n[File: a.txt]\none\n[End of file: a.txt]\nwhat?",
  );
  const deaf = await ready("a");
  await expect(deaf.chat.completions.create({ messages: [{ role: "user", content }] })).rejects.toThrow(
    "messages[0].content[0] is a recording, and this model hears nothing",
  );
});

test("fields that change nothing are accepted", async () => {
  const engine = await ready("a");
  const extraBody = { enable_latency_breakdown: false, enable_thinking: null, resumable: null } as const;
  const { choices } = await engine.chat.completions.create({
    messages,
    extra_body: extraBody,
    ignore_eos: false,
    seed: null,
    response_format: {},
  });
  expect(choices[0]?.message.content).toBe("a");
});

test("enable_thinking of extra_body sets the variable of the chat template, if the template has it", async () => {
  const template = "{{ messages[0].content }}{% if enable_thinking is defined %} {{ enable_thinking }}{% endif %}";
  const text = new Tokenizer(byteLevelTokenizer(), { ...NO_TOKENS, ...templateEntry(template) });
  const { load, source } = fakeLoad({ text }, "a");
  const engine = new MLCEngine({}, load);
  await engine.reload("/x/");
  for (const enable_thinking of [false, true, null])
    await engine.chat.completions.create({ messages, extra_body: { enable_thinking } });
  const model = modelOf(source("/x/"), { text });
  const prompts = source("/x/").requests.map((request) => promptText(model, request));
  expect(prompts).toEqual(["hi False", "hi True", "hi"]);
  const without = await ready("a");
  await expect(
    without.chat.completions.create({ messages, extra_body: { enable_thinking: false } }),
  ).rejects.toMatchObject({ code: "request_error", details: { param: "enable_thinking" } });
});

test("a JSON object with a schema follows the schema", async () => {
  const specs: unknown[] = [];
  const grammar: Model["grammar"] = {
    constraint: (spec) => {
      specs.push(spec);
      return Promise.resolve({
        mask: () => null,
        accept: () => undefined,
        finished: false,
        complete: false,
        dispose: () => undefined,
      });
    },
  };
  const engine = new MLCEngine({}, fakeLoad({ grammar }, "{}").load);
  await engine.reload("/x/");
  await engine.chat.completions.create({
    messages,
    response_format: { type: "json_object", schema: '{"type":"object","maxProperties":0}' },
  });
  await engine.chat.completions.create({ messages, response_format: { type: "json_object" } });
  await engine.chat.completions.create({ messages, response_format: { type: "grammar", grammar: 'root ::= "a"' } });
  expect([...new Set(specs.map((spec) => JSON.stringify(spec)))].map((text) => JSON.parse(text) as unknown)).toEqual([
    { kind: "json_schema", schema: { type: "object", maxProperties: 0 } },
    { kind: "json_object" },
    { kind: "ebnf", grammar: 'root ::= "a"' },
  ]);
});

test("embeddings have the model's id and WebLLM's usage figure", async () => {
  const engine = new MLCEngine({}, fakeLoad({ encoder: encoderOf(fakeEncoder().model) }, "").load);
  await engine.reload("/x/");
  const { data, model, usage } = await engine.embeddings.create({ input: ["a", "abc"], model: "/x/" });
  expect([data.map(({ embedding }) => embedding[0]), model, usage.prompt_tokens]).toEqual([[2, 4], "/x/", 6]);
  expect(usage.extra.prefill_tokens_per_s).toBeGreaterThan(0);
});

/** Records its calls; ``process`` replaces processLogits. */
class Recorder implements LogitProcessor {
  readonly calls: string[] = [];
  constructor(readonly process: (logits: Float32Array) => unknown = (logits) => logits) {}
  processLogits = (logits: Float32Array): Float32Array => this.process(logits) as Float32Array;
  processSampledToken = (token: number): void => {
    this.calls.push(String.fromCharCode(token));
  };
  resetState = (): void => {
    this.calls.push("reset");
  };
}

async function processed(
  recorder: Recorder,
  ...answers: readonly string[]
): Promise<{ readonly engine: MLCEngine; readonly source: FakeSource }> {
  const { load, source } = fakeLoad(...answers);
  const engine = new MLCEngine({ logitProcessorRegistry: new Map([["/x/", recorder]]) }, load);
  await engine.reload("/x/");
  return { engine, source: source("/x/") };
}

test("with a logit processor, requests take turns, and its state lasts as long as the conversation", async () => {
  const recorder = new Recorder();
  const { engine, source } = await processed(recorder, "ab", "cd", "e", "f");
  await Promise.all([engine.chat.completions.create({ messages }), engine.chat.completions.create({ messages })]);
  expect([recorder.calls.join(""), source.most]).toEqual(["resetabresetcd", 1]);
  const more: typeof messages = [...messages, { role: "assistant", content: "cd" }, { role: "user", content: "more" }];
  await engine.chat.completions.create({ messages: more });
  await engine.completions.create({ prompt: "x" });
  await engine.resetChat();
  expect(recorder.calls.slice(6)).toEqual(["e", "reset", "f", "reset"]);
  await expect(engine.chat.completions.create({ messages, n: 2 })).rejects.toThrow("make requests with n: 1");
});

test.each<[string, (logits: Float32Array) => unknown, string]>([
  ["fewer logits", (logits) => logits.slice(1), "processLogits must return a Float32Array of 4 logits"],
  ["a list", (logits) => [...logits], "processLogits must return a Float32Array of 4 logits"],
  ["NaN", (logits) => logits.fill(NaN), "processLogits returned NaN for token 0"],
  ["infinity", (logits) => logits.fill(Infinity, 2), "processLogits returned Infinity for token 2"],
])("a logit processor that returns %s is an error", async (_what, process, message) => {
  const { engine, source } = await processed(new Recorder(process), "a");
  await engine.chat.completions.create({ messages });
  const call: EngineProcessor = source.requests[0]?.logitProcessor ?? expect.fail();
  expect(() => {
    call(new Float32Array(4));
  }).toThrow(message);
});

test("an excluded token gets a finite logit", async () => {
  const { engine, source } = await processed(new Recorder((logits) => logits.fill(-Infinity, 1)), "a");
  await engine.chat.completions.create({ messages });
  const logits = Float32Array.of(1, 2, 3);
  source.requests[0]?.logitProcessor?.(logits);
  expect([...logits]).toEqual([1, Math.fround(-3e38), Math.fround(-3e38)]);
});

test("the models of an engine without a list are those of prebuiltAppConfig", async () => {
  const { load, loaded } = fakeLoad("a");
  vi.spyOn(Engine, "load").mockImplementation(load as never);
  prebuiltAppConfig.model_list.push({ model_id: "mine", model: "/mine/" });
  const engine = await CreateMLCEngine("mine");
  prebuiltAppConfig.model_list.pop();
  await engine.unload();
  expect(loaded).toEqual(["/mine/"]);
});
