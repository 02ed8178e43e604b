// Shared by sessions on the page and sessions in a worker: the messages so far, and one answer at a time.

import { RequestError } from "./errors.js";
import type { GenerationEvent, SessionGenerateOptions } from "./generation.js";
import type { Message } from "./text/chat_template.js";

export abstract class Conversation {
  #messages: readonly Message[];
  #answering = false;
  #closed = false;

  constructor(messages: readonly Message[] = []) {
    this.#messages = [...messages];
  }

  /** All messages so far. */
  get messages(): readonly Message[] {
    return this.#messages;
  }

  /** Whether an answer is being generated. Until it ends, the session accepts no other message and cannot be saved. */
  get isAnswering(): boolean {
    return this.#answering;
  }

  /**
   * Send ``content`` as the user's message and yield the answer. Only one answer can be generated at a time. If the
   * caller leaves the loop or aborts the signal, the session forgets the answer and its question.
   * Throws RequestError, DeviceError, or the signal's reason.
   */
  async *generate(
    content: string,
    options: SessionGenerateOptions = {},
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    this.requireIdle();
    const messages: readonly Message[] = [...this.#messages, { role: "user", content }];
    this.#answering = true;
    let answer = "";
    try {
      for await (const event of await this.answer(messages, content, options)) {
        answer += event.text;
        // A caller that leaves the loop at "done" has received the complete answer.
        if (event.type === "done") this.#messages = [...messages, { role: "assistant", content: answer }];
        yield event;
      }
    } finally {
      this.#answering = false;
    }
  }

  /** The answer to ``content``, which is the last of ``messages``. */
  protected abstract answer(
    messages: readonly Message[],
    content: string,
    options: SessionGenerateOptions,
  ): AsyncIterable<GenerationEvent> | Promise<AsyncIterable<GenerationEvent>>;

  protected replaceMessages(messages: readonly Message[]): void {
    this.#messages = [...messages];
  }

  protected markClosed(): void {
    this.#closed = true;
  }

  protected requireIdle(): void {
    if (this.#closed) throw new RequestError("The session is closed; create another");
    if (this.#answering)
      throw new RequestError("The session is generating an answer; wait for its end, abort it, or clone it before");
  }
}
