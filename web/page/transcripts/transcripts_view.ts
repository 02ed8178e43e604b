// What the transcripts page shows: the recording, its text with the times, and the progress.

import { takeFiles } from "../dropped_files.js";
import { element, fill, make } from "../elements.js";
import { explain } from "../explain.js";
import type { SpeechAbilities } from "../transcriber.js";
import { languageName } from "../transcriber.js";

export type ExportFormat = "txt" | "srt" | "vtt";

/** A part of a transcript, from ``start`` to ``end`` in seconds. */
export interface Segment {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

/** How the user wants sound to be transcribed. ``language`` is null if the model shall detect it. */
export interface Wishes {
  readonly language: string | null;
  readonly translate: boolean;
}

export interface TranscriptsActions {
  readonly open: (file: File) => void;
  readonly record: () => void;
  readonly stop: () => void;
  readonly save: (format: ExportFormat) => void;
  readonly copy: () => void;
}

interface Shown extends Segment {
  readonly button: HTMLButtonElement;
}

export class TranscriptsView {
  readonly #player = element("player", HTMLAudioElement);
  readonly #list = element("segments", HTMLOListElement);
  #segments: Shown[] = [];
  #lit: Shown | null = null;

  constructor(actions: TranscriptsActions) {
    const input = element("file", HTMLInputElement);
    const click = (id: string, act: () => void): void => {
      element(id, HTMLButtonElement).addEventListener("click", act);
    };
    click("choose", () => {
      input.click();
    });
    takeFiles(input, ([file]) => {
      if (file !== undefined) actions.open(file);
    });
    click("record", actions.record);
    click("stop", actions.stop);
    click("copy", actions.copy);
    for (const button of document.querySelectorAll<HTMLElement>("#exports [data-format]"))
      button.addEventListener("click", () => {
        actions.save(button.dataset.format as ExportFormat);
      });
    // Between its events, the player reports the time of each picture.
    const follow = (): void => {
      this.#light();
      if (!this.#player.paused) requestAnimationFrame(follow);
    };
    this.#player.addEventListener("play", follow);
    for (const type of ["timeupdate", "seeked"])
      this.#player.addEventListener(type, () => {
        this.#light();
      });
  }

  ready(model: string): void {
    document.body.dataset.state = "ready";
    element("model", HTMLElement).textContent = model;
  }

  fail(error: unknown): void {
    document.body.dataset.state = "error";
    this.problem(error);
  }

  offer({ languages, translates }: SpeechAbilities): void {
    const names = languages
      .map((code) => [code, languageName(code)] as const)
      .sort(([, one], [, other]) => one.localeCompare(other));
    element("language", HTMLSelectElement).append(
      ...names.map(([code, name]) => {
        const option = make("option", "", name);
        option.value = code;
        return option;
      }),
    );
    element("language-setting", HTMLElement).hidden = languages.length === 0;
    element("translate-setting", HTMLElement).hidden = !translates;
  }

  get wishes(): Wishes {
    const language = element("language", HTMLSelectElement).value;
    return {
      language: language === "" ? null : language,
      translate: element("translate", HTMLInputElement).checked,
    };
  }

  /** Null hides the progress; ``total`` is null if it is not known. */
  progress(
    state: { readonly words: string; readonly amount: string; done: number; total: number | null } | null,
  ): void {
    element("progress", HTMLElement).hidden = state === null;
    if (state === null) return;
    element("phase", HTMLElement).textContent = state.words;
    element("amount", HTMLElement).textContent = state.amount;
    fill("track", state.done, state.total);
  }

  /** Null hides it. */
  problem(error: unknown): void {
    const problem = element("problem", HTMLElement);
    problem.hidden = error === null;
    if (error !== null) explain(error, problem);
  }

  /** ``seconds`` is null if nothing is recorded. */
  recording(seconds: number | null, level = 0): void {
    const isRecording = seconds !== null;
    element("record", HTMLButtonElement).setAttribute("aria-pressed", String(isRecording));
    element("record-words", HTMLElement).textContent = isRecording ? `Stop · ${clock(seconds)}` : "Record";
    element("choose", HTMLButtonElement).disabled = isRecording;
    const meter = element("level", HTMLMeterElement);
    meter.hidden = !isRecording;
    meter.value = level;
  }

  /** ``asWav`` makes a file that the browser plays if it does not play ``sound``, which may be a WAV file of a rare form. */
  begin(name: string, sound: Blob, asWav: () => Promise<Blob>): void {
    this.problem(null);
    this.#play(sound);
    this.#player.onerror = () => {
      this.#player.onerror = null;
      asWav().then(
        (wav) => {
          this.#play(wav);
        },
        // What cannot be read is reported by who transcribes it.
        () => undefined,
      );
    };
    this.#segments = [];
    this.#lit = null;
    this.#list.replaceChildren();
    element("name", HTMLElement).textContent = name;
    element("facts", HTMLElement).textContent = "";
    element("exports", HTMLElement).hidden = true;
    element("stop", HTMLButtonElement).hidden = false;
    const transcript = element("transcript", HTMLElement);
    transcript.hidden = false;
    transcript.dataset.state = "running";
  }

  append(segment: Segment): void {
    const time = make("time", "", clock(segment.start));
    const words = make("span", "words", segment.text.trim());
    words.dir = "auto";
    const button = make("button", "segment", time, words);
    button.type = "button";
    button.addEventListener("click", () => {
      this.#player.currentTime = segment.start;
      // It may be refused, for example for a sound that the browser does not play.
      this.#player.play().catch(() => undefined);
    });
    this.#segments.push({ ...segment, button });
    this.#list.append(make("li", "", button));
  }

  /** ``facts``: what was computed where. */
  finish(state: "done" | "stopped" | "failed", facts: string): void {
    this.progress(null);
    element("transcript", HTMLElement).dataset.state = state;
    element("facts", HTMLElement).textContent = facts;
    element("exports", HTMLElement).hidden = this.#segments.length === 0;
    element("stop", HTMLButtonElement).hidden = true;
  }

  copied(isCopied: boolean): void {
    const button = element("copy", HTMLButtonElement);
    button.textContent = isCopied ? "Copied" : "The browser does not allow copying";
    setTimeout(() => (button.textContent = "Copy the text"), 1500);
  }

  #play(sound: Blob): void {
    URL.revokeObjectURL(this.#player.src);
    this.#player.src = URL.createObjectURL(sound);
  }

  /** Lights up the segment that is heard. */
  #light(): void {
    const now = this.#player.currentTime;
    const heard = this.#segments.find(({ start, end }) => start <= now && now < end) ?? null;
    if (heard === this.#lit) return;
    this.#lit?.button.removeAttribute("aria-current");
    this.#lit = heard;
    heard?.button.setAttribute("aria-current", "true");
    if (!this.#player.paused) heard?.button.scrollIntoView({ block: "nearest" });
  }
}

/** 75 -> "1:15", 3675 -> "1:01:15". */
export function clock(seconds: number): string {
  const whole = Math.floor(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (value: number): string => String(value).padStart(2, "0");
  return hours > 0 ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}
