// Stores conversations on this device, in IndexedDB. They are not sent anywhere.

import type { DBSchema, IDBPDatabase } from "idb";
import { openDB } from "idb";

import type { Attachment } from "./attachments.js";

export interface SavedTurn {
  readonly question: string;
  readonly attachments: readonly Attachment[];
  /** Whether only this device may answer it. */
  readonly private: boolean;
  /** Markdown, with the model's reasoning between <think> and </think>; "" if there is no answer. */
  readonly answer: string;
  /** The answer had not ended when it was stored. */
  readonly unfinished?: true;
}

export interface Conversation {
  readonly id: string;
  /** Counts the changes of its content, so that a tab notices those of another one; 0 before the first. */
  readonly revision: number;
  readonly title: string;
  readonly updatedMs: number;
  /** The model of this device at the last change; null if there was no model. */
  readonly model: string | null;
  readonly system: string;
  /** Whether the lock was closed for the next message. */
  readonly locked: boolean;
  readonly turns: readonly SavedTurn[];
}

interface Schema extends DBSchema {
  conversations: { key: string; value: Conversation };
}

export class ConversationStore {
  private constructor(private readonly database: IDBPDatabase<Schema>) {}

  /** Resolves to null if the browser does not store anything, as in some private windows. */
  static async open(): Promise<ConversationStore | null> {
    try {
      return new ConversationStore(
        await openDB<Schema>("nearfar conversations", 1, {
          upgrade: (database) => void database.createObjectStore("conversations", { keyPath: "id" }),
        }),
      );
    } catch {
      return null;
    }
  }

  /** All conversations, the latest first. */
  async list(): Promise<readonly Conversation[]> {
    const stored = await this.database.getAll("conversations");
    return stored.map(withRevision).sort((one, other) => other.updatedMs - one.updatedMs);
  }

  /** Undefined if none with this id is stored. */
  async get(id: string): Promise<Conversation | undefined> {
    const stored = await this.database.get("conversations", id);
    return stored && withRevision(stored);
  }

  /**
   * Store a conversation that was read at its revision, under the title that it has now. Returns what is stored; null,
   * and nothing changes, if it has another revision, or none, because another tab has changed or deleted it.
   */
  async update(conversation: Conversation): Promise<Conversation | null> {
    const { store, done } = this.database.transaction("conversations", "readwrite");
    const stored = await store.get(conversation.id);
    const isKnown = (stored?.revision ?? 0) === conversation.revision;
    const title = stored?.title ?? conversation.title;
    const changed = { ...conversation, title, revision: conversation.revision + 1 };
    if (isKnown) await store.put(changed);
    await done;
    return isKnown ? changed : null;
  }

  /** A title is not content, so tabs that show the conversation may go on. */
  async rename(id: string, title: string): Promise<void> {
    const { store, done } = this.database.transaction("conversations", "readwrite");
    const stored = await store.get(id);
    if (stored !== undefined) await store.put({ ...stored, title });
    await done;
  }

  async delete(id: string): Promise<void> {
    await this.database.delete("conversations", id);
  }
}

/** Conversations of earlier versions of the page have no revision. */
function withRevision(stored: Conversation): Conversation {
  return { ...stored, revision: (stored as Partial<Conversation>).revision ?? 0 };
}

/** A title from the first question. */
export function titleOf(question: string): string {
  const line = question.trim().replace(/\s+/g, " ");
  return line.length <= 60 ? line : `${line.slice(0, 59).trimEnd()}…`;
}

/** Whether a conversation contains all words of a search, in its title or its text. */
export function matches({ title, turns }: Conversation, search: string): boolean {
  const text = [title, ...turns.flatMap(({ question, answer }) => [question, answer])].join("\n").toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

export function asMarkdown({ title, system, turns }: Conversation): string {
  const messages = turns.flatMap(({ question, attachments, answer }) => [
    `## You\n\n${[question, ...attachments.map(({ name }) => `(attached: ${name})`)].join("\n\n")}`,
    ...(answer === "" ? [] : [`## Model\n\n${answer}`]),
  ]);
  const quoted = system === "" ? [] : [`> ${system.replaceAll("\n", "\n> ")}`];
  return `${[`# ${title}`, ...quoted, ...messages].join("\n\n")}\n`;
}

export function asJson(conversation: Conversation): string {
  return `${JSON.stringify({ format: "nearfar-conversation-1", ...conversation }, null, 2)}\n`;
}
