// No byte of a picture, a video, a recording or a file leaves under a policy that keeps media or describes them; the far
// side records every byte. tests/server_fallback/router/test_media_bytes.py requires the same of Python.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { DeviceError } from "../../src/errors.js";
import { oneOf } from "../exhaustive.js";
import type { NearScript } from "./fakes.js";
import { near, withEyes } from "./fakes.js";
import { LOST, WATCHED, setUp } from "./hybrid_set_up.js";

const vectors = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/media_bytes.json", import.meta.url), "utf8"),
) as {
  readonly mark: string;
  readonly requests: readonly { readonly name: string; readonly request: object }[];
};
const KEEPING = [{ patterns: ["[0-9]{9}"] }, { media: "near" }, { media: "describe" }];
const BOAT: NearScript = { text: "a red boat" };
const READS = { vision: true, video: true, sound: true };
const transcriber = { transcribe: () => Promise.resolve({ text: "good morning" }) };

/** An engine that reads all media, or none. */
function engineOf(reads: boolean, scripts: readonly NearScript[]) {
  const { engine } = near(...scripts);
  if (!reads) return engine;
  const eyes = withEyes(engine);
  return { ...eyes, info: { ...eyes.info, video: true, sound: true } };
}

/** What far receives in two turns, and who answers. ``fails``: something does, whose time limits must pass. */
async function sent(request: object, policy: object, reads: boolean, scripts: readonly NearScript[], fails = true) {
  const { nf, far, clock } = await setUp({ policy, near: engineOf(reads, scripts), farOptions: READS, transcriber });
  const outcomes: unknown[] = [];
  for (const pin of [undefined, "far"]) {
    const state = { isSettled: false };
    const answer = nf.chat.completions
      .create({ ...request, pin } as never)
      .then(({ route }) => outcomes.push(route?.side))
      .catch((error: unknown) => outcomes.push((error as DeviceError).details.code))
      .finally(() => (state.isSettled = true));
    // Bytes are encoded in time that the clock does not count.
    for (let turn = 0; !state.isSettled; turn++) {
      await new Promise((resolve) => setTimeout(resolve, turn));
      await clock.pass(turn < 5 || !fails ? 0 : 1000);
    }
    await answer;
  }
  return { wire: far.sent, outcomes };
}

test.each(vectors.requests.map((each, index) => ({ ...each, index })))(
  "no bytes leave unless the policy says so: $name",
  async ({ request, index }) => {
    const nears = [
      [true, [BOAT]],
      [false, [LOST]],
      [true, [{ text: "a re", then: new DeviceError("lost") }]],
    ] as const;
    const cases = ["prefer-far", "prefer-near"].flatMap((mode) =>
      KEEPING.flatMap((rules) => nears.map(([reads, scripts]) => ({ mode, rules, reads, scripts }))),
    );
    // Each request meets a quarter of them, and the next one the next quarter.
    for (const { mode, rules, reads, scripts } of oneOf(4, cases, index)) {
      const escalation = { ...WATCHED, warm: "always" };
      const policy = { mode, private: rules, escalation, breaker: { failures: 1 } };
      const { wire, outcomes } = await sent(request, policy, reads, scripts);
      expect(wire).not.toContain(vectors.mark);
      if (rules.media !== "describe") expect(outcomes).not.toContain("far");
    }
  },
);

test.each(vectors.requests)("the bytes leave if the policy lets media leave: $name", async ({ request }) => {
  // Else nothing of the test above could fail.
  const { wire, outcomes } = await sent(
    request,
    { mode: "prefer-far", private: { media: "far" } },
    false,
    [BOAT],
    false,
  );
  expect(outcomes).toEqual(["far", "far"]);
  expect(wire).toContain(vectors.mark);
});

const URL_OF_BYTES = `data:image/png;base64,iVBORw0KGgoA${vectors.mark}`;
const user = (content: unknown, rest: object = {}) => ({ messages: [{ role: "user", content, ...rest }] });

test.each([
  ["frames beside a text", user([{ type: "text", text: "hi", frames: [URL_OF_BYTES] }])],
  ["bytes beside a text", user([{ type: "text", text: "hi", source: { data: vectors.mark } }])],
  ["an object as a text", user([{ type: "text", text: { url: URL_OF_BYTES } }])],
  ["a part instead of a list", user({ type: "image_url", image_url: { url: URL_OF_BYTES } })],
  ["an object as a name", user("hi", { name: { url: URL_OF_BYTES } })],
  ["a role", { messages: [{ role: URL_OF_BYTES, content: "hi" }] }],
  ["pictures beside the content", user("hi", { images: [vectors.mark] })],
  ["a recording beside the content", user("hi", { audio: { data: vectors.mark } })],
  ["the type of a tool", { ...user("hi"), tools: [{ type: URL_OF_BYTES, function: { name: "f" } }] }],
  ["the type of a format", { ...user("hi"), response_format: { type: URL_OF_BYTES } }],
])("no bytes leave in what the API does not have: %s", async (_name, request) => {
  for (const rules of KEEPING) {
    const { wire, outcomes } = await sent(request, { mode: "prefer-far", private: rules }, true, [BOAT, BOAT]);
    expect(wire).not.toContain(vectors.mark);
    expect(outcomes).not.toContain("far");
  }
});
