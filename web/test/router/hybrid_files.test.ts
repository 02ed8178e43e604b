// Files of text are read before a side is chosen, so they are searched, and any side answers about them. Recordings of the
// page stay on it. tests/server_fallback/router/test_hybrid_files.py has the same cases of files for Python.

import { expect, test } from "vitest";

import { withEars } from "./fakes.js";
import { LOST, QUESTION, SURE, WATCHED, read, setUp } from "./hybrid_set_up.js";

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

test("a file of text stays near if the policy keeps media there", async () => {
  const made = await setUp({
    policy: { mode: "prefer-far", private: { labels: [], media: "near" } },
    farOptions: { vision: true },
  });
  expect(await ask(made, [about(fileOf("# Boats")), QUESTION])).toMatchObject({
    route: { side: "near", reason: "media" },
  });
  await expect(ask(made, [about(fileOf("# Boats"))], { pin: "far" })).rejects.toMatchObject({
    details: { code: "media" },
    message: expect.stringContaining("a file of text (messages[0].content[1])") as string,
  });
  expect(made.far.chats).toEqual([]);
  expect(await ask(made, [QUESTION])).toMatchObject({ route: { side: "far" } });
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

const heardAs = (text: string) => ({ param: "messages[0].content[1]", text, language: "en", seconds: 1 });
/** The transcripts of a complete answer, and those of a stream with the text that is shown before them. */
async function transcriptsOf(made: Made): Promise<readonly unknown[]> {
  const { transcripts } = await ask(made, [about(RECORDING)]);
  const chunks = await read(made.nf, { messages: [about(RECORDING)] });
  return [transcripts, chunks.flatMap((chunk, index) => (chunk.transcripts ? [[index, chunk.transcripts]] : []))];
}
const ONCE = [[heardAs("good morning")], [[0, [heardAs("good morning")]]]];
const FEATURE = "first_mean_logprob";
const RIGHTS = { near: { weights: [0], bias: 9 }, far: { weights: [0], bias: -9 } };
const PREDICTOR = { version: 2, features: [FEATURE], terms: [], mean: [0], scale: [1], ...RIGHTS };

test.each([
  ["near", { mode: "prefer-near" }, ""],
  ["near without a text", { mode: "prefer-near" }, null],
  [
    "near, whose first tokens are awaited",
    { mode: "auto", quality: { predictor: { ...PREDICTOR, calibration: { near: [1, 0], far: [1, 0] } } } },
    "",
  ],
])("an answer of %s has the transcripts of its recordings once", async (_, policy, text) => {
  const hear = () => "good morning";
  const { engine } = withEars(hear, text === null ? { text: "" } : SURE);
  const made = await setUp({ policy, near: engine, farOptions: { sound: true } });
  expect(await transcriptsOf(made)).toEqual(ONCE);
  expect(made.far.chats).toEqual([]);
});

const CHUNK = { id: "1", object: "chat.completion.chunk", created: 1, model: "theirs" };
const delta = (content: object, end: string | null = null) => ({
  ...CHUNK,
  choices: [{ index: 0, delta: content, finish_reason: end }],
});
const farHears = (transcripts: unknown) => ({
  data: [
    { ...delta({ role: "assistant", content: "" }), transcripts },
    delta({ content: "far" }),
    delta({ content: " away" }),
    delta({}, "stop"),
  ].map((value) => JSON.stringify(value)),
});

test("an answer of far has the transcripts that far reports", async () => {
  const far = [farHears([heardAs("good morning")])];
  expect(await transcriptsOf(await setUp({ far, farOptions: { sound: true } }))).toEqual(ONCE);
  const other = [farHears({ count: 1 })];
  expect(await transcriptsOf(await setUp({ far: other, farOptions: { sound: true } }))).toEqual([undefined, []]);
});

test("transcripts are those of the side that wrote the answer", async () => {
  for (const then of ["continue", "restart"]) {
    const { engine } = withEars(() => "good mourning", LOST);
    const policy = { escalation: { ...WATCHED, then } };
    const far = [farHears([heardAs("good morning")])];
    const made = await setUp({ policy, near: engine, far, farOptions: { sound: true } });
    const { transcripts, route } = await ask(made, [about(RECORDING)]);
    expect([route?.side, transcripts]).toEqual(["far", [heardAs("good morning")]]);
  }
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

test("far receives a transcript if it does not hear and media may leave, and what it hears itself", async () => {
  const text = "[Sound, transcribed on the user's device: good morning]";
  const transcriber = { transcribe: () => Promise.resolve({ text: "good morning" }) };
  for (const part of [RECORDING, OWN]) {
    const made = await setUp({ policy: { mode: "prefer-far" }, transcriber });
    expect(await ask(made, [about(part)])).toMatchObject({
      route: { side: "far", reason: "prefer", described: [{ path: "messages[0].content[1]", kind: "sound", text }] },
    });
    expect(made.far.bodies[0]?.messages?.[0]?.content.at(1)).toEqual({ type: "text", text });
  }
  const hears = await setUp({ policy: { mode: "prefer-far" }, transcriber, farOptions: { sound: true } });
  const { route } = await ask(hears, [about(RECORDING)]);
  expect([route?.side, route?.described]).toEqual(["far", undefined]);
  expect(hears.far.bodies[0]?.messages?.[0]?.content.at(1)).toEqual(RECORDING);
});

test("a transcript is searched although the recording may leave", async () => {
  const { engine } = withEars(() => "78", SURE);
  const transcriber = { transcribe: () => Promise.resolve({ text: "it is 078-05-1120" }) };
  const rules = { mode: "prefer-far", private: { patterns: [PATTERN], media: "far" } };
  const made = await setUp({ policy: rules, near: engine, transcriber });
  expect(await ask(made, [about(RECORDING)])).toMatchObject({ route: { side: "near", reason: "private" } });
  await expect(ask(made, [about(RECORDING)], { pin: "far" })).rejects.toMatchObject({ details: { code: "private" } });
  expect(made.far.chats).toEqual([]);
});

test("an answer about a recording changes to a far side that hears alone", async () => {
  for (const sound of [false, true]) {
    const { engine } = withEars(() => "good morning", LOST);
    const transcriber = { transcribe: () => Promise.resolve({ text: "good morning" }) };
    const policy = { escalation: { ...WATCHED, then: "restart" } };
    const made = await setUp({ policy, near: engine, transcriber, farOptions: { sound } });
    expect((await ask(made, [about(RECORDING)])).route?.side).toBe(sound ? "far" : "near");
    expect(made.far.bodies.map(({ messages }) => messages?.[0]?.content.at(1))).toEqual(sound ? [RECORDING] : []);
  }
});

test("a request that far does not hear is described once, a file of the page by its bytes", async () => {
  const heard: unknown[] = [];
  const transcriber = { transcribe: (sound: unknown) => Promise.resolve({ text: `turn ${heard.push(sound)}` }) };
  const made = await setUp({ policy: { mode: "prefer-far" }, transcriber });
  for (const audio of [new Blob(["a"]), new Blob(["a"]), new Blob(["b"])])
    await ask(made, [about({ type: "audio", audio })]);
  expect(heard.length).toBe(2);
  const large = new Blob([new Uint8Array(26 * 2 ** 20)]);
  await expect(ask(made, [about({ type: "audio", audio: large })])).rejects.toMatchObject({
    details: { code: "undescribed" },
    message: expect.stringContaining("at most 26214400 are read") as string,
  });
  await expect(ask(made, [about(...Array.from({ length: 5 }, () => RECORDING))])).rejects.toThrow("5 sounds");
});
