// Tests the chat model with @langchain/core.

import { AIMessage, HumanMessage, SystemMessage } from "@langchain/core/messages";
import type { AIMessageChunk, ContentBlock, ToolMessage } from "@langchain/core/messages";
import { StringOutputParser } from "@langchain/core/output_parsers";
import { ChatPromptTemplate } from "@langchain/core/prompts";
import { tool } from "@langchain/core/tools";
import { expect, expectTypeOf, test, vi } from "vitest";
import { z } from "zod";

import { DeviceError, RequestError } from "../../src/errors.js";
import { ChatNearfar } from "../../src/langchain/index.js";
import type { AdapterEngine } from "../api/adapter_engine.js";
import {
  adapterEngine,
  adapterEngineOver,
  fileText,
  hearingEngine,
  hermesCall,
  seeingEngine,
  take,
} from "../api/adapter_engine.js";
import { FakeSource } from "../api/fake_model.js";
import { setUp } from "../router/hybrid_set_up.js";
import { waitFor } from "../wait_for.js";

const weather = tool(({ city }: { city: string }) => `21 degrees in ${city}`, {
  name: "weather",
  description: "the weather of a city",
  schema: z.object({ city: z.string() }),
});

function chat({ engine }: Pick<AdapterEngine, "engine">): ChatNearfar {
  return new ChatNearfar({ engine, params: { temperature: 0 } });
}

async function gathered(stream: AsyncIterable<AIMessageChunk>): Promise<AIMessageChunk> {
  let complete: AIMessageChunk | undefined;
  for await (const chunk of stream) complete = complete?.concat(chunk) ?? chunk;
  if (complete === undefined) throw new Error("the stream is empty");
  return complete;
}

test("invoke answers with text, usage, finish reason and the model's name", async () => {
  const adapter = adapterEngine("hello");
  const answer = await chat(adapter).invoke([new SystemMessage("be brief"), new HumanMessage("hi")], {
    params: { seed: 7 },
    stop: ["!"],
  });
  expect(answer.text).toBe("hello");
  expect(answer.usage_metadata).toEqual({
    input_tokens: 35,
    output_tokens: 5,
    total_tokens: 40,
    input_token_details: { cache_read: 3 },
  });
  expect(answer.response_metadata).toMatchObject({
    finish_reason: "stop",
    model_name: "fake",
    model_provider: "nearfar",
  });
  expect(adapter.prompt(0)).toBe("[system]be brief[user]hi[assistant]");
  expect(adapter.source.requests[0]?.sampling).toMatchObject({ temperature: 0, seed: 7 });
});

test("stream yields the text while it is generated, and its chunks add up to the result of invoke", async () => {
  const model = chat(adapterEngine("héllo"));
  const texts: string[] = [];
  for await (const chunk of await model.stream("hi")) if (chunk.text !== "") texts.push(chunk.text);
  expect(texts).toEqual(["h", "é", "l", "l", "o"]);
  const [streamed, complete] = [await gathered(await model.stream("hi")), await model.invoke("hi")];
  expect(streamed.text).toBe(complete.text);
  expect(streamed.usage_metadata).toMatchObject(complete.usage_metadata as unknown as object);
  expect(streamed.response_metadata).toMatchObject({ finish_reason: "stop", model_name: "fake" });
});

test("a chain of prompt, model and parser streams", async () => {
  const prompt = ChatPromptTemplate.fromMessages([
    ["system", "be {style}"],
    ["human", "{question}"],
  ]);
  const adapter = adapterEngine("ok");
  const parts: string[] = [];
  for await (const part of await prompt
    .pipe(chat(adapter))
    .pipe(new StringOutputParser())
    .stream({ style: "brief", question: "well?" }))
    parts.push(part);
  expect(parts.join("")).toBe("ok");
  expect(adapter.prompt(0)).toBe("[system]be brief[user]well?[assistant]");
});

test.each(["invoke", "stream"] as const)(
  "bindTools with %s: calls are parsed, and results are sent back",
  async (way) => {
    const adapter = adapterEngine(
      `I look. ${hermesCall("weather", { city: "Rome" })}\n${hermesCall("weather", { city: "Oslo" })}`,
      "warm",
    );
    const model = chat(adapter).bindTools([weather]);
    const question = new HumanMessage("Rome?");
    const answer = way === "invoke" ? await model.invoke([question]) : await gathered(await model.stream([question]));
    expect(answer.tool_calls?.map(({ name, args }) => [name, args])).toEqual([
      ["weather", { city: "Rome" }],
      ["weather", { city: "Oslo" }],
    ]);
    expect(answer.response_metadata).toHaveProperty("finish_reason", "tool_calls");
    const [call] = answer.tool_calls ?? [];
    if (call === undefined) throw new Error("no call");
    const result: ToolMessage = await weather.invoke({ ...call, type: "tool_call" });
    expect((await model.invoke([question, answer, result])).text).toBe("warm");
    expect(adapter.prompt(1)).toContain("[tool]21 degrees in Rome[assistant]");
  },
);

