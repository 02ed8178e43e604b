// Private requests and texts, which never leave the device.

import { expect, test } from "vitest";

import { DeviceError } from "../../src/errors.js";
import type { NearScript } from "./fakes.js";
import { FakeFar, near, withEyes } from "./fakes.js";
import { MESSAGES, QUESTION, SURE, WATCHED, read, setUp } from "./hybrid_set_up.js";

const policy = {
  mode: "prefer-far",
  labels: ["work"],
  private: { patterns: ["\\b[0-9]{3}-[0-9]{2}-[0-9]{4}\\b"] },
  escalation: WATCHED,
  timeouts: { hedge_after_ms: undefined },
};
const broken: readonly NearScript[] = [{ text: "abcdefgh", logprobs: [-9], then: new DeviceError("lost") }];
const tool = {
  type: "function",
  function: { name: "find", parameters: { properties: { id: { const: "078-05-1120" } } } },
};

test.each([
  ["a label of the request", { labels: ["private"] }],
  [
    "a label of one message",
    { messages: [{ role: "user", content: "secret plan", labels: ["private"] }, ...MESSAGES] },
  ],
  ["a number in a text", { messages: [{ role: "user", content: "secret: 078-05-1120" }] }],
  [
    "a number in a part",
    {
      messages: [
        {
          role: "user",
          content: [
            { type: "text", text: "078-05" },
            { type: "text", text: "-1120" },
          ],
        },
      ],
    },
  ],
  [
    "a number in parts beside others",
    {
      messages: [
        { role: "user", content: ["Summarize", "078-05", "-1120", "now"].map((text) => ({ type: "text", text })) },
      ],
    },
  ],
  [
    "a number in a tool's arguments",
    {
      messages: [
        ...MESSAGES,
        {
          role: "assistant",
          content: null,
          tool_calls: [{ id: "1", type: "function", function: { name: "find", arguments: '{"id":"078-05-1120"}' } }],
        },
        { role: "tool", tool_call_id: "1", content: "secret" },
      ],
    },
  ],
  ["a number in a schema", { tools: [tool], tool_choice: "none" }],
])("%s: nothing private leaves, whatever fails", async (_, params) => {
  for (const scripts of [[SURE], broken]) {
    const { nf, far, clock } = await setUp({
      policy: { ...policy, mode: "prefer-near", timeouts: { hedge_after_ms: 1 } },
      scripts,
    });
    const before = far.requests.length;
    const complete = nf.chat.completions
      .create({ messages: MESSAGES, ...params } as never)
      .catch((error: unknown) => error);
    await clock.pass(30_000);
    expect(await complete).toMatchObject(
      scripts === broken ? { code: "device_error" } : { route: { side: "near", reason: "private" } },
    );
    expect(far.requests.length).toBe(before);
    expect(far.sent).not.toMatch(/secret plan|secret:|078-05|27 \+ 58/);
  }
});

test("near's own private text does not leave: far does not continue it", async () => {
  const { nf, far } = await setUp({
    policy: { ...policy, mode: "prefer-near" },
    scripts: [{ text: "078-05-1120 ", then: new DeviceError("lost") }],
  });
  await expect(nf.chat.completions.create({ messages: MESSAGES })).rejects.toMatchObject({
    code: "request_error",
    details: { code: "private" },
  });
  expect([far.chats.length, far.sent.includes("078")]).toEqual([0, false]);
});

test("private text that near completed from the client's beginning does not leave", async () => {
  const { nf, far } = await setUp({
    policy: { ...policy, mode: "prefer-near" },
    scripts: [{ text: "1120 ", then: new DeviceError("lost") }],
  });
  const messages = [QUESTION, { role: "assistant" as const, content: [{ type: "text" as const, text: "078-05-" }] }];
  await expect(nf.chat.completions.create({ messages, continue_final_message: true })).rejects.toMatchObject({
    details: { code: "private" },
  });
  expect(far.chats).toEqual([]);
});

test("private text that near completed from the question does not leave", async () => {
  const { nf, far } = await setUp({
    policy: { ...policy, mode: "prefer-near" },
    scripts: [{ text: "1120 ", then: new DeviceError("lost") }],
  });
  await expect(
    nf.chat.completions.create({ messages: [{ role: "user", content: "go on: 078-05-" }] }),
  ).rejects.toMatchObject({ details: { code: "private" } });
  expect(far.chats).toEqual([]);
});

test("labels, pins and cookies are never sent", async () => {
  const { nf, far } = await setUp({ policy });
  await nf.chat.completions.create({
    messages: [{ ...QUESTION, labels: ["work"] }],
    labels: ["work"],
    pin: "far",
    user: "u1",
  });
  expect(far.bodies).toEqual([
    { model: "big", stream: true, stream_options: { include_usage: true }, user: "u1", messages: MESSAGES },
  ]);
  expect(far.sent).not.toMatch(/labels|pin|work/);
  expect(far.chats[0]?.headers).toEqual({
    "Content-Type": "application/json",
    Authorization: "Bearer secret",
    "Idempotency-Key": expect.stringMatching(/^[\d-]+$/) as string,
  });
});

