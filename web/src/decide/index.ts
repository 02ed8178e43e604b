// decide: how likely each answer to typed questions about a context is. All questions share the context's keys and
// values, and all answers to a question share its prompt's.

import type { encodeChat } from "../api/chat_prompt.js";
import type { Model } from "../api/model.js";
import { named } from "../api/model.js";
import type { Checks } from "../api/params.js";
import { readParams, signal as anAbortSignal } from "../api/params.js";
import { identity } from "../api/requests.js";
import { anySignal } from "../api/stream.js";
import type { ChatCompletionMessageParam } from "../api/types.js";
import type { EncodingUsage } from "../api/replies.js";
import type { TokenRequest } from "../engine/request.js";
import type { DecisionHead } from "../encoders/index.js";
import { RequestError } from "../errors.js";
import type { Decisions } from "../shared/questions/answers.js";
import { checkReading, readDecisions } from "../shared/questions/answers.js";
import type { DecisionExample, FitOptions } from "../shared/questions/calibration.js";
import { fitCalibration } from "../shared/questions/calibration.js";
import type { Asked, Questions } from "../shared/questions/questions.js";
import { headLogprobs, headPrompts, headState } from "../shared/questions/head.js";
import { requireDistinct } from "../shared/questions/questions.js";
import type { DecisionCalibration } from "../shared/questions/schema.js";
import { asking, messagesOf } from "./messages.js";

export { fitCalibration };
export type { DecisionCalibration, DecisionExample, Decisions, FitOptions, Questions };

export interface DecideOptions {
  /** What `fitCalibration` has learned from examples. */
  readonly calibration?: DecisionCalibration | null | undefined;
  /** A decision whose confidence is lower has no answer. By default 0. */
  readonly abstain_below?: number | null | undefined;
  /** The model, or a LoRA adapter. */
  readonly model?: string | null | undefined;
  readonly priority?: number | null | undefined;
  readonly signal?: AbortSignal | null | undefined;
}

export interface DecideResponse {
  readonly id: string;
  readonly object: "decisions";
  readonly created: number;
  readonly model: string;
  /** The name of the model in its manifest, which is the same wherever it runs; a calibration is fitted to it. */
  readonly calibration_model: string;
  readonly decisions: Decisions;
  readonly usage: EncodingUsage;
}

type EncodeChat = typeof encodeChat;

/** A model, and what makes a prompt of a chat: the engine's function, so that this file has no copy of it. */
interface DecidingModel extends Model {
  readonly encodeChat: EncodeChat;
}

const OPTIONS: Checks = {
  calibration: "any",
  abstain_below: "number",
  model: "string",
  priority: "integer",
  signal: anAbortSignal,
} satisfies Record<keyof DecideOptions, Checks[string]>;

/** See `Engine.decide`. Throws RequestError, DeviceError, or the signal's reason. */
export async function decide(
  base: Model,
  encodeChat: EncodeChat,
  context: string | readonly ChatCompletionMessageParam[],
  questions: Questions,
  options: DecideOptions,
  head: DecisionHead | null = null,
): Promise<DecideResponse> {
  const { calibration, abstain_below, priority, signal: given, model: name } = readParams(options, OPTIONS);
  const signal = anySignal(given);
  signal.throwIfAborted();
  const model = { ...named(base, name), encodeChat };
  const reading = { model: model.name, calibration, abstain_below };
  const asked = checkReading(questions, reading);
  const messages = messagesOf(context);
  const { logprobs, tokens } =
    head === null
      ? await scoresOf(model, await promptsOf(model, messages, asked, signal), { priority, signal })
      : await headScores(model, head, typeof context === "string" ? context : headState(messages), questions, signal);
  return {
    ...identity("decide", model.name),
    object: "decisions",
    calibration_model: model.name,
    decisions: readDecisions(questions, logprobs, reading),
    usage: { prompt_tokens: tokens, total_tokens: tokens },
  };
}

interface Scored {
  /** Of each answer to each prompt. */
  readonly logprobs: readonly (readonly number[])[];
  /** The number of tokens that they have read. */
  readonly tokens: number;
}

/** By a decision head, which scores all answers to a question at once, at the end of its prompt. */
async function headScores(
  model: DecidingModel,
  head: DecisionHead,
  state: ReturnType<typeof headState> | string,
  questions: Questions,
  signal: AbortSignal,
): Promise<Scored> {
  const prompts = headPrompts(questions, head.decision);
  const texts = prompts.map(({ question }) => {
    const ids = model.text.encodeChat([{ role: "user", content: "" }], { variables: { state, question } });
    if (ids.length > model.context)
      throw new RequestError(
        `the context and a question have ${ids.length} tokens; this model supports ${model.context}; shorten the context`,
        { param: "context", code: "context_too_long" },
      );
    return { ids };
  });
  const rows = await head.encode(texts, signal);
  return { logprobs: headLogprobs(prompts, rows), tokens: texts.reduce((sum, { ids }) => sum + ids.length, 0) };
}

