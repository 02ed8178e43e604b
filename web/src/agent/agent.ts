// An agent: asks a model for one step after another, runs the tools that it calls, and ends with its answer or at a
// bound. What a step may do is decided in shared/agent/loop.ts.

import type { ChatSource } from "../api/chat_source.js";
import { readParams } from "../api/params.js";
import { anySignal } from "../api/stream.js";
import type { ChatCompletionMessageParam, ChatCompletionTool, Route } from "../api/types.js";
import { RequestError, messageOf } from "../errors.js";
import type { Hybrid } from "../router/hybrid.js";
import type { Clock } from "../router/sides/clock.js";
import { SYSTEM_CLOCK } from "../router/sides/clock.js";
import { unlessAborted } from "../runtime/abort.js";
import type { Bounds, CallOutcome, EndReason, LoopState } from "../shared/agent/loop.js";
import { afterCall, afterStep, isOutOfTokens, judgeCall, nextStep, offered, openLoop } from "../shared/agent/loop.js";
import type { ReasonedStake, RoutingShares } from "../shared/agent/stake.js";
import type { ListedTool } from "../shared/agent/tools.js";
import { listTools, requireApproval } from "../shared/agent/tools.js";
import type { SourceTool, ToolSource } from "./tools.js";
import { Written, untilAborted } from "./written.js";

/** A call that waits for approval. */
export interface AskedCall {
  /** The tool's name at its source. */
  readonly name: string;
  /** The name of the MCP server, "page", the origin of a frame, or null for a function of the application. */
  readonly server: string | null;
  readonly description: string;
  /** The arguments as the model wrote them. */
  readonly arguments: string;
  /** The same as values, which fit the tool's schema. */
  readonly values: unknown;
  /**
   * Word for word what would leave this device, with placeholders for what a Hybrid's policy masks; null if nothing
   * leaves, or without a Hybrid.
   */
  readonly leaves: string | null;
  /** The policy calls the arguments private, and masks none of them: approved, they leave as they are. */
  readonly private: boolean;
}

export interface AgentOptions {
  /** An engine, one in a worker, or a Hybrid, which then routes each step. */
  readonly engine: ChatSource;
  readonly tools: readonly ToolSource[];
  /** Whether a call of a tool whose `allow` is "ask" runs. The signal aborts when the run ends. */
  readonly approve?: ((call: AskedCall, signal: AbortSignal) => boolean | PromiseLike<boolean>) | undefined;
  readonly bounds?: Partial<Bounds> | undefined;
  /** For a Hybrid: what a step's difficulty and lateness are worth. */
  readonly routing?: Partial<RoutingShares> | undefined;
  /** A JSON schema of an object, for an answer that is data. By default the answer is a text. */
  readonly answer?: Readonly<Record<string, unknown>> | undefined;
  /** Further parameters of each chat, such as `temperature`; for a Hybrid also `labels` and `language`. */
  readonly params?: Readonly<Record<string, unknown>> | undefined;
  readonly clock?: Clock | undefined;
}

/** What became of a call. */
export interface AgentCall {
  readonly name: string;
  readonly server: string | null;
  readonly arguments: string;
  readonly outcome: CallOutcome;
  /** Word for word what has left this device; as in `AskedCall`. */
  readonly left: string | null;
  /** What the model received. */
  readonly text: string;
  /** What the tool threw. */
  readonly error: unknown;
}

/** A step: what made it hard, which side of a Hybrid took it and why, and its calls. */
export interface AgentStep {
  readonly stake: ReasonedStake;
  readonly route: Route | null;
  readonly tokens: number | null;
  readonly calls: readonly AgentCall[];
}

export interface AgentResult {
  readonly reason: EndReason;
  /** The answer as a text; null without an answer. */
  readonly text: string | null;
  /** The answer as data, of the schema of `answer`. */
  readonly answer: unknown;
  readonly steps: readonly AgentStep[];
  /** The conversation, from which a run can go on. */
  readonly messages: readonly AgentMessage[];
  /** That the model has generated. */
  readonly tokens: number;
  readonly seconds: number;
}

/** ``labels`` are those of a Hybrid's policy. */
export type AgentMessage = ChatCompletionMessageParam & { readonly labels?: readonly string[] | undefined };

