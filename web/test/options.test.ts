// Wrong arguments of the engine cause an error that names them, before any other work.

import { beforeAll, expect, test } from "vitest";

import type { GenerateOptions, LoadOptions } from "../src/index.js";
import { Engine } from "../src/index.js";
import { bundleAddress } from "../src/runtime/source.js";
import { memorySource } from "./letters_bundle.js";
import { lettersOnnx, stubRuntime } from "./onnx/letters_onnx.js";

const bundle = memorySource(lettersOnnx().files);
const onnx = { runtime: () => Promise.resolve({ default: stubRuntime().ort }) };
let engine: Engine;

beforeAll(async () => {
  engine = await Engine.load(bundle, { onnx });
});

test.each([
  [{ maxSeqs: 2 }, "maxSeqs"],
  [{ maxSequences: 0 }, "maxSequences"],
  [{ maxSequences: "4" }, "maxSequences"],
  [{ memoryBudget: "1GB" }, "memoryBudget"],
  [{ selfTest: "sometimes" }, "selfTest"],
  [{ signal: {} }, "signal"],
  [{ onProgress: 3 }, "onProgress"],
  [{ store: "yes" }, "store"],
  [{ crossOriginStorage: "all" }, "crossOriginStorage"],
])("load refuses %j, and so does plan", async (options, param) => {
  const refusal = { code: "request_error", details: { param } };
  await expect(Engine.load(bundle, { onnx, ...options } as unknown as LoadOptions)).rejects.toMatchObject(refusal);
  await expect(Engine.plan(bundle, options as unknown as LoadOptions)).rejects.toMatchObject(refusal);
});

test.each([[undefined], [3], [{}], [[]]])("%j is not a bundle", async (bundle) => {
  await expect(Engine.load(bundle as unknown as string)).rejects.toMatchObject({
    code: "request_error",
    details: { param: "bundle" },
  });
});

test("an invalid address is a BundleError that contains it; without a page, addresses must be absolute", () => {
  expect(() => bundleAddress("./bundle/")).toThrow(
    expect.objectContaining({ code: "bundle_error", message: expect.stringContaining("'./bundle/'") as string }),
  );
});

test.each([
  [{ maxtokens: 3 }, "maxtokens"],
  [{ max_tokens: 3 }, "max_tokens"],
  [{ stop: ["."] }, "stop"],
  [{ signal: {} }, "signal"],
  [{ logitBias: { 5: 1 } }, "logitBias"],
  [{ whenFull: "keep" }, "whenFull"],
])("generate refuses %j, also in a session", async (options, param) => {
  const session = engine.createSession();
  const refusal = { code: "request_error", details: { param } };
  await expect(
    engine.generate("a", { raw: true, ...options } as unknown as GenerateOptions).next(),
  ).rejects.toMatchObject(refusal);
  await expect(session.generate("a", options as unknown as GenerateOptions).next()).rejects.toMatchObject(refusal);
});

test.each([[undefined], [3], [{ role: "user", content: "a" }]])("%j is not a prompt", async (prompt) => {
  const refusal = { code: "request_error", details: { param: "prompt" } };
  await expect(engine.generate(prompt as unknown as string).next()).rejects.toMatchObject(refusal);
  await expect(engine.countTokens(prompt as unknown as string)).rejects.toMatchObject(refusal);
});

test("the option of a session is called messages, and is a list", () => {
  expect(() => engine.createSession({ message: [] } as object)).toThrow("'message' is not supported");
  expect(() => engine.createSession({ messages: "be brief" } as object)).toThrow(
    'messages is "be brief", it must be a list',
  );
});
