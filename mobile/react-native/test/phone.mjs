// Runs an app as in React Native, but on Node: with the built package, files in a folder, and onnxruntime-node
// instead of the native module. Prints JSON.
//
//     node test/phone.mjs BUNDLE DOCUMENTS

import { createReadStream } from "node:fs";
import { appendFile, mkdir, open, rename, rm, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";

import * as ort from "onnxruntime-node";

import { followApp, load } from "../dist/index.js";

const [bundle, documents] = process.argv.slice(2);

/** A server that supports ranges, as `downloadFiles` requires. */
const server = createServer((request, response) => {
  const path = join(bundle, decodeURIComponent(request.url));
  void stat(path).then(
    ({ size }) => {
      const [start = 0, end = size - 1] = request.headers.range?.match(/\d+/g)?.map(Number) ?? [];
      response.writeHead(request.headers.range === undefined ? 200 : 206, { "Content-Length": end - start + 1 });
      createReadStream(path, { start, end }).pipe(response);
    },
    () => response.writeHead(404).end(),
  );
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

const sizeOf = (path) =>
  stat(path).then(
    ({ size }) => size,
    () => null,
  );
const files = {
  documents,
  size: sizeOf,
  read: async (path, offset, length) => {
    const file = await open(path);
    const bytes = new Uint8Array(length);
    await file.read(bytes, 0, length, offset);
    await file.close();
    return bytes;
  },
  append: appendFile,
  makeFolder: (path) => mkdir(path, { recursive: true }),
  move: rename,
  remove: (path) => rm(path, { recursive: true, force: true }),
  freeBytes: () => Promise.resolve(1e9),
};
const listeners = new Map();
const appState = {
  addEventListener: (type, listener) => {
    listeners.set(type, listener);
    return { remove: () => listeners.delete(type) };
  },
};

const address = `http://127.0.0.1:${server.address().port}/`;
const openEngine = () => load(address, { files, ort });
const say = async (session, text) => {
  let answer = "";
  let cached = 0;
  for await (const event of session.generate(text)) {
    answer += event.text;
    if (event.type === "done") cached = event.timings.cachedTokens;
  }
  return [answer, cached];
};
const messages = [{ role: "user", content: "what is 27 + 58?" }];

const engine = await openEngine();
const session = engine.createSession();
const stop = followApp(engine, appState, { sessions: () => [["chat", session]] });
const first = await say(session, messages[0].content);
const chat = await engine.chat.completions.create({ messages, temperature: 0 });
const stream = await engine.chat.completions.create({ messages, temperature: 0, stream: true, n: 2 });
const streamed = ["", ""];
for await (const { choices } of stream) for (const { index, delta } of choices) streamed[index] += delta.content ?? "";
const schema = { type: "json_schema", json_schema: { name: "it", schema: { type: "object" } } };
const refused = await engine.chat.completions
  .create({ messages, response_format: schema })
  .catch(({ code, message }) => ({ code, message }));
listeners.get("change")("background");
await new Promise((resolve) => setTimeout(resolve, 200));
listeners.get("change")("active");
listeners.get("memoryWarning")();
const reloaded = await engine.chat.completions.create({ messages, temperature: 0 });
const { target, adapter } = engine.info;
stop();
engine.destroy();

// The app was stopped and starts again without a network.
server.close();
server.closeAllConnections();
const again = await openEngine();
const restored = again.createSession();
await restored.restore("chat");
const second = await say(restored, "what is 30 + 12?");
again.destroy();
const texts = [chat.choices[0].message.content, ...streamed, reloaded.choices[0].message.content];
console.log(JSON.stringify({ target, adapter, first, texts, refused, recoveries: engine.counts.recoveries, second }));
