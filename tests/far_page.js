// A page whose engine may have prompts computed by a server, with the real clock: for bench_far_links.py and test_far_links.py, which throttle its network.

import { Hybrid } from "./hybrid.js";
import { Engine } from "./nearfar.js";

// However slow this machine is, both sides may finish.
const MOST_MS = 600_000;

window.load = async () => {
  const options = { store: false, tuning: false, selfTest: "never", prefixes: false, draft: false };
  window.engine = await Engine.load("./bundle/", options);
  // The pipelines are used once before anything is measured.
  await window.nearSpeed("warm up ".repeat(8));
  return window.engine.info.adapter;
};

// Tokens that the device reads in a second.
window.nearSpeed = async (content) => {
  for await (const event of window.engine.generate([{ role: "user", content }], { maxTokens: 1 }))
    if (event.type === "done") return (1000 * event.timings.promptTokens) / event.timings.timeToFirstTokenMs;
  throw new Error("the answer did not end");
};

// A client by this name, which expects that the device reads ``speed`` tokens a second.
const clients = new Map();
window.connect = async (name, far, model, speed) => {
  const timeouts = {
    near_first_token_ms: MOST_MS,
    far_first_token_ms: MOST_MS,
    between_tokens_ms: MOST_MS,
  };
  const client = await Hybrid.create({
    near: window.engine,
    far: { baseURL: far, model },
    policy: { version: 1, mode: "prefer-near", timeouts, prefill: { min_tokens: 1 } },
    probe: { speed: { prefill_tokens_per_second: speed, decode_tokens_per_second: 5 } },
  });
  clients.get(name)?.close();
  clients.set(name, client);
};

// The time to the first token of an answer, and what `prefill.last` says about the prompt.
window.ask = async (name, content, params = {}) => {
  const client = clients.get(name);
  const startedAt = performance.now();
  let [firstMs, usage] = [null, null];
  for await (const chunk of await answer(client, content, params)) {
    const [choice] = chunk.choices;
    // A token may have no text.
    if (choice?.delta.content || choice?.finish_reason) firstMs ??= performance.now() - startedAt;
    usage = chunk.usage ?? usage;
  }
  return { ms: firstMs, tokens: usage.prompt_tokens, last: lastOf(client) };
};

// What `prefill.last` says about a prompt, whose answer is then aborted.
window.decided = async (name, content) => {
  const client = clients.get(name);
  const before = client.prefill.last;
  const left = new AbortController();
  let ended = false;
  const reading = (async () => {
    for await (const chunk of await answer(client, content, {}, { signal: left.signal })) void chunk;
  })()
    .catch((error) => {
      if (!left.signal.aborted) throw error;
    })
    .finally(() => (ended = true));
  while (client.prefill.last === before && !ended) await new Promise((resolve) => setTimeout(resolve, 10));
  left.abort();
  await reading;
  return lastOf(client);
};

const answer = (client, content, params, options) =>
  client.chat.completions.create(
    {
      messages: [{ role: "user", content }],
      max_tokens: 1,
      temperature: 0,
      stream: true,
      stream_options: { include_usage: true },
      ...params,
    },
    options,
  );

const lastOf = ({ prefill: { last } }) =>
  last && { ...last, error: last.error === undefined ? null : String(last.error) };

document.body.dataset.state = "ready";
