// Conversations that this device keeps, in IndexedDB. Nothing of them is sent anywhere.

import type { DBSchema, IDBPDatabase } from "idb";
import { openDB } from "idb";

import type { Attachment } from "./attachments.js";

export interface SavedTurn {
  readonly question: string;
  readonly attachments: readonly Attachment[];
  /** Whether only this device may answer it. */
  readonly private: boolean;
  /** Markdown, with the model's reasoning; "" if there is no answer. */
  readonly answer: string;
}

export interface Conversation {
  readonly id: string;
  readonly title: string;
  readonly updatedMs: number;
  /** The model of this device when it was last changed; null if there was none. */
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

  /** Null if this browser keeps nothing, as in some private windows. */
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

  /** The latest first. */
  async list(): Promise<readonly Conversation[]> {
    return (await this.database.getAll("conversations")).sort((one, other) => other.updatedMs - one.updatedMs);
  }

  async put(conversation: Conversation): Promise<void> {
    await this.database.put("conversations", conversation);
  }

  async delete(id: string): Promise<void> {
    await this.database.delete("conversations", id);
  }
}

/** A title from the first question. */
export function titleOf(question: string): string {
  const line = question.trim().replace(/\s+/g, " ");
  return line.length <= 60 ? line : `${line.slice(0, 59).trimEnd()}…`;
}

/** Whether a conversation has all words of a search, in its title or its text. */
export function matches({ title, turns }: Conversation, search: string): boolean {
  const text = [title, ...turns.flatMap(({ question, answer }) => [question, answer])].join("\n").toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

export function asMarkdown({ title, system, turns }: Conversation): string {
  const said = turns.flatMap(({ question, attachments, answer }) => [
    `## You\n\n${[question, ...attachments.map(({ name }) => `(attached: ${name})`)].join("\n\n")}`,
    ...(answer === "" ? [] : [`## Model\n\n${answer}`]),
  ]);
  return `${[`# ${title}`, ...(system === "" ? [] : [`> ${system.replaceAll("\n", "\n> ")}`]), ...said].join("\n\n")}\n`;
}

export function asJson(conversation: Conversation): string {
  return `${JSON.stringify({ format: "nearfar-conversation-1", ...conversation }, null, 2)}\n`;
}