/** A prompt, and the tokens of each answer to it. */
interface PromptRow {
  readonly prompt: readonly number[];
  readonly images: TokenRequest["images"];
  readonly answers: readonly (readonly number[])[];
}

async function promptsOf(
  model: DecidingModel,
  messages: readonly ChatCompletionMessageParam[],
  asked: readonly Asked[],
  signal: AbortSignal,
): Promise<readonly PromptRow[]> {
  const { canSwitch } = model.text.thinking;
  const variables = canSwitch ? { enable_thinking: false } : {};
  const tokens = new AnswerTokens(model, variables);
  const answers = asked.map((each) => each.answers.map((answer) => tokens.of(answer)));
  requireDistinct(asked, answers);
  const rows: PromptRow[] = [];
  for (const [index, { text }] of asked.entries()) {
    const { ids, state, images } = await model.encodeChat(model, asking(messages, text), { variables }, signal);
    if (state !== "content")
      throw new RequestError(
        "this model reasons before each answer, and its chat template cannot switch that off, so its answers have no " +
          "probabilities of their own; use another model",
        { param: "model" },
      );
    const own = answers[index] ?? [];
    const longest = Math.max(...own.map((answer) => answer.length));
    if (ids.length + longest > model.context)
      throw new RequestError(
        `the context and a question have ${ids.length} tokens and its longest answer ${longest}; this model supports ` +
          `${model.context}; shorten the context`,
        { param: "context", code: "context_too_long" },
      );
    rows.push({ prompt: ids, images: await images(signal), answers: own });
  }
  return rows;
}

/** The tokens of answers with the one that ends a turn, as the model's chat template writes them. */
class AnswerTokens {
  readonly #known = new Map<string, readonly number[]>();
  readonly #opened: readonly number[];

  constructor(
    private readonly model: DecidingModel,
    private readonly variables: Readonly<Record<string, unknown>>,
  ) {
    this.#opened = this.#chat([{ role: "user", content: "x" }]);
  }

  of(answer: string): readonly number[] {
    const known = this.#known.get(answer) ?? this.#find(answer);
    this.#known.set(answer, known);
    return known;
  }

  #find(answer: string): readonly number[] {
    const { endTokenIds = [], text } = this.model;
    const chat = this.#chat([
      { role: "user", content: "x" },
      { role: "assistant", content: answer },
    ]);
    const begun = this.#opened.every((id, index) => chat[index] === id) ? chat.slice(this.#opened.length) : [];
    const end = begun.findIndex((id) => endTokenIds.includes(id));
    if (end > 0) return begun.slice(0, end + 1);
    // A template that writes earlier answers in another way, or ends them with no token of its own.
    const [last] = endTokenIds;
    return [...text.encode(answer, false, true), ...(last === undefined ? [] : [last])];
  }

  #chat(messages: readonly { readonly role: string; readonly content: string }[]): readonly number[] {
    return this.model.text.encodeChat(messages, { variables: this.variables });
  }
}

/**
 * The log-probability of each answer, and the number of tokens that they have read. The first answer computes the
 * context, then the first of each question the question, and then all others only themselves.
 */
async function scoresOf(
  model: DecidingModel,
  rows: readonly PromptRow[],
  options: Pick<TokenRequest, "priority" | "signal">,
): Promise<Scored> {
  const logprobs: number[][] = rows.map(({ answers }) => answers.map(() => NaN));
  const score = async (prompt: number, index: number): Promise<void> => {
    const { prompt: ids, images, answers } = rows[prompt] ?? { prompt: [], images: [], answers: [] };
    const answer = answers[index] ?? [];
    const own = logprobs[prompt];
    if (own !== undefined)
      own[index] = await logprobOf(model, [...ids, ...answer], answer.length, { images, ...options });
  };
  const places = rows.flatMap(({ answers }, prompt) => answers.map((_, index) => [prompt, index] as const));
  const waves = [
    places.filter(([prompt, index]) => prompt === 0 && index === 0),
    places.filter(([prompt, index]) => prompt > 0 && index === 0),
    places.filter(([, index]) => index > 0),
  ];
  for (const wave of waves) await Promise.all(wave.map(([prompt, index]) => score(prompt, index)));
  const tokens = rows.reduce((sum, { prompt, answers }) => sum + prompt.length + answers.flat().length, 0);
  return { logprobs, tokens };
}

/** The log-probability of the last ``count`` tokens, given those before them. */
async function logprobOf(
  { tokens }: DecidingModel,
  promptIds: readonly number[],
  count: number,
  options: Partial<TokenRequest>,
): Promise<number> {
  const sums: number[] = [];
  const answer = tokens.generateTokens({
    ...options,
    promptIds,
    maxTokens: 1,
    promptLogprobs: count,
    onPromptLogprobs: (found) => {
      sums.push(found.reduce((total, { logprob }) => total + (logprob ?? NaN), 0));
    },
  });
  for await (const _ of answer);
  const [sum = NaN] = sums;
  if (!Number.isFinite(sum))
    throw new RequestError("this engine computes no log-probabilities of prompts; use a WebGPU bundle", {
      param: "model",
    });
  return sum;
}