/** What happens, while it happens. */
export type AgentEvent =
  /** The model is asked. */
  | { readonly type: "step"; readonly step: number; readonly stake: ReasonedStake }
  /**
   * A piece of what the model writes: of its answer, which the user may see, or of the arguments of ``tool``, by the
   * name that the model knows.
   */
  | { readonly type: "text"; readonly step: number; readonly tool: string | null; readonly text: string }
  | { readonly type: "reasoning"; readonly step: number; readonly text: string }
  /** A Hybrid's other side begins the step again: its pieces until now do not count. */
  | { readonly type: "withdrawn"; readonly step: number }
  /** The model has answered; ``route`` is null without a Hybrid. */
  | { readonly type: "routed"; readonly step: number; readonly route: Route | null }
  /** A call begins, or waits for approval. */
  | { readonly type: "call"; readonly step: number; readonly call: Pick<AskedCall, "name" | "server" | "arguments"> }
  | { readonly type: "result"; readonly step: number; readonly call: AgentCall }
  | { readonly type: "end"; readonly result: AgentResult };

type AnyOptions = Parameters<ChatSource["chat"]["completions"]["create"]>[1];
interface Ended {
  readonly reason: EndReason;
  readonly text?: string | null;
  readonly answer?: unknown;
}
const NAMES: Readonly<Record<keyof AgentOptions, "any" | "object">> = {
  engine: "any",
  tools: "any",
  approve: "any",
  bounds: "object",
  routing: "object",
  answer: "object",
  params: "object",
  clock: "any",
};
/** ``asks``: somebody has to approve it, whatever the tool allows. */
interface Leaving {
  readonly leaves: string | null;
  readonly asks: boolean;
  readonly restored: (text: string) => string;
}
type Executed = Pick<AgentCall, "outcome" | "text" | "error" | "left">;
const STAYS: Leaving = { leaves: null, asks: true, restored: (text) => text };
const REFUSED: Executed = { outcome: "refused", text: "", error: null, left: null };
const OWN_PARAMS = ["messages", "tools", "tool_choice", "stream", "n", "parallel_tool_calls", "stake", "max_tokens"];

export class Agent {
  readonly #options: AgentOptions;
  readonly #first: LoopState;

  /** Throws RequestError for options that can never work. */
  constructor(options: AgentOptions) {
    readParams(options, NAMES);
    const own = OWN_PARAMS.find((name) => Object.hasOwn(options.params ?? {}, name));
    if (own !== undefined)
      throw new RequestError(`params.${own} is set by the agent; remove it`, { param: `params.${own}` });
    if (!Array.isArray(options.tools))
      throw new RequestError("tools must be a list of what functionTool, pageTools and mcpTools return", {
        param: "tools",
      });
    this.#options = options;
    this.#first = openLoop(options);
  }

  /**
   * Runs a task: a text, or the messages of a chat. Throws RequestError for tools that cannot be called, the errors of the
   * engine and of `approve`, or the signal's reason, at once, also within a tool. A tool's error does not end the run:
   * the model receives it as text.
   */
  async run(
    task: string | readonly AgentMessage[],
    options: { readonly signal?: AbortSignal | undefined } = {},
  ): Promise<AgentResult> {
    for await (const event of this.events(task, options)) if (event.type === "end") return event.result;
    throw new Error("a run ends with a result");
  }

  /** As `run`, with all that happens. Ending the loop over them ends the run. */
  async *events(
    task: string | readonly AgentMessage[],
    { signal }: { readonly signal?: AbortSignal | undefined } = {},
  ): AsyncGenerator<AgentEvent, void, undefined> {
    const { clock = SYSTEM_CLOCK } = this.#options;
    const left = new AbortController();
    const late = new AbortController();
    const until = anySignal(signal, left.signal, late.signal);
    const run = new Run(this.#options, this.#first, task, until, clock);
    const cancel = clock.after(this.#first.bounds.seconds * 1000, () => {
      late.abort(new RequestError("the run's seconds are over"));
    });
    try {
      signal?.throwIfAborted();
      let ended: Ended;
      try {
        ended = yield* run.steps();
      } catch (error) {
        signal?.throwIfAborted();
        if (!late.signal.aborted) throw error;
        ended = { reason: "seconds" };
      }
      yield { type: "end", result: run.result(ended) };
    } finally {
      cancel();
      left.abort();
    }
  }
}

