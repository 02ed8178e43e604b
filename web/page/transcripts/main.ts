// The transcripts page: the user drops or records sound, and the model that ?transcriber= names (./transcriber/) writes
// down what is said, with times that light up while it plays.

import type { Transcript } from "../../src/audio/index.js";
import { SAMPLE_RATE, readSound } from "../../src/audio/index.js";
import { asSrt, asVtt } from "../../src/shared/transcription/formats.js";
import { formatMs } from "../format.js";
import { loadState } from "../load_words.js";
import { keepPage } from "../offline.js";
import type { Recording } from "../recording.js";
import { record } from "../recording.js";
import { StoredModels } from "../stored_models.js";
import { languageName, speechAbilities } from "../transcriber.js";
import { folderOfAddress, openWorkerEngine } from "../worker_engine.js";
import { wavFile } from "../wav_file.js";
import type { WorkerEngine } from "../../src/worker/client.js";
import type { ExportFormat, Segment } from "./transcripts_view.js";
import { TranscriptsView, clock } from "./transcripts_view.js";

declare global {
  interface Window {
    /** For tests and for the console. */
    nearfarTranscriber?: WorkerEngine;
  }
}

const FORMATS: Readonly<Record<ExportFormat, (segments: readonly Segment[]) => string>> = {
  txt: (segments) => `${segments.map(({ text }) => text.trim()).join("\n")}\n`,
  srt: asSrt,
  vtt: asVtt,
};

class TranscriptsPage {
  readonly #bundle = folderOfAddress("transcriber") ?? "./transcriber/";
  readonly #engine = openWorkerEngine(this.#bundle, (progress) => {
    if (progress.phase !== "ready") this.#view.progress(loadState(progress));
  });
  #recording: Recording | null = null;
  #running = new AbortController();
  /** The end of the work on the last sound. */
  #done = Promise.resolve();
  #name = "transcript";
  #segments: readonly Segment[] = [];

  readonly #view = new TranscriptsView({
    open: (file) => {
      this.#transcribe(file.name, file);
    },
    record: () => void this.#record(),
    stop: () => {
      this.#running.abort();
    },
    save: (format) => {
      save(`${this.#name}.${format}`, FORMATS[format](this.#segments));
    },
    copy: () => {
      navigator.clipboard.writeText(FORMATS.txt(this.#segments)).then(
        () => {
          this.#view.copied(true);
        },
        () => {
          this.#view.copied(false);
        },
      );
    },
  });

  async start(): Promise<void> {
    speechAbilities(this.#bundle).then(
      (abilities) => {
        this.#view.offer(abilities);
      },
      // The engine reports it.
      () => undefined,
    );
    try {
      const engine = await this.#engine;
      window.nearfarTranscriber = engine;
      this.#view.ready(engine.info.model);
    } catch (error) {
      this.#view.fail(error);
    }
    this.#view.progress(null);
    await new StoredModels().show();
  }

  async #record(): Promise<void> {
    this.#view.problem(null);
    const recording = this.#recording;
    try {
      if (recording === null) {
        this.#recording = await record((seconds, level) => {
          if (this.#recording !== null) this.#view.recording(seconds, level);
        });
        this.#view.recording(0);
        return;
      }
      this.#recording = null;
      this.#view.recording(null);
      this.#transcribe("Recording", wavFile(await recording.stop(), SAMPLE_RATE));
    } catch (error) {
      this.#recording = null;
      this.#view.recording(null);
      this.#view.problem(error);
    }
  }

  /** After the last sound, whose work ends now. */
  #transcribe(name: string, sound: Blob): void {
    this.#running.abort();
    const running = new AbortController();
    this.#running = running;
    this.#done = this.#done.then(() =>
      running.signal.aborted ? undefined : this.#follow(name, sound, running.signal),
    );
  }

  async #follow(name: string, sound: Blob, signal: AbortSignal): Promise<void> {
    this.#name = name.replace(/\.[^.]+$/, "");
    this.#segments = [];
    const reading = readSound(sound, { signal });
    reading.catch(() => undefined);
    this.#view.begin(name, sound, async () => wavFile(await reading, SAMPLE_RATE));
    try {
      const engine = await this.#engine;
      this.#view.progress({ words: "Reading the sound", amount: "", done: 0, total: null });
      const samples = await reading;
      const begun = performance.now();
      const seconds = samples.length / SAMPLE_RATE;
      const show = (done: number): void => {
        const amount = `${clock(done)} of ${clock(seconds)}`;
        this.#view.progress({ words: "Transcribing", amount, done, total: done === 0 ? null : seconds });
      };
      show(0);
      const { language, translate } = this.#view.wishes;
      const stream = await engine.transcribe(
        { samples, sampleRate: SAMPLE_RATE },
        {
          stream: true,
          timestamps: true,
          task: translate ? "translate" : "transcribe",
          language: language ?? undefined,
          signal,
        },
      );
      for (;;) {
        const { done, value } = await stream.next();
        if (done) {
          this.#view.finish(
            "done",
            `${factsOf(value, performance.now() - begun)} on this device, ${engine.info.adapter}.`,
          );
          return;
        }
        this.#segments = [...this.#segments, value];
        this.#view.append(value);
        show(Math.min(value.end, seconds));
      }
    } catch (error) {
      this.#view.finish(signal.aborted ? "stopped" : "failed", signal.aborted ? "Stopped." : "");
      if (!signal.aborted) this.#view.problem(error);
    }
  }
}

/** "1:15 of German, transcribed in 3.2 s". */
function factsOf({ task, language, duration, segments }: Transcript, ms: number): string {
  const sound = `${clock(duration)} of ${language === null ? "sound" : languageName(language)}`;
  const words = task === "translate" ? "translated into English" : "transcribed";
  return `${segments.length === 0 ? "No speech was found in " : ""}${sound}, ${words} in ${formatMs(ms)}`;
}

function save(name: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

keepPage();

void new TranscriptsPage().start();
