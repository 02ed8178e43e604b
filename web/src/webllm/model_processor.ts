// A model's logit processor in the form that the engine calls. Requests take turns, because they share its state. The
// returned logits are checked.

import type { LogitProcessor as EngineProcessor } from "../engine/request.js";
import { RequestError } from "../errors.js";
import type { ChatCompletionMessageParam } from "./chat_types.js";
import type { LogitProcessor } from "./interface.js";

/** The logit of an excluded token. The engine needs finite logits, and no model computes any this low. */
const EXCLUDED = -3.0e38;

export class ModelProcessor {
  #last: Promise<void> = Promise.resolve();
  /** The conversation that the processor's state belongs to, as JSON. */
  #conversation: string | null = null;

  constructor(private readonly processor: LogitProcessor) {}

  readonly forEngine: EngineProcessor = (logitsOrToken) => {
    if (typeof logitsOrToken === "number") this.processor.processSampledToken(logitsOrToken);
    else this.#process(logitsOrToken);
  };

  /** Resolves when all earlier requests have ended, with the function that ends this one. */
  async turn(): Promise<() => void> {
    const before = this.#last;
    let end: () => void = () => undefined;
    this.#last = new Promise((resolve) => (end = resolve));
    await before;
    return end;
  }

  /** Starts a request. Resets the state unless the messages are the last conversation and one more message. */
  start(messages: readonly ChatCompletionMessageParam[] = []): void {
    if (messages.length < 2 || JSON.stringify(messages.slice(0, -1)) !== this.#conversation)
      this.processor.resetState();
    this.#conversation = null;
  }

  /** Call it after a complete answer to a chat. */
  finish(messages: readonly ChatCompletionMessageParam[], answer: string): void {
    this.#conversation = JSON.stringify([...messages, { role: "assistant", content: answer }]);
  }

  reset(): void {
    this.#conversation = null;
    this.processor.resetState();
  }

  #process(logits: Float32Array): void {
    const processed = this.processor.processLogits(logits.slice()) as unknown;
    if (!(processed instanceof Float32Array) || processed.length !== logits.length) {
      throw new RequestError(`processLogits must return a Float32Array of ${logits.length} logits`, {
        param: "logitProcessorRegistry",
      });
    }
    processed.forEach((logit, id) => {
      if (!(logit < Infinity)) {
        throw new RequestError(
          `processLogits returned ${logit} for token ${id}; return numbers, or -Infinity to exclude a token`,
          { param: "logitProcessorRegistry" },
        );
      }
      logits[id] = Math.max(logit, EXCLUDED);
    });
  }
}
