// The chat page's elements. The chat updates them, and they report clicks and keys to `Handlers`.

import type { Question } from "./answer_view.js";
import { AnswerView } from "./answer_view.js";
import type { BundleFacts } from "./bundle_facts.js";
import { element, make } from "./elements.js";
import { FollowingScroll } from "./following_scroll.js";
import { formatDispatches } from "./format.js";
import { DEMO_MODELS } from "./demo_models.js";
import type { EngineInfo } from "./model.js";
import { bundleCard, modelCard, modelLine } from "./model_card.js";
import type { Near } from "./near_notice.js";

export interface Handlers {
  readonly send: (prompt: string) => void;
  readonly stop: () => void;
  readonly newChat: () => void;
  /** Answer the last question again. */
  readonly regenerate: () => void;
  /** Continue the last answer after its text. */
  readonly resume: () => void;
  /** Stop editing an earlier message, and leave it as it is. */
  readonly cancelEdit: () => void;
  /** The message being typed has changed. */
  readonly typed: () => void;
  /** Show the open conversation as another tab has stored it. */
  readonly showElsewhere: () => void;
  /** Leave a conversation that cannot be continued now. */
  readonly leave: () => void;
}

/** What has become of the open conversation in another tab. */
export type Elsewhere = "changed" | "deleted" | "copied";

const ELSEWHERE: Readonly<Record<Elsewhere, string>> = {
  changed: "This conversation has changed in another tab. What you send here continues it as a copy.",
  deleted: "This conversation was deleted in another tab. What you send here stores it again.",
  copied: "Another tab had changed this conversation, so it continues here as a copy. Both are in your conversations.",
};

/** The sides that answer. */
export interface Answerers {
  readonly near: Near["state"];
  /** The information about this device's engine; null if there is no engine. */
  readonly info: EngineInfo | null;
  /** Null if the bundle's manifest cannot be read. */
  readonly facts: BundleFacts | null;
  /** ``model`` is null for a server that has not been reached yet. */
  readonly far: { readonly host: string; readonly model: string | null } | null;
}

const DEMO_EXAMPLES = [
  "dim the kitchen lights to 30 percent",
  "what is 27 + 58?",
  "sort pear apple fig",
  "find the email in: write to ana@example.com today",
  "tell me a story about a fox",
];
// Half of them need the larger model.
const DEMO_EXAMPLES_OF_BOTH = [
  "what is 27 + 58?",
  "dim the kitchen lights to 30 percent",
  "what is 12 + 30 + 7?",
  "Ana has 12 apples, buys 5 more and eats 3. how many are left?",
  "dim the kitchen lights to 30 percent and lock the front door",
];
const EXAMPLES = [
  "Why is the sky blue? Two sentences.",
  "A haiku about rain on a tin roof",
  "What is the difference between a bug and a feature?",
];

export class View {
  readonly #prompt = element("prompt", HTMLTextAreaElement);
  readonly #send = element("send", HTMLButtonElement);
  readonly #conversation = element("conversation", HTMLElement);
  readonly #scroll = new FollowingScroll();
  #last: AnswerView | null = null;

