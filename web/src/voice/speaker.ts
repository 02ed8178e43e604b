// What speaks: the one interface of all synthesisers, and the order in which sentences are spoken.

/** The sound of a text. */
export interface Speech {
  /**
   * Plays it, and resolves at its end. ``onSound`` is called when it begins to be heard. Throws the signal's reason once
   * it is silent, and DeviceError.
   */
  play(options: { readonly signal: AbortSignal; readonly onSound: () => void }): Promise<void>;
}

export interface Speaker {
  /** Makes the sound of a text. Throws DeviceError, Unavailable, or the signal's reason. */
  prepare(text: string, options: { readonly signal: AbortSignal }): Promise<Speech>;
}

export interface SpeechEvents {
  /** A sentence begins to be heard. */
  readonly onSound: (sentence: string) => void;
}

/** Speaks sentences one after the other, and prepares the next one meanwhile. */
export class SpeechQueue {
  #prepared: Promise<unknown> = Promise.resolve();
  #played: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly speaker: Speaker,
    private readonly signal: AbortSignal,
    private readonly events: SpeechEvents,
  ) {}

  push(sentence: string): void {
    const { signal } = this;
    // Its sound is made while the one before it plays, no earlier: that of a long answer would fill the memory.
    const before = this.#played;
    const ready = this.#prepared;
    const speech = ready.then(() => this.speaker.prepare(sentence, { signal }));
    const played = Promise.all([before, speech]).then(([, made]) => {
      signal.throwIfAborted();
      return made.play({
        signal,
        onSound: () => {
          this.events.onSound(sentence);
        },
      });
    });
    this.#prepared = Promise.all([before, speech]);
    this.#played = played;
    for (const each of [this.#prepared, played]) each.catch(() => undefined);
  }

  /** Resolves when all sentences were spoken. Throws what the speaker throws, or the signal's reason. */
  async end(): Promise<void> {
    await this.#played;
  }
}
