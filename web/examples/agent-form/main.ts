// An agent fills in a form with a tool that the page registers for any agent (WebMCP), once the user allows the call.
// The bundle's model must support tools (engine.info.tools).

import { Engine } from "@nearfar/web";
import type { AskedCall } from "@nearfar/web/agent";
import { Agent, pageTools } from "@nearfar/web/agent";

import { modelContext } from "../model_context.js";
import { element, input, ready, show } from "../page.js";

const context = modelContext();
await context.registerTool({
  name: "set_light",
  description: "Fill in the form with the brightness of the light in a room",
  inputSchema: {
    type: "object",
    properties: {
      room: { enum: ["kitchen", "bedroom", "office"] },
      level: { type: "integer", minimum: 0, maximum: 100 },
    },
    required: ["room", "level"],
    additionalProperties: false,
  },
  execute: ({ room, level }: { room: string; level: number }) => {
    (element("room") as unknown as HTMLSelectElement).value = room;
    input("level").value = String(level);
    return `The form says: ${room}, ${level} percent.`;
  },
});

/** Asks the user. If the run ends meanwhile, nobody needs to answer. */
function approve({ name, server, arguments: given }: AskedCall, signal: AbortSignal): Promise<boolean> {
  const dialog = element("asking") as unknown as HTMLDialogElement;
  show("question", `Allow ${name} of ${server ?? "this application"} with ${given}?`);
  dialog.showModal();
  return new Promise((resolve) => {
    const end = (allowed: boolean) => () => {
      dialog.close();
      resolve(allowed);
    };
    element("allow").onclick = end(true);
    element("deny").onclick = end(false);
    signal.addEventListener("abort", end(false));
  });
}

const engine = await Engine.load("./bundle/");
const agent = new Agent({
  engine,
  tools: [pageTools({ modelContext: context })],
  approve,
  bounds: { steps: 2, step_tokens: 120 },
  params: { temperature: 0 },
});
ready();

element("task").onsubmit = async (event) => {
  event.preventDefault();
  element("steps").textContent = "";
  show("status", "");
  for await (const happened of agent.events(input("sentence").value)) {
    // What the model writes, while it writes it.
    if (happened.type === "text") element("written").append(happened.text);
    if (happened.type === "step") show("written", "");
    if (happened.type === "result") {
      const { name, outcome, text } = happened.call;
      const line = document.createElement("li");
      line.textContent = `${name}: ${text}`;
      element("steps").append(line);
      if (outcome !== "ran") continue;
      // The form is what the user wants, so the model need not answer. Leaving the loop ends the run.
      show("status", "filled in");
      break;
    }
    if (happened.type === "end") show("status", `${happened.result.reason}: ${happened.result.text ?? ""}`);
  }
};
