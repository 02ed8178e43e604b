// An agent's loop: what its next step may do, and what becomes of each call, from a state that is plain data. The
// callers ask the model, run the tools and measure the time.
//
// Each step is a call that a grammar constrains: of a tool, or of `answer`, which ends the run. The last step that the
// bounds allow can only answer.

import { RequestError } from "../../errors.js";
import { isA, shown, typeOf } from "../declared.js";
import type { Schema } from "../grammar/schema_merge.js";
import { boundedText, utf8Bytes } from "./results.js";
import { canonical, requireSchema, schemaFault } from "./schema_fault.js";
import type { ReasonedStake, RoutingShares } from "./stake.js";
import { readShares, stakeOf } from "./stake.js";
import type { ListedTool } from "./tools.js";
import { ANSWER } from "./tools.js";

/** What a run may use at most. */
export interface Bounds {
  /** Answers of the model. */
  readonly steps: number;
  /** From its start, with the time in which somebody approves a call. */
  readonly seconds: number;
  /** That the model generates in all. */
  readonly tokens: number;
  /** That it generates in one step. */
  readonly step_tokens: number;
  readonly calls_per_tool: number;
  /** Of a result's UTF-8 that the model receives. */
  readonly result_bytes: number;
}

/**
 * Why a run ended: with an answer; with the answer of the last allowed step; without one, because a bound was reached;
 * or because the model made the same call again.
 */
export type EndReason = "answer" | "steps" | "seconds" | "tokens" | "repeated";

/** "ran": it has a result. "failed": the tool reported or threw an error. "refused": it was wrong. "denied": nobody approved it. */
export type CallOutcome = "ran" | "failed" | "refused" | "denied";

interface CallRecord {
  readonly tool: string;
  readonly key: string;
  readonly reads: boolean;
  readonly outcome: CallOutcome;
}

export interface LoopState {
  readonly bounds: Bounds;
  readonly routing: RoutingShares;
  /** The schema of `answer`. */
  readonly answer: Schema;
  readonly step: number;
  readonly tokens: number;
  /** Calls in a row without a result. */
  readonly failures: number;
  readonly result_bytes: number;
  readonly calls: readonly CallRecord[];
}

export interface LoopOptions {
  readonly bounds?: Partial<Bounds> | null | undefined;
  readonly routing?: Partial<RoutingShares> | null | undefined;
  /** A JSON schema of an object. By default of one text. */
  readonly answer?: unknown;
}

/** A call as the model wrote it; ``arguments`` is JSON text. */
export interface CallText {
  readonly name: string;
  readonly arguments: string;
}

export type StepPlan =
  | { readonly end: EndReason }
  | {
      readonly end: null;
      readonly max_tokens: number;
      readonly tool_choice: "required" | { readonly type: "function"; readonly function: { readonly name: string } };
      readonly stake: ReasonedStake;
    };

/** "run": the tool at this ``index`` gets these arguments. "refuse": the model receives the text instead of a result. */
export type Verdict =
  | { readonly verdict: "run"; readonly index: number; readonly values: unknown; readonly key: string }
  | { readonly verdict: "refuse"; readonly text: string; readonly key: string }
  | { readonly verdict: "answer"; readonly values: unknown; readonly text: string; readonly reason: EndReason }
  | { readonly verdict: "end"; readonly reason: EndReason };

export const DEFAULT_BOUNDS: Bounds = {
  steps: 8,
  seconds: 120,
  tokens: 4096,
  step_tokens: 512,
  calls_per_tool: 8,
  result_bytes: 8192,
};
const BOUND_TYPES: Readonly<Record<keyof Bounds, string>> = {
  steps: "integer 1..1000",
  seconds: "number 0<..86400",
  tokens: "integer 1..10000000",
  step_tokens: "integer 1..1000000",
  calls_per_tool: "integer 1..1000",
  // Enough for the line that says how much was cut.
  result_bytes: "integer 64..10000000",
};
const ANSWER_SCHEMA: Schema = {
  type: "object",
  properties: { text: { type: "string" } },
  required: ["text"],
  additionalProperties: false,
};

/** Throws RequestError for unknown options, and for bounds out of their range. */
export function openLoop({ bounds, routing, answer }: LoopOptions): LoopState {
  for (const [name, bound] of Object.entries(bounds ?? {})) {
    const type = Object.hasOwn(BOUND_TYPES, name) ? BOUND_TYPES[name as keyof Bounds] : undefined;
    if (type === undefined || !isA(type, bound))
      throw new RequestError(
        type === undefined
          ? `bounds.${name} is not supported; supported: ${Object.keys(BOUND_TYPES).join(", ")}`
          : `bounds.${name} is ${shown(bound)}, it must be ${typeOf(type).expected}`,
        { param: "bounds" },
      );
  }
  if (answer !== undefined && answer !== null) requireSchema(answer, "the schema of the answer");
  return {
    bounds: { ...DEFAULT_BOUNDS, ...bounds },
    routing: readShares(routing),
    answer: (answer ?? ANSWER_SCHEMA) as Schema,
    step: 0,
    tokens: 0,
    failures: 0,
    result_bytes: 0,
    calls: [],
  };
}

/** What the model may call, in the form of a chat's ``tools``. */
export function offered({ answer }: LoopState, tools: readonly ListedTool[]): readonly object[] {
  const described = [
    ...tools.map(({ listed, description, schema }) => ({ name: listed, description, parameters: schema })),
    { name: ANSWER, description: "Ends the task. The user receives what you give here.", parameters: answer },
  ];
  return described.map((each) => ({ type: "function", function: each }));
}

