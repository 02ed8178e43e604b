// tests/conformance/router_prefix.json, which the Python router runs too.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import type { PrefixMessage } from "../../src/shared/decision/prefix_memory.js";
import { PrefixMemory } from "../../src/shared/decision/prefix_memory.js";

interface Case {
  readonly name: string;
  readonly remembered: readonly {
    readonly messages: readonly PrefixMessage[];
    readonly answer: string;
    readonly now: number;
  }[];
  readonly messages: readonly PrefixMessage[];
  readonly now: number;
  readonly share: number;
}

const { cases } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/router_prefix.json", import.meta.url), "utf8"),
) as { readonly cases: readonly Case[] };

test.each(cases)("conformance: $name", ({ remembered, messages, now, share }) => {
  const memory = new PrefixMemory();
  for (const { messages: earlier, answer, now: at } of remembered) memory.remember(earlier, answer, at);
  expect(memory.cachedShare(messages, now)).toBe(share);
});
