// The model calls a function of the page, receives its result, and answers. The bundle's model must support tools
// (engine.info.tools).

import { Engine } from "@nearfar/web";
import type { ChatCompletionMessageParam, ChatCompletionTool } from "@nearfar/web";

import { element, input, ready, show } from "../page.js";

const tools: ChatCompletionTool[] = [
  {
    type: "function",
    function: {
      name: "set_light",
      description: "Set the brightness of the light in a room",
      parameters: {
        type: "object",
        properties: { room: { enum: ["kitchen", "bedroom"] }, level: { type: "integer", minimum: 0, maximum: 100 } },
        required: ["room", "level"],
      },
    },
  },
];

function setLight({ room, level }: { room: string; level: number }): string {
  show(room, String(level));
  return `The light in the ${room} is at ${level} percent.`;
}

const engine = await Engine.load("./bundle/");
ready();

element("form").onsubmit = async (event) => {
  event.preventDefault();
  const messages: ChatCompletionMessageParam[] = [{ role: "user", content: input("question").value }];
  // "required" makes the model call a tool; with "auto", the model decides.
  const first = await engine.chat.completions.create({
    messages,
    tools,
    tool_choice: "required",
    temperature: 0,
    max_tokens: 100,
  });
  const calls = first.choices[0]?.message.tool_calls ?? [];
  messages.push({ role: "assistant", tool_calls: calls });
  for (const { id, function: call } of calls) {
    const result = setLight(JSON.parse(call.arguments) as Parameters<typeof setLight>[0]);
    messages.push({ role: "tool", tool_call_id: id, content: result });
  }
  const answer = await engine.chat.completions.create({
    messages,
    tools,
    tool_choice: "none",
    temperature: 0,
    max_tokens: 50,
  });
  show("answer", answer.choices[0]?.message.content ?? "");
  show("status", `${calls.length} call`);
};
