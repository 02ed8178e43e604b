// Files and recordings in messages. tests/server_fallback/text/test_attachments.py has the same cases for the server.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { ChatCompletions } from "../../src/api/chat_completions.js";
import { encodeChat } from "../../src/api/chat_prompt.js";
import type { Model } from "../../src/api/model.js";
import type { ChatCompletionContentPart } from "../../src/api/types.js";
import { RequestError } from "../../src/errors.js";
import { FakeSource, modelOf } from "../api/fake_model.js";

interface Case {
  readonly name: string;
  readonly file: NonNullable<ChatCompletionContentPart["file"]> & { readonly repeat?: number };
  readonly text?: string;
  readonly error?: string;
}

const file = new URL("../../../tests/conformance/attachments.json", import.meta.url);
const { files } = JSON.parse(readFileSync(file, "utf8")) as { readonly files: readonly Case[] };

async function promptOf(content: readonly ChatCompletionContentPart[], rest: Partial<Model> = {}): Promise<string> {
  const model = modelOf(new FakeSource([]), { context: 2 ** 22, ...rest });
  const { ids } = await encodeChat(model, [{ role: "user", content }]);
  return model.text.decode(ids);
}

/** ``repeat`` stands for a long content. */
function partOf({ repeat, ...given }: Case["file"]): ChatCompletionContentPart {
  return { type: "file", file: repeat === undefined ? given : { ...given, file_data: btoa("a".repeat(repeat)) } };
}

test.each(files)("$name", async ({ file: given, text, error }) => {
  const prompt = promptOf([{ type: "text", text: "see " }, partOf(given)]);
  if (error === undefined) {
    expect(await prompt).toBe(`[user]see ${String(text)}[assistant]`);
    return;
  }
  const refused = await prompt.catch((thrown: unknown) => thrown as RequestError);
  expect(refused).toBeInstanceOf(RequestError);
  expect((refused as RequestError).message).toContain(error);
  expect((refused as RequestError).message).toMatch(/^messages\[0\]\.content\[1\]\.file /);
  expect((refused as RequestError).details.param).toBe("messages[0].content[1].file");
});

test("a request has few files", async () => {
  const part = partOf({ filename: "a.txt", file_data: "YQ==" });
  expect((await promptOf(Array.from({ length: 16 }, () => part))).split("[File: a.txt]").length).toBe(17);
  await expect(promptOf(Array.from({ length: 17 }, () => part))).rejects.toThrow("17 files; send at most 16");
});

test("a recording without a transcriber says what to do", async () => {
  await expect(promptOf([{ type: "input_audio", input_audio: { data: "AAAA", format: "wav" } }])).rejects.toThrow(
    "messages[0].content[0] is a recording, and this model hears nothing; leave it out, or load the engine with the " +
      "option transcriber",
  );
});

const WAV = btoa("RIFF");
const recording: ChatCompletionContentPart = { type: "input_audio", input_audio: { data: WAV, format: "wav" } };

/** A transcriber that says how many bytes it got, and what it was told. */
function transcriber(text = "hello there "): { transcribe: NonNullable<Model["transcribe"]>; calls: unknown[] } {
  const calls: unknown[] = [];
  const transcribe = ((...given: unknown[]) => {
    calls.push(given);
    return Promise.resolve({ task: "transcribe", language: "en", duration: 1.5, text, segments: [] });
  }) as unknown as NonNullable<Model["transcribe"]>;
  return { transcribe, calls };
}

