// One question with its answer as it grows. Text, the end and errors flow in; clicks flow out through `AnswerActions`.

import { factList, iconButton, make, makeSvg } from "./elements.js";
import { explain } from "./explain.js";
import { formatCount, formatDispatches, formatMs, formatSpeed, plural } from "./format.js";
import type { AnswerEnd, EngineInfo, Settings } from "./model.js";
import { describeSelfTest } from "./model_card.js";
import { DeviceError } from "../src/index.js";

export interface AnswerActions {
  /** Answer the question again. */
  readonly regenerate: () => void;
  /** Say something to those who cannot see the page. */
  readonly announce: (text: string) => void;
}

export class AnswerView {
  readonly question: HTMLElement;
  readonly answer = make("article", "answer");
  readonly #text = make("p", "text");
  readonly #tools = make("div", "tools");

  constructor(
    question: string,
    private readonly info: EngineInfo,
    private readonly actions: AnswerActions,
  ) {
    this.question = make("p", "question", make("span", "unseen", "You: "), question);
    this.answer.setAttribute("aria-label", "Answer");
    this.start();
  }

  /** An empty answer, from which text grows. */
  start(): void {
    this.#text.replaceChildren();
    this.#tools.replaceChildren();
    this.answer.replaceChildren(this.#text);
    this.answer.dataset.state = "streaming";
    this.answer.setAttribute("aria-busy", "true");
    delete this.answer.dataset.ttftMs;
    delete this.answer.dataset.tokensPerSecond;
  }

  append(text: string): void {
    this.#text.append(text);
  }

  finish(end: AnswerEnd, settings: Settings): void {
    this.answer.dataset.ttftMs = end.timeToFirstTokenMs.toFixed(1);
    this.answer.dataset.tokensPerSecond = end.tokensPerSecond?.toFixed(1) ?? "";
    const chevron = makeSvg("svg", { class: "chevron", viewBox: "0 0 20 20", "aria-hidden": "true" }, makeSvg("path", { d: "m7 5 5 5-5 5" }));
    const details = make("details", "ran", make("summary", "timings", chevron, ...summary(end)), ran(end, settings, this.info));
    this.end(details);
    this.actions.announce(this.#text.textContent);
  }

  stopped(): void {
    this.end(make("p", "timings", "Stopped"));
    this.actions.announce("Stopped");
  }

  fail(error: unknown): void {
    const problem = make("p", "problem explained");
    problem.setAttribute("role", "alert");
    explain(error, problem);
    // A device that failed answers nothing more: the page has to load the model again.
    const lost = error instanceof DeviceError;
    const again = make("button", "plain regenerate", lost ? "Load the model again" : "Try again");
    again.type = "button";
    again.addEventListener("click", () => {
      if (lost) location.reload();
      else this.actions.regenerate();
    });
    this.end(null);
    this.answer.append(problem, again);
  }

  /** Only the last answer can be had again. */
  isLast(last: boolean): void {
    this.answer.classList.toggle("last", last);
  }

  private end(note: HTMLElement | null): void {
    this.answer.dataset.state = "done";
    this.answer.removeAttribute("aria-busy");
    if (note === null) return;
    const again = iconButton("again", "Answer again", this.actions.regenerate);
    again.classList.add("regenerate");
    this.#tools.replaceChildren(this.copyButton(), again);
    this.answer.append(make("div", "foot", note, this.#tools));
  }

  private copyButton(): HTMLButtonElement {
    const button = iconButton("copy", "Copy", () => {
      navigator.clipboard.writeText(this.#text.textContent).then(
        () => {
          button.querySelector("use")?.setAttribute("href", "#icon-done");
          this.actions.announce("Copied");
          setTimeout(() => button.querySelector("use")?.setAttribute("href", "#icon-copy"), 1500);
        },
        () => {
          this.actions.announce("The browser does not allow copying");
        },
      );
    });
    button.classList.add("copy");
    return button;
  }
}

/** The timings in one line, whose end a narrow page leaves to the details. */
function summary({ timeToFirstTokenMs, tokensPerSecond, completionTokens }: AnswerEnd): readonly HTMLElement[] {
  const speed = tokensPerSecond === null ? "" : ` · ${formatSpeed(tokensPerSecond)} tokens/s`;
  return [make("span", "", `first token ${formatMs(timeToFirstTokenMs)}${speed}`), make("span", "wide", `· ${plural(completionTokens, "token")}`)];
}

/** What ran, and where. */
function ran(end: AnswerEnd, { temperature, seed }: Settings, info: EngineInfo): HTMLElement {
  const cached = end.cachedTokens === 0 ? "" : `, ${formatCount(end.cachedTokens)} of them cached`;
  const drawn = seed === null ? `temperature ${temperature}` : `temperature ${temperature}, seed ${seed}`;
  return factList([
    ["Prompt", `${plural(end.promptTokens, "token")}${cached}`],
    ["Answer", plural(end.completionTokens, "token")],
    ["Ended", end.finishReason === "stop" ? "by the model" : "at the longest answer"],
    ["Chosen", temperature === 0 ? "the likeliest token each time" : drawn],
    ["Ran on", `${info.adapter}, ${info.activation}`],
    ["Per token", formatDispatches(info.dispatchesPerToken)],
    ["Self-test", describeSelfTest(info.selfTest)],
  ]);
}
