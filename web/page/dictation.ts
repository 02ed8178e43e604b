// The microphone button, if ?transcriber= names a model of sound: what the user says becomes text of the message. The
// model is loaded when the button is first used.

import { SAMPLE_RATE } from "../src/audio/resample.js";
import type { WorkerEngine } from "../src/worker/client.js";
import { element } from "./elements.js";
import { formatMs } from "./format.js";
import { loadState } from "./load_words.js";
import type { Recording } from "./recording.js";
import { languageName, openTranscriber, transcriberOfAddress } from "./transcriber.js";

type State = "idle" | "loading" | "recording" | "transcribing";

export class Dictation {
  readonly #button = element("dictate", HTMLButtonElement);
  readonly #note = element("dictation", HTMLElement);
  #engine: Promise<WorkerEngine> | null = null;
  #recording: Recording | null = null;
  #state: State = "idle";

  /** ``write`` receives what was said, and ``fail`` why nothing is heard. */
  constructor(
    private readonly write: (text: string) => void,
    private readonly fail: (error: unknown) => void,
  ) {
    const bundle = transcriberOfAddress();
    if (bundle === null) return;
    this.#button.hidden = false;
    this.#button.addEventListener("click", () => {
      void this.toggle(bundle).catch((error: unknown) => {
        this.#recording?.cancel();
        this.#recording = null;
        this.show("idle", "");
        this.fail(error);
      });
    });
  }

  private async toggle(bundle: string): Promise<void> {
    if (this.#state === "recording") return this.transcribe();
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
    this.#engine ??= openTranscriber(bundle, (progress) => {
      const { words, amount } = loadState(progress);
      if (this.#state === "transcribing") this.show("transcribing", `${words} ${amount}`);
    });
    this.#engine.catch(() => (this.#engine = null));
  }

  private async transcribe(): Promise<void> {
    const [recording, opening] = [this.#recording, this.#engine];
    this.#recording = null;
    if (recording === null || opening === null) return;
    this.show("transcribing", "Transcribing");
    const samples = await recording.stop();
    const engine = await opening;
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
