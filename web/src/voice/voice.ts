// A conversation by voice: one loop that hears when the user speaks, writes it down meanwhile, and lets a turn answer
// when the user is silent. Who speaks while an answer is heard stops it.

import type { ChatCompletionMessageParam, Route } from "../api/types.js";
import { listen } from "../audio/index.js";
import { SAMPLE_RATE } from "../audio/resample.js";
import { RequestError } from "../errors.js";
import { SoundBuffer } from "./sound_buffer.js";
import type { TurnTimings, VoiceParts } from "./turn.js";
import { Turn } from "./turn.js";
import { VoiceActivity } from "./voice_activity.js";

/** "thinking": from the end of what the user said to the first sound of the answer. */
export type VoiceState = "off" | "listening" | "hearing" | "thinking" | "speaking";

export type VoiceEvent =
  | { readonly type: "state"; readonly state: VoiceState }
  /** What the user has said so far. It may change. */
  | { readonly type: "partial"; readonly text: string }
  | { readonly type: "heard"; readonly text: string; readonly language: string | null }
  /** The answer so far. A router may start it anew. */
  | { readonly type: "answer"; readonly text: string; readonly route: Route | null }
  /** A sentence begins to be heard. */
  | { readonly type: "spoken"; readonly text: string }
  /** A turn has ended. ``interrupted``: the user spoke while the answer was heard, or stopped the conversation. */
  | { readonly type: "turn"; readonly interrupted: boolean; readonly timings: TurnTimings }
  /** A turn has failed; the conversation goes on. */
  | { readonly type: "error"; readonly error: unknown };

export interface VoiceOptions extends VoiceParts {
  readonly onEvent?: ((event: VoiceEvent) => void) | undefined;
  /** The messages before the first turn, such as a system message. */
  readonly messages?: readonly ChatCompletionMessageParam[] | undefined;
  /** The silence that ends what the user says; 700 ms by default. */
  readonly silenceMs?: number | undefined;
  /** The least time from one partial transcript to the next, or null for none; 1000 ms by default. */
  readonly partialMs?: number | null | undefined;
  /** How much of what the user says is kept, the last seconds; 120 by default. */
  readonly maxSeconds?: number | undefined;
}

export interface Voice {
  readonly state: VoiceState;
  /** All messages so far; an answer that was interrupted has only the sentences that were heard. */
  readonly messages: readonly ChatCompletionMessageParam[];
  /**
   * Converses until ``sound`` ends or `stop` is called: a microphone (see `openMicrophone`), or blocks of samples at
   * 16 kHz. Throws DeviceError if the microphone fails.
   */
  run(sound: MediaStream | AsyncIterable<Float32Array>): Promise<void>;
  /** Ends the answer, but not the conversation. */
  interrupt(): void;
  stop(): void;
}

const MAX_SECONDS = 120;
/** A window of Whisper: partial transcripts of more would take several. */
const PARTIAL_SECONDS = 30;
/** Sound before speech is noticed that belongs to it. */
const BEFORE_MS = 300;
/** The least length of speech: longer while the loudspeaker is heard, of which an echo may be left. */
const ONSET_MS = { quiet: 100, speaking: 260 } as const;

export function createVoice(options: VoiceOptions): Voice {
  for (const name of ["transcriber", "chat", "speaker"] as const)
    if (typeof options[name] !== "object")
      throw new RequestError(`createVoice: '${name}' is missing; pass { transcriber, chat, speaker }`, { param: name });
  return new Conversation(options);
}

class Conversation implements Voice {
  #state: VoiceState = "off";
  #messages: readonly ChatCompletionMessageParam[];
  #stopped = new AbortController();
  #activity: VoiceActivity;
  #sound = new SoundBuffer();
  /** The first sample of what is being said, or was said last. */
  #start = 0;
  #turn: Turn | null = null;
  #partial: AbortController | null = null;
  #nextPartialAt = 0;

  constructor(private readonly options: VoiceOptions) {
    this.#messages = options.messages ?? [];
    this.#activity = this.#newActivity();
  }

  get state(): VoiceState {
    return this.#state;
  }

  get messages(): readonly ChatCompletionMessageParam[] {
    return this.#messages;
  }