/** ``seconds`` since the start. */
export function nextStep(state: LoopState, seconds: number, tools: number): StepPlan {
  const { bounds, step, tokens, failures, result_bytes } = state;
  if (step >= bounds.steps) return { end: "steps" };
  if (seconds >= bounds.seconds) return { end: "seconds" };
  if (tokens >= bounds.tokens) return { end: "tokens" };
  const onlyAnswers = step === bounds.steps - 1 || tools === 0;
  return {
    end: null,
    max_tokens: Math.min(bounds.step_tokens, bounds.tokens - tokens),
    tool_choice: onlyAnswers ? { type: "function", function: { name: ANSWER } } : "required",
    stake: stakeOf({ step, steps: bounds.steps, failures, result_bytes, tools }, state.routing),
  };
}

/**
 * Whether an engine has refused a step because the run's last tokens do not hold the shortest answer of its grammar.
 * ``details`` are those of its RequestError.
 */
export function isOutOfTokens(
  { bounds }: LoopState,
  max_tokens: number,
  details: Readonly<Record<string, unknown>>,
): boolean {
  return max_tokens < bounds.step_tokens && (details.needed !== undefined || details.param === "max_tokens");
}

/** The text of an answer, as far as its arguments are written; "" if the answer is other data. */
export function answerBegun(written: string): string {
  const begin = /^\s*\{\s*"text"\s*:\s*"((?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)/;
  return JSON.parse(`"${begin.exec(written)?.[1] ?? ""}"`) as string;
}

/** The model has answered with this number of calls and of ``tokens``; null if a server does not count them. */
export function afterStep(
  state: LoopState,
  {
    calls,
    finish_reason,
    tokens,
    max_tokens,
  }: {
    readonly calls: number;
    readonly finish_reason: string;
    readonly tokens: number | null;
    readonly max_tokens: number;
  },
): { readonly state: LoopState; readonly end: EndReason | null } {
  const isLast = state.step === state.bounds.steps - 1;
  const next = { ...state, step: state.step + 1, tokens: state.tokens + (tokens ?? max_tokens), result_bytes: 0 };
  if (calls > 0) return { state: next, end: null };
  // A server that does not hold the model to calls: its text is the answer, if it is complete.
  return { state: next, end: finish_reason === "length" ? "tokens" : isLast ? "steps" : "answer" };
}

export function judgeCall(state: LoopState, tools: readonly ListedTool[], call: CallText): Verdict {
  const index = tools.findIndex(({ listed }) => listed === call.name);
  const tool = tools[index];
  const read = readArguments(call.arguments);
  const key = `${call.name} ${"fault" in read ? call.arguments : canonical(read.values)}`;
  const refuse = (problem: string): Verdict => ({ verdict: "refuse", text: `Error: ${problem}`, key });
  if (isRepeated(state, key, tool?.reads === true)) return { verdict: "end", reason: "repeated" };
  if (tool === undefined && call.name !== ANSWER) {
    const names = [...tools.map(({ listed }) => listed), ANSWER].join(", ");
    return refuse(`there is no tool ${shown(call.name)}; the tools are ${names}`);
  }
  if ("fault" in read) return refuse(read.fault);
  const { values } = read;
  const fault = schemaFault(tool?.schema ?? state.answer, values, "arguments");
  if (fault !== null) return refuse(`${fault}; call ${call.name} again with other arguments`);
  if (tool === undefined) {
    const { text } = Object(values) as { readonly text?: unknown };
    return {
      verdict: "answer",
      values,
      text: typeof text === "string" ? text : JSON.stringify(values),
      reason: state.step === state.bounds.steps ? "steps" : "answer",
    };
  }
  const made = state.calls.filter(({ tool: name, outcome }) => name === call.name && outcome !== "refused").length;
  if (made >= state.bounds.calls_per_tool)
    return refuse(`${call.name} was called ${made} times, which is the limit; use another tool, or answer`);
  return { verdict: "run", index, values, key };
}

/**
 * The state after a call, and what the model receives. ``text`` is the result, the tool's error, or why the call was
 * refused.
 */
export function afterCall(
  state: LoopState,
  { tool, key, reads }: { readonly tool: string; readonly key: string; readonly reads: boolean },
  outcome: CallOutcome,
  text: string,
): { readonly state: LoopState; readonly text: string } {
  const whole = {
    ran: text,
    refused: text,
    failed: `Error: ${text}`,
    denied: "Error: the user did not allow this call",
  };
  const sent = boundedText(whole[outcome], state.bounds.result_bytes);
  const next = {
    ...state,
    failures: outcome === "ran" ? 0 : state.failures + 1,
    result_bytes: state.result_bytes + utf8Bytes(sent),
    calls: [...state.calls, { tool, key, reads, outcome }],
  };
  return { state: next, text: sent };
}

/** A call that reads may be made again once another one has changed something; any other only once. */
function isRepeated({ calls }: LoopState, key: string, reads: boolean): boolean {
  const last = calls.findLastIndex((call) => call.key === key);
  if (last < 0) return false;
  return !(reads && calls.slice(last + 1).some((call) => !call.reads && call.outcome === "ran"));
}

function readArguments(text: string): { readonly values: unknown } | { readonly fault: string } {
  try {
    return { values: JSON.parse(text === "" ? "{}" : text) as unknown };
  } catch {
    return { fault: `the arguments are not JSON: ${shown(text)}` };
  }
}
