// decide over two sides: one of them decides all questions, and far those that near leaves open. hybrid.js loads this
// file for the first such request. server_fallback/router/decisions.py does the same.

import type { Checks } from "../api/params.js";
import { isObject, readParams, signal as anAbortSignal } from "../api/params.js";
import { anySignal } from "../api/stream.js";
import type { ChatCompletionMessageParam, Route } from "../api/types.js";
import { asking, messagesOf } from "../decide/messages.js";
import type { DecideOptions, DecideResponse } from "../decide/index.js";
import { RequestError, Unavailable } from "../errors.js";
import { encodingPolicy } from "../shared/decision/decide.js";
import type { Side } from "../shared/decision/decision.js";
import { checkReading } from "../shared/questions/answers.js";
import { calibrationFor, handedOver, merged } from "../shared/questions/escalation.js";
import type { Questions } from "../shared/questions/questions.js";
import type { HybridParamsNonStreaming } from "./request.js";
import { readRequest } from "./request.js";
import type { Routing, SituatedChoice } from "./routing.js";
import { wholeAnswer, wholeAnswerRules } from "./whole_answer.js";

export interface HybridDecideOptions extends Omit<DecideOptions, "model"> {
  /** Labels of the policy. */
  readonly labels?: readonly string[] | null | undefined;
  /** Only this side may decide. */
  readonly pin?: Side | null | undefined;
  /** The language that the deciding model must know, as the first part of a BCP 47 tag ("en"). */
  readonly language?: string | null | undefined;
}

export interface HybridDecisions extends DecideResponse {
  /** The side that decided each question. */
  readonly sides: Readonly<Record<string, Side>>;
  /** Of the side that was asked first. */
  readonly route: Route;
}

/** A text, or the messages of a chat. */
export type DecideContext = string | HybridParamsNonStreaming["messages"];
interface Asked {
  readonly context: string | readonly ChatCompletionMessageParam[];
  readonly questions: Questions;
  readonly options: Pick<DecideOptions, "calibration" | "abstain_below" | "priority">;
}

const OPTIONS: Checks = {
  calibration: "any",
  abstain_below: "number",
  priority: "integer",
  labels: "string[]",
  pin: "=near|far",
  language: "string",
  signal: anAbortSignal,
} satisfies Record<keyof HybridDecideOptions, Checks[string]>;

/** See `Hybrid.decide`. Throws RequestError, Unavailable, the error of a side, or the signal's reason. */
export async function decideOverSides(
  routing: Routing,
  context: DecideContext,
  questions: Questions,
  raw: HybridDecideOptions,
): Promise<HybridDecisions> {
  const { labels, pin, language, signal: given, ...options } = readParams(raw, OPTIONS);
  const signal = anySignal(given);
  signal.throwIfAborted();
  const prompts = checkReading(questions, options);
  // Far reads the names, too.
  const text = prompts.map((prompt) => [prompt.text, ...prompt.answers, prompt.name].join("\n")).join("\n\n");
  const request = readRequest({ messages: asking(messagesOf(context), text), labels, pin, language });
  if (request.properties.media.some(({ kind }) => kind !== "picture" && kind !== "video"))
    throw new RequestError(
      "the messages have recordings or files, and two sides decide about texts and pictures only; send their texts, or ask one side",
      { param: "context" },
    );
  // Labels are never sent.
  const plain = typeof context === "string" ? context : context.map((message) => ({ ...message, labels: undefined }));
  const asked = { context: plain, questions, options };
  const { policy } = routing.wiring;
  const situate = async () => {
    const situation = await routing.situation(request, { tokens: null, conversation: [], embedding: null });
    // No description takes the place of a picture: it leaves itself, or not at all.
    return { ...situation, near: { ...situation.near, describes: [] } };
  };
  const choice = await routing.choose(encodingPolicy(policy), situate, null, signal);
  const { decision, standby } = choice;
  const over = (choose: Pick<SituatedChoice, "situation" | "decision" | "standby">, own: Asked) =>
    wholeAnswer(
      routing,
      choose,
      (side, until) => ask(routing, side, own, until),
      wholeAnswerRules(policy, prompts.length, decision.private),
      signal,
    );
  const { answer, route } = await over(choice, asked);
  const { side } = route;
  const open = handedOver(policy, { side, standby: standby && side === decision.side }, questions, answer.decisions);
  const later =
    Object.keys(open).length === 0
      ? null
      : await over(
          { ...choice, decision: { ...decision, side: "far" }, standby: false },
          { ...asked, questions: open },
        ).catch((error: unknown) => {
          // Without far's decisions, near has none of these: that is an answer too.
          if (error instanceof Unavailable) return null;
          throw error;
        });
  const tokens = answer.usage.prompt_tokens + (later?.answer.usage.prompt_tokens ?? 0);
  return {
    ...answer,
    ...merged(side, answer.decisions, later?.answer.decisions ?? {}),
    usage: { prompt_tokens: tokens, total_tokens: tokens },
    route,
  };
}

async function ask(
  { wiring: { near, far } }: Routing,
  side: Side,
  { context, questions, options }: Asked,
  signal: AbortSignal,
): Promise<DecideResponse> {
  const own = (model: string, others: readonly string[] | null) => ({
    ...options,
    calibration: calibrationFor(options.calibration, model, others, questions),
  });
  if (side === "near") {
    const engine = near.ready;
    const others = far === null ? [] : far.model && [far.model.name];
    return engine.decide(context, questions, { ...own(engine.info.model, others), signal });
  }
  if (far === null) throw new Unavailable("There is no far side", { retryable: false });
  if (far.dialect !== "nearfar")
    throw new RequestError(
      `the far side is of the dialect ${far.dialect}, which has no /v1/decide; use \`nearfar serve\` for it, or a ` +
        "policy by which near decides",
      { param: "model" },
    );
  const { name } = await far.reach(signal);
  const about = typeof context === "string" ? { context } : { messages: context };
  const answer = await far.post("/v1/decide", { ...about, questions, ...own(name, modelsOf(near)) }, signal);
  const { decisions } = answer;
  if (!isObject(decisions) || Object.keys(questions).some((name) => !isObject(decisions[name])))
    throw new Unavailable("The far side's answer of /v1/decide does not fit the request", { retryable: false });
  return answer as unknown as DecideResponse;
}

/** The model of near; null while it loads. */
function modelsOf({ info, state }: Routing["wiring"]["near"]): readonly string[] | null {
  if (info !== null) return [info.model];
  return state === "loading" ? null : [];
}