  async run(sound: MediaStream | AsyncIterable<Float32Array>): Promise<void> {
    if (this.#state !== "off") throw new RequestError("this conversation is running; stop it, or create another");
    this.#stopped = new AbortController();
    const { signal } = this.#stopped;
    this.#activity = this.#newActivity();
    this.#sound = new SoundBuffer();
    this.#enter("listening");
    try {
      for await (const block of Symbol.asyncIterator in sound ? sound : listen(sound, { signal })) {
        if (signal.aborted) break;
        this.#hear(block);
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      this.#turn?.stop();
      this.#partial?.abort();
      this.#enter("off");
    }
  }

  interrupt(): void {
    this.#turn?.stop();
  }

  stop(): void {
    this.#stopped.abort();
    this.#turn?.stop();
  }

  #newActivity(): VoiceActivity {
    return new VoiceActivity({ onsetMs: ONSET_MS.quiet, silenceMs: this.options.silenceMs });
  }

  #hear(block: Float32Array): void {
    this.#sound.push(block);
    for (const { type, sample } of this.#activity.push(block)) {
      if (type === "begin") this.#begin(sample);
      else this.#end(sample);
    }
    if (this.#state === "hearing") {
      const most = (this.options.maxSeconds ?? MAX_SECONDS) * SAMPLE_RATE;
      this.#start = Math.max(this.#start, this.#sound.end - most);
      this.#sound.forget(this.#start);
      void this.#transcribePart();
    } else if (this.#turn === null || this.#turn.hasSound)
      this.#sound.forget(this.#sound.end - ((BEFORE_MS + ONSET_MS.speaking) / 1000) * SAMPLE_RATE);
  }

  /** The user begins to speak, or goes on after a pause in which no sound of an answer was heard. */
  #begin(sample: number): void {
    const turn = this.#turn;
    if (turn === null || turn.hasSound) this.#start = Math.max(0, sample - (BEFORE_MS / 1000) * SAMPLE_RATE);
    turn?.stop();
    this.#turn = null;
    this.#nextPartialAt = performance.now() + (this.options.partialMs ?? 0);
    this.#enter("hearing");
  }

  #end(sample: number): void {
    this.#partial?.abort();
    const silentMs = (1000 * (this.#sound.end - sample)) / SAMPLE_RATE;
    const utterance = { samples: this.#sound.since(this.#start), endedAt: performance.now() - silentMs };
    const turn = new Turn(this.options, utterance, {
      heard: (text, language) => {
        this.#emit({ type: "heard", text, language });
      },
      answer: (text, route) => {
        if (!turn.isStopped) this.#emit({ type: "answer", text, route });
      },
      spoken: (text) => {
        if (turn.isStopped) return;
        this.#enter("speaking");
        this.#emit({ type: "spoken", text });
      },
    });
    this.#turn = turn;
    this.#enter("thinking");
    void this.#follow(turn);
  }

  async #follow(turn: Turn): Promise<void> {
    try {
      await turn.run(this.#messages);
    } catch (error) {
      if (!turn.isStopped) this.#emit({ type: "error", error });
    }
    // A turn that was stopped before it was heard is none: the user goes on to speak.
    if (turn.heard !== "" && (turn.hasSound || !turn.isStopped)) {
      const answer = turn.answer === "" ? [] : [{ role: "assistant" as const, content: turn.answer }];
      this.#messages = [...this.#messages, { role: "user", content: turn.heard }, ...answer];
      this.#emit({ type: "turn", interrupted: turn.isStopped, timings: turn.timings });
    }
    if (this.#turn !== turn) return;
    this.#turn = null;
    if (this.#state !== "off") this.#enter("listening");
  }

  /** Writes down what the user has said so far: one transcript at a time, and at most half of the time. */
  async #transcribePart(): Promise<void> {
    const { partialMs = 1000, language, transcriber } = this.options;
    const begun = performance.now();
    const isLong = this.#sound.end - this.#start > PARTIAL_SECONDS * SAMPLE_RATE;
    if (partialMs === null || isLong || this.#partial !== null || begun < this.#nextPartialAt) return;
    const partial = new AbortController();
    this.#partial = partial;
    try {
      const sound = { samples: this.#sound.since(this.#start), sampleRate: SAMPLE_RATE };
      const { text } = await transcriber.transcribe(sound, { language, temperature: 0, signal: partial.signal });
      if (!partial.signal.aborted && text.trim() !== "") this.#emit({ type: "partial", text: text.trim() });
    } catch {
      // The transcript at the end reports what is wrong.
    }
    this.#partial = null;
    const now = performance.now();
    this.#nextPartialAt = now + Math.max(partialMs, now - begun);
  }

  #enter(state: VoiceState): void {
    if (state === this.#state) return;
    this.#state = state;
    this.#activity.onsetMs = state === "speaking" ? ONSET_MS.speaking : ONSET_MS.quiet;
    this.#emit({ type: "state", state });
  }

  #emit(event: VoiceEvent): void {
    this.options.onEvent?.(event);
  }
}
