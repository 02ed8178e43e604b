// The page of bench_prefixes.py: the time to the first token of a chat with a long system message, in a page that was
// just loaded, and the tokens.

import { Engine } from "./nearfar.js";
import { prefixes } from "./prefixes.js";

const SAMPLED = { temperature: 1, seed: 7 };

window.open_ = async (bundle, options) => {
  window.engine?.destroy();
  const fixed = { tuning: false, selfTest: "never", maxSequences: 1, draft: false };
  window.engine = await Engine.load(bundle, { ...fixed, ...options });
  // The device's pipelines are used once before anything is measured.
  for await (const event of window.engine.generate("warm up ".repeat(6), { maxTokens: 2 })) void event;
  const { adapter, activation } = window.engine.info;
  return { adapter, activation };
};

window.ask = async (system, question, maxTokens, sampled) => {
  const messages = [
    { role: "system", content: system },
    { role: "user", content: question },
  ];
  const ids = [];
  let timings;
  for await (const event of window.engine.generate(messages, {
    maxTokens,
    ...(sampled ? SAMPLED : { temperature: 0 }),
  }))
    if (event.type === "token") ids.push(event.tokenId);
    else ({ timings } = event);
  return { ids, ms: timings.timeToFirstTokenMs, prompt: timings.promptTokens, cached: timings.cachedTokens };
};

// The log-probabilities of the 20 likeliest first tokens.
window.likeliest = async (system, question) => {
  const messages = [
    { role: "system", content: system },
    { role: "user", content: question },
  ];
  const params = { messages, max_tokens: 1, temperature: 0, logprobs: true, top_logprobs: 20 };
  const { choices } = await window.engine.chat.completions.create(params);
  const [first] = choices[0].logprobs.content;
  return first.top_logprobs.map(({ token, bytes, logprob }) => [`${token} ${bytes}`, logprob]);
};

window.kept = () => prefixes.list();
document.body.dataset.state = "ready";
