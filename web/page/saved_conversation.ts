// Saves the open conversation as it grows, so that a page that closes loses at most a second of an answer. If another tab
// has changed the same conversation, this one continues as a copy: both texts remain.

import type { Conversation } from "./conversations.js";

/** The rate is bounded, because a save writes the whole conversation. */
export const SAVE_MS = 1000;

/** What the page shows; null if there is nothing to save. */
export type Content = Omit<Conversation, "id" | "revision" | "updatedMs">;

export interface SavedConversationHandlers {
  readonly content: () => Content | null;
  /**
   * Store a conversation that was read at its revision. Resolves to the stored revision; null if it was not stored,
   * because another tab has changed it. ``ended``: whether it stays like this for a while.
   */
  readonly store: (conversation: Conversation, ended: boolean) => Promise<number | null>;
  /** The conversation continues under this id, as a copy. */
  readonly copied: (id: string) => void;
}

export class SavedConversation {
  #state = { id: crypto.randomUUID() as string, revision: 0 };
  #timer: ReturnType<typeof setTimeout> | null = null;
  #last: Promise<void> = Promise.resolve();

  constructor(private readonly handlers: SavedConversationHandlers) {}

  get id(): string {
    return this.#state.id;
  }

  get revision(): number {
    return this.#state.revision;
  }

  /** Begin another conversation, or continue a stored one. */
  switchTo(stored: Pick<Conversation, "id" | "revision"> = { id: crypto.randomUUID(), revision: 0 }): void {
    this.#cancel();
    this.#state = { id: stored.id, revision: stored.revision };
  }

  /** Save within SAVE_MS. */
  soon(): void {
    this.#timer ??= setTimeout(() => void this.now(false), SAVE_MS);
  }

  /** Save what is not saved yet, because the page may close. */
  flush(): void {
    if (this.#timer !== null) void this.now(false);
  }

  /** Save what the page shows at this moment, after the saves that have begun. */
  now(ended = true): Promise<void> {
    this.#cancel();
    const content = this.handlers.content();
    const state = this.#state;
    if (content !== null) this.#last = this.#last.then(() => this.#save(content, state, ended));
    return this.#last;
  }

  async #save(content: Content, state: { id: string; revision: number }, ended: boolean): Promise<void> {
    const store = (title: string): Promise<number | null> =>
      this.handlers.store({ ...content, ...state, title, updatedMs: Date.now() }, ended);
    let revision = await store(content.title);
    if (revision === null) {
      Object.assign(state, { id: crypto.randomUUID(), revision: 0 });
      revision = await store(`${content.title} (copy)`);
      if (state === this.#state) this.handlers.copied(state.id);
    }
    state.revision = revision ?? 0;
  }

  #cancel(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }
}
