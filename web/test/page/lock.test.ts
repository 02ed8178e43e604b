// A message that the page shows as private never leaves the device under any policy. The tests read every request of a
// recording server.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { labelsOf, lockLabel, ownPolicy, withLock } from "../../page/policy.js";
import { PRIVATE_PATTERNS } from "../../page/policy.js";
import { decide } from "../../src/shared/decision/decide.js";
import { PrivateCheck } from "../../src/shared/decision/privacy.js";
import { oneOf } from "../exhaustive.js";
import { VECTORS, situationOf } from "../router/cases.js";
import type { NearScript } from "../router/fakes.js";
import { read, setUp } from "../router/hybrid_set_up.js";

const SECRET = "the diary of quokka";
const CASES = VECTORS.cases.filter(({ error }) => error === undefined);
const POLICIES = [...new Set(CASES.map(({ policy }) => JSON.stringify(policy)))].map(
  (policy) => JSON.parse(policy) as object,
);
/** An answer that policies escalate, and one that fails. */
const UNSURE: NearScript = { text: "near by near by near by", logprobs: [-9] };
const FAILING: NearScript = { text: "near", then: new Error("the device is lost") };
/** Other pins and answers of near than no pin and an unsure answer, of which each policy gets the next. */
const OTHERS: readonly (readonly [pin: "far" | null, script: NearScript])[] = [
  ["far", FAILING],
  [null, FAILING],
  ["far", UNSURE],
];

/** For a policy that reads embeddings: it fails, so the vector counts as the mean. */
function embedderOf({ quality }: ReturnType<typeof withLock>) {
  const model = quality.predictor?.embedding?.model;
  return model === undefined ? undefined : { model, embed: () => Promise.reject(new Error("no encoder")) };
}

test(
  "under every policy of the conformance file, no byte of a locked message leaves the device",
  { timeout: 60_000 },
  async () => {
    expect(POLICIES.length).toBeGreaterThan(100);
    for (const [index, json] of oneOf(4, [...POLICIES.entries()])) {
      const policy = withLock(json);
      const label = lockLabel(policy);
      expect(label === null).toBe(policy.mode === "far-only");
      const messages = [
        { role: "user" as const, content: SECRET, labels: label === null ? [] : [label] },
        { role: "assistant" as const, content: SECRET, labels: [] },
        { role: "user" as const, content: "go on", labels: [] },
      ];
      if (label === null) {
        expect(() => labelsOf(policy, true)).toThrow("not sent");
        continue;
      }
      expect(labelsOf(policy, true)).toEqual([label]);
      const other = OTHERS[index % OTHERS.length] ?? [null, UNSURE];
      for (const [pin, script] of [[null, UNSURE] as const, other]) {
        const { nf, far } = await setUp({ policy, scripts: [script], embedder: embedderOf(policy) });
        const answered = await read(nf, { messages, pin }).then(
          (chunks) => chunks.find(({ route }) => route !== undefined)?.route,
          () => null,
        );
        expect(far.sent, JSON.stringify(json)).not.toContain("quokka");
        expect(far.chats).toEqual([]);
        if (pin === null && script === UNSURE) expect(answered).toMatchObject({ side: "near" });
        nf.close();
      }
    }
  },
);

const PNG = "data:image/png;base64,iVBORw0KGgo=";

test("a request that the decision calls private is not sent", { timeout: 60_000 }, async () => {
  let found = 0;
  for (const { policy: json, situation: changes } of CASES) {
    const policy = withLock(json);
    const situation = situationOf(changes);
    if (!decide(policy, situation).private) continue;
    found++;
    const { nf, far } = await setUp({ policy, scripts: [UNSURE] });
    const messages = situation.messages.map(({ role, content, labels, parts }) => ({
      role,
      labels,
      content: [
        ...(parts ?? [content]).map((text) => ({ type: "text", text })),
        ...situation.media.map(({ part }) => (part === null ? { type: "text", text: PNG } : { type: "image_url" })),
      ],
    }));
    // Other texts are in a tool's description.
    const tools = situation.texts.map((description, index) => ({
      type: "function",
      function: { name: `tool_${index}`, description, parameters: { type: "object" } },
    }));
    await read(nf, { messages, labels: situation.labels, ...(tools.length > 0 ? { tools } : {}) }).catch(() => null);
    expect(far.chats, JSON.stringify(changes)).toEqual([]);
    nf.close();
  }
  expect(found).toBeGreaterThan(50);
});

test("the lock has a label under a policy with the maximum number of labels", () => {
  const labels = Array.from({ length: 100 }, (_, index) => `label ${index}`);
  const policy = withLock({ version: 1, mode: "prefer-far", private: { labels } });
  expect(labelsOf(policy, true)).toEqual(["label 0"]);
  expect(labelsOf(policy, false)).toEqual([]);
  expect(decide(policy, situationOf({ labels: labelsOf(policy, true) }))).toMatchObject({
    side: "near",
    reason: "private",
  });
});

test("the README's policy with its own private labels has the lock", () => {
  const policy = withLock({ version: 1, mode: "prefer-far", private: { labels: ["health"] } });
  expect(policy.private.labels).toContain("health");
  expect(decide(policy, situationOf({ labels: labelsOf(policy, true) }))).toMatchObject({
    side: "near",
    reason: "private",
  });
});

interface Examples {
  readonly patterns: readonly {
    readonly name: string;
    readonly pattern: string;
    readonly found: readonly string[];
    readonly clear: readonly string[];
  }[];
}
const { patterns: EXAMPLES } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/private_patterns.json", import.meta.url), "utf8"),
) as Examples;

test("the page's own policy has the patterns of the conformance file", () => {
  expect(Object.fromEntries(EXAMPLES.map(({ name, pattern }) => [name, pattern]))).toEqual(PRIVATE_PATTERNS);
});

test.each(EXAMPLES)("$name: matches its examples and none of the counterexamples", ({ pattern, found, clear }) => {
  const one = PrivateCheck.of({ labels: [], patterns: [pattern], ignore_case: true });
  const all = PrivateCheck.of(withLock(ownPolicy("nearfar")).private);
  expect(found.filter((text) => !one.matches(`x ${text}`) || !all.matches(text))).toEqual([]);
  expect(clear.filter((text) => all.matches(text))).toEqual([]);
});
