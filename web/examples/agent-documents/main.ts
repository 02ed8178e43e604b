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

/** A client of a server with these documents. Their names are in the schema, so the model can read no others. */
async function connected(): Promise<Client> {
  const server = new McpServer({ name: "documents", version: "1.0.0" });
  const names = z.enum([...documents.keys()] as [string, ...string[]]);
  server.registerTool("read", { description: "Read a document", inputSchema: { name: names } }, ({ name }) => ({
    content: [{ type: "text", text: documents.get(name) ?? "" }],
  }));
  const [ours, theirs] = InMemoryTransport.createLinkedPair();
  const client = new Client({ name: "page", version: "1.0.0" });
  await Promise.all([server.connect(theirs), client.connect(ours)]);
  return client;
}

const engine = await Engine.load("./bundle/");
ready();

element("task").onsubmit = async (event) => {
  event.preventDefault();
  element("steps").textContent = "";
  // The server is this page's own: its tools run without a question, and nothing leaves.
  const tools = [mcpTools("documents", await connected(), { allow: "always", local: true })];
  const agent = new Agent({ engine, tools, bounds: { steps: 3, step_tokens: 120 }, params: { temperature: 0 } });
  let answer = "";
  for await (const happened of agent.events(input("question").value)) {
    if (happened.type === "step") answer = "";
    // What the model writes of its answer, while it writes it.
    if (happened.type === "text" && happened.tool === null) show("answer", (answer += happened.text));
    if (happened.type === "result") {
      const { name, outcome, text } = happened.call;
      const line = document.createElement("li");
      line.textContent = `${name} ${outcome}: ${text}`;
      element("steps").append(line);
    }
    if (happened.type === "end") {
      show("answer", happened.result.text ?? answer);
      show("status", happened.result.reason);
    }
  }
};
