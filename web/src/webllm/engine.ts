// MLCEngine: WebLLM's engine on top of ours, with one or several models.

import { Engine } from "../engine.js";
import { RequestError } from "../errors.js";
import { formatBytes } from "../format_bytes.js";
import type { LoadOptions, LoadProgress } from "../load_options.js";
import { findAdapter } from "../runtime/device.js";
import type { ChatOptions, MLCEngineConfig, ModelRecord } from "./config.js";
import { checkChatOptions, findRecord, samplingDefaults } from "./config.js";
import type { RequestMethod } from "./engine_base.js";
import { MLCEngineBase } from "./engine_base.js";
import type { LogitProcessor, MLCEngineInterface } from "./interface.js";
import type { BaseEngine } from "./loaded_model.js";
import { LoadedModel } from "./loaded_model.js";

export type LoadEngine = (bundle: string, options: LoadOptions) => Promise<BaseEngine>;

export class MLCEngine extends MLCEngineBase implements MLCEngineInterface {
  readonly #models = new Map<string, LoadedModel>();
  #loading = new AbortController();
  #processors: ReadonlyMap<string, LogitProcessor>;

  /** ``load`` replaces Engine.load. Throws RequestError for a configuration that is not supported. */
  constructor(
    config: MLCEngineConfig = {},
    private readonly load: LoadEngine = Engine.load.bind(Engine),
  ) {
    super(config);
    this.#processors = config.logitProcessorRegistry ?? new Map();
  }

  protected override async answer(
    method: RequestMethod,
    request: { model?: string | null | undefined },
  ): Promise<unknown> {
    return this.#model(request.model)[method](request as never);
  }

  /** Resolves without a model if `unload` or another `reload` ends it, as in WebLLM. */
  async reload(modelId: string | string[], chatOpts: ChatOptions | ChatOptions[] = {}): Promise<void> {
    const models = this.#plan(typeof modelId === "string" ? [modelId] : modelId, chatOpts);
    const loading = new AbortController();
    const unloaded = this.unload();
    // Set before the first await, so that an `unload` from here on ends this load.
    this.#loading = loading;
    await unloaded;
    for (const { record, options } of models) {
      try {
        const model = await this.#loadModel(record, options, loading.signal);
        if (loading.signal.aborted) model.destroy();
        loading.signal.throwIfAborted();
        this.#models.set(model.id, model);
      } catch (error) {
        if (!loading.signal.aborted) throw error;
        this.onProgress?.({ progress: 0, timeElapsed: 0, text: `The load of ${record.model_id} was ended` });
        return;
      }
    }
  }

