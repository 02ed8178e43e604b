// The tools of a page and of real MCP servers beside functions, as one list.

import type { Server as HttpServer } from "node:http";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import type { Transport } from "@modelcontextprotocol/sdk/shared/transport.js";
import { afterEach, expect, test } from "vitest";
import { z } from "zod";

import { ModelContext } from "../../examples/model_context.js";
import type { AskedCall, McpClient } from "../../src/agent/index.js";
import { functionTool, mcpTools, pageTools } from "../../src/agent/index.js";
import { agentOf } from "./scripted.js";

const closing: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const ANSWERED = [["answer", { text: "done" }]] as const;
const approve = (): boolean => true;

/** A server with notes, which it also finds by their words. ``stalled`` resolves when a call that never ends begins. */
function notesServer(onStalled: (signal: AbortSignal) => void = () => undefined): McpServer {
  const server = new McpServer({ name: "notes", version: "1.0.0" });
  server.registerTool(
    "read",
    { description: "Read a note", inputSchema: { id: z.number().int().min(1) }, annotations: { readOnlyHint: true } },
    ({ id }) => {
      if (id > 2) return { content: [{ type: "text", text: `there is no note ${id}` }], isError: true };
      return {
        content: [
          { type: "text", text: `note ${id}` },
          { type: "image", data: "aGVsbG8=", mimeType: "image/png" },
        ],
      };
    },
  );
  server.registerTool("stall", { description: "Never ends" }, ({ signal }) => {
    onStalled(signal);
    return new Promise(() => undefined);
  });
  return server;
}

async function connected(server: McpServer): Promise<Client> {
  const [ours, theirs] = InMemoryTransport.createLinkedPair();
  const client = new Client({ name: "test", version: "1.0.0" });
  await Promise.all([server.connect(theirs), client.connect(ours)]);
  closing.push(() => client.close());
  return client;
}

/** Its server over streamable HTTP, without sessions, as one that keeps nothing. */
async function overHttp(): Promise<Client> {
  const http: HttpServer = createServer((request, response) => {
    const transport = new StreamableHTTPServerTransport({});
    const server = notesServer();
    response.on("close", () => {
      void server.close();
    });
    void server.connect(transport as Transport).then(() => transport.handleRequest(request, response));
  });
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  closing.push(
    () =>
      new Promise<void>((resolve) => {
        http.close(() => {
          resolve();
        });
        http.closeAllConnections();
      }),
  );
  const client = new Client({ name: "test", version: "1.0.0" });
  const { port } = http.address() as AddressInfo;
  await client.connect(new StreamableHTTPClientTransport(new URL(`http://127.0.0.1:${port}/`)));
  closing.push(() => client.close());
  return client;
}

test.each([
  ["in memory", () => connected(notesServer())],
  ["over streamable HTTP", overHttp],
])("tools of an MCP server %s run after approval, and their errors are text", async (_, connect) => {
  const asked: AskedCall[] = [];
  const scripts = [[["read", { id: 1 }]], [["read", { id: 9 }]], [["read", { id: 0 }]], ANSWERED] as const;
  const { agent, engine } = agentOf(scripts, {
    tools: [mcpTools("notes", await connect(), { allow: { stall: "never" } })],
    approve: (call) => asked.push(call) > 0,
  });
  const { reason, steps } = await agent.run("read the notes");
  expect(reason).toBe("answer");
  expect(asked.map(({ name, server, values }) => [name, server, values])).toEqual([
    ["read", "notes", { id: 1 }],
    ["read", "notes", { id: 9 }],
  ]);
  expect(steps.flatMap(({ calls }) => calls).map(({ outcome, text }) => [outcome, text])).toEqual([
    ["ran", "note 1\n[image, image/png, 5 bytes: not shown]"],
    ["failed", "Error: there is no note 9"],
    ["refused", "Error: arguments.id is 0, it must be at least 1; call read again with other arguments"],
  ]);
  expect(engine.asked[0]?.tools.map(({ function: { name } }) => name)).toEqual(["read", "answer"]);
});

test("an abort reaches the MCP server", async () => {
  const controller = new AbortController();
  const reason = new Error("stop");
  const stalled = new Promise<AbortSignal>((resolve) => {
    const server = notesServer(resolve);
    void connected(server).then(async (client) => {
      const { agent } = agentOf([[["stall", {}]]], { tools: [mcpTools("notes", client, { allow: "always" })] });
      const running = agent.run("stall", { signal: controller.signal });
      await expect(running).rejects.toBe(reason);
    });
  });
  const signal = await stalled;
  const ended = new Promise((resolve) => {
    signal.addEventListener("abort", resolve);
  });
  controller.abort(reason);
  await ended;
});

