// Files of text are read before a side is chosen, so they are searched, and any side answers about them. Recordings of the
// page stay on it. tests/server_fallback/router/test_hybrid_files.py has the same cases of files for Python.

import { expect, test } from "vitest";

import { withEars } from "./fakes.js";
import { QUESTION, SURE, setUp } from "./hybrid_set_up.js";

const PATTERN = "\\b[0-9]{3}-[0-9]{2}-[0-9]{4}\\b";
const fileOf = (content: string, filename = "notes.md") => ({
  type: "file",
  file: { filename, file_data: btoa(content) },
});
const about = (...parts: readonly object[]) => ({
  role: "user",
  content: [{ type: "text", text: "what is it?" }, ...parts],
});
const PDF = fileOf("%PDF-1.7", "a.pdf");
const TEXT = { type: "text", text: "[File: notes.md]\n# Boats\n[End of file: notes.md]\n" };
type Made = Awaited<ReturnType<typeof setUp>>;
const ask = ({ nf }: Made, messages: readonly object[], more: object = {}) =>
  nf.chat.completions.create({ messages, ...more } as never);
const promptOf = ({ source }: Made) =>
  new TextDecoder().decode(Uint8Array.from(source.requests.at(-1)?.promptIds ?? []));

test.each([{}, { patterns: [PATTERN] }])(
  "a near side without eyes answers about a file of text, with the rules %j",
  async (rules) => {
    const made = await setUp({ policy: { private: rules } });
    expect(await ask(made, [about(fileOf("# Boats"))])).toMatchObject({ route: { side: "near", reason: "prefer" } });
    expect(promptOf(made)).toContain(TEXT.text);
    expect(made.far.chats).toEqual([]);
  },
);

test("far receives the marked text of a file although the policy has patterns", async () => {
  const made = await setUp({ policy: { mode: "prefer-far", private: { patterns: [PATTERN] } } });
  expect(await ask(made, [about(fileOf("# Boats")), QUESTION])).toMatchObject({
    route: { side: "far", reason: "prefer" },
  });
  expect(made.far.bodies.map(({ messages }) => messages?.[0]?.content.at(1))).toEqual([TEXT]);
});

test.each([
  ["its text", [about(fileOf("I am 078-05-1120"))]],
  ["the text of an earlier one", [about(fileOf("id\n078-05-1120\n", "a.csv")), QUESTION]],
  ["a label of its message", [{ ...about(fileOf("# Boats")), labels: ["private"] }]],
] as const)("a file stays near for %s", async (_, messages) => {
  const made = await setUp({
    policy: { mode: "prefer-far", private: { patterns: [PATTERN], media: "far" } },
    farOptions: { vision: true },
  });
  expect(await ask(made, messages)).toMatchObject({ route: { side: "near", reason: "private" } });
  await expect(ask(made, messages, { pin: "far" })).rejects.toMatchObject({ details: { code: "private" } });
  expect(made.far.chats).toEqual([]);
});

test("a file of another kind stays one", async () => {
  const messages = [about(fileOf("# Boats"), PDF)];
  const kept = await setUp({ policy: { private: { patterns: [PATTERN] } }, farOptions: { vision: true } });
  await expect(ask(kept, messages)).rejects.toMatchObject({
    code: "request_error",
    details: { code: "vision" },
    message: expect.stringContaining("a file (messages[0].content[2])") as string,
  });
  expect(kept.far.chats).toEqual([]);
  const sent = await setUp({ farOptions: { vision: true } });
  expect(await ask(sent, messages)).toMatchObject({ route: { side: "far", reason: "vision" } });
  expect(sent.far.bodies.map((body) => body.messages?.[0]?.content.slice(1))).toEqual([[TEXT, PDF]]);
});

test("a request has few files", async () => {
  const made = await setUp();
  const parts = Array.from({ length: 17 }, () => fileOf("a"));
  await expect(ask(made, [about(...parts)])).rejects.toThrow("The messages have 17 files; send at most 16");
  expect([made.far.chats, made.source.requests]).toEqual([[], []]);
});

const RECORDING = { type: "input_audio", input_audio: { data: "UklGRg==", format: "wav" } };
const OWN = { type: "audio", audio: Float32Array.of(0.5, 78) };
const HEARD = "[Transcript of a recording]\ngood morning\n[End of transcript]";

test.each([
  ["in base64", RECORDING],
  ["of the page", OWN],
])("a near side with a transcriber answers about a recording %s, which is heard once", async (_, part) => {
  const heard: unknown[] = [];
  const { engine, source } = withEars((sound) => {
    heard.push(sound);
    return "good morning";
  }, SURE);
  const made = { ...(await setUp({ near: engine })), source };
  // Far hears nothing.
  expect(await ask(made, [about(part)])).toMatchObject({ route: { side: "near", reason: "sound" } });
  expect(promptOf(made)).toContain(HEARD);
  expect(heard.length).toBe(1);
});

test("a near side without a transcriber does not hear", async () => {
  const made = await setUp({ farOptions: { sound: true } });
  expect(await ask(made, [about(RECORDING)])).toMatchObject({ route: { side: "far", reason: "sound" } });
  await expect(ask(await setUp(), [about(RECORDING)])).rejects.toMatchObject({ details: { code: "sound" } });
});

test("a recording of the page is never sent, whoever hears", async () => {
  const farOptions = { sound: true, vision: true };
  for (const rules of [{ mode: "prefer-far" }, { mode: "prefer-far", private: { media: "far", patterns: ["78"] } }]) {
    const { engine } = withEars(() => "good morning", SURE);
    const made = await setUp({ policy: rules, near: engine, farOptions });
    expect(await ask(made, [about(OWN)])).toMatchObject({ route: { side: "near", reason: "sound" } });
    const deaf = await setUp({ policy: rules, farOptions });
    await expect(ask(deaf, [about(OWN)])).rejects.toMatchObject({ details: { code: "sound" } });
    expect([made.far.chats, deaf.far.chats]).toEqual([[], []]);
  }
});

test("far receives the transcript of a recording of the page", async () => {
  let count = 0;
  const transcriber = { transcribe: () => Promise.resolve({ text: `turn ${++count}` }) };
  const made = await setUp({ policy: { mode: "prefer-far", private: { media: "describe" } }, transcriber });
  for (const turn of [1, 2]) {
    const text = `[Sound, transcribed on the user's device: turn ${turn}]`;
    expect(await ask(made, [about(OWN)])).toMatchObject({
      route: { side: "far", described: [{ path: "messages[0].content[1]", kind: "sound", text }] },
    });
    expect(made.far.bodies.at(-1)?.messages?.[0]?.content.at(1)).toEqual({ type: "text", text });
  }
});
