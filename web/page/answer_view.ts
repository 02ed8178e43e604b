// One question with its answer as it arrives. Clicks are reported to `AnswerActions`.

import { AnswerText } from "./answer_text.js";
import type { Attachment } from "./attachments.js";
import { attachmentParts } from "./attachments.js";
import { badge, routeFacts } from "./badge.js";
import { factList, icon, iconButton, make, makeSvg } from "./elements.js";
import { formatCount, formatDispatches, formatMs, formatSpeed, plural } from "./format.js";
import type { AnswerEnd, EngineInfo, Route, Settings } from "./model.js";
import { describeSelfTest } from "./model_card.js";
import { problemElements } from "./problem_words.js";
import type { WrittenDown } from "./transcriber.js";
import { DeviceError } from "../src/index.js";

/**
 * The pictures and videos of a conversation; how many of them this device's model read, and of these, how many it had not
 * read before.
 */
export interface PicturesRead {
  readonly pictures: number;
  readonly videos: number;
  readonly read: number;
  readonly computed: number;
}

/** The recordings of a conversation, what was written down of them for this answer, and who wrote down earlier ones. */
export interface SoundsRead {
  readonly sounds: number;
  readonly written: readonly WrittenDown[];
  readonly transcriber: string | null;
}

export interface AnswerActions {
  /** Answer the question again. */
  readonly regenerate: () => void;
  /** Continue the answer after its text. */
  readonly resume: () => void;
  /** Announce a text to screen readers. */
  readonly announce: (text: string) => void;
}

/** ``private``: whether this question, or an earlier one, must stay on this device. */
export interface Question {
  readonly text: string;
  readonly attachments: readonly Attachment[];
  readonly private: boolean;
  /** Edit the question. */
  readonly edit: () => void;
}

/** Why an answer ended. */
const ENDS: Readonly<Record<string, string>> = {
  stop: "by the model",
  context: "the context was full",
  server: "at the server's longest answer",
};
/** The note below an answer that ended before its longest length. */
const CUT_OFF: Readonly<Record<string, string>> = {
  context:
    "The answer stops here because the model's context is full. Start a new chat, or send a shorter " +
    "message for a longer answer.",
  server:
    "The answer stops here because the server ended it at the longest length that it allows. Ask it to " +
    "continue for the rest.",
};

export class AnswerView {
  readonly question: HTMLElement;
  readonly answer = make("article", "answer");
  readonly #text = new AnswerText();
  readonly #tools = make("div", "tools");
  readonly #badge = make("p", "timings");
  /** Null if the engine answers without a router. */
  #route: Route | null = null;

  /** ``far`` is the server's host; null if no server is connected. */
  constructor(
    question: Question,
    private readonly far: string | null,
    private readonly actions: AnswerActions,
  ) {
    const spoken = question.private ? "You, privately: " : "You: ";
    const edit = iconButton("edit", "Edit and send again", question.edit);
    edit.classList.add("edit");
    const files = question.attachments.map((attachment) => make("span", "chip", ...attachmentParts(attachment)));
    const text = make(
      "p",
      "question",
      make("span", "unseen", spoken),
      ...(question.private ? [icon("lock")] : []),
      ...files,
      question.text,
    );
    this.question = make("div", "user-message", edit, text);
    this.answer.setAttribute("aria-label", "Answer");
    this.start();
  }

  /** Show an answer of a stored conversation. ``unfinished``: it had not ended when it was stored. */
  restore(written: string, unfinished: boolean): void {
    this.#text.append(written);
    this.end(unfinished ? null : make("p", "timings", written === "" ? "Not answered" : ""));
    if (!unfinished) return;
    this.answer.dataset.interrupted = "";
    const words =
      "This answer did not end: it failed, the page was closed or loaded again, or another tab is still writing it.";
    this.answer.append(make("p", "cut-off quiet", words), this.offers("Answer again"));
  }

  /** Whether the answer has begun and failed, or is a stored one that had not ended. */
  get isInterrupted(): boolean {
    return this.answer.dataset.interrupted !== undefined;
  }

  /** Empty the answer, so that text can be appended. */
  start(): void {
    this.#text.clear();
    this.resume();
  }

