// An agent's loop over an engine whose answers are written down.

import { expect, test } from "vitest";

import { RequestError } from "../../src/errors.js";
import type { AskedCall, FunctionToolOptions } from "../../src/agent/index.js";
import { Agent, functionTool } from "../../src/agent/index.js";
import { turns } from "../router/fakes.js";
import { agentOf, eventsOf } from "./scripted.js";

const LIGHT = {
  type: "object",
  properties: { room: { enum: ["kitchen", "bath"] }, level: { type: "integer", minimum: 0, maximum: 100 } },
  required: ["room", "level"],
  additionalProperties: false,
};
const DIM = { room: "kitchen", level: 30 };

function light(changes: Partial<FunctionToolOptions<{ room: string; level: number }>> = {}) {
  const done: unknown[] = [];
  const tool = functionTool<{ room: string; level: number }>({
    name: "set_light",
    description: "Set a light",
    parameters: LIGHT,
    execute: (input) => {
      done.push(input);
      return `${input.room} is at ${input.level}`;
    },
    ...changes,
  });
  return { tool, done };
}
const ANSWERED = [["answer", { text: "done" }]] as const;

test("a tool runs with the model's arguments, and its result is what the model reads next", async () => {
  const { tool, done } = light();
  const { agent, engine } = agentOf([[["set_light", DIM]], ANSWERED], { tools: [tool] });
  const result = await agent.run("dim the kitchen");
  expect(done).toEqual([DIM]);
  expect(result).toMatchObject({ reason: "answer", text: "done", answer: { text: "done" }, tokens: 10 });
  expect(engine.asked.map(({ tool_choice: choice }) => choice)).toEqual(["required", "required"]);
  expect(engine.asked[0]?.tools.map(({ function: { name } }) => name)).toEqual(["set_light", "answer"]);
  expect(engine.asked[1]?.messages.at(-1)).toEqual({
    role: "tool",
    tool_call_id: "call_0_0",
    content: "kitchen is at 30",
  });
  expect(engine.asked[0]).not.toHaveProperty("stake");
  expect(result.messages.map(({ role }) => role)).toEqual(["user", "assistant", "tool", "assistant", "tool"]);
});

test("arguments that do not fit the schema are refused before the call", async () => {
  const { tool, done } = light();
  const wrong = [
    [[["set_light", { room: "kitchen", level: 130 }]], "arguments.level is 130, it must be at most 100"],
    [[["set_light", { room: "kitchen" }]], "arguments.level is missing"],
    [[["set_light", { ...DIM, colour: "red" }]], "arguments.colour is unknown; the fields are room, level"],
    [[["set_light", '{"room": "kit']], 'the arguments are not JSON: "{\\"room\\": \\"kit"'],
    [[["dim", DIM]], 'there is no tool "dim"; the tools are set_light, answer'],
  ] as const;
  const { agent, engine } = agentOf([...wrong.map(([calls]) => calls), ANSWERED], { tools: [tool] });
  const result = await agent.run("dim the kitchen");
  expect(done).toEqual([]);
  expect(result.steps.flatMap(({ calls }) => calls).map(({ outcome }) => outcome)).toEqual(wrong.map(() => "refused"));
  expect(result.steps.at(-1)?.stake.reasons).toContain("the last 5 calls failed");
  wrong.forEach(([, problem], step) => {
    expect(engine.asked[step + 1]?.messages.at(-1)?.content).toContain(`Error: ${problem}`);
  });
});

test("a tool's error is text for the model, and an error for the developer", async () => {
  const error = new TypeError("no such bulb");
  const { tool } = light({ execute: () => Promise.reject(error) });
  const { agent, engine } = agentOf([[["set_light", DIM]], ANSWERED], { tools: [tool] });
  const events = await eventsOf(agent.events("dim the kitchen"));
  expect(events.map(({ type }) => type)).toEqual([
    ...["step", "text", "text", "routed", "call", "result"],
    ...["step", "text", "routed", "end"],
  ]);
  const { call } = events.find((event) => event.type === "result") ?? {};
  expect(call).toMatchObject({ outcome: "failed", error, text: "Error: no such bulb", server: null });
  expect(engine.asked[1]?.messages.at(-1)?.content).toBe("Error: no such bulb");
});

test("what the model writes comes piece by piece: arguments of a tool as they are, an answer as its text", async () => {
  const { tool } = light();
  const answer = [["answer", '{"text": "a \\"b\\" \\u00e9"}']] as const;
  const { agent } = agentOf([[["set_light", DIM]], answer, "plain"], { tools: [tool] });
  const events = await eventsOf(agent.events("dim"));
  const texts = events.flatMap((event) => (event.type === "text" ? [[event.step, event.tool, event.text]] : []));
  const written = JSON.stringify(DIM);
  expect(texts).toEqual([
    [0, "set_light", written.slice(0, 3)],
    [0, "set_light", written.slice(3)],
    [1, null, 'a "b" \u00e9'],
  ]);
  const plain = await eventsOf(agentOf(["plain"], { tools: [tool] }).agent.events("dim"));
  expect(plain.flatMap((event) => (event.type === "text" ? [[event.tool, event.text]] : []))).toEqual([
    [null, "pla"],
    [null, "in"],
  ]);
});