test("a transcript takes the place of a recording, and the answer reports it", async () => {
  const { transcribe, calls } = transcriber();
  const source = new FakeSource(["yes", "yes"]);
  const model = modelOf(source, { transcribe });
  const completions = new ChatCompletions(model);
  const samples = { samples: new Float32Array(4), sampleRate: 8000 };
  const content = [recording, { type: "text", text: "what?" }, { type: "audio", audio: samples }];
  const messages = [{ role: "user" as const, content }];
  const heard = "[Transcript of a recording]\nhello there\n[End of transcript]\n";
  const answer = await completions.create({ messages });
  expect(model.text.decode(source.requests[0]?.promptIds ?? [])).toBe(`[user]${heard}what?${heard}[assistant]`);
  const spoken = { text: "hello there ", language: "en", seconds: 1.5 };
  const transcripts = [0, 2].map((part) => ({ param: `messages[0].content[${part}]`, ...spoken }));
  expect([answer.choices[0]?.message.content, answer.transcripts]).toEqual(["yes", transcripts]);
  expect(calls.slice(0, 2)).toEqual([
    [new TextEncoder().encode("RIFF"), { maxSeconds: 600, signal: expect.any(AbortSignal) as AbortSignal }],
    [samples, { maxSeconds: 600, signal: expect.any(AbortSignal) as AbortSignal }],
  ]);
  const reported: number[] = [];
  for await (const chunk of await completions.create({ messages, stream: true }))
    reported.push(chunk.transcripts?.length ?? 0);
  expect(reported).toEqual([2, ...reported.slice(1).map(() => 0)]);
});

test("a sound that was heard before is not transcribed again, whichever form has it", async () => {
  const { transcribe, calls } = transcriber();
  const heard: NonNullable<Model["heard"]> = new Map();
  const own = (audio: unknown): ChatCompletionContentPart => ({ type: "audio", audio: audio as Blob });
  const first = await promptOf([recording], { transcribe, heard });
  const file = new Blob(["RIFF"]);
  for (const part of [recording, own(file), own(await file.arrayBuffer())])
    expect(await promptOf([part], { transcribe, heard })).toBe(first);
  expect(calls.length).toBe(1);
  const samples = Float32Array.of(0.5, 0.25);
  const raw = (sampleRate: number) => own({ samples, sampleRate });
  for (const part of [raw(8000), raw(16_000), raw(8000)]) await promptOf([part], { transcribe, heard });
  expect(calls.length).toBe(3);
  samples[0] = 1;
  await promptOf([raw(8000)], { transcribe, heard });
  expect(calls.length).toBe(4);
  // Of several channels, nothing is remembered.
  const stereo = own({ samples: [samples, samples], sampleRate: 8000 });
  for (let turn = 0; turn < 2; turn++) await promptOf([stereo], { transcribe, heard });
  expect(calls.length).toBe(6);
  // What was used last stays.
  for (let index = 0; index < 63; index++) {
    await promptOf([own(new Blob([`${index}`]))], { transcribe, heard });
    await promptOf([recording], { transcribe, heard });
  }
  expect([calls.length, heard.size]).toEqual([6 + 63, 64]);
});

test("silence is said to be a recording without speech", async () => {
  expect(await promptOf([recording], transcriber(" ")).catch(String)).toBe(
    "[user][A recording without speech]\n[assistant]",
  );
});

test.each([
  [{ type: "input_audio" }, "messages[0].content[0].input_audio needs data in base64 and a format"],
  [{ type: "input_audio", input_audio: { data: WAV, format: "flac" as "wav" } }, 'a format: "wav" or "mp3"'],
  [{ type: "input_audio", input_audio: { data: "AAA", format: "wav" as const } }, "has data that is not base64"],
  [{ type: "audio" }, "messages[0].content[0] has no sound"],
])("%j is refused by name", async (part, message) => {
  const { transcribe, calls } = transcriber();
  await expect(promptOf([part], { transcribe })).rejects.toThrow(message);
  expect(calls).toEqual([]);
});

test("an error of the transcriber names the part, and there are few recordings", async () => {
  const transcribe = (() => Promise.reject(new RequestError("audio: is longer than 600 seconds"))) as never;
  await expect(promptOf([recording], { transcribe })).rejects.toMatchObject({
    message: "messages[0].content[0]: audio: is longer than 600 seconds",
    details: { param: "messages[0].content[0]" },
  });
  await expect(
    promptOf(
      Array.from({ length: 5 }, () => recording),
      { transcribe },
    ),
  ).rejects.toThrow("5 sounds; send at most 4");
});
