// A Hybrid routes each step of an agent, by its own rules.

import { expect, test } from "vitest";

import type { AskedCall, McpClient } from "../../src/agent/index.js";
import { Agent, functionTool, mcpTools } from "../../src/agent/index.js";
import { Written } from "../../src/agent/written.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
import { toolGrammar } from "../../src/text/tools.js";
import { FakeSource, fakeEngine, modelOf } from "../api/fake_model.js";
import { MESSAGES, WATCHED, setUp } from "../router/hybrid_set_up.js";
import { formatOf } from "../text/tool_formats.js";
import { ScriptedEngine, eventsOf } from "./scripted.js";

const NUMBER = "078-05-1120";
const written = (name: string, values: object): string =>
  `<tool_call>\n${JSON.stringify({ name, arguments: values })}\n</tool_call>`;
const fromFar = (name: string, values: object) => ({
  deltas: [
    {
      tool_calls: [{ index: 0, id: "far_1", type: "function", function: { name, arguments: JSON.stringify(values) } }],
    },
  ],
  finish: "tool_calls",
});

/** A near side that calls by Hermes' form. Its grammar is only asked for, since its answers are written down. */
function nearSide(...answers: readonly string[]) {
  const source = new FakeSource(answers);
  const format = formatOf("hermes");
  const sources: unknown[] = [];
  const model = modelOf(source, {
    tools: {
      parser: () => new ToolCallStream(format),
      grammar: (tools, choice) => toolGrammar(format, tools, choice as never),
    },
    grammar: {
      constraint: (grammar: unknown) => {
        sources.push(grammar);
        return Promise.resolve(undefined as never);
      },
    },
  });
  const engine = fakeEngine(model, 4096);
  return { engine: { ...engine, info: { ...engine.info, tools: true, tokenizerSha256: "abc" } }, source, sources };
}

function find(changes: object = {}, result = "nothing") {
  return functionTool({
    name: "find",
    description: "Find a person",
    parameters: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
    execute: () => result,
    ...changes,
  });
}

test("an easy step is taken near, and one after a failed call far, with the reason", async () => {
  const near = nearSide(written("find", { nam: "Ada" }), "unused");
  const { nf, far } = await setUp({
    near: near.engine,
    policy: { mode: "auto" },
    far: [fromFar("answer", { text: "Ada" })],
  });
  const agent = new Agent({ engine: nf, tools: [find()] });
  const { reason, text, steps } = await agent.run("who?");
  expect({ reason, text }).toEqual({ reason: "answer", text: "Ada" });
  expect(steps.map(({ route }) => [route?.side, route?.reason])).toEqual([
    ["near", "cost"],
    ["far", "step"],
  ]);
  expect(steps.map(({ stake }) => stake)).toEqual([
    { weight: 1, doubt: 0, reasons: [] },
    { weight: 1 + 1 / 7, doubt: 0.25, reasons: ["the last call failed", "step 2 of at most 8"] },
  ]);
  // Near's answer was held to calls, and far receives neither the stake nor a label.
  expect(near.sources[0]).toMatchObject({ kind: "tags" });
  expect(far.bodies[0]).toMatchObject({ tool_choice: "required", parallel_tool_calls: false });
  expect(Object.keys(far.bodies[0] ?? {})).not.toContain("stake");
  nf.close();
});

test("a late step goes far where the same early one stays near", async () => {
  const policy = { mode: "auto", quality: { threshold: 0.3 } };
  const sides: unknown[] = [];
  for (const late of [0, 1]) {
    const near = nearSide(written("find", { nam: "Ada" }), written("answer", { text: "near" }));
    const { nf } = await setUp({ near: near.engine, policy, far: [fromFar("answer", { text: "far" })] });
    const agent = new Agent({ engine: nf, tools: [find()], routing: { late }, bounds: { steps: 2 } });
    const { steps } = await agent.run("who?");
    sides.push([steps[1]?.route?.side, steps[1]?.route?.reason]);
    nf.close();
  }
  expect(sides).toEqual([
    ["near", "cost"],
    ["far", "step"],
  ]);
});

test.each([
  ["that matches a private pattern", { private: { patterns: ["[0-9]{3}-[0-9]{2}-[0-9]{4}"] } }, {}],
  ["of a tool with a private label", { private: { labels: ["secret"] } }, { labels: ["secret"] }],
])("a result %s keeps the rest of the run near", async (_, rules, changes) => {
  const near = nearSide(written("answer", { text: `it is ${NUMBER}` }));
  const policy = { mode: "prefer-far", ...rules };
  const { nf, far } = await setUp({ near: near.engine, policy, far: [fromFar("find", { name: "Ada" })] });
  const agent = new Agent({ engine: nf, tools: [find(changes, `her number is ${NUMBER}`)] });
  const events = await eventsOf(agent.events("find Ada's number"));
  expect(
    events.flatMap((event) => (event.type === "routed" ? [[event.route?.side, event.route?.reason]] : [])),
  ).toEqual([
    ["far", "prefer"],
    ["near", "private"],
  ]);
  expect(far.chats).toHaveLength(1);
  expect(far.sent).not.toContain(NUMBER);
  expect(events.at(-1)).toMatchObject({ result: { reason: "answer", text: `it is ${NUMBER}` } });
  nf.close();
});

test("labels need a policy, or an engine of this device", async () => {
  const scripts = [[["answer", { text: "done" }]]] as const;
  const tools = [find({ labels: ["secret"] })];
  const local = new ScriptedEngine(scripts);
  expect(await new Agent({ engine: local, tools }).run("who?")).toMatchObject({ reason: "answer" });
  const server = { chat: local.chat };
  await expect(new Agent({ engine: server, tools }).run("who?")).rejects.toThrow(
    "results of find have labels, which only a Hybrid's policy reads",
  );
});