  unload(): Promise<void> {
    this.#loading.abort();
    for (const model of this.#models.values()) model.destroy();
    this.#models.clear();
    return Promise.resolve();
  }

  interruptGenerate(): void {
    for (const model of this.#models.values()) model.interrupt();
  }

  // These are async, so that a wrong model id rejects instead of throwing, as in a worker.
  /* oxlint-disable typescript/require-await */

  async getMessage(modelId?: string): Promise<string> {
    return this.#model(modelId).message;
  }

  async runtimeStatsText(modelId?: string): Promise<string> {
    return this.#model(modelId).statsText;
  }

  /** A model that is not loaded has nothing to reset. Throws RequestError if several are loaded and none is named. */
  async resetChat(keepStats = false, modelId?: string): Promise<void> {
    if (modelId === undefined ? this.#models.size > 0 : this.#models.has(modelId))
      this.#model(modelId).reset(keepStats);
  }

  async forwardTokensAndSample(inputIds: number[], isPrefill: boolean, modelId?: string): Promise<number> {
    return this.#model(modelId).forwardTokensAndSample(inputIds, isPrefill);
  }

  /* oxlint-enable typescript/require-await */

  async getMaxStorageBufferBindingSize(): Promise<number> {
    return (await findAdapter(undefined)).limits.maxStorageBufferBindingSize;
  }

  async getGPUVendor(): Promise<string> {
    return (await findAdapter(undefined)).info.vendor;
  }

  /** Applies to models that are loaded from now on. */
  setLogitProcessorRegistry(registry?: Map<string, LogitProcessor>): void {
    this.#processors = registry ?? new Map();
  }

  /** Checks the arguments of `reload` before anything is unloaded. Throws RequestError. */
  #plan(
    ids: readonly string[],
    chatOpts: ChatOptions | ChatOptions[],
  ): readonly { readonly record: ModelRecord; readonly options: ChatOptions }[] {
    if (ids.length === 0 || new Set(ids).size < ids.length)
      throw new RequestError(`modelId is ${JSON.stringify(ids)}; pass one or several different ids`, {
        param: "modelId",
      });
    const options = Array.isArray(chatOpts) ? chatOpts : ids.map(() => chatOpts);
    if (options.length !== ids.length)
      throw new RequestError(`chatOpts has ${options.length} entries for ${ids.length} models; pass one for each`, {
        param: "chatOpts",
      });
    return ids.map((id, index) => {
      checkChatOptions("chatOpts", options[index] ?? {});
      const record = findRecord(id, this.appConfig);
      return { record, options: { ...record.overrides, ...options[index] } };
    });
  }

  async #loadModel(
    { model: address, model_id: id }: ModelRecord,
    options: ChatOptions,
    signal: AbortSignal,
  ): Promise<LoadedModel> {
    const start = performance.now();
    const report = (progress: number, text: string): void => {
      this.onProgress?.({ progress, timeElapsed: (performance.now() - start) / 1000, text });
    };
    report(0, `Start to load ${id}`);
    const onProgress = (progress: LoadProgress): void => {
      if (progress.phase !== "ready") report(...described(progress));
    };
    const pages = await pagesFor(address, options.context_window_size ?? -1, signal);
    const engine = await this.load(address, { signal, onProgress, ...pages });
    report(1, `Finish loading ${id} on ${engine.info.adapter}`);
    return new LoadedModel(id, engine, samplingDefaults(options), this.#processors.get(id));
  }

  /** The loaded model that a call is for. Throws RequestError. */
  #model(modelId: string | null | undefined): LoadedModel {
    const loaded = [...this.#models.keys()].join(", ");
    if (loaded === "") throw new RequestError("No model is loaded; call reload(modelId) first");
    const [first, ...others] = this.#models.values();
    const model =
      modelId === null || modelId === undefined ? (others.length === 0 ? first : undefined) : this.#models.get(modelId);
    if (model !== undefined) return model;
    const problem =
      modelId === null || modelId === undefined
        ? "Several models are loaded; name one of them"
        : `Model '${modelId}' is not loaded; name one of those that are`;
    throw new RequestError(`${problem}: ${loaded}`, { param: "model" });
  }
}

/** An engine on this page with its models loaded. */
export async function CreateMLCEngine(
  modelId: string | string[],
  engineConfig?: MLCEngineConfig,
  chatOpts?: ChatOptions | ChatOptions[],
): Promise<MLCEngine> {
  const engine = new MLCEngine(engineConfig);
  await engine.reload(modelId, chatOpts);
  return engine;
}

function described({
  loadedBytes,
  totalBytes,
  compiledKernels,
  totalKernels,
  selfTestRuns,
}: LoadProgress): [progress: number, text: string] {
  const weights = `Loading weights: ${formatBytes(loadedBytes)} of ${formatBytes(totalBytes)}`;
  const kernels = `compiling kernels: ${compiledKernels} of ${totalKernels}`;
  const test = selfTestRuns === undefined ? "" : `; self-test: run ${selfTestRuns + 1}`;
  return [totalBytes === 0 ? 0 : loadedBytes / totalBytes, `${weights}; ${kernels}${test}`];
}

/**
 * The load option for a context of at most ``tokens``, in whole pages, rounded down. Returns no option for -1. Throws
 * RequestError if the bundle's context is shorter or a page is longer, and the errors of Engine.plan.
 */
async function pagesFor(address: string, tokens: number, signal: AbortSignal): Promise<{ readonly pages?: number }> {
  if (tokens === -1) return {};
  const { context: pageSize } = await Engine.plan(address, { signal, pages: 1 });
  const pages = Math.floor(tokens / pageSize);
  if (pages === 0) throw refused(tokens, `a page of keys and values has ${pageSize} tokens; use at least that many`);
  const { context } = await Engine.plan(address, { signal, pages });
  if (context < pages * pageSize)
    throw refused(
      tokens,
      `the bundle is compiled for ${context}; use at most that, or compile it with a longer context`,
    );
  return { pages };
}

function refused(tokens: number, problem: string): RequestError {
  return new RequestError(`context_window_size is ${tokens}, but ${problem}`, { param: "context_window_size" });
}
