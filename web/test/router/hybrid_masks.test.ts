// Chats with private texts that far answers without them: the far side records every byte.

import { expect, test } from "vitest";

import type { ChatCompletionChunk, MaskedText } from "../../src/router/index.js";
import { DeviceError } from "../../src/errors.js";
import type { FarScript } from "./fakes.js";
import { LOST, WATCHED, read, routes, setUp, shown } from "./hybrid_set_up.js";

const EMAIL = String.raw`\b[\w.%+-]+@(?:[a-z0-9-]+\.)+[a-z]{2,24}\b`;
const MASKS = { patterns: [{ kind: "EMAIL", pattern: EMAIL }] };
const SECRET = "anna@lee.org";
const user = (content: unknown) => ({ role: "user", content });
const ASKED = [user(`write to ${SECRET}, please`)];

/** A finder of the names Anna and Bob. */
const finder = {
  classify: ({ input }: { readonly input: unknown }) => {
    const data = (input as readonly string[]).map((text, index) => {
      const spans = [...text.matchAll(/Anna|Bob/g)].map(({ 0: name, index: start }) => {
        return { label: "PER", start, end: start + name.length, score: 1 };
      });
      return { index, num_classes: 3, tokens: [], spans };
    });
    return Promise.resolve({ data });
  },
};

async function masking(far: readonly FarScript[], masks: object = {}, options: Parameters<typeof setUp>[0] = {}) {
  const { policy = {}, ...rest } = options;
  return setUp({
    policy: { mode: "prefer-far", private: { masks: { ...MASKS, ...masks } }, ...policy },
    far,
    ...rest,
  });
}

test("far receives placeholders, and its answer has the private texts, however it is split", async () => {
  const { nf, far } = await masking([{ texts: ["To ", "[EM", "AIL_", "1", "]: see [EMAIL_9] and ["] }]);
  const chunks = await read(nf, { messages: ASKED });
  expect(shown(chunks)).toBe(`To ${SECRET}: see [EMAIL_9] and [`);
  expect(routes(chunks)[0]).toMatchObject({ side: "far", reason: "prefer" });
  const masked = [{ path: "messages[0].content", text: "write to [EMAIL_1], please" }];
  expect(chunks[0]?.route?.masked).toEqual(masked);
  expect(chunks.findLast(({ route }) => route !== undefined)?.route?.masked).toEqual(masked);
  expect(far.bodies[0]?.messages).toEqual([user("write to [EMAIL_1], please")]);
  expect(far.sent).not.toMatch(/anna|lee/i);
});

test("calls, their results and the reasoning are masked and restored, in every turn alike", async () => {
  const call = (index: number, rest: object) => ({ tool_calls: [{ index, ...rest }] });
  const { nf, far } = await masking([
    {
      deltas: [
        { reasoning_content: "for [EMAIL" },
        { reasoning_content: "_1]" },
        call(0, { id: "c", type: "function", function: { name: "mail", arguments: '{"to":"[EMA' } }),
        call(0, { function: { arguments: 'IL_1]","text":"[' } }),
        call(0, { function: { arguments: 'EMAIL_2]"}' } }),
      ],
      finish: "tool_calls",
    },
    { texts: ["sent to [EMAIL_1]"] },
  ]);
  const tools = [{ type: "function", function: { name: "mail", parameters: { type: "object" } } }];
  const messages = [...ASKED, user('cc "b"@x.org')];
  const first = await nf.chat.completions.create({ messages, tools } as never);
  const { message } = first.choices[0] ?? {};
  expect(message?.reasoning_content).toBe(`for ${SECRET}`);
  expect(message?.tool_calls?.[0]?.function).toEqual({
    name: "mail",
    arguments: `{"to":"${SECRET}","text":"[EMAIL_2]"}`,
  });
  const next = [...messages, message, { role: "tool", tool_call_id: "c", content: `ok: ${SECRET}` }];
  const second = await nf.chat.completions.create({ messages: next, tools } as never);
  expect(second.choices[0]?.message.content).toBe(`sent to ${SECRET}`);
  const sent = far.bodies[1]?.messages ?? [];
  expect(sent.slice(0, 2)).toEqual(far.bodies[0]?.messages);
  expect(sent.at(-1)?.content).toBe("ok: [EMAIL_1]");
  expect(JSON.stringify(sent)).toContain(String.raw`{\"to\":\"[EMAIL_1]\",\"text\":\"[TEXT_1]\"}`);
  expect(far.sent).not.toMatch(/anna|lee/i);
});

