import { expect, test } from "vitest";

import trees from "../../../tests/conformance/template_trees.json" with { type: "json" };
import wrongTrees from "../../../tests/conformance/wrong_trees.json" with { type: "json" };
import { checkManifest, loadManifest } from "../../src/runtime/load_manifest.js";
import { FORMAT_VERSION } from "../../src/runtime/manifest.js";
import { planOf } from "../../src/runtime/plan.js";
import { wrongPart } from "../../src/shared/template/check_tree.js";
import { bytesOf, lettersBundle, memorySource } from "../letters_bundle.js";

const { manifest, files } = lettersBundle();
const plan = planOf(manifest);
const SIGNAL = new AbortController().signal;

test("a valid manifest is not changed", async () => {
  expect(await loadManifest(memorySource(files), SIGNAL)).toEqual(manifest);
});

test("a page instead of a manifest is a BundleError that advises to check the address", async () => {
  const source = memorySource({ "manifest.json": bytesOf("<!doctype html><title>404</title>") });
  await expect(loadManifest(source, SIGNAL)).rejects.toThrow(
    'manifest.json: is not JSON (it starts with "<!doctype html><titl"); check that memory',
  );
});

test("a chat template that was edited after its tree was made is a BundleError", async () => {
  const tokenizer = { ...manifest.tokenizer, chat_template: "{{ messages[-1].content }}" };
  const source = memorySource({ "manifest.json": bytesOf(JSON.stringify({ ...manifest, tokenizer })) });
  await expect(loadManifest(source, SIGNAL)).rejects.toThrow(
    "tokenizer.chat_template has changed since chat_tree was made of it",
  );
});

test.each(wrongTrees.cases)("a chat_tree with $about is a BundleError", ({ tree, path }) => {
  const tokenizer = { ...manifest.tokenizer, chat_tree: { ...manifest.tokenizer.chat_tree, tree } };
  expect(() => checkManifest({ ...manifest, tokenizer })).toThrow(
    `manifest.json: tokenizer.chat_tree.tree${path} must be a part of a template's syntax tree, not `,
  );
});

test("every tree that Python writes is one", () => {
  for (const { tree } of Object.values(trees)) expect(wrongPart(tree)).toBeNull();
  let deep: unknown = "a";
  for (let level = 0; level < 5000; level++) deep = ["not", deep];
  expect(wrongPart([{}, [["out", deep]]])).toHaveLength(4002);
});

test("another format version is a BundleError that names both", () => {
  expect(() => checkManifest({ ...manifest, format_version: 99 })).toThrow(
    `has format version 99, this @nearfar/web reads ${FORMAT_VERSION}`,
  );
});

test("a bundle in the format without named plans is a BundleError that states what to do", () => {
  const { plans, ...older } = manifest;
  expect(() => checkManifest({ ...older, plan: plans.generate, format_version: 1 })).toThrow(
    `has format version 1, this @nearfar/web reads ${FORMAT_VERSION}; compile the bundle again, or use the @nearfar/web of its release`,
  );
});

test("a bundle for another target is a BundleError", () => {
  expect(() => checkManifest({ ...manifest, target: "cuda" })).toThrow('is for target "cuda"');
});

test("an unknown key is an error, so that nothing is silently ignored", () => {
  expect(() => checkManifest({ ...manifest, plans: { generate: { ...plan, future: 1 } } })).toThrow(
    "key 'plans.generate.future' is not known here",
  );
});

test("a bundle of an earlier release has no origin", () => {
  const { origin, ...earlier } = manifest;
  expect(origin).toBeNull();
  expect(checkManifest(earlier).origin).toBeNull();
  expect(() => checkManifest({ ...manifest, origin: "mit" })).toThrow("origin must be an object");
});

test("a missing key is named with its path", () => {
  const steps = [{ ...plan.steps[0], variants: undefined }];
  expect(() => checkManifest({ ...manifest, plans: { generate: { ...plan, steps } } })).toThrow(
    "plans.generate.steps[0].variants must be a string, not missing",
  );
});

test.each([
  [{ context: 2.5 }, "context must be an integer from 1 to 2147483647, not 2.5"],
  [{ shards: {} }, "shards must be a list, not {}"],
  [{ kernels: [] }, "kernels must be an object"],
  [
    { activations: [{ dtype: "bfloat16", needs: [] }] },
    'activations[0].dtype must be "float32" or "float16" or "int8"',
  ],
  [
    { lora: { rank: 1, modules: { q: [{ a: "a", b: "b", part: 0, start: 0, stop: 4, first_row: 0 }] } } },
    "lora.modules.q[0].factor must be a number, not missing",
  ],
  [
    { spec: { ...manifest.spec, windows: [4, "all"] } },
    'spec.windows[1] must be an integer from 1 to 2147483647, not "all"',
  ],
  [{ spec: { ...manifest.spec, attention_softcap: 0 } }, "spec.attention_softcap must be a number above 0, not 0"],
  [{ kernels: { k: { ...manifest.kernels.sample, facts: [] } } }, "kernels.k.facts must be an object"],
  [
    { variants: { a: [{ kernels: ["k"], activation: null, needs: [], when: ["<=", "S"] }] } },
    "variants.a[0].when must be a condition",
  ],
])("a value of the wrong kind is named with its path: %j", (change, message) => {
  expect(() => checkManifest({ ...manifest, ...change })).toThrow(message);
});
