// The near side: an engine on this device, given as it is, or once it is there, or loaded from a bundle meanwhile. While it is not there, it answers nothing and says why.

import type { EngineApi } from "../../api/engine_api.js";
import type { ChatCompletionChunk, FunctionTool, PromptLogprobsOption } from "../../api/types.js";
import type { TokenSource } from "../../engine/request.js";
import { Unavailable, messageOf } from "../../errors.js";
import type { BundleAddress, LoadOptions, LoadProgress } from "../../load.js";
import type { PlainParams, Side, SideRequest } from "./sides.js";
import { goingOn } from "./sides.js";

/** A promise is an engine that somebody else loads. */
export type NearGiven = EngineApi | Promise<EngineApi> | BundleAddress | readonly BundleAddress[];

/** An engine whose tokens can be had, and which can put those of another source into words: `Engine` is one. */
export interface DraftingEngine extends EngineApi, TokenSource {
  over(tokens: TokenSource): EngineApi["chat"]["completions"];
  decode(ids: readonly number[]): string;
}

export type NearState = "none" | "loading" | "ready" | "failed";

/** What loads a bundle: Engine.load. */
export type LoadNear = (bundle: BundleAddress | readonly BundleAddress[], options: LoadOptions) => Promise<EngineApi>;

export class NearSide implements Side {
  /** Fulfilled once it is known whether there is an engine; never rejected. */
  readonly settled: Promise<void>;
  readonly #closed = new AbortController();
  #state: NearState;
  #engine: EngineApi | null = null;
  #owned = false;
  #progress: LoadProgress | null = null;
  #error: unknown = null;

  constructor(given: NearGiven | null, load: LoadNear, options: LoadOptions = {}) {
    if (given === null || isEngine(given)) {
      this.#engine = given;
      this.#state = given === null ? "none" : "ready";
      this.settled = Promise.resolve();
    } else {
      this.#state = "loading";
      this.settled =
        given instanceof Promise ? this.take(given, false) : this.take(this.load(given, load, options), true);
    }
  }

  get state(): NearState {
    return this.#state;
  }

  /** Of a bundle that is loaded; null for an engine that was given, and before the first news. */
  get progress(): LoadProgress | null {
    return this.#progress;
  }

  /** Why the bundle could not be loaded. */
  get error(): unknown {
    return this.#error;
  }

  get info(): EngineApi["info"] | null {
    return this.#engine?.info ?? null;
  }

  /** The engine where it can guess for far: not one that is not there yet, nor one in a worker. */
  get drafting(): DraftingEngine | null {
    return this.#engine !== null && "over" in this.#engine ? (this.#engine as DraftingEngine) : null;
  }

  /** The tokens of a chat's prompt; null where there is no engine, or the engine cannot read the chat, which it says when it is asked. */
  async countTokens({
    messages,
    tools,
    tool_choice: choice,
    continue_final_message: continues,
  }: PlainParams): Promise<number | null> {
    const named =
      choice === "none"
        ? []
        : (tools ?? []).filter((tool): tool is FunctionTool => tool.type === "function" && tool.function !== undefined);
    const options = { continueFinalMessage: continues, ...(named.length === 0 ? {} : { tools: named }) };
    return (await this.#engine?.countTokens(messages, options).catch(() => null)) ?? null;
  }

  /** See `Side.ask`. An engine that cannot tell a prompt's log-probabilities answers all the same. */
  async *ask(
    request: SideRequest,
    promptLogprobs?: PromptLogprobsOption,
  ): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const { signal, logprobs } = request;
    if (this.#engine === null) throw new Unavailable("There is no model on this device", { retryable: false });
    const wanted = logprobs === null ? {} : { logprobs: true, ...(logprobs > 0 ? { top_logprobs: logprobs } : {}) };
    const params = { ...goingOn(request), ...wanted, stream: true as const, stream_options: { include_usage: true } };
    yield* await this.#engine.chat.completions.create(params, {
      signal,
      ...(promptLogprobs === undefined ? {} : { promptLogprobs }),
    });
  }

  /** Ends a load; frees the engine where it was loaded here. */
  close(): void {
    this.#closed.abort(new Unavailable("The router was closed", { retryable: false }));
    if (this.#owned) this.#engine?.destroy();
    this.#engine = null;
    this.#state = "none";
  }

  private async load(
    bundle: BundleAddress | readonly BundleAddress[],
    load: LoadNear,
    options: LoadOptions,
  ): Promise<EngineApi> {
    const { signal, onProgress } = options;
    const told = (progress: LoadProgress): void => {
      this.#progress = progress;
      onProgress?.(progress);
    };
    const until = signal === undefined ? this.#closed.signal : AbortSignal.any([signal, this.#closed.signal]);
    return load(bundle, { ...options, signal: until, onProgress: told });
  }

  /** ``owned`` where nobody else has the engine, to free it. */
  private async take(coming: Promise<EngineApi>, owned: boolean): Promise<void> {
    try {
      const engine = await coming;
      if (this.#closed.signal.aborted) {
        if (owned) engine.destroy();
        return;
      }
      this.#engine = engine;
      this.#owned = owned;
      this.#state = "ready";
    } catch (error) {
      this.#error = error;
      if (!this.#closed.signal.aborted) this.#state = "failed";
    }
  }
}

/** Why there is no engine, in words. */
export function whyNoEngine({ state, error }: Pick<NearSide, "state" | "error">): string {
  return state === "failed"
    ? `the bundle was not loaded: ${messageOf(error)}`
    : state === "loading"
      ? "the bundle is still loading"
      : "no model is on this device";
}

function isEngine(given: NearGiven): given is EngineApi {
  return typeof given === "object" && "chat" in given;
}
