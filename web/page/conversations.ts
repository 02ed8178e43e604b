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
}

export interface Conversation {
  readonly id: string;
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