  constructor(private readonly handlers: Handlers) {
    element("form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.#prompt.addEventListener("input", () => {
      this.refresh();
    });
    element("show-elsewhere", HTMLButtonElement).addEventListener("click", () => {
      this.handlers.showElsewhere();
    });
    element("leave", HTMLButtonElement).addEventListener("click", () => {
      this.handlers.leave();
    });
    this.#prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.busy) this.submit();
    });
    document.addEventListener("keydown", (event) => {
      // If the panel is open, Escape closes the panel.
      if (event.key === "Escape" && this.busy && !element("panel", HTMLElement).matches(":popover-open"))
        this.handlers.stop();
    });
    element("new-chat", HTMLButtonElement).addEventListener("click", () => {
      this.handlers.newChat();
    });
    element("cancel-edit", HTMLButtonElement).addEventListener("click", () => {
      this.#prompt.value = "";
      this.refresh();
      this.handlers.cancelEdit();
    });
    element("bench-link", HTMLAnchorElement).search = location.search;
  }

  /** Show the composer, because at least one side can answer. */
  present({ near, info, facts, far }: Answerers): void {
    document.title = `${info?.model ?? far?.model ?? ""} · nearfar`;
    const line = info === null ? [make("span", "", far?.model ?? "")] : modelLine(info);
    element("model", HTMLElement).replaceChildren(
      ...line,
      ...(far === null ? [] : [make("span", "wide", ` · far: ${far.host}`)]),
    );
    element("device", HTMLElement).textContent =
      info === null ? `Messages go to ${far?.host ?? ""}, except private ones` : deviceLine(info);
    element("model-card", HTMLElement).replaceChildren(
      ...(info === null ? bundleCard(facts, near) : modelCard(info, facts)),
    );
    if (info !== null) element("max-tokens", HTMLInputElement).max = String(info.context);
    if (far !== null) this.welcome(near, far.host);
    const isDemo = (info?.model ?? facts?.model) === DEMO_MODELS.near || far?.model === DEMO_MODELS.far;
    this.offer(isDemo ? (far === null ? DEMO_EXAMPLES : DEMO_EXAMPLES_OF_BOTH) : EXAMPLES);
    if (document.body.dataset.state !== "ready") this.open();
  }

  /** Show the composer and the welcome instead of the loading state or the failure. */
  private open(): void {
    document.body.dataset.state = "ready";
    for (const id of ["loading", "failure"]) element(id, HTMLElement).hidden = true;
    for (const id of ["open-panel", "composer"]) element(id, HTMLElement).hidden = false;
    delete document.body.dataset.reading;
    // A failure may have shown it.
    element("panel-stored", HTMLElement).append(element("stored", HTMLElement));
    // The conversation may already be there to read.
    if (this.#last === null) this.clear(true);
    else this.refresh();
  }

  private welcome(near: Near["state"], host: string): void {
    const [title, line] = {
      ready: [
        "Near if it can, far if it helps.",
        `The model in this page answers what it can, and the larger one at ${host} does the rest. Private ` +
          "messages never leave this device.",
      ],
      loading: [
        "Far now, near once it has loaded.",
        `The model at ${host} answers until this page has loaded its own.`,
      ],
      failed: [
        "A language model on a server.",
        `The model at ${host} answers. Your messages are sent there, except private ones.`,
      ],
    }[near];
    element("welcome-title", HTMLElement).textContent = title ?? "";
    element("welcome-line", HTMLElement).textContent = line ?? "";
  }

  /** Show an empty conversation. Before a side can answer, this is the loading state or the failure. */
  clear(answerable: boolean): void {
    delete document.body.dataset.reading;
    this.#conversation.replaceChildren();
    this.#last = null;
    this.elsewhere(null);
    this.show(answerable ? "welcome" : null);
    this.setBusy(false);
    if (answerable) this.#prompt.focus();
  }

  /** Say what has become of the conversation in another tab; null if nothing has. */
  elsewhere(what: Elsewhere | null): void {
    element("elsewhere", HTMLElement).hidden = what === null;
    if (what === null) return;
    element("elsewhere-words", HTMLElement).textContent = ELSEWHERE[what];
    element("show-elsewhere", HTMLElement).hidden = what !== "changed";
  }

  /** Show a question and its empty answer. */
  addTurn(question: Question, far: string | null): AnswerView {
    this.show("conversation");
    this.#prompt.value = "";
    this.refresh();
    const view = new AnswerView(question, far, {
      regenerate: this.handlers.regenerate,
      resume: this.handlers.resume,
      announce: (text) => {
        this.announce(text);
      },
    });
    this.#last?.isLast(false);
    this.#last = view;
    view.isLast(true);
    this.#conversation.append(view.question, view.answer);
    return view;
  }

  /** Remove a turn from the conversation. */
  remove(view: AnswerView): void {
    view.question.remove();
    view.answer.remove();
  }

  /** The message being typed. */
  get typed(): string {
    return this.#prompt.value;
  }

  /** Put a text into the composer. */
  type(text: string): void {
    this.#prompt.value = text;
    this.refresh();
    this.#prompt.focus();
  }

  /** Mark the turn that the message being typed replaces; null removes the mark. */
  editing(view: AnswerView | null): void {
    for (const question of this.#conversation.querySelectorAll(".editing")) question.classList.remove("editing");
    view?.question.classList.add("editing");
    element("edit-note", HTMLElement).hidden = view === null;
  }

  /** Show a line above the first turn that the model still reads; null removes the line. */
  forget(first: AnswerView | null, turns: number): void {
    this.#conversation.querySelector(".forgotten")?.remove();
    if (first === null) return;
    const oldest = turns === 1 ? "the oldest message" : `the ${turns} oldest messages`;
    const line = make(
      "p",
      "forgotten quiet",
      `The model no longer reads ${oldest}, because the conversation is longer than its context. It reads ` +
        "from here on.",
    );
    line.setAttribute("role", "note");
    first.question.before(line);
  }

  /** An answer begins. */
  begin(view: AnswerView): void {
    this.setBusy(true);
    this.announce("Answering");
    view.question.scrollIntoView({ block: "start" });
    this.#scroll.begin(view.answer);
  }

  /** An answer has ended. */
  end(): void {
    this.follow();
    this.setBusy(false);
    this.#prompt.focus({ preventScroll: true });
  }

  /** Scroll to the end, unless the reader has scrolled up. */
  follow(): void {
    this.#scroll.follow();
  }

  /** Announce a text to screen readers. */
  announce(text: string): void {
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
    this.handlers.typed();
    this.#send.disabled = !this.busy && this.#prompt.value.trim() === "";
    this.#send.setAttribute("aria-label", this.busy ? "Stop" : "Send");
  }

  private show(section: "welcome" | "conversation" | null): void {
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

function deviceLine({ adapter, activation, dispatchesPerToken }: EngineInfo): string {
  const dispatches = formatDispatches(dispatchesPerToken);
  return [adapter, activation, ...(dispatches === null ? [] : [`${dispatches} a token`])].join(" · ");
}
