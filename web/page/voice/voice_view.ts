// What the voice page shows: the state, what is said and answered, and in what time.

import { element, fill, make } from "../elements.js";
import { explain } from "../explain.js";
import { formatMs } from "../format.js";
import type { LoadState } from "../load_words.js";
import type { Route } from "../model.js";
import type { TurnTimings, VoiceState } from "../../src/voice/index.js";

const STATES: Readonly<Record<VoiceState, string>> = {
  off: "Click to talk.",
  listening: "Listening. Say something.",
  hearing: "Hearing you",
  thinking: "Thinking",
  speaking: "Speaking. Talk to interrupt.",
};

export interface VoiceActions {
  readonly toggle: () => void;
  readonly interrupt: () => void;
}

export class VoiceView {
  readonly #turns = element("turns", HTMLOListElement);
  /** The turn at the top, with what is being said and its answer; null between turns. */
  #turn: HTMLElement | null = null;
  #said: HTMLElement | null = null;
  #answer: HTMLElement | null = null;
  #route: Route | null = null;
  #host = "";

  constructor(actions: VoiceActions) {
    element("toggle", HTMLButtonElement).addEventListener("click", actions.toggle);
    element("interrupt", HTMLButtonElement).addEventListener("click", actions.interrupt);
    const speaker = element("speaker", HTMLSelectElement);
    speaker.addEventListener("change", () => {
      element("speech-server", HTMLElement).hidden = speaker.value !== "far";
    });
  }

  progress(state: LoadState | null): void {
    element("progress", HTMLElement).hidden = state === null;
    if (state === null) return;
    element("phase", HTMLElement).textContent = state.words;
    element("amount", HTMLElement).textContent = state.amount;
    fill("track", state.done, state.total);
  }

  ready(model: string): void {
    this.progress(null);
    document.body.dataset.state = "ready";
    element("model", HTMLElement).textContent = model;
    element("toggle", HTMLButtonElement).disabled = false;
    this.state("off");
  }

  fail(error: unknown): void {
    this.progress(null);
    document.body.dataset.state = "error";
    element("state", HTMLElement).textContent = "The models did not load.";
    this.problem(error);
  }

  /** A server may answer, too. */
  far(host: string): void {
    this.#host = host;
    element("where", HTMLElement).textContent =
      `What you say is heard and written down on this device. ${host} may answer, and then receives the text.`;
  }

  /** Null hides it. */
  problem(error: unknown): void {
    const problem = element("problem", HTMLElement);
    problem.hidden = error === null;
    if (error !== null) explain(error, problem);
  }

  state(state: VoiceState): void {
    const toggle = element("toggle", HTMLButtonElement);
    toggle.dataset.state = state;
    element("toggle-words", HTMLElement).textContent = state === "off" ? "Start" : "Stop";
    element("state", HTMLElement).textContent = STATES[state];
    element("interrupt", HTMLElement).hidden = state !== "thinking" && state !== "speaking";
    if (state === "listening" || state === "off") this.#forgetUnheard();
  }

  /** ``isFinal``: this is all that was said, unless the user goes on before a sound of the answer. */
  said(text: string, isFinal: boolean): void {
    this.#said ??= this.#line("said");
    this.#said.textContent = text;
    this.#said.toggleAttribute("data-final", isFinal);
    this.#answer?.remove();
    this.#answer = null;
  }

  answer(text: string, route: Route | null): void {
    this.#answer ??= this.#line("answer");
    this.#answer.textContent = text;
    this.#route = route;
  }

  turn(interrupted: boolean, { silenceMs, transcriptMs, firstTextMs, firstSoundMs }: TurnTimings): void {
    const parts: readonly (readonly [string, number | null, number | null])[] = [
      ["silence", 0, silenceMs],
      ["transcript", silenceMs, transcriptMs],
      ["first words", transcriptMs, firstTextMs],
      ["voice", firstTextMs, firstSoundMs],
    ];
    const times = parts.flatMap(([name, from, to]) =>
      from === null || to === null ? [] : [`${name} ${formatMs(to - from)}`],
    );
    const where = this.#route?.side === "far" ? `by ${this.#host}` : "on this device";
    const sound = firstSoundMs === null ? "No sound" : `First sound after ${formatMs(firstSoundMs)}`;
    const line = this.#line("timings quiet");
    line.textContent = `${sound}: ${times.join(", ")}. Answered ${where}${interrupted ? ", interrupted" : ""}.`;
    this.#end();
  }

  clear(): void {
    this.#turns.replaceChildren();
    this.#end();
  }

  #line(kind: string): HTMLElement {
    const line = make("p", kind);
    line.dir = "auto";
    if (this.#turn === null) {
      this.#turn = make("li");
      this.#turns.prepend(this.#turn);
    }
    this.#turn.append(line);
    return line;
  }

  /** What was shown meanwhile may turn out to be no words. */
  #forgetUnheard(): void {
    if (this.#said === null || this.#said.dataset.final !== undefined) return;
    this.#turn?.remove();
    this.#end();
  }

  #end(): void {
    this.#turn = null;
    this.#said = null;
    this.#answer = null;
    this.#route = null;
  }
}