/** One run of an agent. */
class Run {
  readonly #start: number;
  readonly #messages: AgentMessage[];
  readonly #steps: AgentStep[] = [];
  readonly #known = new Map<ToolSource, readonly SourceTool[]>();
  #state: LoopState;
  #calls: AgentCall[] = [];
  /** Of the results that the model has read. */
  readonly #labels: string[] = [];

  constructor(
    private readonly options: AgentOptions,
    first: LoopState,
    task: string | readonly AgentMessage[],
    private readonly signal: AbortSignal,
    private readonly clock: Clock,
  ) {
    this.#state = first;
    this.#start = clock.now();
    this.#messages = typeof task === "string" ? [{ role: "user", content: task }] : [...task];
  }

  async *steps(): AsyncGenerator<AgentEvent, Ended, undefined> {
    for (;;) {
      const tools = await this.#tools();
      const plan = nextStep(this.#state, this.#seconds(), tools.length);
      if (plan.end !== null) return { reason: plan.end };
      const { step } = this.#state;
      yield { type: "step", step, stake: plan.stake };
      const written = yield* this.#ask(step, tools, plan);
      if (written === null) return { reason: "tokens" };
      const { route, calls, tokens, finish_reason } = written;
      yield { type: "routed", step, route };
      const { state, end } = afterStep(this.#state, {
        calls: calls.length,
        finish_reason,
        tokens,
        max_tokens: plan.max_tokens,
      });
      this.#state = state;
      this.#calls = [];
      this.#steps.push({ stake: plan.stake, route, tokens, calls: this.#calls });
      const text = written.text === "" && calls.length > 0 ? null : written.text;
      this.#messages.push({ role: "assistant", content: text, ...(calls.length > 0 && { tool_calls: calls }) });
      if (end !== null) return { reason: end, text, answer: text };
      for (const call of calls) {
        const ended = yield* this.#call(step, tools, call.id, call.function);
        if (ended !== null) return ended;
      }
    }
  }

  result({ reason, text = null, answer = null }: Ended): AgentResult {
    return {
      reason,
      text,
      answer,
      steps: this.#steps,
      messages: this.#messages,
      tokens: this.#state.tokens,
      seconds: this.#seconds(),
    };
  }

