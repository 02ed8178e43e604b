import { StrictMode, createElement } from "react";
import type { FC } from "react";
import { expect, test } from "vitest";

import type { ChatSource } from "../../src/api/chat_source.js";
import { DeviceError } from "../../src/errors.js";
import type { UseChat, UseChatOptions } from "../../src/react/index.js";
import { useChat } from "../../src/react/index.js";
import { adapterEngine, adapterEngineOver } from "../api/adapter_engine.js";
import { FakeSource } from "../api/fake_model.js";
import { journalled } from "../../src/journal/index.js";
import { eachToken, pageStore, slowEngine } from "../journal/pages.js";
import { FakeFar } from "../router/fakes.js";
import { setUp } from "../router/hybrid_set_up.js";
import { memoryDisk } from "../store/memory_folder.js";
import { doing, root, settle } from "./dom.js";
import { waitFor } from "../wait_for.js";

/** A mounted component with the hook, and every state that it rendered. */
async function mounted(options: UseChatOptions, strict = false) {
  const states: UseChat[] = [];
  const Component: FC<UseChatOptions> = (given) => {
    states.push(useChat(given));
    return null;
  };
  const { render, unmount } = root();
  const show = async (given: UseChatOptions): Promise<void> => {
    const element = createElement(Component, given);
    await doing(() => {
      render(strict ? createElement(StrictMode, null, element) : element);
    });
  };
  await show(options);
  const last = (): UseChat => {
    const state = states.at(-1);
    if (state === undefined) throw new Error("nothing was rendered");
    return state;
  };
  const texts = (): string[] => last().messages.map(({ role, content }) => `${role}: ${content}`);
  return { states, last, texts, show, unmount };
}

const until = async (condition: () => boolean): Promise<void> => {
  await waitFor(async () => {
    await settle(1);
    expect(condition(), String(condition)).toBe(true);
  });
};

test.each([false, true])("an answer is streamed without tearing, StrictMode %s", async (strict) => {
  const { engine, prompt, source } = adapterEngine("hello", "bye");
  const { states, last, texts } = await mounted({ engine, system: "be brief", params: { temperature: 0 } }, strict);
  const { send } = last();
  await doing(() => send("hi"));
  expect(texts()).toEqual(["user: hi", "assistant: hello"]);
  expect(last()).toMatchObject({ status: "ready", error: null, send });
  expect(last().messages[1]?.finishReason).toBe("stop");
  expect([prompt(0), source.requests[0]?.sampling?.temperature]).toEqual(["[system]be brief[user]hi[assistant]", 0]);
  await doing(() => send("and?"));
  expect(prompt(1)).toBe("[system]be brief[user]hi[assistant]hello[user]and?[assistant]");
  // A message never loses text or changes its id from one render to the next.
  const seen = states.map(({ messages }) => messages[1]).filter((message) => message !== undefined);
  seen.forEach(({ content }, index) => {
    expect(content.startsWith(seen[index - 1]?.content ?? "")).toBe(true);
  });
  expect(new Set(seen.map(({ id }) => id)).size).toBe(1);
});

test("status changes from submitted to streaming to ready", async () => {
  const { states, last } = await mounted({ engine: adapterEngine("abc").engine });
  void last().send("hi");
  await until(() => last().status === "ready" && last().messages.length === 2);
  const statuses = states.map(({ status }) => status);
  expect(statuses.filter((status, index) => status !== statuses[index - 1])).toEqual([
    "ready",
    "submitted",
    "streaming",
    "ready",
  ]);
});

test("stop keeps the text so far, and the next message continues from there", async () => {
  const source = new FakeSource(["a".repeat(500), "b"]);
  const { last, texts } = await mounted({ engine: adapterEngineOver(source).engine });
  void last().send("hi");
  await until(() => (last().messages[1]?.content.length ?? 0) > 2);
  await doing(() => {
    last().stop();
  });
  const stopped = texts();
  await until(() => source.running === 0);
  expect([last().status, texts()]).toEqual(["ready", stopped]);
  expect(source.tokens).toBeLessThan(400);
  await doing(() => last().send("and?"));
  expect(texts()).toEqual([...stopped, "user: and?", "assistant: b"]);
});

test("a message that is sent during an answer stops that answer", async () => {
  const source = new FakeSource(["a".repeat(500), "b"]);
  const { last, texts } = await mounted({ engine: adapterEngineOver(source).engine });
  void last().send("one");
  await until(() => last().status === "streaming");
  await doing(() => last().send("two"));
  expect(texts().slice(2)).toEqual(["user: two", "assistant: b"]);
  expect(last().messages[1]?.finishReason).toBeNull();
});

test("regenerate answers the last message again", async () => {
  const { engine, prompt } = adapterEngine("one", "two");
  const { last, texts } = await mounted({ engine });
  await doing(() => last().regenerate());
  expect(texts()).toEqual([]);
  await doing(() => last().send("hi"));
  await doing(() => last().regenerate());
  expect(texts()).toEqual(["user: hi", "assistant: two"]);
  expect(prompt(1)).toBe(prompt(0));
});

test("an error is a state, and regenerate tries again", async () => {
  const broken = adapterEngineOver(new FakeSource(["x"], new DeviceError("the device was lost"))).engine;
  const { last, texts, show } = await mounted({ engine: broken });
  await doing(() => last().send("hi"));
  expect(last()).toMatchObject({ status: "error", error: { code: "device_error" } });
  await show({ engine: adapterEngine("better").engine });
  await doing(() => last().regenerate());
  expect([last().status, last().error, texts()]).toEqual(["ready", null, ["user: hi", "assistant: better"]]);
});

