// probe(): what it refuses to read, and which stored reports it returns. What it measures is in the other files.

import { createHash } from "node:crypto";

import { expect, test } from "vitest";

import { BundleError } from "../../src/errors.js";
import type { DeviceReport } from "../../src/probe/index.js";
import { probe } from "../../src/probe/index.js";
import type { Manifest } from "../../src/runtime/manifest.js";
import type { Source } from "../../src/runtime/source.js";
import { dawn } from "../../tools/dawn.js";
import { lettersBundle } from "../letters_bundle.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;

/** A bundle whose probe.json has this text; null: it has none. */
function withProbe(text: string | null, changes: Partial<Manifest> = {}): Source {
  const { manifest, files } = lettersBundle();
  const bytes = new TextEncoder().encode(text ?? "");
  const entry = { file: "probe.json", size: bytes.length, sha256: createHash("sha256").update(bytes).digest("hex") };
  const changed = { ...manifest, ...changes, files: text === null ? manifest.files : [...manifest.files, entry] };
  const all: Readonly<Record<string, Uint8Array<ArrayBuffer>>> = {
    ...files,
    "probe.json": bytes,
    "manifest.json": new TextEncoder().encode(JSON.stringify(changed)),
  };
  return {
    location: "memory",
    open: (file) => Promise.resolve(new Blob([all[file] ?? new Uint8Array()]).stream()),
  };
}

const EMPTY = {
  probe_version: 2,
  layers: [],
  plans: {},
  weights: {},
  shards: [],
  values: {},
  self_test: {},
  vector_test: null,
};

test.skipIf(!hasAdapter).each([
  ["null", "must be an object, not null"],
  ["<html>", "is not JSON"],
  ["{}", "has version missing, this @nearfar/web reads 2"],
  [JSON.stringify({ ...EMPTY, layers: ["a"] }), 'layers[0] must be an integer of at least 0, not "a"'],
  [JSON.stringify({ ...EMPTY, shards: [null] }), "shards[0] must be an object, not null"],
  [JSON.stringify({ ...EMPTY, values: { a: 1 } }), "values.a must be a list, not 1"],
  [JSON.stringify({ ...EMPTY, more: 1 }), "key 'more' is not known here"],
])("a probe that is not understood is refused: %s", async (text, message) => {
  const probing = probe(withProbe(text), { gpu, notes: notes(undefined) });
  await expect(probing).rejects.toThrow(BundleError);
  await expect(probing).rejects.toThrow(`probe.json: ${message}`);
});

test("a bundle without a probe is refused by name", async () => {
  await expect(probe(withProbe(null))).rejects.toThrow("letters: the bundle has no probe.json");
});

const notes = (stored: unknown) => ({ read: () => Promise.resolve(stored), write: () => Promise.resolve() });
const REPORT: DeviceReport = {
  format: "nearfar-probe-2",
  date: "2026-11-29T00:00:00.000Z",
  model: "letters",
  quantization: "f32",
  bundle: "0".repeat(64),
  device: {
    adapter: { vendor: "", architecture: "", device: "", description: "a GPU" },
    features: [],
    runs_on_cpu: false,
    user_agent: "",
    platforms: [],
    memory_gb: null,
    cores: null,
  },
  probe_ms: 1,
  bytes_read: 1,
  test: null,
  measured: null,
  memory: null,
  fit: null,
  speed: null,
  first_token: [],
  decode: [],
  encode: [],
  times: [],
  refusals: [{ reason: "memory", message: "too large", found: 1, needed: 2 }],
};

test.skipIf(!hasAdapter)("a stored report is returned if it is one, and measured again otherwise", async () => {
  expect(await probe(withProbe("null"), { gpu, notes: notes(REPORT) })).toEqual(REPORT);
  for (const stored of [null, {}, { ...REPORT, format: "nearfar-probe-1" }, { ...REPORT, refusals: [{}] }])
    await expect(probe(withProbe("null"), { gpu, notes: notes(stored) })).rejects.toThrow("must be an object");
});

test.skipIf(!hasAdapter)("reports are stored by what was asked, bundle, adapter and browser", async () => {
  const keys: unknown[] = [];
  const read = (key: string) => {
    keys.push(JSON.parse(key));
    return Promise.resolve(REPORT);
  };
  await probe(withProbe("null"), { gpu, notes: { ...notes(REPORT), read }, limitMs: 100 });
  const { vendor, architecture, device, description } = (await gpu.requestAdapter())?.info ?? {};
  const browser = typeof navigator === "undefined" ? "" : navigator.userAgent;
  const adapter = { vendor, architecture, device, description };
  const bundle: unknown = expect.stringMatching(/^[0-9a-f]{64}$/);
  expect(keys).toEqual([['probe {"limitMs":100}', bundle, adapter, browser]]);
});