  /** Text can be appended to what the answer has. */
  resume(): void {
    this.#route = null;
    this.#badge.replaceChildren();
    this.#tools.replaceChildren();
    this.answer.replaceChildren(this.#text.element);
    this.answer.dataset.state = "streaming";
    this.answer.setAttribute("aria-busy", "true");
    delete this.answer.dataset.interrupted;
    delete this.answer.dataset.ttftMs;
    delete this.answer.dataset.tokensPerSecond;
    delete this.answer.dataset.side;
    delete this.answer.dataset.reason;
  }

  /** The answer's Markdown, without reasoning. */
  get text(): string {
    return this.#text.plain;
  }

  /** As the model wrote it, reasoning included. */
  get written(): string {
    return this.#text.written;
  }

  append(text: string): void {
    this.#text.append(text);
  }

  /** Set the side that answers from here on. */
  follow(route: Route): void {
    this.#text.follow(route);
    this.#route = route;
    this.answer.dataset.side = route.side;
    this.answer.dataset.reason = route.reason;
    this.#badge.replaceChildren(badge(route, this.#text.sides, null));
    this.answer.append(this.#badge);
  }

  /**
   * ``info`` describes this device's engine; null if there is no engine. ``pictures`` are those of the conversation, and
   * what the engine has read for this answer; likewise ``sounds``.
   */
  finish(
    end: AnswerEnd,
    settings: Settings,
    info: EngineInfo | null,
    pictures: PicturesRead,
    sounds: SoundsRead,
  ): void {
    this.answer.dataset.ttftMs = end.timeToFirstTokenMs.toFixed(1);
    this.answer.dataset.tokensPerSecond = end.tokensPerSecond?.toFixed(1) ?? "";
    const chevron = makeSvg(
      "svg",
      { class: "chevron", viewBox: "0 0 20 20", "aria-hidden": "true" },
      makeSvg("path", { d: "m7 5 5 5-5 5" }),
    );
    const route = this.#route;
    const line = route === null ? summary(end) : [badge(route, this.#text.sides, end.totalMs)];
    const routed = route === null ? [] : routeFacts(route, this.far ?? "");
    const facts = factList([
      ...routed,
      ...ran(end, settings, route?.side === "far" ? null : info),
      picturesFact(pictures, route?.side === "far" ? this.far : null),
      ...soundFacts(sounds, route, this.far),
    ]);
    this.end(make("details", "ran", make("summary", "timings", chevron, ...line), facts));
    const cut = CUT_OFF[end.finishReason];
    if (cut !== undefined) this.#text.element.after(make("p", "cut-off quiet", cut));
    this.actions.announce(this.#text.plain);
  }

  stopped(): void {
    this.end(make("p", "timings", "Stopped"));
    this.actions.announce("Stopped");
  }

  fail(error: unknown): void {
    const problem = make("div", "problem explained", ...problemElements(error));
    problem.setAttribute("role", "alert");
    // A lost device answers nothing more, so the page must load the model again.
    const lost = error instanceof DeviceError;
    const reload = (): void => {
      location.reload();
    };
    this.end(null);
    if (this.written !== "") this.answer.dataset.interrupted = "";
    this.answer.append(problem, lost ? this.againButton("Load the model again", reload) : this.offers("Try again"));
  }

  /** Only the last answer can be regenerated. */
  isLast(last: boolean): void {
    this.answer.classList.toggle("last", last);
  }

  private end(note: HTMLElement | null): void {
    this.#text.render();
    this.#badge.remove();
    this.answer.dataset.state = "done";
    this.answer.removeAttribute("aria-busy");
    if (note === null) return;
    const again = iconButton("again", "Answer again", this.actions.regenerate);
    again.classList.add("regenerate");
    this.#tools.replaceChildren(this.copyButton(), again);
    this.answer.append(make("div", "foot", note, this.#tools));
  }

  /** Offers to continue an answer that has begun, and to answer again in these words. */
  private offers(again: string): HTMLElement {
    const resume = this.written === "" ? [] : [this.againButton("Continue", this.actions.resume)];
    return make("div", "offers", ...resume, this.againButton(again, this.actions.regenerate));
  }

  private againButton(words: string, onClick: () => void): HTMLButtonElement {
    const button = make("button", "plain regenerate", words);
    button.type = "button";
    button.addEventListener("click", onClick);
    return button;
  }

  private copyButton(): HTMLButtonElement {
    const button = iconButton("copy", "Copy", () => {
      navigator.clipboard.writeText(this.#text.plain).then(
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

/** Where the pictures and videos of a conversation were looked at; ``host`` is the server that answered, or null. */
function picturesFact(
  { pictures, videos, read, computed }: PicturesRead,
  host: string | null,
): readonly [string, string | null] {
  const all = pictures + videos;
  const label = videos === 0 ? "Pictures" : pictures === 0 ? "Videos" : "Pictures and videos";
  const words = (count: number): string =>
    all === pictures || all === videos
      ? plural(count, videos === 0 ? "picture" : "video")
      : `${formatCount(count)} pictures and videos`;
  if (host !== null) return [label, all === 0 ? null : `${words(all)}, sent to ${host}`];
  return [label, read === 0 ? null : `${words(read)}, ${computed} of them computed now on this device`];
}

/** Where the recordings of a conversation were heard, and what was written down of them for this answer. */
function soundFacts(
  { sounds, written, transcriber }: SoundsRead,
  route: Route | null,
  host: string | null,
): readonly (readonly [string, string | null])[] {
  if (sounds === 0) return [];
  const all = plural(sounds, "recording");
  const texts = (route?.described ?? []).filter(({ kind }) => kind === "sound");
  const ms = written.reduce((sum, each) => sum + each.ms, 0);
  const [made] = written;
  const here =
    made === undefined
      ? transcriber === null
        ? "heard by the model on this device"
        : `transcribed before on this device by ${transcriber}`
      : `${written.length} of them transcribed now on this device by ${made.model} in ${formatMs(ms)}`;
  const where =
    route?.side !== "far"
      ? here
      : texts.length > 0
        ? `sent to ${host ?? ""} as ${plural(texts.length, "transcript")} of this device`
        : `sent to ${host ?? ""}`;
  const said = written.map(({ text }) => `“${text.trim()}”`).join(" ");
  return [
    ["Recordings", `${all}, ${where}`],
    ["Heard", said === "" ? null : said],
  ];
}

/** The timings in one line. A narrow page leaves its end to the details. */
function summary({ timeToFirstTokenMs, tokensPerSecond, completionTokens }: AnswerEnd): readonly HTMLElement[] {
  const speed = tokensPerSecond === null ? "" : ` · ${formatSpeed(tokensPerSecond)} tokens/s`;
  const tokens = completionTokens === null ? [] : [make("span", "wide", `· ${plural(completionTokens, "token")}`)];
  return [make("span", "", `first token ${formatMs(timeToFirstTokenMs)}${speed}`), ...tokens];
}

/** The facts of the run; ``info`` is null if the answer did not run on this device. */
function ran(
  end: AnswerEnd,
  { temperature, seed }: Settings,
  info: EngineInfo | null,
): readonly (readonly [string, string | null])[] {
  const cached = end.cachedTokens === 0 ? "" : `, ${formatCount(end.cachedTokens)} of them cached`;
  const drawn = seed === null ? `temperature ${temperature}` : `temperature ${temperature}, seed ${seed}`;
  return [
    ["Prompt", end.promptTokens === null ? null : `${plural(end.promptTokens, "token")}${cached}`],
    ["Answer", end.completionTokens === null ? null : plural(end.completionTokens, "token")],
    ["First token", formatMs(end.timeToFirstTokenMs)],
    ["Ended", ENDS[end.finishReason] ?? "at the longest answer"],
    ["Chosen", temperature === 0 ? "the most likely token each time" : drawn],
    ["Ran on", info === null ? null : `${info.adapter}, ${info.activation}`],
    ["Per token", info === null ? null : formatDispatches(info.dispatchesPerToken)],
    ["Self-test", info === null ? null : describeSelfTest(info.selfTest)],
  ];
}