/** A server elsewhere with one tool, which says what it was called with. */
function mailServer(result: (given: string) => string = () => "sent") {
  const received: string[] = [];
  const client: McpClient = {
    listTools: () => Promise.resolve({ tools: [{ name: "mail", inputSchema: MAIL }] }),
    callTool: ({ arguments: given }) => {
      received.push(JSON.stringify(given));
      return Promise.resolve({ content: [{ type: "text", text: result(JSON.stringify(given)) }] });
    },
  };
  return { client, received };
}
const MAIL = { type: "object", properties: { to: { type: "string" } }, required: ["to"] };
const TO = "anna@lee.org";
const EMAIL = "[a-z]+@[a-z.]+[a-z]";

test("arguments that the policy calls private reach a server elsewhere only if somebody has approved them", async () => {
  const { client, received } = mailServer();
  const asked: AskedCall[] = [];
  for (const approve of [undefined, false, true]) {
    const near = nearSide(written("mail", { to: TO }), written("answer", { text: "done" }));
    const { nf } = await setUp({ near: near.engine, policy: { private: { patterns: [EMAIL] } } });
    const tools = [mcpTools("post", client, { allow: "always" })];
    const asks = (call: AskedCall): boolean => asked.push(call) > 0 && approve === true;
    const agent = new Agent({ engine: nf, tools, ...(approve !== undefined && { approve: asks }) });
    const [call] = (await agent.run("write to her")).steps[0]?.calls ?? [];
    const leaves = approve === true ? JSON.stringify({ to: TO }) : null;
    expect(call).toMatchObject({ outcome: leaves === null ? "denied" : "ran", left: leaves });
    nf.close();
  }
  expect(received).toEqual([JSON.stringify({ to: TO })]);
  expect(asked.map((call) => [call.private, call.leaves])).toEqual([
    [true, JSON.stringify({ to: TO })],
    [true, JSON.stringify({ to: TO })],
  ]);
});

test("a server on this device receives what the policy calls private, and others what is not", async () => {
  for (const [to, local] of [
    [TO, true],
    ["everybody", false],
  ] as const) {
    const { client, received } = mailServer();
    const near = nearSide(written("mail", { to }), written("answer", { text: "done" }));
    const { nf } = await setUp({ near: near.engine, policy: { private: { patterns: [EMAIL] } } });
    const agent = new Agent({ engine: nf, tools: [mcpTools("post", client, { allow: "always", local })] });
    expect(await agent.run("write")).toMatchObject({ reason: "answer" });
    expect(received).toEqual([JSON.stringify({ to })]);
    nf.close();
  }
});

test("once a private result was read, all arguments for servers elsewhere are private", async () => {
  const { client, received } = mailServer();
  const calls = [written("find", { name: "Ada" }), written("mail", { to: "x" }), written("answer", { text: "done" })];
  const near = nearSide(...calls);
  const { nf } = await setUp({ near: near.engine, policy: { private: { labels: ["secret"] } } });
  const tools = [find({ labels: ["secret"] }), mcpTools("post", client, { allow: "always" })];
  const { steps } = await new Agent({ engine: nf, tools }).run("write");
  expect(steps.map((step) => step.calls.map(({ outcome }) => outcome))).toEqual([["ran"], ["denied"], []]);
  expect(received).toEqual([]);
  nf.close();
});

test.each(["mask", "ask"])("arguments that the policy masks leave with placeholders (then: %s)", async (then) => {
  const { client, received } = mailServer((given) => `sent ${given}`);
  const asked: AskedCall[] = [];
  const near = nearSide(written("mail", { to: TO }), written("answer", { text: "done" }));
  const masks = { patterns: [{ kind: "EMAIL", pattern: EMAIL }], then };
  const { nf } = await setUp({ near: near.engine, policy: { private: { masks } }, confirm: () => true });
  const tools = [mcpTools("post", client, { allow: "always" })];
  const agent = new Agent({ engine: nf, tools, approve: (call) => asked.push(call) > 0 });
  const [call] = (await agent.run("write to her")).steps[0]?.calls ?? [];
  // What has left, word for word; the model reads the result with the private text.
  expect(received).toEqual(['{"to":"[EMAIL_1]"}']);
  expect(JSON.parse(call?.left ?? "")).toEqual({ to: "[EMAIL_1]" });
  expect(call?.text).toBe(`sent {"to":"${TO}"}`);
  expect(asked.map((each) => [each.private, each.leaves])).toEqual(then === "ask" ? [[false, call?.left]] : []);
  nf.close();
});

test("a step that the other side begins again withdraws its pieces", async () => {
  const { nf } = await setUp({
    scripts: [{ text: "abcdefgh", logprobs: [-0.1, -0.1, -0.1, -9] }],
    policy: { escalation: { ...WATCHED, then: "restart" } },
    far: [{ texts: ["far", " away"] }],
  });
  const written = new Written();
  const pieces: object[] = [];
  for await (const chunk of await nf.chat.completions.create({ messages: MESSAGES, stream: true }))
    pieces.push(...written.add(chunk));
  const at = pieces.findIndex((piece) => "type" in piece && piece.type === "withdrawn");
  expect(at).toBeGreaterThan(0);
  expect(pieces.slice(at + 1)).toEqual([
    { type: "text", tool: null, text: "far" },
    { type: "text", tool: null, text: " away" },
  ]);
  expect(written.text).toBe("far away");
  nf.close();
});
