// The chat template: a checkpoint's Jinja template, rendered as transformers renders it. Messages flow in, the prompt's text flows out.

import { Template } from "@huggingface/jinja";

import { BundleError, RequestError, messageOf } from "../errors.js";

export interface Message {
  readonly role: string;
  readonly content: string;
}

export class ChatTemplate {
  readonly #template: Template;

  /** Throws BundleError where the source is not valid Jinja. The package sets trim_blocks and lstrip_blocks, as transformers does. */
  constructor(
    source: string,
    private readonly specialTokens: Readonly<Record<string, string>>,
  ) {
    try {
      this.#template = new Template(source);
    } catch (error) {
      throw new BundleError(`chat template: ${messageOf(error)}; correct the checkpoint's chat template`, {}, { cause: error });
    }
  }

  /** The prompt's text up to where the answer starts. Throws RequestError for messages that the template refuses. */
  render(messages: readonly Message[]): string {
    messages.forEach((message, index) => {
      const parts: Partial<Record<keyof Message, unknown>> = message;
      if (typeof parts.role !== "string" || typeof parts.content !== "string") {
        throw new RequestError(`messages[${index}] must be an object with the strings 'role' and 'content'`, { index });
      }
    });
    try {
      return this.#template.render({ messages, tools: null, documents: null, add_generation_prompt: true, ...this.specialTokens });
    } catch (error) {
      throw new RequestError(`the chat template refuses these messages: ${messageOf(error)}`, {}, { cause: error });
    }
  }
}
