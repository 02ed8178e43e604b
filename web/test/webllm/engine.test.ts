import { expect, test } from "vitest";

import type { InitProgressReport, LoadEngine } from "../../src/webllm/engine.js";
import { MLCEngine } from "../../src/webllm/engine.js";
import type { FakeSource } from "../api/fake_model.js";
import { fakeEngine, fakeModel } from "../api/fake_model.js";

const messages = [{ role: "user", content: "hi" }] as const;

function webllm(...answers: readonly string[]): { readonly load: LoadEngine; readonly loaded: string[]; readonly destroyed: string[]; readonly source: () => FakeSource | undefined } {
  const loaded: string[] = [];
  const destroyed: string[] = [];
  let source: FakeSource | undefined;
  const load: LoadEngine = (bundle, { onProgress }) => {
    loaded.push(bundle);
    onProgress?.({ phase: "download", loadedBytes: 1_000_000, storedBytes: 0, totalBytes: 4_000_000, compiledKernels: 1, totalKernels: 2 });
    onProgress?.({ phase: "ready", loadedBytes: 4_000_000, storedBytes: 0, totalBytes: 4_000_000, compiledKernels: 2, totalKernels: 2 });
    const fake = fakeModel(...answers);
    ({ source } = fake);
    return Promise.resolve({ ...fakeEngine(fake.model), info: { model: "fake", adapter: "a GPU" } as never, destroy: () => destroyed.push(bundle) });
  };
  return { load, loaded, destroyed, source: () => source };
}

async function ready(...answers: readonly string[]): Promise<MLCEngine> {
  const engine = new MLCEngine({}, webllm(...answers).load);
  await engine.reload("x");
  return engine;
}

test("reload finds the model in the list, reports progress, and replaces the model before", async () => {
  const { load, loaded, destroyed } = webllm("a");
  const reports: InitProgressReport[] = [];
  const appConfig = { model_list: [{ model_id: "tiny", model: "/bundles/tiny/" }] };
  const engine = new MLCEngine({ appConfig, initProgressCallback: (report) => reports.push(report), logLevel: "INFO" }, load);
  await engine.reload("tiny");
  await engine.reload(["/other/"]);
  expect([loaded, destroyed]).toEqual([["/bundles/tiny/", "/other/"], ["/bundles/tiny/"]]);
  expect(reports.slice(0, 3).map(({ progress, text }) => [progress, text])).toEqual([
    [0, "Start to load tiny"],
    [0.25, "Loading weights: 1.0 of 4.0 MB; compiling kernels: 1 of 2"],
    [1, "Finish loading tiny on a GPU"],
  ]);
  expect(reports.every(({ timeElapsed }) => timeElapsed >= 0 && timeElapsed < 10)).toBe(true);
});

test("a chat is answered whole, with WebLLM's figures", async () => {
  const engine = await ready("hello");
  expect(await engine.runtimeStatsText()).toBe("prefill: not yet, decoding: not yet");
  const { choices, usage } = await engine.chat.completions.create({ messages });
  expect(choices[0]).toMatchObject({ message: { content: "hello" }, finish_reason: "stop" });
  expect(usage.completion_tokens).toBe(5);
  expect(usage.extra.decode_tokens_per_s).toBeGreaterThan(0);
  expect(await engine.getMessage()).toBe("hello");
  expect(await engine.runtimeStatsText()).toMatch(/^prefill: [1-9]\d*\.\d{4} tokens\/sec, decoding: [1-9]\d*\.\d{4} tokens\/sec$/);
  await engine.resetChat();
  expect(await engine.getMessage()).toBe("");
});

test("a streamed chat, and the older completions", async () => {
  const engine = await ready("hello", "there", "you");
  let text = "";
  let extra = 0;
  for await (const { choices, usage } of await engine.chat.completions.create({ messages, stream: true, stream_options: { include_usage: true } })) {
    text += choices[0]?.delta.content ?? "";
    extra += usage?.extra.time_to_first_token_s ?? 0;
  }
  expect([text, extra > 0, await engine.getMessage()]).toEqual(["hello", true, "hello"]);
  expect((await engine.completions.create({ prompt: "x" })).choices[0]?.text).toBe("there");
  for await (const { choices } of await engine.completions.create({ prompt: "x", stream: true })) text += choices[0]?.text ?? "";
  expect([text, await engine.getMessage()]).toEqual(["helloyou", "you"]);
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
  const whole = engine.chat.completions.create({ messages });
  setTimeout(() => {
    engine.interruptGenerate();
  }, 20);
  const { choices, usage } = await whole;
  expect(choices[0]?.finish_reason).toBe("abort");
  expect(choices[0]?.message.content?.length).toBe(usage.completion_tokens);
});

test("the options of the chat are what requests use where they do not say", async () => {
  const { load, source } = webllm("a");
  const engine = new MLCEngine({}, load);
  await engine.reload("x", { temperature: 0.5, top_p: 0.9 });
  await engine.chat.completions.create({ messages, top_p: 0.1 });
  expect(source()?.requests[0]?.sampling).toMatchObject({ temperature: 0.5, topP: 0.1 });
});

test("what is unknown is refused, and so are requests without a model", async () => {
  expect(() => new MLCEngine({ logitProcessorRegistry: new Map() } as never)).toThrow("engineConfig.logitProcessorRegistry is not supported");
  const engine = new MLCEngine({}, webllm("a").load);
  await expect(engine.chat.completions.create({ messages })).rejects.toThrow("call reload(modelId) first");
  await expect(engine.reload(["a", "b"])).rejects.toThrow("holds one model");
  await expect(engine.reload("a", { context_window_size: 1 } as never)).rejects.toThrow("chatOpts.context_window_size is not supported");
  await engine.reload("a");
  await engine.unload();
  await expect(engine.completions.create({ prompt: "x" })).rejects.toThrow("call reload(modelId) first");
});