test("the same call again ends the run, unless it reads and something has changed since", async () => {
  const { tool, done } = light();
  const twice = agentOf([[["set_light", DIM]]], { tools: [tool] });
  // Another order of the keys is the same call.
  const again = agentOf([[["set_light", DIM]], [["set_light", '{"level":30,"room":"kitchen"}']]], { tools: [tool] });
  for (const { agent } of [twice, again]) {
    done.length = 0;
    expect(await agent.run("dim")).toMatchObject({ reason: "repeated", text: null });
    expect(done).toEqual([DIM]);
  }
  const read = functionTool({
    name: "read_light",
    description: "Read",
    parameters: { type: "object" },
    execute: () => "30",
    reads: true,
  });
  const READ = [["read_light", {}]] as const;
  const changed = agentOf([READ, [["set_light", DIM]], READ, ANSWERED], { tools: [tool, read] });
  expect(await changed.agent.run("dim")).toMatchObject({ reason: "answer" });
  expect(await agentOf([READ, READ], { tools: [tool, read] }).agent.run("dim")).toMatchObject({ reason: "repeated" });
});

test("the last step can only answer, and each bound ends with its reason", async () => {
  const levels = (step: number) => [["set_light", { room: "bath", level: step }]] as const;
  const { tool, done } = light();
  const steps = agentOf([levels(1), levels(2), ANSWERED], { tools: [tool], bounds: { steps: 3 } });
  expect(await steps.agent.run("dim")).toMatchObject({ reason: "steps", text: "done" });
  expect(steps.engine.asked.at(-1)?.tool_choice).toEqual({ type: "function", function: { name: "answer" } });
  const ignored = agentOf([levels(1), levels(2), levels(3)], { tools: [tool], bounds: { steps: 3 } });
  expect(await ignored.agent.run("dim")).toMatchObject({ reason: "steps", text: null });
  const tokens = agentOf([levels(1), levels(2), levels(3)], { tools: [tool], bounds: { tokens: 7 } });
  expect(await tokens.agent.run("dim")).toMatchObject({ reason: "tokens", text: null, tokens: 10 });
  expect(tokens.engine.asked.map(({ max_tokens: most }) => most)).toEqual([7, 2]);
  const cut = agentOf([{ text: "half a sent", finish: "length" }], { tools: [tool] });
  expect(await cut.agent.run("dim")).toMatchObject({ reason: "tokens", text: "half a sent" });
  done.length = 0;
  const calls = agentOf([levels(1), levels(2), levels(3), ANSWERED], { tools: [tool], bounds: { calls_per_tool: 2 } });
  expect(await calls.agent.run("dim")).toMatchObject({ reason: "answer" });
  expect(done).toHaveLength(2);
  expect(calls.engine.asked[3]?.messages.at(-1)?.content).toContain("was called 2 times, which is the limit");
});

test("tokens that do not hold the shortest answer of a grammar end the run, but a limit of each step is an error", async () => {
  const { tool } = light();
  const short = (): Promise<never> => Promise.reject(new RequestError("raise it", { needed: 77, maxTokens: 2 }));
  const scripts = [[["set_light", DIM]] as const, short];
  const left = agentOf(scripts, { tools: [tool], bounds: { tokens: 7 } });
  expect(await left.agent.run("dim")).toMatchObject({ reason: "tokens", tokens: 5 });
  const small = agentOf([short], { tools: [tool], bounds: { step_tokens: 2 } });
  await expect(small.agent.run("dim")).rejects.toThrow("raise it");
});

test("after its seconds a run ends, also within a tool and within the model's answer", async () => {
  let ended: unknown = null;
  const { tool } = light({
    execute: (_, { signal }) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener("abort", () => {
          ended = signal.reason;
          reject(signal.reason as Error);
        });
      }),
  });
  const hang = (signal: AbortSignal): Promise<never> =>
    new Promise((_, reject) => {
      signal.addEventListener("abort", () => {
        reject(signal.reason as Error);
      });
    });
  for (const scripts of [[[["set_light", DIM]] as const], [hang]]) {
    const { agent, clock } = agentOf(scripts, { tools: [tool], bounds: { seconds: 5 } });
    const running = agent.run("dim");
    await clock.pass(5000);
    expect(await running).toMatchObject({ reason: "seconds", text: null, seconds: 5 });
  }
  expect(ended).toBeInstanceOf(RequestError);
});

