// What the user has typed and not sent, and which conversation is open, for the tab's next page: a reload, or a tab that
// the browser has closed and opens again.

import type { Attachment } from "./attachments.js";

const KEY = "nearfar draft";
const KEEP_MS = 250;

export interface Draft {
  /** The open conversation, which may be stored. */
  readonly id: string;
  readonly text: string;
  readonly attachments: readonly Attachment[];
  readonly system: string;
  /** Whether the message must stay on this device. */
  readonly locked: boolean;
}

/** Null if there is none. */
export function readDraft(): Draft | null {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Draft | null;
  } catch {
    // Without storage, or with something else in it.
    return null;
  }
}

/** Keeps the draft, a moment after it has changed. */
export class KeptDraft {
  #timer: ReturnType<typeof setTimeout> | null = null;

  constructor(private readonly current: () => Draft) {}

  changed(): void {
    this.#timer ??= setTimeout(() => {
      this.keep();
    }, KEEP_MS);
  }

  keep(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    const draft = this.current();
    // The files may be larger than what the browser keeps.
    if (!store(draft)) store({ ...draft, attachments: [] });
  }
}

function store(draft: Draft): boolean {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(draft));
    return true;
  } catch {
    return false;
  }
}
