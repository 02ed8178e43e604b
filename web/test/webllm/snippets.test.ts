// Snippets based on WebLLM's documentation, as in an application except for the package name in their imports. tsc
// checks them against the published types. Here they run on a device, through Dawn, with a bundle that continues "a"
// with "be". The snippets for a browser run in tests/web/test_webllm.py.

import { beforeEach, expect, test, vi } from "vitest";

import { Engine } from "../../src/engine.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
import { formatOf } from "../text/tool_formats.js";
import { dawn } from "../../tools/dawn.js";
import type { Files } from "../letters_bundle.js";
import { lettersBundle } from "../letters_bundle.js";
import { vectorLetters } from "../vector_letters.js";
import { fakeExtension } from "./fake_extension.js";
import { fakeLoad } from "./fake_load.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const REASON = "Dawn finds no adapter; set VK_ICD_FILENAMES to a Vulkan driver such as SwiftShader";
if (!hasAdapter && process.env.CI !== undefined) throw new Error(`${REASON} (CI is set, so this is not skipped)`);
if (!hasAdapter) console.warn(`skipped: ${REASON}`);
const onDevice = test.runIf(hasAdapter);

let files: Files = {};

beforeEach(() => {
  vi.stubGlobal("navigator", { gpu });
  vi.stubGlobal("fetch", (address: string) =>
    Promise.resolve(new Response(files[new URL(address).pathname.replace("/demo/", "")])),
  );
  vi.spyOn(console, "log").mockImplementation(() => undefined);
});

const snippet = (name: string): Promise<unknown> => import(`./snippets/${name}.ts`);

async function run(name: string, bundle: Files = lettersBundle().files): Promise<unknown> {
  files = bundle;
  return ((await snippet(name)) as { main(): Promise<unknown> }).main();
}

onDevice("basic chat", async () => {
  const finished = expect.stringMatching(/^Finish loading demo-q4f32_1-MLC on ./) as string;
  expect(await run("basic_chat")).toEqual({ content: "be", model: "demo-q4f32_1-MLC", tokens: 2, finished });
});

onDevice("streaming", async () => {
  const { speeds, ...rest } = (await run("streaming")) as { speeds: number[] };
  expect(rest).toEqual({
    message: "be",
    full: "be",
    stats: expect.stringMatching(/^prefill: [\d.]+ tokens\/sec, decoding: [\d.]+ tokens\/sec$/) as string,
    logprobs: 2,
  });
  expect(speeds.every((speed) => speed > 0)).toBe(true);
});

onDevice("several rounds with a context window", async () => {
  expect(await run("multi_round")).toEqual({ first: "be", second: "be", replyMessage: "be", afterReset: "" });
});

onDevice("several models in one engine", async () => {
  expect(await run("multi_models")).toEqual({
    answers: [
      ["be", "be"],
      ["be", "be"],
    ],
    ambiguous: "Several models are loaded; name one of them: demo-q4f32_1-MLC, other-q4f32_1-MLC",
  });
});

onDevice("text completion", async () => {
  expect(await run("text_completion")).toEqual({ text: "abe", streamed: "be", first: ["b", [98], 2], usage: 3 });
});

onDevice("a logit processor, and tokens forwarded one by one", async () => {
  expect(await run("logit_processor")).toEqual({
    forwarded: [7, 7, 7, 7],
    stats: expect.stringMatching(/^prefill: [\d.]+ tokens\/sec, decoding: [\d.]+ tokens\/sec$/) as string,
    content: "hhh",
    sequence: [7, 7, 7],
    resets: 2,
    several: expect.stringContaining("make requests with n: 1") as string,
  });
});

onDevice("embeddings", async () => {
  // The largest number of a vector is at the index of the letter after the last one.
  expect(await run("embeddings", lettersBundle(vectorLetters()).files)).toEqual({
    largest: [1, 4],
    model: "demo-q4f32_1-MLC",
    fast: true,
  });
});

onDevice("an extension, whose service worker has the engine", async () => {
  fakeExtension();
  await snippet("extension_background");
  expect(await run("extension_popup")).toEqual(["be", "be"]);
});

test("tool calls", async () => {
  const parser = (): ToolCallStream => new ToolCallStream(formatOf("hermes"));
  const { load } = fakeLoad(
    { tools: { parser, grammar: () => null } },
    '<tool_call>\n{"name": "get_current_weather", "arguments": {"location": "Tokyo"}}\n</tool_call>',
  );
  const loading = vi.spyOn(Engine, "load").mockImplementation(load as never);
  expect(await run("function_calling")).toEqual({
    name: "get_current_weather",
    arguments: '{"location": "Tokyo"}',
    reason: "tool_calls",
  });
  loading.mockRestore();
});

onDevice("an interrupted answer", async () => {
  expect(await run("interrupt")).toEqual({ lastReason: "abort", some: true });
});

onDevice("an image is refused by name", async () => {
  expect(await run("vision")).toBe(
    "messages[0].content[1] is a picture, and this model reads texts only; leave it out, or load a model that sees",
  );
});

onDevice("a chat application", async () => {
  expect(await run("chat_ui")).toEqual({
    isLimited: false,
    last: { role: "assistant", content: "be" },
    label: expect.stringMatching(/^prompt_tokens: \d+, completion_tokens: 2, prefill: [\d.]+ tokens\/sec$/) as string,
  });
});

onDevice("a list of models of one's own in place of the prebuilt one", async () => {
  expect(await run("prebuilt_models")).toEqual({
    missing: expect.stringContaining("is not in appConfig.model_list (it has: none)") as string,
    vendors: 2,
    calling: false,
  });
});
