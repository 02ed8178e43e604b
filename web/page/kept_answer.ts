// The last answer of a conversation, which a page that is loaded again in the middle of it continues. It is deleted once
// the conversation is stored with it.

import type { JournalInfo, Journals } from "../src/journal/index.js";

/** ``resumes``: an earlier page has begun the answer. */
export interface Kept {
  readonly id: string;
  readonly resumes: boolean;
}

/** Whether the page's own engine answered, or two sides. */
export type KeptApi = Extract<JournalInfo["api"], "generate" | "chat">;

const idOf = (conversation: string): string => `chat ${conversation}`;

/** For a new answer; null if this browser keeps none, or another tab answers in the same conversation. */
export async function keptAnew(journals: Journals, conversation: string): Promise<Kept | null> {
  const id = idOf(conversation);
  return journals.delete(id).then(
    () => ({ id, resumes: false }),
    () => null,
  );
}

/** What an earlier page has begun, with the text that its answer continued; null if there is nothing to go on with. */
export async function keptBefore(
  journals: Journals,
  conversation: string,
  api: KeptApi,
): Promise<(Kept & { readonly begun: string }) | null> {
  const info = await journals.find(idOf(conversation)).catch(() => null);
  if (info === null || info.running || info.api !== api) return null;
  const [first] = info.args as readonly [readonly Message[] | string | { readonly messages: readonly Message[] }];
  const messages = typeof first === "string" ? [] : "messages" in first ? first.messages : first;
  const last = messages.at(-1);
  const begun = last?.role === "assistant" && typeof last.content === "string" ? last.content : "";
  return { id: info.id, resumes: true, begun };
}

interface Message {
  readonly role: string;
  readonly content: unknown;
}

/** The conversation is stored with the answer, or the user wants no more of it. */
export async function forget(journals: Journals, { id }: Kept): Promise<void> {
  await journals.delete(id).catch(() => undefined);
}
