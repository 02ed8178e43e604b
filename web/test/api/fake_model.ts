// A fake model that returns fixed answers, one token for each byte, from a fake engine that records its requests.

import { ChatCompletions } from "../../src/api/chat_completions.js";
import { encodeChat } from "../../src/api/chat_prompt.js";
import { Completions } from "../../src/api/completions.js";
import type { Embeddings, EngineApi } from "../../src/api/engine_api.js";
import type { Model } from "../../src/api/model.js";
import type { Encoder } from "../../src/encoders/index.js";
import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "../../src/engine/request.js";
import { decide } from "../../src/decide/index.js";
import { RequestError } from "../../src/errors.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { formatOf } from "../text/tool_formats.js";
import { templateEntry } from "../text/template_trees.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";

// The comment makes the tokenizer detect Hermes' format of tool calls.
export const TEMPLATE =
  "{# tools: <tool_call> #}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";

/** The token that ends an answer. */
export const END = 256;

export class FakeSource implements TokenSource {
  readonly requests: TokenRequest[] = [];
  /** The number of running answers. */
  running = 0;
  most = 0;
  /** The number of yielded tokens. */
  tokens = 0;

  /** Returns ``answers`` in turn, and then repeats the last one. A list contains token ids. */
  constructor(
    private readonly answers: readonly (string | readonly number[])[],
    private readonly failure?: Error,
  ) {}

  async *generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    const answer = this.answers[Math.min(this.requests.length, this.answers.length - 1)] ?? "";
    this.requests.push(request);
    this.most = Math.max(this.most, ++this.running);
    const ids = typeof answer === "string" ? [...new TextEncoder().encode(answer)] : answer;
    const { promptIds, maxTokens = Infinity, signal, logprobs } = request;
    let completionTokens = 0;
    const completion = (finishReason: AnswerEnd["finishReason"]): AnswerEnd => ({
      finishReason,
      promptTokens: promptIds.length,
      cachedTokens: 3,
      completionTokens,
    });
    try {
      if (request.promptLogprobs !== undefined)
        request.onPromptLogprobs?.(
          promptIds.slice(Math.max(1, promptIds.length - request.promptLogprobs)).map((tokenId) => ({
            tokenId,
            logprob: -tokenId,
            alternatives: alternativesOf(tokenId, request.promptAlternatives ?? 0),
          })),
        );
      for (const tokenId of ids) {
        // As on a device, a token needs a turn of the event loop.
        await new Promise((resolve) => setTimeout(resolve, 0));
        signal?.throwIfAborted();
        if (this.failure !== undefined) throw this.failure;
        if (completionTokens >= maxTokens) return completion("length");
        completionTokens++;
        this.tokens++;
        request.logitProcessor?.(tokenId);
        const alternatives = alternativesOf(tokenId, logprobs ?? 0);
        yield { tokenId, logprob: logprobs === undefined ? null : -1, alternatives };
      }
      if (completionTokens >= maxTokens) return completion("length");
      const endToken = { tokenId: END, logprob: logprobs === undefined ? null : -0.5, alternatives: [] };
      return { ...completion("stop"), endToken };
    } finally {
      request.constraint?.dispose();
      this.running--;
    }
  }
}

function alternativesOf(tokenId: number, count: number): GeneratedToken["alternatives"] {
  return Array.from({ length: count }, (_, rank) => ({ tokenId: (tokenId + rank) % 256, logprob: -1 - rank }));
}

export function fakeModel(...answers: readonly (string | readonly number[])[]): {
  readonly model: Model;
  readonly source: FakeSource;
} {
  const source = new FakeSource(answers);
  return { model: modelOf(source), source };
}

export function modelOf(source: TokenSource, rest: Partial<Model> = {}): Model {
  return {
    name: "fake",
    context: 4096,
    tokens: source,
    text: new Tokenizer(byteLevelTokenizer(), { ...NO_TOKENS, ...templateEntry(TEMPLATE), tools: formatOf("hermes") }),
    ...rest,
  };
}

/** The prompt of a request, as text. */
export function promptText(model: Model, request: TokenRequest | undefined): string {
  return model.text.decode(request?.promptIds ?? []);
}

/** An engine around a model, without generate(). */
export function fakeEngine(model: Model, context = 1000, encoder: Encoder | null = null): EngineApi {
  const none = (): Promise<never> =>
    Promise.reject(new RequestError("This model generates text and makes no embeddings or scores"));
  const info = { model: model.name, context, thinking: model.text.thinking.canSwitch } as EngineApi["info"];
  return {
    info,
    chat: { completions: new ChatCompletions(model) },
    completions: new Completions(model),
    embeddings: {
      create: (encoder === null
        ? none
        : (params, options = {}) => encoder.embed(params, options)) as Embeddings["create"],
    },
    rerank: encoder === null ? none : (params, options = {}) => encoder.rerank(params, options),
    score: encoder === null ? none : (params, options = {}) => encoder.score(params, options),
    classify: encoder === null ? none : (params, options = {}) => encoder.classify(params, options),
    decide: (context, questions, options = {}) => decide(model, encodeChat, context, questions, options),
    // oxlint-disable-next-line typescript/require-await
    async *generate() {
      throw new Error("the fake engine has no generate");
    },
    countTokens: async (prompt, options) =>
      (typeof prompt === "string" ? model.text.encode(prompt) : (await encodeChat(model, prompt, options)).ids).length,
    transcribe: (): Promise<never> => Promise.reject(new RequestError("This model transcribes no sound")),
    pause: () => Promise.resolve(),
    resume: () => Promise.resolve(),
    destroy: () => undefined,
  };
}
