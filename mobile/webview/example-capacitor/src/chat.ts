// The conversation: sends typed messages to the engine and shows the streamed answers.

import type { ChatCompletionChunk, ChatCompletionMessageParam } from "@nearfar/web";
import type { EngineHost } from "@nearfar/webview";

import { element, make } from "./elements.js";

// Prompts for the demo model; replace them with prompts for your model.
const EXAMPLES = ["what is 27 + 58?", "sort pear apple fig", "tell me a story about a fox"];

export class Chat {
  readonly #messages: ChatCompletionMessageParam[] = [];
  readonly #prompt = element("prompt", HTMLTextAreaElement);
  readonly #send = element("send", HTMLButtonElement);
  #running: AbortController | null = null;

  constructor(private readonly host: EngineHost) {
    const { model, totalBytes } = host.engine.info;
    element("model", HTMLElement).textContent = model;
    element("place", HTMLElement).textContent = `On this phone · ${(totalBytes / 1e6).toFixed(1)} MB`;
    element("examples", HTMLElement).replaceChildren(...EXAMPLES.map((text) => this.example(text)));
    element("form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running !== null) this.#running.abort();
      else void this.ask(this.#prompt.value.trim());
    });
    this.#prompt.addEventListener("input", () => {
      this.update();
    });
    document.body.dataset.state = "ready";
    this.update();
  }

  private example(text: string): HTMLElement {
    const button = make("button", "example", text);
    button.type = "button";
    button.addEventListener("click", () => void this.ask(text));
    return button;
  }

  private async ask(content: string): Promise<void> {
    if (content === "") return;
    this.#prompt.value = "";
    this.#messages.push({ role: "user", content });
    const answer = make("article", "answer");
    answer.dataset.state = "streaming";
    const text = make("p", "text");
    const foot = make("p", "foot");
    answer.append(text, foot);
    element("conversation", HTMLElement).append(make("p", "question", content), answer);
    this.#running = new AbortController();
    this.update();
    try {
      foot.textContent = await this.stream(text, this.#running.signal);
    } catch (error) {
      if (this.#running.signal.aborted) foot.textContent = "Stopped";
      else foot.append(make("span", "problem", error instanceof Error ? error.message : String(error)));
    }
    if (text.textContent === "") this.#messages.pop();
    else this.#messages.push({ role: "assistant", content: text.textContent });
    answer.dataset.state = "done";
    this.#running = null;
    this.update();
  }

  /** Streams an answer into the element. Returns the note below the answer. */
  private async stream(text: HTMLElement, signal: AbortSignal): Promise<string> {
    const chunks = await this.host.engine.chat.completions.create(
      { messages: this.#messages, temperature: 0, stream: true },
      { signal },
    );
    let last: ChatCompletionChunk | null = null;
    for await (const chunk of chunks) {
      last = chunk;
      text.append(chunk.choices[0]?.delta.content ?? "");
      text.scrollIntoView({ block: "end", behavior: "instant" });
    }
    const speed = last?.timings?.tokens_per_second;
    return speed == null ? "" : `${speed.toFixed(0)} tokens a second`;
  }

  private update(): void {
    const isRunning = this.#running !== null;
    document.body.toggleAttribute("data-busy", isRunning);
    document.body.toggleAttribute("data-empty", this.#messages.length === 0);
    this.#send.disabled = !isRunning && this.#prompt.value.trim() === "";
    this.#send.ariaLabel = isRunning ? "Stop" : "Send";
  }
}