test("in a JSON answer, restored texts are escaped", async () => {
  const masks = { patterns: [{ kind: "NAME", pattern: '"[a-z]+"' }] };
  const { nf } = await masking([{ texts: ['{"a":"[NAME_1]"}'] }], masks);
  const messages = [user('I am called "anna"')];
  const format = { type: "json_object" };
  const answer = await nf.chat.completions.create({ messages, response_format: format } as never);
  expect(JSON.parse(answer.choices[0]?.message.content ?? "")).toEqual({ a: '"anna"' });
});

const tool = { type: "function", function: { name: "find", description: `mail of ${SECRET}` } };
test.each([
  [
    "a text that is split over parts",
    { messages: [user(["anna@", "lee.org"].map((text) => ({ type: "text", text })))] },
  ],
  ["a text that is split over messages", { messages: [user("anna@"), user("lee.org")] }],
  ["a text in a tool", { messages: ASKED, tools: [tool] }],
  ["a text in another parameter", { messages: ASKED, user: SECRET }],
  ["a text in a name", { messages: [{ role: "user", content: "hi", name: SECRET }] }],
  ["a label", { messages: ASKED, labels: ["private"] }],
  ["a message's label", { messages: [{ ...ASKED[0], labels: ["private"] }] }],
  ["log-probabilities", { messages: ASKED, logprobs: true }],
  ["a regular expression", { messages: ASKED, response_format: { type: "regex", pattern: "a" } }],
  [
    "a picture",
    { messages: [...ASKED, user([{ type: "image_url", image_url: { url: "data:image/png;base64,iVBORw0KGgo=" } }])] },
  ],
])("%s: what cannot be masked stays on the device", async (_, params) => {
  const { nf, far } = await masking([{ texts: ["far"] }]);
  const before = far.requests.length;
  const answer = await nf.chat.completions.create(params as never).catch((error: unknown) => error);
  expect(far.requests.length).toBe(before);
  const route = (answer as { readonly route?: ChatCompletionChunk["route"] }).route;
  if (route !== undefined) {
    expect(["private", "media"]).toContain(route.reason);
    expect(route.masked).toBeUndefined();
  } else expect(answer).toMatchObject({ code: "request_error" });
});

test("what a model finds is masked everywhere, and a request that it cannot search stays", async () => {
  const entities = [{ label: "PER", kind: "PERSON" }];
  const policy = { private: { masks: { entities } } };
  const messages = [user("Anna met Bobby today. Then ANNA left.")];
  const options = { policy: { mode: "prefer-far", ...policy } };
  const { nf, far } = await setUp({
    ...options,
    finder,
    far: [{ texts: ["[PERSON_1] left [person_2]"] }],
  });
  const answer = await nf.chat.completions.create({ messages } as never);
  expect(answer.choices[0]?.message.content).toBe("Anna left Bobby");
  expect(answer.route?.masked?.[0]?.text).toBe("[PERSON_1] met [PERSON_2] today. Then [PERSON_3] left.");
  const failing = { classify: () => Promise.reject(new DeviceError("lost")) };
  const broken = await setUp({ ...options, finder: failing });
  expect((await broken.nf.chat.completions.create({ messages } as never)).route).toMatchObject({
    side: "near",
    reason: "private",
  });
  expect(broken.far.sent + far.sent).not.toMatch(/Anna|Bob/i);
  await expect(setUp(options)).rejects.toMatchObject({ details: { param: "private.masks.entities" } });
});

