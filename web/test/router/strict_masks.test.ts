// Strict masks: of a request with private texts in any of its fields, far receives exactly what the route shows.

import fc from "fast-check";
import { expect, test } from "vitest";

import type { MaskedText } from "../../src/router/index.js";
import { LOST, WATCHED, setUp } from "./hybrid_set_up.js";

const EMAIL = String.raw`\b[\w.%+-]+@(?:[a-z0-9-]+\.)+[a-z]{2,24}\b`;
const MASKS = {
  patterns: [
    { kind: "EMAIL", pattern: EMAIL },
    { kind: "ACCOUNT", pattern: String.raw`\b[0-9]{11,}\b` },
  ],
  strict: true,
};
const SECRET = "anna@lee.org";
const ACCOUNT = 12_345_678_901;
const PRIVATE = /anna|lee\.org|12345678901/i;
const user = (content: unknown, more: object = {}) => ({ messages: [{ role: "user", content, ...more }] });
const call = (name: string, args: string, id = "c") => ({ id, type: "function", function: { name, arguments: args } });
const called = (...calls: object[]) => ({
  messages: [
    { role: "user", content: "hi" },
    { role: "assistant", content: null, tool_calls: calls },
    { role: "tool", tool_call_id: SECRET, content: JSON.stringify({ [SECRET]: ACCOUNT }) },
  ],
});
const tool = (more: object) => ({ tools: [{ type: "function", function: { name: "f", parameters: {}, ...more } }] });
const shape = (more: object) => ({
  response_format: { type: "json_schema", json_schema: { name: "s", schema: {}, ...more } },
});
const picture = { type: "image_url", image_url: { url: "data:image/png;base64,iVBORw0KGgo=" } };

/** Null: the rest is sent. Else the path of the field that keeps the request on the device. */
const PLACES: readonly (readonly [request: object, refused: string | null])[] = [
  [user(`I am ${SECRET}`), null],
  [user([{ type: "text", text: SECRET }]), null],
  [called(call("f", JSON.stringify({ to: SECRET, n: ACCOUNT }), SECRET)), null],
  [{ user: SECRET }, null],
  [{ metadata: { [SECRET]: SECRET } }, null],
  [{ safety_identifier: SECRET, prompt_cache_key: SECRET }, null],
  [{ seed: 7, temperature: 0.5, stop: ["x"], ...tool({ description: "d" }), ...shape({}) }, null],
  [called(call("mail_anna", "{}"), call(SECRET, "{}")), "messages[1].tool_calls[1].function.name"],
  [user("hi", { name: SECRET }), "messages[0].name"],
  [user([picture]), "messages[0].content[0].type"],
  [user([{ type: "text", text: "hi", cache_control: { a: SECRET } }]), "messages[0].content[0].cache_control"],
  [tool({ description: SECRET }), "tools"],
  [tool({ parameters: { properties: { [SECRET]: {} } } }), "tools"],
  [tool({ name: SECRET }), "tools"],
  [shape({ description: SECRET }), "response_format"],
  [{ stop: SECRET }, "stop"],
  [{ seed: ACCOUNT }, "seed"],
  [{ logit_bias: { [ACCOUNT]: 1 } }, "logit_bias"],
  [{ chat_template_kwargs: { a: "b" } }, "chat_template_kwargs"],
];

const opened = () =>
  setUp({
    policy: { mode: "far-only", private: { labels: [], media: "far", masks: MASKS } },
    farOptions: { vision: true },
    far: [{ texts: ["ok"] }],
  });

/** Each value of messages by its path. */
function leaves(value: unknown, path: string): readonly (readonly [string, string])[] {
  if (Array.isArray(value)) return value.flatMap((item, index) => leaves(item, `${path}[${index}]`));
  if (typeof value === "object" && value !== null)
    return Object.entries(value).flatMap(([key, inner]) => leaves(inner, `${path}.${key}`));
  return [[path, typeof value === "string" ? value : JSON.stringify(value)]];
}

