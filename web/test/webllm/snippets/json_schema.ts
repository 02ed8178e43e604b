import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

const schema = `{
  "properties": {
    "size": {"title": "Size", "type": "integer", "minimum": 0, "maximum": 9},
    "is_accepted": {"title": "Is Accepted", "type": "boolean"}
  },
  "required": ["size", "is_accepted"],
  "title": "Schema", "type": "object"
}`;

export async function main() {
  const engine: webllm.MLCEngineInterface = await webllm.CreateMLCEngine(selectedModel, { appConfig });
  const reply = await engine.chatCompletion({
    stream: false,
    messages: [
      {
        role: "user",
        content: "Generate a json with an integer field named size and a boolean field named is_accepted.",
      },
    ],
    max_tokens: 128,
    temperature: 0,
    response_format: { type: "json_object", schema: schema } as webllm.ResponseFormat,
  });
  const grammar = await engine.chat.completions.create({
    messages: [{ role: "user", content: "yes or no?" }],
    max_tokens: 8,
    response_format: { type: "grammar", grammar: 'root ::= "yes" | "no"' },
  });
  await engine.unload();
  return { object: JSON.parse(reply.choices[0].message.content!) as unknown, word: grammar.choices[0].message.content };
}
