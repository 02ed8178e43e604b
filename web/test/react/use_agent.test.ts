import { createElement } from "react";
import type { FC } from "react";
import { expect, test } from "vitest";

import type { AgentOptions } from "../../src/agent/index.js";
import { Agent, functionTool } from "../../src/agent/index.js";
import type { MakeAgent, UseAgent } from "../../src/react/index.js";
import { useAgent } from "../../src/react/index.js";
import type { Script } from "../agent/scripted.js";
import { ScriptedEngine } from "../agent/scripted.js";
import { waitFor } from "../wait_for.js";
import { doing, root, settle } from "./dom.js";

const DIM = [["set_light", { level: 30 }]] as const;
const ANSWERED = [["answer", { text: "it is dim" }]] as const;

/** A mounted component with the hook over an engine whose answers are written down. */
async function mounted(scripts: readonly Script[], options: Partial<AgentOptions> = {}) {
  const states: UseAgent[] = [];
  const done: unknown[] = [];
  const engine = new ScriptedEngine(scripts);
  const light = functionTool({
    name: "set_light",
    description: "Set a light",
    parameters: { type: "object", properties: { level: { type: "integer" } } },
    execute: (input) => (done.push(input), "set"),
    allow: "ask",
  });
  const make: MakeAgent = (approve) => new Agent({ engine, tools: [light], approve, ...options });
  const Component: FC<{ readonly make: MakeAgent | null }> = (given) => {
    states.push(useAgent(given.make));
    return null;
  };
  const { render, unmount } = root();
  const show = async (given: MakeAgent | null): Promise<void> => {
    await doing(() => {
      render(createElement(Component, { make: given }));
    });
  };
  await show(make);
  const last = (): UseAgent => {
    const state = states.at(-1);
    if (state === undefined) throw new Error("nothing was rendered");
    return state;
  };
  const until = async (status: UseAgent["status"]): Promise<void> => {
    await waitFor(async () => {
      await settle(1);
      expect(last().status).toBe(status);
    });
  };
  return { states, last, until, done, engine, show, unmount };
}

test("a call waits for approval with its arguments, and the answer comes as it is written", async () => {
  const { states, last, until, done } = await mounted([DIM, ANSWERED]);
  const { run } = last();
  const running = run("dim the light");
  await until("asking");
  expect(last().asked).toMatchObject({ name: "set_light", arguments: '{"level":30}', leaves: null, private: false });
  expect(last().steps).toMatchObject([{ calls: [{ name: "set_light", outcome: null }] }]);
  expect(done).toEqual([]);
  await doing(() => {
    last().allow();
  });
  await doing(() => running);
  expect(done).toEqual([{ level: 30 }]);
  expect(last()).toMatchObject({
    ...{ status: "ready", asked: null, error: null, text: "it is dim", run },
    steps: [{ calls: [{ outcome: "ran", text: "set" }] }, { calls: [], text: "it is dim" }],
    result: { reason: "answer", text: "it is dim" },
  });
  const statuses = states.map(({ status }) => status);
  expect(statuses.filter((status, index) => status !== statuses[index - 1])).toEqual([
    "ready",
    "running",
    "asking",
    "running",
    "ready",
  ]);
});

test("a denied call does not run, and the next run may continue the conversation", async () => {
  const { last, until, done, engine } = await mounted([DIM, ANSWERED]);
  const running = last().run("dim");
  await until("asking");
  await doing(() => {
    last().deny();
  });
  await doing(() => running);
  expect([done, last().steps[0]?.calls[0]?.outcome]).toEqual([[], "denied"]);
  await doing(() => last().run("and now?", { continues: true }));
  expect(engine.asked.at(-1)?.messages.map(({ role }) => role)).toEqual([
    ...["user", "assistant", "tool", "assistant", "tool"],
    "user",
  ]);
});

test("stop, another run and unmounting end a run, and its question with it", async () => {
  for (const end of ["stop", "run", "unmount"] as const) {
    const { last, until, done, unmount } = await mounted([DIM, ANSWERED]);
    const running = last().run("dim");
    await until("asking");
    const { allow, stop, run } = last();
    await doing(() => {
      if (end === "stop") stop();
      else if (end === "unmount") unmount();
      else void run("again");
    });
    await doing(() => running);
    if (end !== "run") {
      // A late click does nothing.
      await doing(allow);
      expect(done).toEqual([]);
    }
    if (end === "stop") expect(last()).toMatchObject({ status: "ready", asked: null, error: null });
  }
});

test("an error is a state, and an agent without its engine is one", async () => {
  const broken = new Error("the engine is gone");
  const { last, show } = await mounted([() => Promise.reject(broken)]);
  await doing(() => last().run("dim"));
  expect(last()).toMatchObject({ status: "error", error: broken });
  await show(null);
  await doing(() => last().run("dim"));
  expect(String(last().error)).toContain("not loaded yet");
});
