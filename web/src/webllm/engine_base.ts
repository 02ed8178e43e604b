// Shared by MLCEngine and the engines in workers: the calls under OpenAI's names, and the settings.

import type { AppConfig, MLCEngineConfig } from "./config.js";
import { checkAppConfig, checkConfig, checkLogLevel } from "./config.js";
import type {
  Chat,
  Completions,
  CreateChatCompletion,
  CreateCompletion,
  CreateEmbedding,
  Embeddings,
  InitProgressCallback,
  LogLevel,
} from "./interface.js";

/** The methods that send a request to a model. */
export type RequestMethod = "chatCompletion" | "completion" | "embedding";

export abstract class MLCEngineBase {
  readonly chatCompletion = ((request) => this.answer("chatCompletion", request)) as CreateChatCompletion;
  readonly completion = ((request) => this.answer("completion", request)) as CreateCompletion;
  readonly embedding = ((request) => this.answer("embedding", request)) as CreateEmbedding;
  readonly chat: Chat = { completions: { create: this.chatCompletion } };
  readonly completions: Completions = { create: this.completion };
  readonly embeddings: Embeddings = { create: this.embedding };
  protected appConfig: AppConfig | undefined;
  protected onProgress: InitProgressCallback | undefined;

  /**
   * ``others`` are keys of the configuration that a subclass reads. Throws RequestError for a configuration that is not
   * supported.
   */
  constructor(config: MLCEngineConfig, others: readonly string[] = []) {
    checkConfig(config, others);
    this.appConfig = config.appConfig;
    this.onProgress = config.initProgressCallback;
  }

  protected abstract answer(method: RequestMethod, request: { model?: string | null | undefined }): Promise<unknown>;

  setInitProgressCallback(callback?: InitProgressCallback): void {
    this.onProgress = callback;
  }

  getInitProgressCallback(): InitProgressCallback | undefined {
    return this.onProgress;
  }

  /** Applies to models that are loaded from now on. Throws RequestError. */
  setAppConfig(appConfig: AppConfig): void {
    checkAppConfig(appConfig);
    this.appConfig = appConfig;
  }

  setLogLevel(logLevel: LogLevel): void {
    checkLogLevel(logLevel);
  }
}