test("an abort stops at once, also within a tool that does not listen, and while somebody is asked", async () => {
  const reason = new Error("stop");
  for (const changes of [{ execute: () => new Promise<never>(() => undefined) }, { allow: "ask" as const }]) {
    const { tool } = light(changes);
    const controller = new AbortController();
    let hasAborted = false;
    const approve = (_: AskedCall, signal: AbortSignal): Promise<boolean> => {
      signal.addEventListener("abort", () => (hasAborted = true));
      return new Promise(() => undefined);
    };
    const { agent, engine } = agentOf([[["set_light", DIM]]], { tools: [tool], approve });
    const running = agent.run("dim", { signal: controller.signal });
    await turns();
    controller.abort(reason);
    await expect(running).rejects.toBe(reason);
    expect(engine.asked).toHaveLength(1);
    expect(hasAborted).toBe(changes.allow === "ask");
  }
  await expect(agentOf([ANSWERED], { tools: [] }).agent.run("x", { signal: AbortSignal.abort(reason) })).rejects.toBe(
    reason,
  );
});

test("a tool that asks runs only if somebody approves, who sees what the model wrote", async () => {
  const asked: AskedCall[] = [];
  const { tool, done } = light({ allow: "ask" });
  const written = '{"room": "kitchen", "level": 30}';
  const scripts = [[["set_light", written]], [["set_light", { ...DIM, level: 40 }]], ANSWERED] as const;
  const { agent, engine } = agentOf(scripts, {
    tools: [tool],
    approve: (call) => {
      asked.push(call);
      return asked.length === 1;
    },
  });
  const result = await agent.run("dim");
  expect(asked[0]).toEqual({
    name: "set_light",
    server: null,
    description: "Set a light",
    arguments: written,
    values: DIM,
    leaves: null,
    private: false,
  });
  expect(done).toEqual([DIM]);
  expect(engine.asked[2]?.messages.at(-1)?.content).toBe("Error: the user did not allow this call");
  expect(result.steps.flatMap(({ calls }) => calls).map(({ outcome }) => outcome)).toEqual(["ran", "denied"]);
  await expect(agentOf(scripts, { tools: [tool] }).agent.run("dim")).rejects.toThrow(
    "nobody approves calls of set_light; give the agent `approve`",
  );
  const never = agentOf([[["set_light", DIM]], ANSWERED], { tools: [light({ allow: "never" }).tool] });
  expect(await never.agent.run("dim")).toMatchObject({ reason: "answer" });
  expect(never.engine.asked[0]?.tools.map(({ function: { name } }) => name)).toEqual(["answer"]);
  const wrong = agentOf(scripts, { tools: [tool], approve: (() => "yes") as never });
  await expect(wrong.agent.run("dim")).rejects.toThrow("approve must return true or false");
});

test("a result is bounded, and says what was cut", async () => {
  const { tool } = light({ execute: () => "äöü".repeat(100) });
  const { agent, engine } = agentOf([[["set_light", DIM]], ANSWERED], { tools: [tool], bounds: { result_bytes: 101 } });
  await agent.run("dim");
  const sent = engine.asked[1]?.messages.at(-1)?.content ?? "";
  expect(new TextEncoder().encode(sent).length).toBeLessThanOrEqual(101);
  expect(sent).toMatch(/^(äöü)+\n\[cut: the first 66 of 600 bytes\]$/);
});

test("an answer of a schema is data", async () => {
  const schema = { type: "object", properties: { rooms: { type: "array", items: { type: "string" } } } };
  const { agent, engine } = agentOf([[["answer", { rooms: [1] }]], [["answer", { rooms: ["bath"] }]]], {
    tools: [],
    answer: schema,
  });
  expect(await agent.run("which rooms?")).toMatchObject({ answer: { rooms: ["bath"] }, text: '{"rooms":["bath"]}' });
  expect(engine.asked[1]?.messages.at(-1)?.content).toContain("arguments.rooms[0] is 1, it must be of type string");
});

test("options that can never work are errors at creation", () => {
  const engine = agentOf([], { tools: [] }).engine;
  const make = (options: object) => () => new Agent({ engine, tools: [], ...options });
  expect(make({ bounds: { step: 3 } })).toThrow("bounds.step is not supported; supported: steps, seconds");
  expect(make({ bounds: { steps: 0 } })).toThrow("bounds.steps is 0, it must be an integer from 1 to 1000");
  expect(make({ routing: { late: -1 } })).toThrow("routing.late is -1, it must be a number from 0 to 99");
  expect(make({ params: { messages: [] } })).toThrow("params.messages is set by the agent");
  expect(make({ answer: { type: "object", if: {} } })).toThrow("the keyword 'if' is not supported");
  expect(make({ tool: [] })).toThrow("'tool' is not supported");
});
