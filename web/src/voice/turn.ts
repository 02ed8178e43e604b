// One turn of a conversation by voice: what was said becomes text, a model answers, and each sentence is spoken as soon
// as it is written.

import type { EngineApi } from "../api/engine_api.js";
import { isWithdrawal } from "../api/chat_source.js";
import type {
  ChatCompletionChunk,
  ChatCompletionCreateParamsStreaming,
  ChatCompletionMessageParam,
  Route,
} from "../api/types.js";
import { SAMPLE_RATE } from "../audio/resample.js";
import { Sentences } from "./sentences.js";
import type { Speaker } from "./speaker.js";
import { SpeechQueue } from "./speaker.js";

/** What answers: an `Engine`, what `connectEngine` returns, or a `Hybrid`. */
export interface VoiceChat {
  readonly chat: {
    readonly completions: {
      create(
        params: ChatCompletionCreateParamsStreaming,
        options: { readonly signal: AbortSignal },
      ): PromiseLike<AsyncIterable<ChatCompletionChunk>>;
    };
  };
}

/** Who hears, answers and speaks. */
export interface VoiceParts {
  /** An engine with a Whisper, here or in a worker. */
  readonly transcriber: Pick<EngineApi, "transcribe">;
  readonly chat: VoiceChat;
  readonly speaker: Speaker;
  /** The code of the language that is spoken, such as "en"; by default the transcriber detects it. */
  readonly language?: string | undefined;
  /** OpenAI's parameters of the answers, such as `max_tokens`. */
  readonly params?: Omit<ChatCompletionCreateParamsStreaming, "messages" | "stream"> | undefined;
}

/** When things happened in a turn, in milliseconds after the user's last sound; null if they did not. */
export interface TurnTimings {
  /** The silence that ended what the user said. */
  readonly silenceMs: number;
  readonly transcriptMs: number | null;
  readonly firstTextMs: number | null;
  readonly firstSoundMs: number | null;
}

export interface TurnEvents {
  readonly heard: (text: string, language: string | null) => void;
  /** The answer so far. A router may start it anew. */
  readonly answer: (text: string, route: Route | null) => void;
  /** A sentence begins to be heard. */
  readonly spoken: (sentence: string) => void;
}

/** What the user said, and when it ended by `performance.now()`. */
export interface Utterance {
  readonly samples: Float32Array;
  readonly endedAt: number;
}

export class Turn {
  readonly #controller = new AbortController();
  readonly #silenceMs: number;
  #transcriptMs: number | null = null;
  #firstTextMs: number | null = null;
  #firstSoundMs: number | null = null;
  #answer = "";
  #isOver = false;
  readonly #spoken: string[] = [];
  #heard = "";

  constructor(
    private readonly parts: VoiceParts,
    private readonly utterance: Utterance,
    private readonly events: TurnEvents,
  ) {
    this.#silenceMs = this.#elapsed;
  }

  /** What the user said; "" before it is known, and if nothing was understood. */
  get heard(): string {
    return this.#heard;
  }

  /** The answer, or what was spoken of it if the turn was stopped. */
  get answer(): string {
    return this.#isOver ? this.#answer : this.#spoken.join(" ");
  }

  get hasSound(): boolean {
    return this.#firstSoundMs !== null;
  }

  get isStopped(): boolean {
    return this.#controller.signal.aborted;
  }

  get timings(): TurnTimings {
    return {
      silenceMs: this.#silenceMs,
      transcriptMs: this.#transcriptMs,
      firstTextMs: this.#firstTextMs,
      firstSoundMs: this.#firstSoundMs,
    };
  }

  /** Stops the answer and the sound. */
  stop(): void {
    this.#controller.abort(new DOMException("The turn was stopped", "AbortError"));
  }

  /** After ``messages``. Throws what the transcriber, the chat and the speaker throw, or the reason of `stop`. */
  async run(messages: readonly ChatCompletionMessageParam[]): Promise<void> {
    const { signal } = this.#controller;
    const { transcriber, language } = this.parts;
    const sound = { samples: this.utterance.samples, sampleRate: SAMPLE_RATE };
    const transcript = await transcriber.transcribe(sound, { language, signal });
    signal.throwIfAborted();
    this.#transcriptMs = this.#elapsed;
    this.#heard = transcript.text.trim();
    if (this.#heard === "") return;
    this.events.heard(this.#heard, transcript.language);
    await this.#answerTo([...messages, { role: "user", content: this.#heard }], language ?? transcript.language);
    this.#isOver = true;
  }

  async #answerTo(messages: readonly ChatCompletionMessageParam[], language: string | null): Promise<void> {
    const { signal } = this.#controller;
    const { chat, params } = this.parts;
    const stream = await chat.chat.completions.create({ ...params, messages, stream: true }, { signal });
    let speech = this.#speech(language);
    let route: Route | null = null;
    for await (const chunk of stream) {
      route = chunk.route ?? route;
      if (isWithdrawal(chunk) && this.#answer !== "") {
        speech.stop();
        this.#answer = "";
        speech = this.#speech(language);
      }
      const text = chunk.choices[0]?.delta.content ?? "";
      if (text === "") continue;
      this.#firstTextMs ??= this.#elapsed;
      this.#answer += text;
      this.events.answer(this.#answer, route);
      speech.push(text);
    }
    signal.throwIfAborted();
    await speech.end();
  }

  /** What speaks a text while it is written. */
  #speech(language: string | null) {
    const stopped = new AbortController();
    const sentences = new Sentences(isLocale(language) ? language : undefined);
    const queue = new SpeechQueue(this.parts.speaker, AbortSignal.any([this.#controller.signal, stopped.signal]), {
      onSound: (sentence) => {
        this.#firstSoundMs ??= this.#elapsed;
        this.#spoken.push(sentence);
        this.events.spoken(sentence);
      },
    });
    const say = (found: readonly string[]): void => {
      for (const sentence of found) queue.push(sentence);
    };
    return {
      push: (text: string): void => {
        say(sentences.push(text));
      },
      end: async (): Promise<void> => {
        say(sentences.end());
        await queue.end();
      },
      stop: (): void => {
        stopped.abort(new DOMException("The answer starts anew", "AbortError"));
      },
    };
  }

  get #elapsed(): number {
    return performance.now() - this.utterance.endedAt;
  }
}

/** Whether the browser knows the code; Whisper has others, too. */
function isLocale(code: string | null): code is string {
  try {
    return code !== null && Intl.Segmenter.supportedLocalesOf(code).length > 0;
  } catch {
    return false;
  }
}