test("without an engine a message is an error that states what to wait for", async () => {
  const { last } = await mounted({ engine: null });
  await doing(() => last().send("hi"));
  expect(last()).toMatchObject({
    status: "error",
    error: { code: "request_error", message: expect.stringContaining("not loaded yet") as string },
  });
});

test("an unmount ends the answer", async () => {
  const source = new FakeSource(["a".repeat(500)]);
  const { last, unmount } = await mounted({ engine: adapterEngineOver(source).engine });
  void last().send("hi");
  await until(() => last().status === "streaming");
  await doing(() => {
    unmount();
  });
  await until(() => source.running === 0);
  expect(source.tokens).toBeLessThan(400);
});

test("text that a hybrid withdraws is removed, and reasoning is separate", async () => {
  const chunk = (delta: object, finish: string | null, switchedAt?: number) => ({
    id: "1",
    choices: [{ index: 0, delta, finish_reason: finish }],
    ...(switchedAt === undefined ? {} : { route: { side: "far", reason: "", scores: {}, switched_at: switchedAt } }),
  });
  // oxlint-disable-next-line typescript/require-await
  async function* chunks() {
    yield* [
      chunk({ content: "near, wrong" }, null),
      chunk({ reasoning_content: "hm" }, null, 0),
      chunk({ content: "far" }, null),
      chunk({}, "stop", 0),
    ];
  }
  const engine = { chat: { completions: { create: () => Promise.resolve(chunks()) } } } as unknown as ChatSource;
  const { last } = await mounted({ engine });
  await doing(() => last().send("hi"));
  expect(last().messages[1]).toMatchObject({
    content: "far",
    reasoning: "hm",
    finishReason: "stop",
    route: { side: "far" },
  });
});

test("messages can be passed at the start and set later", async () => {
  const initialMessages = [
    { id: "1", role: "user" as const, content: "old", reasoning: "", finishReason: null, route: null },
  ];
  const { last, texts } = await mounted({ engine: adapterEngine("x").engine, initialMessages });
  expect(texts()).toEqual(["user: old"]);
  await doing(() => {
    last().setMessages([]);
  });
  expect(texts()).toEqual([]);
});

test.each([false, true])(
  "with an id, the next page shows the conversation and ends its answer, StrictMode %s",
  async (strict) => {
    const disk = memoryDisk();
    const params = { temperature: 0.8, seed: 3, max_tokens: 400 };
    const alone = slowEngine();
    const messages = [{ role: "user" as const, content: "hi" }];
    const whole = await alone.chat.completions.create({ ...params, messages });
    const expected = ["user: hi", `assistant: ${whole.choices[0]?.message.content ?? ""}`];

    const store = pageStore(disk);
    const first = await mounted({ engine: journalled(slowEngine(), eachToken(store)), id: "talk", params }, strict);
    void first.last().send("hi");
    await until(() => (first.last().messages[1]?.content.length ?? 0) > 5);
    store.crash(disk);

    const engine = journalled(slowEngine(), eachToken(pageStore(disk)));
    const next = await mounted({ engine: null, id: "talk", params }, strict);
    await next.show({ engine, id: "talk", params });
    await until(() => (next.last().messages[1]?.finishReason ?? null) !== null && next.last().status === "ready");
    expect(next.texts()).toEqual(expected);

    // What the user stops is not continued; another message replaces the answer that is kept.
    void next.last().send("and?");
    await until(() => next.last().status === "streaming" && next.last().messages.length === 4);
    await doing(() => {
      next.last().stop();
    });
    await until(() => disk.files.size === 0);
    expect(next.last().status).toBe("ready");
  },
);

test("with an id, the next page shows the one answer of far that went on without a page", async () => {
  const disk = memoryDisk();
  const far = new FakeFar([{ texts: ["one ", "two "], later: ["three"], then: "hang" }]);
  const before = await hybridPage(far, pageStore(disk));
  const first = await mounted({ engine: before.engine, id: "talk" });
  void first.last().send("hi");
  await until(() => first.last().messages[1]?.content === "one two ");
  before.store.crash(disk);
  const next = await mounted({ engine: (await hybridPage(far, pageStore(disk))).engine, id: "talk" });
  await until(() => next.last().status === "ready" && next.last().messages.length === 2);
  expect(next.texts()).toEqual(["user: hi", "assistant: one two three"]);
  expect(next.last().messages[1]?.route?.side).toBe("far");
  expect([far.chats.length, far.receivedAgain.length]).toEqual([1, 1]);
});

/** A new page whose policy prefers far. */
async function hybridPage(far: FakeFar, store: ReturnType<typeof pageStore>) {
  const { nf } = await setUp({ near: slowEngine(), policy: { mode: "prefer-far" }, far });
  return { store, engine: journalled(nf, eachToken(store)) };
}

test("with an id, a component that is unmounted in mid-answer leaves it to the next one", async () => {
  const disk = memoryDisk();
  const params = { temperature: 0, max_tokens: 400 };
  const engine = journalled(slowEngine(), eachToken(pageStore(disk)));
  const first = await mounted({ engine, id: "talk", params });
  void first.last().send("hi");
  await until(() => first.last().status === "streaming");
  await doing(() => {
    first.unmount();
  });
  const next = await mounted({ engine, id: "talk", params });
  await until(() => (next.last().messages[1]?.finishReason ?? null) !== null);
  expect(next.texts()[0]).toBe("user: hi");
  await next.show({ engine: adapterEngine("x").engine, id: "talk" });
  await doing(() => next.last().send("more"));
  expect(next.last()).toMatchObject({ status: "error", error: { code: "request_error", details: { param: "id" } } });
});
