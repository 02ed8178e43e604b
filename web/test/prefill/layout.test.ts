// States as a server sends them; tests/server_fallback/executors/test_prefill_blocks.py requires the same of Python.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import type { StatesForm } from "../../src/prefill/layout.js";
import { KvLayout } from "../../src/prefill/layout.js";
import type { AnyManifest } from "../../src/runtime/any_manifest.js";
import { BASE, manifestOf } from "./kv_runner.js";

interface Vector {
  readonly shapes: readonly (readonly number[])[];
  readonly values: readonly number[];
  readonly forms: Readonly<Record<StatesForm, { readonly content: string; readonly received: readonly number[] }>>;
}
const { states } = JSON.parse(readFileSync("../tests/conformance/kv_rows.json", "utf8")) as { readonly states: Vector };

function layoutOfStates(): KvLayout {
  const manifest = manifestOf(BASE) as unknown as { plans: { generate: { states: Record<string, unknown> } } };
  states.shapes.forEach((shape, index) => {
    manifest.plans.generate.states[`states.${index}`] = { shape: ["Z", ...shape], dtype: "float32" };
  });
  return new KvLayout(manifest as unknown as AnyManifest, "float32", [Infinity]);
}

test.each(["q4", "q8", "float16"] as const)("matrices of states come as %s and windows as float16", (form) => {
  const layout = layoutOfStates();
  const { content: sent, received } = states.forms[form];
  const content = Uint8Array.from(sent.match(/../g) ?? [], (byte) => parseInt(byte, 16));
  expect(content.length).toBe(layout.statesBytes(form));
  const numbers = new Float32Array(layout.statesToDevice(content, form).buffer);
  expect([...numbers]).toEqual(received);
  const exact = new Uint8Array(Float32Array.from(states.values).buffer);
  expect(layout.statesToDevice(exact, "float32")).toEqual(exact);
});
