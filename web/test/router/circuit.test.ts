// When a side gets requests, no requests, or a trial request, as on servers.

import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

import { Circuit } from "../../src/router/answer/side_record.js";

type Outcome = "begin" | "ended" | "succeeded" | "failed" | "certain";
interface Case {
  readonly name: string;
  readonly steps: readonly (readonly [Outcome | number, string, boolean])[];
}

const { cases } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/circuit.json", import.meta.url), "utf8"),
) as { readonly cases: readonly Case[] };

test.each(cases)("$name", ({ steps }) => {
  let now = 100;
  const circuit = new Circuit(3, 1000, () => now);
  for (const [event, state, admits] of steps) {
    if (typeof event === "number") now += event;
    else if (event === "certain") circuit.failed(true);
    else circuit[event]();
    expect([circuit.state, circuit.admits]).toEqual([state, admits]);
  }
});