test("with ask, the application sees what would leave, once for each text", async () => {
  const asked: (readonly MaskedText[])[] = [];
  const answers = [false, true];
  const confirm = (texts: readonly MaskedText[]) => {
    asked.push(texts);
    return answers[asked.length - 1] ?? false;
  };
  const { nf, far } = await masking([{ texts: ["[EMAIL_1]"] }], { then: "ask" }, { confirm });
  const ask = async () => (await nf.chat.completions.create({ messages: ASKED } as never)).route?.side;
  const before = far.requests.length;
  expect(await ask()).toBe("near");
  expect(far.requests.length).toBe(before);
  expect([await ask(), await ask()]).toEqual(["far", "far"]);
  const texts = [{ path: "messages[0].content", text: "write to [EMAIL_1], please" }];
  expect(asked).toEqual([texts, texts]);
  await expect(masking([], { then: "ask" })).rejects.toMatchObject({ details: { param: "private.masks.then" } });
  const near = await masking([{ texts: ["far"] }], { then: "near" });
  expect((await near.nf.chat.completions.create({ messages: ASKED } as never)).route?.reason).toBe("private");
});

test("far continues near's answer, whose private texts are masked too", async () => {
  const text = `to ${SECRET} and bob@x.org`;
  const script = { ...LOST, text: `${text}!!`, logprobs: [...Array.from(text, () => -0.1), -9, -9] };
  const { nf, far } = await masking(
    [{ texts: [" [EMAIL_2] [EMAIL_1]"] }],
    {},
    {
      policy: { mode: "prefer-near", escalation: { ...WATCHED, warm: "always" } },
      scripts: [script],
    },
  );
  const answer = await nf.chat.completions.create({ messages: ASKED } as never);
  expect(answer.choices[0]?.message.content).toBe(`${text}! bob@x.org ${SECRET}`);
  expect(answer.route).toMatchObject({ side: "far", reason: "escalated_logprob" });
  expect(answer.route?.masked?.at(-1)).toEqual({ path: "answer.text", text: "to [EMAIL_1] and [EMAIL_2]!" });
  expect(far.bodies.length).toBe(2);
  expect(far.sent).not.toMatch(/anna|lee|bob/i);
});

test("an answer of near's alone reports nothing, because nothing left", async () => {
  const { nf, far } = await masking([{ texts: ["far"] }], {}, { policy: { mode: "prefer-near" } });
  const answer = await nf.chat.completions.create({ messages: ASKED } as never);
  expect([answer.route?.side, answer.route?.masked]).toEqual(["near", undefined]);
  expect(far.chats).toEqual([]);
});

test("citations come with the end, at their places in the restored text", async () => {
  const cite = (start: number, end: number) => ({
    type: "url_citation",
    url_citation: { start_index: start, end_index: end, title: "[EMAIL_1]", url: "https://x.org/[EMAIL_1]" },
  });
  const deltas = [{ content: "to [EMAIL" }, { content: "_1] by", annotations: [cite(3, 12)] }, { content: " post" }];
  const { nf } = await masking([{ deltas: [...deltas, { annotations: [cite(13, 15)] }] }]);
  const { message } = (await nf.chat.completions.create({ messages: ASKED } as never)).choices[0] ?? {};
  const content = message?.content ?? "";
  const cited = message?.annotations?.map(({ url_citation: { start_index: start, end_index: end } }) =>
    content.slice(start, end),
  );
  expect(cited).toEqual([SECRET, "by"]);
  expect(message?.annotations?.[0]?.url_citation).toMatchObject({ title: SECRET, url: "https://x.org/[EMAIL_1]" });
  // It may be sent back.
  await nf.chat.completions.create({ messages: [...ASKED, message, user("and?")] } as never);
});
