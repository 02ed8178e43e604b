// Calls the server of the environment with OpenAI's client for Node, and prints the results as JSON.
import { createRequire } from "node:module";

const { default: OpenAI } = await import(createRequire(`${process.env.NEARFAR_WEB}/package.json`).resolve("openai"));
const client = new OpenAI({ maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];

const whole = await client.chat.completions.create({ model: "fake", messages });
let streamed = "";
let usage;
const stream = await client.chat.completions.create({
  model: "fake",
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
const called = await client.chat.completions.stream({ model: "fake", messages, tools }).finalMessage();
const completion = await client.completions.create({ model: "fake", prompt: "x" });
const embedding = await client.embeddings.create({ model: "fake", input: "x" });
const first = await client.responses.create({ model: "fake", input: "hi" });
const second = { model: "fake", input: "so?", previous_response_id: first.id };
const continued = await client.responses.stream(second).finalResponse();
const models = [];
for await (const model of client.models.list()) models.push(model.id);

async function failed(work) {
  try {
    await work;
    return "none";
  } catch (error) {
    return `${error.constructor.name} ${error.param}`;
  }
}
const errors = [
  await failed(client.chat.completions.create({ model: "fake", messages, temperature: 3 })),
  await failed(client.chat.completions.create({ model: "gpt-9", messages })),
  await failed(new OpenAI({ apiKey: "sk-wrong-123456" }).models.list()),
];

console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    streamed,
    usage: usage.total_tokens,
    tool: called.tool_calls[0].function.name,
    completion: completion.choices[0].text,
    responses: [first.output_text, continued.output_text],
    embedding: embedding.data[0].embedding,
    models,
    errors,
  }),
);