/** The path that an error names, or null for an answer, of which everything that arrived was shown. */
async function refused({ nf, far }: Awaited<ReturnType<typeof opened>>, request: object): Promise<string | null> {
  const before = far.chats.length;
  try {
    const answer = await nf.chat.completions.create({ ...user("hi"), ...request } as never);
    const { model, stream, stream_options: options, messages, ...rest } = far.bodies.at(-1) ?? {};
    expect([model, stream, options]).toEqual(["big", true, { include_usage: true }]);
    const arrived = [...leaves(messages, "messages"), ...Object.entries(rest)];
    const texts = arrived.map(([path, value]) => ({
      path,
      text: typeof value === "string" ? value : JSON.stringify(value),
    }));
    const byPath = (list: readonly MaskedText[]) => list.toSorted((a, b) => (a.path < b.path ? -1 : 1));
    expect(byPath(answer.route?.masked ?? [])).toEqual(byPath(texts));
    const names = Object.keys(far.chats.at(-1)?.headers ?? {}).toSorted();
    expect(names).toEqual(["Authorization", "Content-Type", "Idempotency-Key"]);
    return null;
  } catch (error) {
    const { message, details } = error as { readonly message: string; readonly details?: { readonly param?: string } };
    if (!message.includes("may not leave")) throw error;
    expect(far.chats.length).toBe(before);
    return details?.param ?? "";
  } finally {
    expect(far.sent).not.toMatch(PRIVATE);
  }
}

test("a private text in any field is masked, left out or refused by name", async () => {
  const sides = await opened();
  const found = [];
  for (const [request] of PLACES) found.push(await refused(sides, request));
  expect(found).toEqual(PLACES.map(([, path]) => path));
});

test("of random requests arrives what is shown", async () => {
  const sides = await opened();
  const fields = fc.uniqueArray(fc.nat(PLACES.length - 1), { minLength: 1, maxLength: 3 });
  await fc.assert(
    fc.asyncProperty(fields, async (chosen) => {
      const request = Object.assign({}, ...chosen.map((index) => PLACES[index]?.[0])) as object;
      const last = (key: string) => chosen.findLast((index) => key in (PLACES[index]?.[0] ?? {}));
      const kept = chosen.filter((index) => Object.keys(PLACES[index]?.[0] ?? {}).some((key) => last(key) === index));
      const paths = kept.map((index) => PLACES[index]?.[1] ?? null);
      const path = await refused(sides, request);
      if (paths.every((each) => each === null)) expect(path).toBeNull();
      else expect(paths).toContain(path);
    }),
    { numRuns: 60 },
  );
});

test("near answers what may not leave, and near's text is shown if far continues it", async () => {
  const policy = { mode: "prefer-near", private: { masks: MASKS }, escalation: { ...WATCHED, warm: "always" } };
  const { nf, far } = await setUp({ policy, scripts: [LOST], far: [{ texts: [" far"] }] });
  const answer = await nf.chat.completions.create({ ...user("hi"), max_tokens: 20 } as never);
  expect(answer.route?.side).toBe("far");
  expect(answer.route?.masked?.at(-1)).toEqual({ path: "answer.text", text: "abcd" });
  expect(far.requests.some(({ url }) => url.includes("tokenize"))).toBe(false);
  const kept = await setUp({ policy: { ...policy, mode: "prefer-far" }, far: [{ texts: ["far"] }] });
  const near = await kept.nf.chat.completions.create({ ...user("hi"), logit_bias: { 1: 1 } } as never);
  expect(near.route).toMatchObject({ side: "near", reason: "private" });
});

test("near's text does not leave without the consent of whoever was asked about the request", async () => {
  const masks = { ...MASKS, then: "ask" };
  const policy = { mode: "prefer-near", private: { masks }, escalation: { ...WATCHED, warm: "never" } };
  const asked: (readonly MaskedText[])[] = [];
  const confirm = (texts: readonly MaskedText[]) => asked.push(texts) > 0;
  const { nf, far } = await setUp({ policy, scripts: [LOST], far: [{ texts: [" far"] }], confirm });
  const answer = await nf.chat.completions.create({ ...user("hi"), max_tokens: 20 } as never).catch(String);
  expect(asked.length).toBe(1);
  expect(far.chats).toEqual([]);
  expect(JSON.stringify(answer)).not.toContain(" far");
});
