// A sentence becomes the fields of a form. The schema is enforced token by token, so the answer always parses.

import { Engine } from "@nearfar/web";

import { element, input, ready, show } from "../page.js";

const schema = {
  type: "object",
  properties: {
    tool: { const: "set_light" },
    room: { type: "string", maxLength: 20 },
    level: { type: "integer", minimum: 0, maximum: 100 },
  },
  required: ["tool", "room", "level"],
};

const engine = await Engine.load("./bundle/");
ready();

element("form").onsubmit = async (event) => {
  event.preventDefault();
  show("status", "reading");
  const answer = await engine.chat.completions.create({
    messages: [{ role: "user", content: input("sentence").value }],
    response_format: { type: "json_schema", json_schema: { name: "light", schema } },
    temperature: 0,
  });
  const { room, level } = JSON.parse(answer.choices[0]?.message.content ?? "{}") as { room: string; level: number };
  input("room").value = room;
  input("level").value = String(level);
  show("status", "filled in");
};
