// The page's elements. What happened flows in, the document shows it; clicks and keys flow out through `Handlers`.

import type { EngineInfo, LoadProgress, Timings } from "../src/index.js";
import { NearfarError } from "../src/index.js";

export interface Handlers {
  readonly send: (prompt: string) => void;
  readonly stop: () => void;
  readonly newChat: () => void;
}

/** One answer as it grows. */
export interface AnswerView {
  append(text: string): void;
  finish(timings: Timings): void;
  stopped(): void;
  fail(error: unknown): void;
}

const EXAMPLES = [
  "dim the kitchen lights to 30 percent",
  "what is 27 + 58?",
  "sort pear apple fig",
  "find the email in: write to ana@example.com today",
  "tell me a story about a fox",
];

const KINDS = { bundle_error: "Bundle", device_error: "Device", request_error: "Request", storage_error: "Storage", worker_error: "Worker" } as const;

export class View {
  readonly #prompt = element("prompt", HTMLTextAreaElement);
  readonly #send = element("send", HTMLButtonElement);
  readonly #chat = element("chat", HTMLElement);

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
    element("new-chat", HTMLButtonElement).addEventListener("click", () => {
      this.handlers.newChat();
    });
    element("retry", HTMLButtonElement).addEventListener("click", () => {
      location.reload();
    });
    element("examples", HTMLElement).append(...EXAMPLES.map((example) => this.example(example)));
  }

  progress({ phase, loadedBytes, totalBytes, compiledKernels, totalKernels }: LoadProgress): void {
    const loaded = totalBytes === 0 ? 0 : loadedBytes / totalBytes;
    const compiled = totalKernels === 0 ? 0 : compiledKernels / totalKernels;
    const percent = `${Math.round(100 * (0.8 * loaded + 0.2 * compiled))}`;
    element("fill", HTMLElement).style.width = `${percent}%`;
    document.querySelector(".track")?.setAttribute("aria-valuenow", percent);
    if (phase === "manifest") return;
    if (phase === "self-test") {
      element("phase", HTMLElement).textContent = "Checking that this device computes right";
      element("amount", HTMLElement).textContent = "";
      return;
    }
    const loading = loadedBytes < totalBytes;
    const from = phase === "download" ? "Downloading weights" : "Reading weights from this device";
    element("phase", HTMLElement).textContent = loading ? from : "Preparing kernels";
    element("amount", HTMLElement).textContent = loading
      ? `${megabytes(loadedBytes)} of ${megabytes(totalBytes)} MB`
      : `${compiledKernels} of ${totalKernels}`;
  }

  ready(info: EngineInfo): void {
    const { model, quantization, adapter, activation, dispatchesPerToken, downloadBytes, selfTest } = info;
    element("model", HTMLElement).textContent = `${model} · ${quantization} · ${megabytes(downloadBytes)} MB`;
    const tested = { passed: "tested", "passed-with-switched-off": "wrong kernels switched off", untested: "untested" }[selfTest.state];
    element("device", HTMLElement).textContent = `${adapter} · ${activation} · ${dispatchesPerToken} dispatches a token · ${tested}`;
    document.body.dataset.state = "ready";
    element("composer", HTMLElement).hidden = false;
    this.clear();
  }

  /** The model did not load. */
  fail(error: unknown): void {
    document.body.dataset.state = "error";
    element("failure-kind", HTMLElement).textContent = error instanceof NearfarError ? KINDS[error.code] : "Unexpected";
    element("failure-message", HTMLElement).textContent = error instanceof Error ? error.message : String(error);
    element("failure", HTMLElement).dataset.code = error instanceof NearfarError ? error.code : "unknown";
    this.show("failure");
  }

  /** Back to an empty conversation. */
  clear(): void {
    this.#chat.replaceChildren();
    this.show("welcome");
    this.setBusy(false);
    this.#prompt.focus();
  }

  /** Show a question, and the place of its answer. */
  ask(question: string): AnswerView {
    this.show("chat");
    this.setBusy(true);
    const asked = paragraph("question", question);
    const text = paragraph("text", "");
    const answer = document.createElement("article");
    answer.className = "answer";
    answer.dataset.state = "streaming";
    answer.append(text);
    this.#chat.append(asked, answer);
    asked.scrollIntoView({ block: "start" });
    const end = (note: HTMLElement | null): void => {
      answer.dataset.state = "done";
      if (note !== null) answer.append(note);
      this.follow();
      this.setBusy(false);
      this.#prompt.focus();
    };
    return {
      append: (piece) => {
        text.append(piece);
        this.follow();
      },
      finish: (timings) => {
        answer.dataset.ttftMs = timings.timeToFirstTokenMs.toFixed(1);
        answer.dataset.tokensPerSecond = timings.tokensPerSecond?.toFixed(1) ?? "";
        end(paragraph("timings", describe(timings)));
      },
      stopped: () => {
        end(paragraph("timings", "Stopped"));
      },
      fail: (error) => {
        end(paragraph("problem", error instanceof Error ? error.message : String(error)));
      },
    };
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
    if (prompt === "") return;
    this.#prompt.value = "";
    this.handlers.send(prompt);
  }

  private refresh(): void {
    this.#send.disabled = !this.busy && this.#prompt.value.trim() === "";
    this.#send.setAttribute("aria-label", this.busy ? "Stop" : "Send");
  }

  private show(section: "failure" | "welcome" | "chat"): void {
    for (const id of ["loading", "failure", "welcome", "chat"]) element(id, HTMLElement).hidden = id !== section;
    element("new-chat", HTMLElement).hidden = section !== "chat";
  }

  /** Keep the end in sight, unless the reader has scrolled up. */
  private follow(): void {
    const root = document.documentElement;
    if (root.scrollHeight - root.scrollTop - root.clientHeight < 120) root.scrollTop = root.scrollHeight;
  }

  private example(text: string): HTMLElement {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => {
      this.handlers.send(text);
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }
}

function describe({ timeToFirstTokenMs, tokensPerSecond, completionTokens }: Timings): string {
  const parts = [`first token ${timeToFirstTokenMs.toFixed(0)} ms`];
  if (tokensPerSecond !== null) parts.push(`${tokensPerSecond.toFixed(1)} tokens/s`);
  parts.push(`${completionTokens} ${completionTokens === 1 ? "token" : "tokens"}`);
  return parts.join(" · ");
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}

function paragraph(className: string, text: string): HTMLElement {
  const node = document.createElement("p");
  node.className = className;
  node.textContent = text;
  return node;
}

function element<T extends HTMLElement>(id: string, type: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`index.html has no ${type.name} #${id}`);
  return found;
}