test("a private request pinned to far is an error, and so is an unknown label", async () => {
  const { nf } = await setUp({ policy });
  await expect(
    nf.chat.completions.create({ messages: MESSAGES, labels: ["private"], pin: "far" }),
  ).rejects.toMatchObject({ code: "request_error", details: { code: "private" } });
  await expect(nf.chat.completions.create({ messages: MESSAGES, labels: ["privat"] })).rejects.toMatchObject({
    code: "request_error",
    details: { code: "unknown_label" },
  });
});

const PNG = "data:image/png;base64,iVBORw0KGgo=";
const PICTURE = { type: "image_url", image_url: { url: PNG } };
const RECORDING = { type: "input_audio", input_audio: { data: "UklGRg==", format: "wav" } };
const see = { id: "1", type: "function", function: { name: "see", arguments: "{}" } };
/** Of these requests, no text matches a pattern. */
const WITH_MEDIA: readonly (readonly [string, readonly object[]])[] = [
  ["a picture of the last message", [{ role: "user", content: [{ type: "text", text: "what is it?" }, PICTURE] }]],
  [
    "a picture of an earlier message",
    [{ role: "user", content: [PICTURE] }, { role: "assistant", content: "a cat" }, QUESTION],
  ],
  [
    "a picture of a tool",
    [
      QUESTION,
      { role: "assistant", content: null, tool_calls: [see] },
      { role: "tool", tool_call_id: "1", content: [PICTURE] },
    ],
  ],
  ["bytes in a text", [{ role: "user", content: `what is ![it](${PNG})?` }]],
  [
    "bytes of a video with codecs in a text",
    [{ role: "user", content: "what is in data:video/webm; codecs=vp8,opus;base64,GkXfow==?" }],
  ],
  ["a recording", [{ role: "user", content: [RECORDING] }]],
  ["a part of no known kind", [{ role: "user", content: [{ type: "hologram", data: "iVBORw0KGgo=" }] }]],
];
const seeing = (...scripts: NearScript[]) => withEyes(near(...scripts).engine);
const keeping = (rules: object) => ({
  policy: {
    ...policy,
    escalation: { ...WATCHED, warm: "always" },
    breaker: { failures: 1 },
    retries: 1,
    ...rules,
  },
  far: new FakeFar([{ texts: ["far"] }]),
});

test.each(WITH_MEDIA)("%s: nothing leaves, whatever fails", async (_, messages) => {
  const failures: readonly (readonly NearScript[])[] = [
    [SURE],
    broken,
    [{ text: "", then: new DeviceError("lost") }],
    [{ text: "", then: "hang" }],
  ];
  for (const rules of [{ mode: "prefer-far" }, { mode: "prefer-near", timeouts: { hedge_after_ms: 1 } }])
    for (const kept of [policy.private, { media: "near" }])
      for (const scripts of failures)
        for (const stream of [false, true]) {
          const { nf, far, clock } = await setUp({
            ...keeping({ ...rules, private: kept }),
            near: seeing(...scripts),
            farOptions: { vision: true, sound: true },
          });
          const before = far.requests.length;
          for (let turn = 0; turn < 2; turn++) {
            const answer = (stream ? read(nf, { messages }) : nf.chat.completions.create({ messages } as never)).catch(
              (error: unknown) => error,
            );
            await clock.pass(60_000);
            await answer;
          }
          expect(far.requests.length).toBe(before);
          expect(far.sent).not.toMatch(/iVBOR|UklG|what is it/);
        }
});

test("a picture stays near, and one that near cannot see is an error that says where it is", async () => {
  const messages = WITH_MEDIA[1]?.[1] as never;
  const seen = await setUp({ ...keeping({}), near: seeing(SURE), farOptions: { vision: true } });
  expect(await seen.nf.chat.completions.create({ messages })).toMatchObject({
    route: { side: "near", reason: "media" },
  });
  const { nf, far } = await setUp({ ...keeping({}), farOptions: { vision: true } });
  await expect(nf.chat.completions.create({ messages })).rejects.toMatchObject({
    code: "request_error",
    details: { code: "vision" },
    message: expect.stringContaining("a picture (messages[0].content[0])") as string,
  });
  await expect(nf.chat.completions.create({ messages, pin: "far" })).rejects.toMatchObject({
    details: { code: "media" },
  });
  expect(far.chats).toEqual([]);
});

test("the policy may let pictures and recordings leave, each for a reason", async () => {
  const { nf, far } = await setUp({
    policy: { ...policy, mode: "prefer-near", private: { ...policy.private, media: "far" } },
    farOptions: { vision: true, sound: true },
  });
  const ask = (part: object) => nf.chat.completions.create({ messages: [{ role: "user", content: [part] }] } as never);
  expect(await ask(PICTURE)).toMatchObject({ route: { side: "far", reason: "vision" } });
  expect(await ask(RECORDING)).toMatchObject({ route: { side: "far", reason: "sound" } });
  expect(far.bodies.map(({ messages }) => messages?.[0]?.content)).toEqual([[PICTURE], [RECORDING]]);
});

test("nothing of a private prompt is stored on this device", async () => {
  const system = { role: "system", content: "be kind" };
  const masks = { then: "mask", patterns: [{ kind: "SECRET", pattern: "secret" }] };
  for (const rules of [{ patterns: ["secret"] }, { masks }]) {
    const { nf, source } = await setUp({ policy: { private: rules } });
    for (const content of ["my secret", "hello"]) await read(nf, { messages: [system, { role: "user", content }] });
    expect(source.requests.map(({ prefix }) => prefix === undefined)).toEqual([true, false]);
  }
});