test("truncated arguments are an invalid tool call", async () => {
  const { engine } = adapterEngine(hermesCall("weather", { city: "Rome" }));
  const answer = await chat({ engine })
    .bindTools([weather])
    .invoke("Rome?", { params: { max_tokens: 50 } });
  expect([answer.tool_calls?.length, answer.invalid_tool_calls?.length]).toEqual([0, 1]);
});

test("withStructuredOutput enforces the schema and parses the answer", async () => {
  const { engine, grammars } = adapterEngine('{"sum": 85}');
  const model = chat({ engine });
  const parsed = await model.withStructuredOutput(z.object({ sum: z.number() })).invoke("27 + 58");
  expectTypeOf(parsed).toEqualTypeOf<{ sum: number }>();
  expect(parsed).toEqual({ sum: 85 });
  expect(grammars[0]).toMatchObject({
    kind: "json_schema",
    schema: { properties: { sum: { type: "number" } }, required: ["sum"] },
  });
  const raw = await model
    .withStructuredOutput<{ sum: number }>({ type: "object", properties: {} }, { includeRaw: true })
    .invoke("27 + 58");
  expect([raw.raw instanceof AIMessage, raw.parsed]).toEqual([true, { sum: 85 }]);
  expect(await model.withStructuredOutput({}, { method: "jsonMode" }).invoke("27 + 58")).toEqual({ sum: 85 });
  expect(grammars.at(-1)).toEqual({ kind: "json_object" });
  expect(() => model.withStructuredOutput({}, { method: "functionCalling" })).toThrow(RequestError);
  await expect(
    chat(adapterEngine('{"sum": "?"}'))
      .withStructuredOutput(z.object({ sum: z.number() }))
      .invoke("27 + 58"),
  ).rejects.toThrow("Failed to parse");
});

test("an abort ends the engine's work", async () => {
  const source = new FakeSource(["a".repeat(500)]);
  const model = chat(adapterEngineOver(source));
  const controller = new AbortController();
  const asking = model.invoke("hi", { signal: controller.signal });
  setTimeout(() => {
    controller.abort();
  }, 10);
  await expect(asking).rejects.toThrow(/abort/i);
  for await (const chunk of await model.stream("hi")) if (chunk.text !== "") break;
  await waitFor(() => {
    expect(source.running).toBe(0);
  });
  expect(source.tokens).toBeLessThan(400);
});

test("errors are thrown unchanged, calls are not repeated, and messages without an equivalent are errors", async () => {
  const source = new FakeSource(["x"], new DeviceError("the device was lost"));
  await expect(chat(adapterEngineOver(source)).invoke("hi")).rejects.toBeInstanceOf(DeviceError);
  expect(source.requests.length).toBe(1);
  const odd = new HumanMessage({ content: [{ type: "hologram", data: "AA==" }] });
  await expect(chat(adapterEngine("x")).invoke([odd])).rejects.toThrow("part of type 'hologram' is not supported");
});

test("tokens are counted by the model's own tokenizer, without the network", async () => {
  const { engine } = adapterEngine("x");
  const fetching = vi.spyOn(globalThis, "fetch");
  expect(await chat({ engine }).getNumTokens("abcd")).toBe(await engine.countTokens("abcd"));
  expect(fetching).not.toHaveBeenCalled();
});

test("a hybrid works as an engine, and the answer contains its route", async () => {
  const { nf } = await setUp();
  const model = new ChatNearfar({ engine: nf });
  const far = await model.invoke("hi", { params: { pin: "far" } });
  expect([far.text, far.response_metadata.route]).toMatchObject(["far away", { side: "far" }]);
  const near = await gathered(await model.stream("hi", { params: { pin: "near" } }));
  expect([near.text, near.response_metadata.route]).toMatchObject(["near by", { side: "near" }]);
});

test("a model that sees receives images in all of LangChain's forms", async () => {
  const { engine, prompt, sources } = seeingEngine("a cat");
  const content: ContentBlock[] = [
    { type: "image_url", image_url: "data:,1" },
    { type: "image_url", image_url: { url: "data:,2" } },
    { type: "image", url: "data:,3" },
    { type: "image", data: "BBBB", mimeType: "image/webp" },
    { type: "image", data: new Uint8Array([1, 2, 3]), mimeType: "image/png" },
    { type: "image", source_type: "base64", data: "CCCC", mime_type: "image/jpeg" },
    { type: "text", text: "who?" },
  ];
  expect((await chat({ engine }).invoke([new HumanMessage({ content })])).text).toBe("a cat");
  const inline = ["image/webp;base64,BBBB", "image/png;base64,AQID", "image/jpeg;base64,CCCC"];
  expect(sources).toEqual(["data:,1", "data:,2", "data:,3", ...inline.map((rest) => `data:${rest}`)]);
  expect(prompt(0)).toBe("[user]((0))((1))((2))((3))((4))((5))who?[assistant]");
  const file = [new HumanMessage({ content: [{ type: "image", fileId: "x" }] })];
  await expect(chat({ engine }).invoke(file)).rejects.toThrow("neither url nor data");
  await expect(chat(adapterEngine("x")).invoke([new HumanMessage({ content })])).rejects.toThrow(
    "messages[0].content[0] is a picture, and this model reads texts only",
  );
});

