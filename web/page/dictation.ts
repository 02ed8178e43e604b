// The microphone button, if ?transcriber= names a model of sound: what the user says becomes text of the message.

import { SAMPLE_RATE } from "../src/audio/resample.js";
import { element } from "./elements.js";
import { formatMs } from "./format.js";
import type { Recording } from "./recording.js";
import type { ChatTranscriber } from "./transcriber.js";
import { languageName } from "./transcriber.js";

type State = "idle" | "loading" | "recording" | "transcribing";

export class Dictation {
  readonly #button = element("dictate", HTMLButtonElement);
  readonly #note = element("dictation", HTMLElement);
  #recording: Recording | null = null;
  #state: State = "idle";

  /** ``write`` receives what was said, and ``fail`` why nothing is heard. */
  constructor(
    transcriber: ChatTranscriber | null,
    private readonly write: (text: string) => void,
    private readonly fail: (error: unknown) => void,
  ) {
    if (transcriber === null) return;
    transcriber.onState = (words) => {
      if (this.#state === "idle") this.show("idle", words);
    };
    this.#button.hidden = false;
    this.#button.addEventListener("click", () => {
      void this.toggle(transcriber).catch((error: unknown) => {
        this.#recording?.cancel();
        this.#recording = null;
        this.show("idle", "");
        this.fail(error);
      });
    });
  }

  private async toggle(transcriber: ChatTranscriber): Promise<void> {
    if (this.#state === "recording") return this.transcribe(transcriber);
    if (this.#state !== "idle") return;
    this.show("loading", "Loading");
    // Its microphone is loaded with it.
    const { record } = await import("./recording.js");
    const recording = await record((seconds) => {
      if (this.#state === "recording")
        this.show("recording", `Listening · ${seconds.toFixed(0)} s. Click again to end.`);
    });
    this.#recording = recording;
    this.show("recording", "Listening");
    // While the user speaks. A failed load is tried again.
    this.opening(transcriber).catch(() => undefined);
  }

  private opening(transcriber: ChatTranscriber): ReturnType<ChatTranscriber["open"]> {
    return transcriber.open((words) => {
      if (this.#state === "transcribing") this.show("transcribing", words);
    });
  }

  private async transcribe(transcriber: ChatTranscriber): Promise<void> {
    const recording = this.#recording;
    this.#recording = null;
    if (recording === null) return;
    this.show("transcribing", "Transcribing");
    const samples = await recording.stop();
    const engine = await this.opening(transcriber);
    const begun = performance.now();
    const { text, language } = await engine.transcribe({ samples, sampleRate: SAMPLE_RATE });
    const spoken = language === null ? "" : `${languageName(language)}, `;
    const where = `${spoken}transcribed on this device by ${engine.info.model} in ${formatMs(performance.now() - begun)}`;
    this.show("idle", text === "" ? "Nothing was said." : where);
    if (text !== "") this.write(text);
  }

  private show(state: State, words: string): void {
    this.#state = state;
    this.#button.dataset.state = state;
    this.#button.setAttribute("aria-pressed", String(state === "recording"));
    this.#button.disabled = state === "loading" || state === "transcribing";
    this.#note.textContent = words;
    this.#note.hidden = words === "";
  }
}