  async *#call(
    step: number,
    tools: readonly (ListedTool & SourceTool)[],
    id: string,
    written: { readonly name: string; readonly arguments: string },
  ): AsyncGenerator<AgentEvent, Ended | null, undefined> {
    this.signal.throwIfAborted();
    const verdict = judgeCall(this.#state, tools, written);
    if (verdict.verdict === "end") return { reason: verdict.reason };
    if (verdict.verdict === "answer") {
      // So that the conversation can go on: servers require a result of each call.
      this.#messages.push({ role: "tool", tool_call_id: id, content: "(the user has received it)" });
      return { reason: verdict.reason, text: verdict.text, answer: verdict.values };
    }
    const tool = verdict.verdict === "run" ? tools[verdict.index] : undefined;
    const { name = written.name, server = null } = tool ?? {};
    const call = { name, server, arguments: written.arguments };
    yield { type: "call", step, call };
    const { outcome, text, error, left } =
      verdict.verdict === "run" && tool !== undefined
        ? await this.#execute(tool, written.arguments, verdict.values)
        : { ...REFUSED, text: verdict.verdict === "refuse" ? verdict.text : "" };
    const recorded = { tool: written.name, key: verdict.key, reads: tool?.reads === true };
    const { state, text: sent } = afterCall(this.#state, recorded, outcome, text);
    this.#state = state;
    const labels = tool?.labels ?? [];
    this.#labels.push(...labels);
    this.#messages.push({
      role: "tool",
      tool_call_id: id,
      content: sent,
      ...(labels.length > 0 && isHybrid(this.options.engine) && { labels }),
    });
    const done = { ...call, outcome, left, text: sent, error };
    this.#calls.push(done);
    yield { type: "result", step, call: done };
    return null;
  }

  async #execute(tool: ListedTool & SourceTool, written: string, values: unknown): Promise<Executed> {
    const { name, server, description } = tool;
    const { approve } = this.options;
    const leaving = await this.#leaving(tool, written);
    const isPrivate = leaving === null;
    // What must stay leaves as it is, if somebody approves it.
    const { leaves, restored, asks } = leaving ?? { ...STAYS, leaves: written };
    if (tool.allow === "ask" || asks) {
      const about = { name, server, description, arguments: written, values, leaves, private: isPrivate };
      const asked: unknown = approve === undefined ? false : approve(about, this.signal);
      const isApproved: unknown = await unlessAborted(Promise.resolve(asked), this.signal);
      if (typeof isApproved !== "boolean")
        throw new RequestError("approve must return true or false, or a promise of it", { param: "approve" });
      if (!isApproved) return { ...REFUSED, outcome: "denied" };
    }
    try {
      const sent = leaves === null || leaves === written ? values : (JSON.parse(leaves) as unknown);
      // A tool that throws at once, or that does not end with the signal.
      const running = (async () => tool.call(sent as never, this.signal))();
      const { text, failed } = await unlessAborted(running, this.signal);
      return { outcome: failed ? "failed" : "ran", text: restored(text), error: null, left: leaves };
    } catch (error) {
      this.signal.throwIfAborted();
      return { outcome: "failed", text: restored(messageOf(error)), error, left: leaves };
    }
  }

  /** What leaves this device with a call; null if a Hybrid's policy keeps its arguments here. */
  async #leaving(tool: SourceTool, written: string): Promise<Leaving | null> {
    const { engine } = this.options;
    if (!tool.remote || !isHybrid(engine)) return { ...STAYS, asks: false };
    // What a model writes after it has read a private result may be private as well.
    const call = { id: "call", type: "function", function: { name: tool.name, arguments: written } } as const;
    const messages = [{ role: "assistant" as const, content: null, tool_calls: [call] }];
    const chat = engine.leaving({ messages, labels: this.#labels }, this.signal);
    const found = await unlessAborted(chat, this.signal);
    if (found === null) return null;
    const [message] = found.params.messages;
    const leaves = message?.tool_calls?.[0]?.function?.arguments ?? written;
    return { leaves, asks: found.asks === true, restored: (text) => found.restored?.(text) ?? text };
  }

  /** Null if the tokens that are left are too few. */
  async *#ask(
    step: number,
    tools: readonly (ListedTool & SourceTool)[],
    { max_tokens, tool_choice, stake }: Extract<ReturnType<typeof nextStep>, { readonly end: null }>,
  ): AsyncGenerator<AgentEvent, Written | null, undefined> {
    const { engine, params } = this.options;
    const { weight, doubt } = stake;
    const request = {
      ...params,
      messages: this.#messages,
      tools: offered(this.#state, tools) as readonly ChatCompletionTool[],
      tool_choice,
      parallel_tool_calls: false,
      max_tokens,
      stream: true as const,
      stream_options: { include_usage: true },
      ...(isHybrid(engine) && { stake: { weight, doubt } }),
    };
    const options: AnyOptions = { signal: this.signal };
    try {
      const asked = Promise.resolve(engine.chat.completions.create(request, options));
      const written = new Written();
      for await (const chunk of untilAborted(await unlessAborted(asked, this.signal), this.signal))
        for (const piece of written.add(chunk)) yield { ...piece, step };
      return written;
    } catch (error) {
      if (error instanceof RequestError && isOutOfTokens(this.#state, max_tokens, error.details)) return null;
      throw error;
    }
  }

  /** All tools by the names that the model knows. Sources that do not change are asked once. */
  async #tools(): Promise<readonly (ListedTool & SourceTool)[]> {
    const lists = await Promise.all(
      this.options.tools.map(async (source) => {
        const known = source.changes ? undefined : this.#known.get(source);
        const tools = known ?? (await unlessAborted(source.list(this.signal), this.signal));
        this.#known.set(source, tools);
        return tools;
      }),
    );
    const listed = listTools(lists.flat()) as readonly (ListedTool & SourceTool)[];
    requireApproval(listed, this.options.approve !== undefined);
    const labelled = listed.find(({ labels }) => labels.length > 0);
    if (labelled !== undefined && !isHybrid(this.options.engine) && !isOnDevice(this.options.engine))
      throw new RequestError(
        `results of ${labelled.listed} have labels, which only a Hybrid's policy reads; give the agent a Hybrid, or an ` +
          "engine of this device",
        { param: "tools" },
      );
    return listed;
  }

  #seconds(): number {
    return (this.clock.now() - this.#start) / 1000;
  }
}

/** Of two sides: it accepts labels and stakes, and decides what may leave. */
function isHybrid(engine: object): engine is Pick<Hybrid, "leaving"> {
  return "near" in engine && "far" in engine;
}

/** An engine, also one in a worker. */
function isOnDevice(engine: object): boolean {
  return "info" in engine;
}
