import { expect, test } from "vitest";

import type { AdapterEntry, TuningEntry } from "../../src/runtime/manifest.js";
import { rememberedTuning, shippedTuning } from "../../src/runtime/tuning_record.js";

const NAMELESS: AdapterEntry = { vendor: "", architecture: "", device: "", description: "" };
const record = (adapter: Partial<AdapterEntry>, activation: TuningEntry["activation"] = "float16"): TuningEntry => ({
  adapter: { ...NAMELESS, ...adapter },
  activation,
  variants: {},
});
const nvidia = record({ vendor: "nvidia" });
const ampere = record({ vendor: "nvidia", architecture: "ampere" });
const lovelace = record({ vendor: "nvidia", architecture: "lovelace" });
const named = record({ vendor: "nvidia", architecture: "ampere", device: "0x2204", description: "RTX 3090" });
const records = [
  record({}),
  record({ vendor: "nvidia", architecture: "ampere" }, "float32"),
  nvidia,
  named,
  ampere,
  lovelace,
];
const find = (adapter: Partial<AdapterEntry>): TuningEntry | null =>
  shippedTuning(records, { activation: "float16", adapterEntry: { ...NAMELESS, ...adapter } });

test("the record with the most matching parts and no other parts is used", () => {
  expect(find({ vendor: "nvidia", architecture: "ampere" })).toBe(ampere);
  expect(find({ vendor: "nvidia", architecture: "ampere", device: "0x2204", description: "RTX 3090" })).toBe(named);
  expect(find({ vendor: "nvidia", architecture: "ampere", device: "0x2206", description: "RTX 3080" })).toBe(ampere);
  expect(find({ vendor: "nvidia", architecture: "blackwell" })).toBe(nvidia);
});

test("an adapter without a record, or without a name, gets none", () => {
  expect(find({ vendor: "apple", architecture: "metal-3" })).toBe(null);
  expect(find({})).toBe(null);
});

test("a stored record gets the adapter of the device that reads it", async () => {
  const device = { activation: "float16", adapterEntry: named.adapter } as const;
  const variants = { head: [{ when: null, variant: "plain" }] };
  expect(await rememberedTuning({ read: () => Promise.resolve(variants) }, device)).toEqual({ ...named, variants });
  expect(await rememberedTuning({ read: () => Promise.resolve(undefined) }, device)).toBe(null);
});
