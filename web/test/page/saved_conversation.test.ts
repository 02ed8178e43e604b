// Saving the open conversation over a fake store: how often, in which order, and when another tab has changed it.

import { afterEach, beforeEach, expect, it, vi } from "vitest";

import type { Conversation } from "../../page/conversations.js";
import type { Content } from "../../page/saved_conversation.js";
import { SAVE_MS, SavedConversation } from "../../page/saved_conversation.js";

const CONTENT: Content = { title: "T", model: null, system: "", locked: false, turns: [] };

/** What the database does, and the conversations that it has. */
function fakeStore() {
  const stored = new Map<string, Conversation>();
  const writes: [system: string, ended: boolean][] = [];
  const store = async (conversation: Conversation, ended: boolean): Promise<number | null> => {
    await Promise.resolve();
    const last = stored.get(conversation.id);
    if ((last?.revision ?? 0) !== conversation.revision) return null;
    const revision = conversation.revision + 1;
    stored.set(conversation.id, { ...conversation, title: last?.title ?? conversation.title, revision });
    writes.push([conversation.system, ended]);
    return revision;
  };
  return { stored, writes, store };
}

/** A tab, whose content is its system prompt. */
function tab(store: ReturnType<typeof fakeStore>["store"]) {
  const shown = { system: "" };
  const copies: string[] = [];
  const saved = new SavedConversation({
    content: () => (shown.system === "" ? null : { ...CONTENT, system: shown.system }),
    store,
    copied: (id) => copies.push(id),
  });
  return { shown, copies, saved };
}

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

it("an answer that grows is saved once in a while, at its end, and when the page closes", async () => {
  const { writes, store } = fakeStore();
  const { shown, saved } = tab(store);
  for (let token = 1; token <= 10; token++) {
    shown.system += "x";
    saved.soon();
    await vi.advanceTimersByTimeAsync(SAVE_MS / 4);
  }
  expect(writes).toEqual([
    ["xxxx", false],
    ["xxxxxxxx", false],
  ]);
  await saved.now();
  await vi.advanceTimersByTimeAsync(2 * SAVE_MS);
  expect(writes).toHaveLength(3);
  expect(writes.at(-1)).toEqual(["x".repeat(10), true]);
  saved.flush();
  expect(writes).toHaveLength(3);
  shown.system = "y";
  saved.soon();
  saved.flush();
  await vi.advanceTimersByTimeAsync(0);
  expect(writes.at(-1)).toEqual(["y", false]);
});

it("an empty conversation is not saved", async () => {
  const { writes, store } = fakeStore();
  await tab(store).saved.now();
  expect(writes).toEqual([]);
});

it("two tabs that continue one conversation both keep their text", async () => {
  const { stored, store } = fakeStore();
  const [one, other] = [tab(store), tab(store)];
  one.shown.system = "shared";
  await one.saved.now();
  const { id } = one.saved;
  other.saved.switchTo({ id, revision: one.saved.revision });
  one.shown.system = "one";
  await one.saved.now();
  other.shown.system = "other";
  await Promise.all([other.saved.now(false), other.saved.now()]);
  expect(stored.get(id)?.system).toBe("one");
  expect(other.copies).toEqual([other.saved.id]);
  expect(stored.get(other.saved.id)).toMatchObject({ system: "other", title: "T (copy)", revision: 2 });
  expect(one.copies).toEqual([]);
});

it("a save that is running when the user opens another conversation goes to the one that it belongs to", async () => {
  const { stored, store } = fakeStore();
  const { shown, saved } = tab(store);
  shown.system = "first";
  const { id } = saved;
  const saving = saved.now();
  saved.switchTo();
  shown.system = "second";
  await Promise.all([saving, saved.now()]);
  expect(stored.get(id)?.system).toBe("first");
  expect(stored.get(saved.id)?.system).toBe("second");
});
