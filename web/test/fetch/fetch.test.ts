// Tests createFetch with the `openai` package.

import OpenAI from "openai";
import { expect, test } from "vitest";

import type { ChatSource } from "../../src/api/chat_source.js";
import { DeviceError, Unavailable } from "../../src/errors.js";
import { createFetch } from "../../src/fetch/index.js";
import type { AdapterEngine } from "../api/adapter_engine.js";
import { adapterEngine, adapterEngineOver, hermesCall } from "../api/adapter_engine.js";
import { FakeSource } from "../api/fake_model.js";
import { setUp } from "../router/hybrid_set_up.js";
import { waitFor } from "../wait_for.js";

const messages = [{ role: "user", content: "hi" }] satisfies OpenAI.Chat.ChatCompletionMessageParam[];
const BASE = "https://on.device/v1";

function client({ engine }: Pick<AdapterEngine, "engine">): OpenAI {
  return new OpenAI({ baseURL: BASE, apiKey: "none", dangerouslyAllowBrowser: true, fetch: createFetch(engine) });
}

test("chats are answered complete and streamed, with usage", async () => {
  const openai = client(adapterEngine("héllo"));
  const complete = await openai.chat.completions.create({ model: "fake", messages });
  expect(complete.choices[0]?.message.content).toBe("héllo");
  const stream = openai.chat.completions.stream({ model: "fake", messages, stream_options: { include_usage: true } });
  const gathered = await stream.finalChatCompletion();
  expect(gathered.choices[0]?.message.content).toBe("héllo");
  expect(gathered.usage).toEqual(complete.usage);
});

test("the client runs tools", async () => {
  const { engine, prompt } = adapterEngine(hermesCall("add", { a: 27, b: 58 }), "85");
  const runner = client({ engine }).chat.completions.runTools({
    model: "fake",
    messages,
    tools: [
      {
        type: "function",
        function: {
          name: "add",
          description: "",
          parse: JSON.parse,
          parameters: { type: "object" },
          function: ({ a, b }: { a: number; b: number }) => `${a + b}`,
        },
      },
    ],
  });
  expect(await runner.finalContent()).toBe("85");
  expect(prompt(1)).toContain("[tool]85");
});

test("completions, embeddings and models have their routes", async () => {
  const openai = client(adapterEngine("abc"));
  expect((await openai.completions.create({ model: "fake", prompt: "x" })).choices[0]?.text).toBe("abc");
  let text = "";
  for await (const chunk of await openai.completions.create({ model: "fake", prompt: "x", stream: true }))
    text += chunk.choices[0]?.text ?? "";
  expect(text).toBe("abc");
  // The client requests base64 and decodes it.
  expect((await openai.embeddings.create({ model: "fake", input: "a" })).data[0]?.embedding).toEqual([2, 0, 0, 1]);
  expect((await openai.models.list()).data.map(({ id }) => id)).toEqual(["fake"]);
  expect(await openai.models.retrieve("fake")).toMatchObject({ id: "fake", object: "model" });
  await expect(openai.models.retrieve("gpt-9")).rejects.toBeInstanceOf(OpenAI.NotFoundError);
});

test("wrong requests return OpenAI's errors", async () => {
  const openai = client(adapterEngine("x"));
  const asking = openai.chat.completions.create({ model: "fake", messages, temperature: 9 });
  await expect(asking).rejects.toBeInstanceOf(OpenAI.BadRequestError);
  await expect(asking).rejects.toMatchObject({
    status: 400,
    code: "request_error",
    type: "invalid_request_error",
    param: "temperature",
  });
  await expect(openai.images.generate({ prompt: "a boat" })).rejects.toBeInstanceOf(OpenAI.NotFoundError);
  const fetch = createFetch(adapterEngine("x").engine);
  const post = async (body: string): Promise<unknown> => {
    const response = await fetch(`${BASE}/chat/completions`, { method: "POST", body });
    return [response.status, ((await response.json()) as { error: { message: string } }).error.message];
  };
  expect(await post("{")).toEqual([400, expect.stringContaining("The body is not valid JSON")]);
  for (const body of ["[]", "7", "null"])
    expect(await post(body)).toEqual([400, "The body must be a JSON object of parameters"]);
  const get = await fetch(new Request(`${BASE}/chat/completions`));
  expect([get.status, get.headers.get("Allow")]).toEqual([405, "POST"]);
});