test("names that several servers have are told apart, and functions keep theirs", async () => {
  const own = functionTool({
    name: "read",
    description: "Read a page",
    parameters: { type: "object" },
    execute: () => "page",
  });
  const [first, second] = await Promise.all([connected(notesServer()), connected(notesServer())]);
  const { agent, engine } = agentOf([[["b_s_notes_read", { id: 2 }]], ANSWERED], {
    tools: [own, mcpTools("a", first, { allow: "always" }), mcpTools("b's notes", second)],
    approve,
  });
  const { steps } = await agent.run("read");
  expect(engine.asked[0]?.tools.map(({ function: { name } }) => name)).toEqual([
    "read",
    "a_read",
    "stall",
    "b_s_notes_read",
    "b_s_notes_stall",
    "answer",
  ]);
  expect(steps[0]?.calls[0]).toMatchObject({ name: "read", server: "b's notes", outcome: "ran" });
});

test("a server's pages are all read, and a server without an end is refused", async () => {
  const tool = (name: string) => ({ name, inputSchema: { type: "object" } });
  const pages = (more: (page: number) => string | undefined): McpClient => ({
    listTools: (params) => {
      const page = Number(params?.cursor ?? 0);
      return Promise.resolve({ tools: [tool(`tool_${page}`)], nextCursor: more(page) });
    },
    callTool: () => Promise.resolve({ content: [] }),
  });
  const listed = async (client: McpClient) => {
    const { agent, engine } = agentOf([ANSWERED], { tools: [mcpTools("many", client)], approve });
    await agent.run("x");
    return engine.asked[0]?.tools.map(({ function: { name } }) => name);
  };
  expect(await listed(pages((page) => (page < 2 ? String(page + 1) : undefined)))).toEqual([
    "tool_0",
    "tool_1",
    "tool_2",
    "answer",
  ]);
  await expect(listed(pages((page) => String(page + 1)))).rejects.toThrow("lists its tools on more than 64 pages");
});

test("a tool whose schema nothing can enforce is refused by name, and can be left out", async () => {
  const client: McpClient = {
    listTools: () =>
      Promise.resolve({ tools: [{ name: "odd", inputSchema: { type: "object", not: { required: ["a"] } } }] }),
    callTool: () => Promise.resolve({ content: [] }),
  };
  await expect(agentOf([ANSWERED], { tools: [mcpTools("s", client)], approve }).agent.run("x")).rejects.toThrow(
    "the tool \"odd\" of s cannot be called: its schema: the keyword 'not' is not supported; remove it or rewrite the " +
      'schema without it; to use the others, set its `allow` to "never"',
  );
  const without = agentOf([ANSWERED], { tools: [mcpTools("s", client, { allow: { odd: "never" } })] });
  expect(await without.agent.run("x")).toMatchObject({ reason: "answer" });
});

test("tools of the page run: reading ones at once, others after approval, and new ones from the next step on", async () => {
  const context = new ModelContext();
  const form: Record<string, string> = {};
  const left = new AbortController();
  void context.registerTool(
    {
      name: "open_form",
      description: "Open the form",
      execute: () => {
        left.abort();
        void context.registerTool({
          name: "fill-in",
          description: "Fill in a field",
          inputSchema: {
            type: "object",
            properties: { field: { enum: ["name"] }, value: { type: "string" } },
            required: ["field", "value"],
          },
          execute: ({ field, value }: { field: string; value: string }) => {
            form[field] = value;
            return { content: [{ type: "text", text: `${field} is ${value}` }] };
          },
        });
        return { fields: ["name"] };
      },
      annotations: { readOnlyHint: true },
    },
    { signal: left.signal },
  );
  const asked: string[] = [];
  const scripts = [[["open_form", {}]], [["fill-in", { field: "name", value: "Ada" }]], ANSWERED] as const;
  const { agent, engine } = agentOf(scripts, {
    tools: [pageTools({ modelContext: context })],
    approve: ({ name, server }) => asked.push(`${server}: ${name}`) > 0,
  });
  const { steps } = await agent.run("fill in the form");
  expect(form).toEqual({ name: "Ada" });
  expect(asked).toEqual(["page: fill-in"]);
  expect(steps.flatMap(({ calls }) => calls).map(({ text }) => text)).toEqual(['{"fields":["name"]}', "name is Ada"]);
  expect(engine.asked.map(({ tools }) => tools[0]?.function.name)).toEqual(["open_form", "fill-in", "fill-in"]);
});

test("a page without modelContext is an error that says what to do", () => {
  expect(() => pageTools()).toThrow("this page has no document.modelContext with getTools and executeTool (WebMCP)");
});
