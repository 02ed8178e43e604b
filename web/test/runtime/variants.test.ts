import { expect, test } from "vitest";

import { NO_CHOICES } from "../../src/runtime/choices.js";
import type { VariantEntry } from "../../src/runtime/manifest.js";
import { chooseRow, selectRows, usableRows } from "../../src/runtime/variants.js";
import { lettersBundle } from "../letters_bundle.js";

const row = (kernel: string, rest: Partial<VariantEntry> = {}): VariantEntry => ({
  kernels: [kernel],
  activation: null,
  needs: [],
  when: null,
  ...rest,
});
const { manifest } = lettersBundle({
  variants: {
    linear: [
      row("subgroups", { needs: ["subgroups"] }),
      row("half", { activation: "float16" }),
      row("few", { activation: "float32", when: ["<=", "S", 4] }),
      row("few again", { activation: "float32", when: ["<=", "S", 4] }),
      row("plain", { activation: "float32" }),
    ],
    half_only: [row("half", { activation: "float16" })],
  },
});
const names = (rows: readonly VariantEntry[]): readonly string[] => rows.flatMap(({ kernels }) => kernels);

test("rows for another dtype, or for features that the device lacks, are left out", () => {
  expect(names(usableRows(manifest, "linear", "float32", new Set()))).toEqual(["few", "few again", "plain"]);
  expect(names(usableRows(manifest, "linear", "float16", new Set(["subgroups"])))).toEqual(["subgroups", "half"]);
  expect(names(usableRows(manifest, "linear", "float16", new Set()))).toEqual(["half"]);
});

test("the rows of a plan are all rows that the device can run, or those that may run under given choices", () => {
  const variants = { ...lettersBundle().manifest.variants, embed: manifest.variants.linear ?? [] };
  const letters = lettersBundle({ variants }).manifest;
  const all = selectRows(letters, "float32", new Set(), null, {});
  expect([...all.keys()]).toEqual(["embed", "take_rows", "sample", "top_logprobs"]);
  expect(names(all.get("embed") ?? [])).toEqual(["few", "few again", "plain"]);
  const chosen = selectRows(letters, "float32", new Set(), { off: new Set(["plain"]), front: {} }, { S: 64 });
  expect(names(chosen.get("embed") ?? [])).toEqual(["few"]);
});

test("rows that no batch within the capacity reaches are left out", () => {
  const embed = [
    row("few", { when: ["<=", "S", 4] }),
    row("many", { when: [">", "S", 256] }),
    row("plain"),
    row("never"),
  ];
  const letters = lettersBundle({ variants: { ...lettersBundle().manifest.variants, embed } }).manifest;
  const within = (S: number): readonly string[] =>
    names(selectRows(letters, "float32", new Set(), NO_CHOICES, { S }).get("embed") ?? []);
  expect(within(4)).toEqual(["few"]);
  expect(within(64)).toEqual(["few", "plain"]);
  expect(within(257)).toEqual(["few", "many", "plain"]);
  const front = { embed: [{ when: [">", "S", 8] as const, variant: "many" }] };
  const tuned = selectRows(letters, "float32", new Set(), { off: new Set(), front }, { S: 64 });
  expect(names(tuned.get("embed") ?? [])).toEqual(["few", "many", "plain"]);
});

test("the first row whose condition holds is chosen", () => {
  const rows = usableRows(manifest, "linear", "float32", new Set());
  expect(chooseRow(rows, { S: 4 }).kernels).toEqual(["few"]);
  expect(chooseRow(rows, { S: 5 }).kernels).toEqual(["plain"]);
});

test("a list without a usable row, and a batch without a fitting one, are BundleErrors", () => {
  expect(() => usableRows(manifest, "half_only", "float32", new Set())).toThrow(
    "variants 'half_only' has no row for float32",
  );
  expect(() => usableRows(manifest, "nowhere", "float32", new Set())).toThrow("variants 'nowhere' has no row");
  expect(() => chooseRow([{ when: ["<", "S", 1] }], { S: 1 })).toThrow("no variant fits");
});