test("a request that failed on the device is not repeated, but an unavailable one is", async () => {
  const broken = new FakeSource(["x"], new DeviceError("the device was lost"));
  await expect(
    client(adapterEngineOver(broken)).chat.completions.create({ model: "fake", messages }),
  ).rejects.toMatchObject({ status: 500, code: "device_error" });
  expect(broken.requests.length).toBe(1);
  const busy = new FakeSource(["x"], new Unavailable("too much to do"));
  await expect(
    client(adapterEngineOver(busy)).chat.completions.create({ model: "fake", messages }, { maxRetries: 1 }),
  ).rejects.toMatchObject({ status: 503 });
  expect(busy.requests.length).toBe(2);
});

test("a failure in mid-answer is an error of the stream", async () => {
  const source = new FakeSource(["x"], new DeviceError("the device was lost"));
  const stream = await client(adapterEngineOver(source)).chat.completions.create({
    model: "fake",
    messages,
    stream: true,
  });
  const reading = async (): Promise<void> => {
    for await (const chunk of stream) expect(chunk).toHaveProperty("choices");
  };
  await expect(reading()).rejects.toThrow("the device was lost");
});

test("an abort ends the engine's work, and so does leaving the loop", async () => {
  const source = new FakeSource(["a".repeat(500)]);
  const openai = client(adapterEngineOver(source));
  const controller = new AbortController();
  const asking = openai.chat.completions.create({ model: "fake", messages }, { signal: controller.signal });
  setTimeout(() => {
    controller.abort();
  }, 10);
  await expect(asking).rejects.toBeInstanceOf(OpenAI.APIUserAbortError);
  const stream = await openai.chat.completions.create({ model: "fake", messages, stream: true });
  for await (const chunk of stream) if (chunk.choices.length > 0) break;
  await waitFor(() => {
    expect(source.running).toBe(0);
  });
  expect([source.requests.length, source.tokens < 400]).toEqual([2, true]);
});

test("a reader that leaves before the first token ends the engine's work", async () => {
  let signal: AbortSignal | null | undefined;

  async function* waiting(): AsyncGenerator<never> {
    await new Promise((_, reject) =>
      signal?.addEventListener("abort", () => {
        reject(new Error("aborted"));
      }),
    );
  }
  const source: ChatSource = {
    chat: {
      completions: {
        create: (_: object, options?: { signal?: AbortSignal | null | undefined }) => (
          (signal = options?.signal),
          Promise.resolve(waiting() as never)
        ),
      },
    },
  };
  const { body } = await createFetch(source)(`${BASE}/chat/completions`, {
    method: "POST",
    body: JSON.stringify({ messages, stream: true }),
  });
  const reader = body?.getReader();
  void reader?.read();
  await reader?.cancel();
  expect(signal?.aborted).toBe(true);
});

test("a hybrid answers chats, and its errors name the methods that it lacks", async () => {
  const { nf } = await setUp({ policy: { mode: "far-only" }, near: null });
  const openai = new OpenAI({ baseURL: BASE, apiKey: "none", maxRetries: 0, fetch: createFetch(nf) });
  const answer = await openai.chat.completions.create({ model: "x", messages });
  expect(answer).toMatchObject({ choices: [{ message: { content: "far away" } }], route: { side: "far" } });
  const asked = openai.completions.create({ model: "x", prompt: "a" });
  await expect(asked).rejects.toThrow("This source has no completions");
});
