// Vercel's AI SDK on this device: a streamed text, and an object that fits a schema.

import { Engine } from "@nearfar/web";
import { createNearfar } from "@nearfar/web/ai-sdk";
import { Output, generateText, streamText } from "ai";
import { z } from "zod";

import { element, show } from "../page.js";

const engine = await Engine.load("./bundle/");
const nearfar = createNearfar(engine);

const { textStream } = streamText({ model: nearfar(), prompt: "what is 27 + 58?", temperature: 0 });
for await (const text of textStream) element("text").append(text);

const light = z.object({
  tool: z.literal("set_light"),
  room: z.string().max(20),
  level: z.number().int().min(0).max(100),
});
const { output, usage } = await generateText({
  model: nearfar(),
  output: Output.object({ schema: light }),
  prompt: "dim the kitchen lights to 30 percent",
  temperature: 0,
});
show("object", JSON.stringify(output));
show("status", `${usage.outputTokens ?? 0} tokens`);