test("a model that sees receives videos in all of LangChain's forms", async () => {
  const { engine, prompt, sources, kinds } = seeingEngine("a boat");
  const content: ContentBlock[] = [
    { type: "video_url", video_url: { url: "data:,1" } },
    { type: "video", url: "data:,2" },
    { type: "video", data: "BBBB", mimeType: "video/webm" },
    { type: "video", data: new Uint8Array([1, 2, 3]) },
    { type: "video", source_type: "base64", data: "CCCC", mime_type: "video/webm" },
    { type: "text", text: "what?" },
  ];
  expect((await chat({ engine }).invoke([new HumanMessage({ content })])).text).toBe("a boat");
  const inline = ["video/webm;base64,BBBB", "video/mp4;base64,AQID", "video/webm;base64,CCCC"];
  expect(sources).toEqual(["data:,1", "data:,2", ...inline.map((rest) => `data:${rest}`)]);
  expect(kinds).toEqual(sources.map(() => "video"));
  expect(prompt(0)).toBe("[user]((0))((1))((2))((3))((4))what?[assistant]");
  await expect(chat(adapterEngine("x")).invoke([new HumanMessage({ content })])).rejects.toThrow(
    "messages[0].content[0] is a video, and this model reads texts only",
  );
});

test("recordings and files of text reach the engine in all of LangChain's forms", async () => {
  const { engine, prompt, heard } = hearingEngine("yes", "no");
  const content: ContentBlock[] = [
    { type: "input_audio", input_audio: { data: btoa("\u0001"), format: "wav" } },
    { type: "audio", data: btoa("\u0002"), mimeType: "audio/mpeg" },
    { type: "audio", data: new Uint8Array([3]), mimeType: "audio/webm" },
    { type: "audio", source_type: "base64", data: btoa("\u0004"), mime_type: "audio/wav" },
    { type: "audio", url: `data:audio/wav;base64,${btoa("\u0005")}` },
    { type: "file", file: { filename: "a.txt", file_data: btoa("one") } },
    { type: "file", data: btoa("# two"), mimeType: "text/markdown", metadata: { filename: "b.md" } },
    { type: "file", source_type: "text", text: "three", metadata: { name: "c.txt" } },
    { type: "file", data: new TextEncoder().encode("4"), metadata: { filename: "d.csv" } },
    { type: "text-plain", text: "five", title: "e.txt" },
    { type: "text-plain", data: btoa("six"), mimeType: "text/plain" },
    { type: "text", text: "what?" },
  ];
  const few = [content.slice(0, 4), content.slice(4)];
  const [first] = few.map((parts) => [new HumanMessage({ content: parts })]);
  const answer = await chat({ engine }).invoke(first ?? []);
  const transcripts = [0, 1, 2, 3].map((part) => ({ param: `messages[0].content[${part}]`, text: `take ${part + 1}` }));
  expect(answer.response_metadata).toMatchObject({ transcripts });
  const streamed = await gathered(await chat({ engine }).stream([new HumanMessage({ content: few[1] ?? [] })]));
  expect(streamed.response_metadata).toMatchObject({ transcripts: [{ text: "take 5" }], finish_reason: "stop" });
  expect(heard).toEqual([[1], [2], [3], [4], [5]]);
  const files = [
    fileText("a.txt", "one"),
    fileText("b.md", "# two"),
    fileText("c.txt", "three"),
    fileText("d.csv", "4"),
    fileText("e.txt", "five"),
    fileText("file", "six"),
  ];
  expect(few.map((_, index) => prompt(index))).toEqual([
    `[user]${[1, 2, 3, 4].map(take).join("")}[assistant]`,
    `[user]${take(5)}${files.join("")}what?[assistant]`,
  ]);
  const asked = (...parts: ContentBlock[]) => chat({ engine }).invoke([new HumanMessage({ content: parts })]);
  await expect(asked({ type: "audio", url: "https://host/a.wav" })).rejects.toThrow(
    "The audio of a message has the address of a server, which is not fetched; pass data",
  );
  await expect(asked({ type: "file", fileId: "x" })).rejects.toThrow("has neither url nor data");
  await expect(asked({ type: "file", data: "AAAA", mimeType: "application/pdf" })).rejects.toThrow(
    "messages[0].content[0].file is 'file' of type 'application/pdf'",
  );
  await expect(asked({ type: "audio", data: "!", mimeType: "audio/ogg" })).rejects.toThrow("is not base64");
  await expect(asked({ type: "video", fileId: "x" })).rejects.toThrow(
    "The video of a message has neither url nor data",
  );
  const sound: ContentBlock = { type: "audio", data: "AAAA", mimeType: "audio/wav" };
  await expect(chat(adapterEngine("x")).invoke([new HumanMessage({ content: [sound] })])).rejects.toThrow(
    "messages[0].content[0] is a recording, and this model hears nothing",
  );
});
