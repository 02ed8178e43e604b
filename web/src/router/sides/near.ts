// The near side: an engine on this device, passed in, promised, or loaded from a bundle. Until it is ready, it reports
// why it cannot answer.

import type { EngineApi } from "../../api/engine_api.js";
import type { ChatCompletionChunk, FunctionTool, PromptLogprobsOption } from "../../api/types.js";
import type { Engine } from "../../engine.js";
import type { TokenSource } from "../../engine/request.js";
import { Unavailable, messageOf } from "../../errors.js";
import type { BundleAddress, LoadOptions, LoadProgress } from "../../load_options.js";
import type { PlainParams, Side, SideRequest } from "./sides.js";
import { sideParams } from "./sides.js";

/** A promise is an engine that the caller loads. */
export type NearOption = EngineApi | Promise<EngineApi> | BundleAddress | readonly BundleAddress[];

/** An engine that generates tokens, and can also make text from the tokens of another source: `Engine` is one. */
export interface DraftingEngine extends EngineApi, TokenSource, Partial<Pick<Engine, "cacheHost">> {
  over(tokens: TokenSource): EngineApi["chat"]["completions"];
  decode(ids: readonly number[]): string;
}

export type NearState = "none" | "loading" | "ready" | "failed";

/** Loads a bundle: Engine.load. */
export type LoadNear = (bundle: BundleAddress | readonly BundleAddress[], options: LoadOptions) => Promise<EngineApi>;

export class NearSide implements Side {
  /** Resolves once it is known whether there is an engine; never rejects. */
  readonly settled: Promise<void>;
  readonly #closed = new AbortController();
  #state: NearState;
  #engine: EngineApi | null = null;
  #owned = false;
  #progress: LoadProgress | null = null;
  #error: unknown = null;

  constructor(option: NearOption | null, load: LoadNear, options: LoadOptions = {}) {
    if (option === null || isEngine(option)) {
      this.#engine = option;
      this.#state = option === null ? "none" : "ready";
      this.settled = Promise.resolve();
    } else {
      this.#state = "loading";
      this.settled =
        option instanceof Promise ? this.#adopt(option, false) : this.#adopt(this.#load(option, load, options), true);
    }
  }

  get state(): NearState {
    return this.#state;
  }

  /** The progress of a bundle's load; null for an engine that was passed in, and before the first report. */
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

  /** Throws Unavailable if there is no engine. */
  get ready(): EngineApi {
    if (this.#engine === null)
      throw new Unavailable(`near: ${whyNoEngine(this)}`, { retryable: this.#state === "loading" });
    return this.#engine;
  }

  /** The engine if it can guess for far: it must be ready, and not in a worker. */
  get drafting(): DraftingEngine | null {
    return this.#engine !== null && "over" in this.#engine ? (this.#engine as DraftingEngine) : null;
  }

  /**
   * The number of tokens of a chat's prompt; null if there is no engine, or if it cannot read the chat. The request for
   * an answer reports that error.
   */
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

  /**
   * See `Side.answer`. An engine that cannot report a prompt's log-probabilities answers anyway. ``completions``: those of
   * the engine `over` another source of tokens.
   */
  async *answer(
    request: SideRequest,
    promptLogprobs?: PromptLogprobsOption,
    completions = this.ready.chat.completions,
  ): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const { signal, begun, onGenerated, onReceipt, private: isPrivate } = request;
    const params = { ...sideParams(request), stream: true as const, stream_options: { include_usage: true } };
    request.onSent?.(params);
    yield* await completions.create(params, {
      signal,
      ...(onReceipt && { onReceipt }),
      ...(isPrivate && { private: true }),
      ...(promptLogprobs === undefined ? {} : { promptLogprobs }),
      ...(begun && { begun: [begun] }),
      ...(onGenerated && {
        onGenerated: (_: number, generated) => {
          onGenerated(generated);
        },
      }),
    });
  }

  /** Ends a load; frees the engine if it was loaded here. */
  close(): void {
    this.#closed.abort(new Unavailable("The router was closed", { retryable: false }));
    if (this.#owned) this.#engine?.destroy();
    this.#engine = null;
    this.#state = "none";
  }

  async #load(
    bundle: BundleAddress | readonly BundleAddress[],
    load: LoadNear,
    options: LoadOptions,
  ): Promise<EngineApi> {
    const { signal, onProgress } = options;
    const report = (progress: LoadProgress): void => {
      this.#progress = progress;
      onProgress?.(progress);
    };
    const until = signal === undefined ? this.#closed.signal : AbortSignal.any([signal, this.#closed.signal]);
    return load(bundle, { ...options, signal: until, onProgress: report });
  }

  /** ``owned``: nobody else can free the engine. */
  async #adopt(coming: Promise<EngineApi>, owned: boolean): Promise<void> {
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

/** The reason why there is no engine. */
export function whyNoEngine({ state, error }: Pick<NearSide, "state" | "error">): string {
  return state === "failed"
    ? `its model was not loaded: ${messageOf(error)}`
    : state === "loading"
      ? "its model is still loading"
      : "it has no model";
}

function isEngine(option: NearOption): option is EngineApi {
  return typeof option === "object" && "chat" in option;
}
