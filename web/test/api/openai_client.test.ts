// Compares our API with the openai package: its types accept our answers, and its client reads our streams.

import OpenAI from "openai";
import { expect, expectTypeOf, test } from "vitest";

import { ChatCompletions } from "../../src/api/chat_completions.js";
import { Completions } from "../../src/api/completions.js";
import type { EngineApi } from "../../src/api/engine_api.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming,
  Completion,
  CompletionCreateParams,
  CompletionUsage,
  CreateEmbeddingResponse,
  EmbeddingCreateParams,
} from "../../src/api/types.js";
import type { NearfarError } from "../../src/errors.js";
import type { Hybrid } from "../../src/router/hybrid.js";
import { fakeModel } from "./fake_model.js";

/** Without null in the logprobs' lists. */
type WithoutNull<T> = T extends ((infer Item) | null)[]
  ? WithoutNull<NonNullable<Item>>[]
  : T extends object
    ? { [Key in keyof T]: WithoutNull<T[Key]> }
    : T;
type OpenAIChat = OpenAI.Chat.ChatCompletionCreateParams;
/** The parameters that we accept under OpenAI's names, without those that reject every value. */
type Common<Theirs, Ours> = Pick<Theirs, keyof Theirs & keyof Ours>;

test("our answers have OpenAI's types", () => {
  expectTypeOf<ChatCompletion>().toExtend<OpenAI.Chat.ChatCompletion>();
  expectTypeOf<ChatCompletionChunk>().toExtend<OpenAI.Chat.ChatCompletionChunk>();
  // OpenAI's types leave out that the first token of an echo has no log-probability.
  expectTypeOf<WithoutNull<Completion>>().toExtend<OpenAI.Completion>();
  expectTypeOf<CompletionUsage>().toExtend<OpenAI.CompletionUsage>();
  expectTypeOf<CreateEmbeddingResponse>().toExtend<OpenAI.CreateEmbeddingResponse>();
  expectTypeOf<Pick<NearfarError, "status" | "code" | "param" | "type" | "message">>().toExtend<
    Pick<InstanceType<typeof OpenAI.APIError>, "status" | "code" | "param" | "type" | "message">
  >();
});

test("parameters with OpenAI's types fit our types", () => {
  expectTypeOf<OpenAI.Chat.ChatCompletionMessageParam[]>().toExtend<
    ChatCompletionCreateParamsNonStreaming["messages"]
  >();
  expectTypeOf<
    Common<OpenAI.Chat.ChatCompletionCreateParamsNonStreaming, ChatCompletionCreateParamsNonStreaming>
  >().toExtend<ChatCompletionCreateParamsNonStreaming>();
  expectTypeOf<
    Common<OpenAI.Chat.ChatCompletionCreateParamsStreaming, ChatCompletionCreateParamsStreaming>
  >().toExtend<ChatCompletionCreateParamsStreaming>();
  expectTypeOf<
    Common<OpenAI.CompletionCreateParamsNonStreaming, CompletionCreateParams>
  >().toExtend<CompletionCreateParams>();
  expectTypeOf<OpenAI.EmbeddingCreateParams>().toExtend<EmbeddingCreateParams>();
});

test("an engine has the type of the client's methods that create chats", () => {
  interface Chats {
    chat: {
      completions: {
        create(body: OpenAI.Chat.ChatCompletionCreateParamsNonStreaming): PromiseLike<OpenAI.Chat.ChatCompletion>;
      };
    };
  }
  expectTypeOf<OpenAI>().toExtend<Chats>();
  expectTypeOf<EngineApi>().toExtend<Chats>();
  expectTypeOf<Hybrid>().toExtend<Chats>();
  interface Vectors {
    embeddings: { create(body: OpenAI.EmbeddingCreateParams): PromiseLike<OpenAI.CreateEmbeddingResponse> };
  }
  expectTypeOf<OpenAI>().toExtend<Vectors>();
  expectTypeOf<EngineApi>().toExtend<Vectors>();
});

/** OpenAI's client, with our API as its server. */
function client(...answers: readonly string[]): OpenAI {
  const { model } = fakeModel(...answers);
  const respond = async (url: string, body: string): Promise<Response> => {
    const params = JSON.parse(body) as { stream?: boolean };
    const answer = url.endsWith("/chat/completions")
      ? await new ChatCompletions(model).create(params as OpenAIChat as ChatCompletionCreateParamsStreaming)
      : await new Completions(model).create(params as CompletionCreateParams);
    if (!(Symbol.asyncIterator in answer)) return Response.json(answer);
    const events: string[] = [];
    for await (const chunk of answer) events.push(`data: ${JSON.stringify(chunk)}\n\n`);
    return new Response([...events, "data: [DONE]\n\n"].join(""), { headers: { "content-type": "text/event-stream" } });
  };
  return new OpenAI({
    apiKey: "none",
    maxRetries: 0,
    fetch: async (url, { body } = {}) => {
      const text = typeof body === "string" ? body : "";
      return respond(url instanceof Request ? url.url : url.toString(), text).catch((error: unknown) => {
        const { status, message, type, param, code } = error as NearfarError;
        return Response.json({ error: { message, type, param, code } }, { status });
      });
    },
  });
}

const messages = [{ role: "user", content: "hi" }] satisfies OpenAI.Chat.ChatCompletionMessageParam[];

test("its client combines our stream into our complete answer", async () => {
  const request = { model: "fake", messages, logprobs: true, top_logprobs: 1, n: 2, stop: "!" };
  const gathered = await client("héllo!", "x")
    .chat.completions.stream({ ...request, stream: true, stream_options: { include_usage: true } })
    .finalChatCompletion();
  const complete = await client("héllo!", "x").chat.completions.create(request);
  expect(gathered.choices).toMatchObject(complete.choices);
  expect(gathered.choices.map(({ message }) => message.content)).toEqual(["héllo", "x"]);
  expect(gathered.usage).toEqual(complete.usage);
});

test("its client reads our older completions", async () => {
  const complete = await client("abc").completions.create({ model: "fake", prompt: "x" });
  let text = "";
  for await (const chunk of await client("abc").completions.create({ model: "fake", prompt: "x", stream: true }))
    text += chunk.choices[0]?.text ?? "";
  expect([complete.choices[0]?.text, text]).toEqual(["abc", "abc"]);
});

test("its client reads our errors as its own", async () => {
  const asking = client("x").chat.completions.create({ model: "fake", messages, temperature: 9 });
  await expect(asking).rejects.toBeInstanceOf(OpenAI.BadRequestError);
  await expect(asking).rejects.toMatchObject({
    status: 400,
    code: "request_error",
    type: "invalid_request_error",
    param: "temperature",
  });
});
