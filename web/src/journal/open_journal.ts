// The journal of an answer while it is generated: records what is new in small parts. What a crash loses of near's tokens
// is computed again, and is equal.

import type { AnswerEnd, BegunAnswer, GeneratedToken } from "../engine/request.js";
import { RequestError } from "../errors.js";
import type { JournalStore, Place, StoredJournal } from "./journal_store.js";
import type { Contents, Head, Part, TokenModel } from "./record.js";
import { contentsOf, merged, packed } from "./record.js";

/** A folder of many files is slow to list, so this number of parts becomes one. */
const MOST_PARTS = 64;

export interface Recording {
  /** The number of tokens, and the time, after which a part is written. */
  readonly flushTokens: number;
  readonly flushMs: number;
  /** Whether answers to requests that a Hybrid's policy calls private or masks are recorded, with their texts. */
  readonly keepPrivate: boolean;
  /**
   * Receives the error of a request or a part that cannot be written; the answer goes on, and nothing more of it is
   * recorded. Also that of an answer that `list` cannot read.
   */
  readonly onError: (error: unknown) => void;
}

export class OpenJournal {
  /** What an earlier page has recorded. */
  readonly before: Contents;
  #all: Part;
  #pending: { -readonly [K in keyof Part]: Part[K] } = {};
  #count = 0;
  #place: Place;
  /** By choice, what this page has generated: first it generates what was recorded. */
  readonly #generated: number[] = [];
  /** By choice, what is recorded of it. */
  readonly #recorded: number[];
  #timer: ReturnType<typeof setTimeout> | undefined;
  #writing: Promise<void> = Promise.resolve();
  #isRecording = true;

  /** ``stored``: what an earlier page has recorded. */
  constructor(
    private readonly store: JournalStore,
    readonly head: Head,
    private readonly stored: StoredJournal | null,
    private readonly recording: Recording,
    private readonly release: () => void,
  ) {
    this.#all = stored?.all ?? {};
    this.#place = stored?.next ?? { generation: 0, part: 0 };
    this.before = contentsOf(this.#all);
    this.#recorded = this.before.choices.map(({ tokens, end }) => tokens.length + (end === undefined ? 0 : 1));
  }

  async begin(): Promise<void> {
    if (this.stored !== null) return;
    try {
      await this.store.begin(this.head);
    } catch (error) {
      this.#fail(error);
    }
  }

  /** What an engine continues. A complete answer that a stop string has ended has no end of the engine's. */
  get begun(): readonly BegunAnswer[] {
    const { choices, done } = this.before;
    return choices.map(({ tokens, end }) => ({
      tokens,
      end:
        end ??
        (done
          ? { finishReason: "stop", promptTokens: 0, cachedTokens: 0, completionTokens: tokens.length }
          : undefined),
    }));
  }

  /** What an engine has generated of a choice, the tokens of `begun` included. */
  readonly generated = (choice: number, generated: GeneratedToken | AnswerEnd): void => {
    const index = this.#generated[choice] ?? 0;
    this.#generated[choice] = index + 1;
    if (index < (this.#recorded[choice] ?? 0)) return;
    this.record({ generated: [packed(choice, generated)] });
  };

  /** Near of a Hybrid is asked. Null: not for the whole answer. ``continues``: it begins with the tokens of `begun`. */
  nearAsked(near: TokenModel | null, continues: boolean): void {
    this.#generated.length = 0;
    if (continues) return;
    this.#recorded.length = 0;
    this.#pending.generated = [];
    this.record({ near });
  }

  /** Nothing of the answer is kept. Throws StorageError. */
  async forget(): Promise<void> {
    this.#isRecording = false;
    await this.store.delete(this.head.id);
  }

  /** The answer is complete, and recorded as such. */
  async finish(): Promise<void> {
    this.record({ done: true });
    await this.flush();
    await this.#write(true);
  }

  /**
   * Records what is not recorded yet, and lets other tabs continue. A request that was refused is forgotten. ``error``:
   * what ended the answer.
   */
  async close(error: unknown = null): Promise<void> {
    await this.flush();
    if (error instanceof RequestError && Object.keys(this.#all).length === 0) await this.store.delete(this.head.id);
    this.release();
  }

  record(part: Part): void {
    if (!this.#isRecording) return;
    this.#pending = merged([this.#pending, part]);
    this.#count++;
    if (this.#count >= this.recording.flushTokens) void this.flush();
    else this.#timer ??= setTimeout(() => void this.flush(), this.recording.flushMs);
  }

  /** Writes what is not written yet. Never rejects. */
  flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#count = 0;
    this.#writing = this.#writing.then(() => this.#write(this.#place.part >= MOST_PARTS));
    return this.#writing;
  }

  /** ``whole``: as one part with the earlier ones. */
  async #write(whole: boolean): Promise<void> {
    const part = this.#pending;
    const isEmpty = Object.keys(part).length === 0;
    if (!this.#isRecording || (isEmpty && !whole)) return;
    this.#pending = {};
    this.#all = merged([this.#all, part]);
    try {
      this.#place = await this.store.write(this.head.id, this.#place, whole ? this.#all : part, whole);
    } catch (error) {
      this.#fail(error);
    }
  }

  #fail(error: unknown): void {
    this.#isRecording = false;
    this.recording.onError(error);
  }
}
