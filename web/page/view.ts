// The chat page's elements. What happened flows in, the document shows it; clicks and keys flow out through `Handlers`.

import type { Question } from "./answer_view.js";
import { AnswerView } from "./answer_view.js";
import type { BundleFacts } from "./bundle_facts.js";
import { element, make } from "./elements.js";
import { formatDispatches } from "./format.js";
import type { EngineInfo } from "./model.js";
import { modelCard, modelLine } from "./model_card.js";

export interface Handlers {
  readonly send: (prompt: string) => void;
  readonly stop: () => void;
  readonly newChat: () => void;
  /** Answer the last question again. */
  readonly regenerate: () => void;
}

const DEMO = "nearfar-demo";
const DEMO_EXAMPLES = [
  "dim the kitchen lights to 30 percent",
  "what is 27 + 58?",
  "sort pear apple fig",
  "find the email in: write to ana@example.com today",
  "tell me a story about a fox",
];
// Half of them is what the larger model is for.
const DEMO_EXAMPLES_OF_BOTH = [
  "what is 27 + 58?",
  "dim the kitchen lights to 30 percent",
  "what is 12 + 30 + 7?",
  "Ana has 12 apples, buys 5 more and eats 3. how many are left?",
  "dim the kitchen lights to 30 percent and lock the front door",
];
const EXAMPLES = ["Why is the sky blue? Two sentences.", "A haiku about rain on a tin roof", "What is the difference between a bug and a feature?"];

export class View {
  readonly #prompt = element("prompt", HTMLTextAreaElement);
  readonly #send = element("send", HTMLButtonElement);
  readonly #conversation = element("conversation", HTMLElement);
  #last: AnswerView | null = null;

  constructor(private readonly handlers: Handlers) {
    element("form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.#prompt.addEventListener("input", () => {
      this.refresh();
    });
    this.#prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.busy) this.submit();
    });
    document.addEventListener("keydown", (event) => {
      // Where the panel is open, Escape closes that.
      if (event.key === "Escape" && this.busy && !element("panel", HTMLElement).matches(":popover-open")) this.handlers.stop();
    });
    element("new-chat", HTMLButtonElement).addEventListener("click", () => {
      this.handlers.newChat();
    });
    element("bench-link", HTMLAnchorElement).search = location.search;
  }

  ready(info: EngineInfo, facts: BundleFacts | null): void {
    document.title = `${info.model} · nearfar`;
    element("model", HTMLElement).replaceChildren(...modelLine(info));
    const dispatches = formatDispatches(info.dispatchesPerToken);
    element("device", HTMLElement).textContent = [info.adapter, info.activation, ...(dispatches === null ? [] : [`${dispatches} a token`])].join(" · ");
    element("model-card", HTMLElement).replaceChildren(...modelCard(info, facts));
    element("max-tokens", HTMLInputElement).max = String(info.context);
    this.offer(info.model === DEMO ? DEMO_EXAMPLES : EXAMPLES);
    document.body.dataset.state = "ready";
    element("loading", HTMLElement).hidden = true;
    element("open-panel", HTMLElement).hidden = false;
    element("composer", HTMLElement).hidden = false;
    this.announce(`${info.model} is ready`);
    this.clear();
  }

  /** There is a far side as well. */
  bothSides(info: EngineInfo, far: string): void {
    element("welcome-title", HTMLElement).textContent = "Near where it can, far where it pays.";
    element("welcome-line", HTMLElement).textContent = `The model in this page answers what it can; the larger one at ${far} does the rest. What you mark private never leaves this device.`;
    element("model", HTMLElement).replaceChildren(...modelLine(info), make("span", "wide", ` · far: ${far}`));
    if (info.model === DEMO) this.offer(DEMO_EXAMPLES_OF_BOTH);
  }

  /** Back to an empty conversation. */
  clear(): void {
    this.#conversation.replaceChildren();
    this.#last = null;
    this.show("welcome");
    this.setBusy(false);
    this.#prompt.focus();
  }

  /** Show a question, and the place of its answer. */
  ask(question: Question, info: EngineInfo, far: string | null): AnswerView {
    this.show("conversation");
    this.#prompt.value = "";
    const view = new AnswerView(question, info, far, {
      regenerate: this.handlers.regenerate,
      announce: (text) => {
        this.announce(text);
      },
    });
    this.#last?.isLast(false);
    this.#last = view;
    view.isLast(true);
    this.#conversation.append(view.question, view.answer);
    this.begin(view);
    return view;
  }

  /** An answer starts to grow. */
  begin(view: AnswerView): void {
    this.setBusy(true);
    this.announce("Answering");
    view.question.scrollIntoView({ block: "start" });
  }

  /** It grows no more. */
  end(): void {
    this.follow();
    this.setBusy(false);
    this.#prompt.focus({ preventScroll: true });
  }

  /** Keep the end in sight, unless the reader has scrolled up. */
  follow(): void {
    const root = document.documentElement;
    if (root.scrollHeight - root.scrollTop - root.clientHeight < 120) root.scrollTop = root.scrollHeight;
  }

  private announce(text: string): void {
    element("status", HTMLElement).textContent = text;
  }

  private get busy(): boolean {
    return "busy" in document.body.dataset;
  }

  private setBusy(busy: boolean): void {
    if (busy) document.body.dataset.busy = "";
    else delete document.body.dataset.busy;
    this.refresh();
  }

  private submit(): void {
    if (this.busy) {
      this.handlers.stop();
      return;
    }
    const prompt = this.#prompt.value.trim();
    if (prompt !== "") this.handlers.send(prompt);
  }

  private refresh(): void {
    this.#send.disabled = !this.busy && this.#prompt.value.trim() === "";
    this.#send.setAttribute("aria-label", this.busy ? "Stop" : "Send");
  }

  private show(section: "welcome" | "conversation"): void {
    for (const id of ["welcome", "conversation"]) element(id, HTMLElement).hidden = id !== section;
    element("new-chat", HTMLElement).hidden = section !== "conversation";
  }

  private offer(examples: readonly string[]): void {
    element("examples", HTMLElement).replaceChildren(...examples.map((example) => this.example(example)));
  }

  private example(text: string): HTMLElement {
    const button = make("button", "", text);
    button.type = "button";
    button.addEventListener("click", () => {
      this.handlers.send(text);
    });
    return make("li", "", button);
  }
}
