// An agent reads documents of the user through an MCP server. The server is in the page, so that nothing leaves it; for
// one elsewhere, connect the client to its address: new StreamableHTTPClientTransport(new URL("https://...")).
// The bundle's model must support tools (engine.info.tools).

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { Engine } from "@nearfar/web";
import { Agent, mcpTools } from "@nearfar/web/agent";
import { z } from "zod";

import { element, input, ready, show } from "../page.js";

const documents = new Map([["note.txt", "The red fox has the key of the shed."]]);
input("files").onchange = async () => {
  for (const file of input("files").files ?? []) documents.set(file.name, await file.text());
};

const server = new McpServer({ name: "documents", version: "1.0.0" });
server.registerTool("list", { description: "List the names of all documents" }, () => ({
  content: [{ type: "text", text: [...documents.keys()].join("\n") }],
}));
server.registerTool(
  "read",
  { description: "Read a document by its name", inputSchema: { name: z.string().max(40) } },
  ({ name }) => {
    const text = documents.get(name);
    return text === undefined
      ? { content: [{ type: "text", text: `there is no document ${name}` }], isError: true }
      : { content: [{ type: "text", text }] };
  },
);
const [ours, theirs] = InMemoryTransport.createLinkedPair();
const client = new Client({ name: "page", version: "1.0.0" });
await Promise.all([server.connect(theirs), client.connect(ours)]);

const engine = await Engine.load("./bundle/");
// The server is this page's own, so its tools run without a question.
const tools = [mcpTools("documents", client, { allow: "always" })];
const agent = new Agent({ engine, tools, bounds: { steps: 4, step_tokens: 120 }, params: { temperature: 0 } });
ready();

element("task").onsubmit = async (event) => {
  event.preventDefault();
  element("steps").textContent = "";
  const { reason, text, steps } = await agent.run(input("question").value);
  for (const { name, outcome, text: result } of steps.flatMap(({ calls }) => calls)) {
    const line = document.createElement("li");
    line.textContent = `${name} ${outcome}: ${result}`;
    element("steps").append(line);
  }
  show("answer", text ?? "");
  show("status", reason);
};
