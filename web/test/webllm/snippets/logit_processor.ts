import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

/** Answers with one token, which it counts. */
class MyLogitProcessor implements webllm.LogitProcessor {
  private tokenSequence: Array<number> = [];
  resets = 0;

  processLogits = (logits: Float32Array): Float32Array => {
    logits.fill(-Infinity);
    logits[7] = 100.0;
    return logits;
  };

  processSampledToken = (token: number): void => {
    this.tokenSequence.push(token);
  };

  resetState = (): void => {
    this.tokenSequence = [];
    this.resets++;
  };

  get sequence() {
    return this.tokenSequence;
  }
}

export async function main() {
  const myLogitProcessor = new MyLogitProcessor();
  const logitProcessorRegistry = new Map<string, webllm.LogitProcessor>();
  logitProcessorRegistry.set(selectedModel, myLogitProcessor);
  const engine: webllm.MLCEngineInterface = await webllm.CreateMLCEngine(selectedModel, {
    appConfig,
    logitProcessorRegistry,
  });

  const prompt: Array<number> = [0];
  let nextToken = await engine.forwardTokensAndSample(prompt, /*isPrefill=*/ true);
  for (let counter = prompt.length; counter < 4; counter++) {
    nextToken = await engine.forwardTokensAndSample([nextToken], /*isPrefill=*/ false);
  }
  const forwarded = [...myLogitProcessor.sequence];
  const stats = await engine.runtimeStatsText();
  await engine.resetChat();
  const reply = await engine.chat.completions.create({ messages: [{ role: "user", content: "a" }], max_tokens: 3 });
  const sequence = [...myLogitProcessor.sequence];
  const several = await engine.chat.completions
    .create({ messages: [{ role: "user", content: "a" }], n: 2 })
    .catch((error: Error) => error.message);
  await engine.unload();
  return {
    forwarded,
    stats,
    content: reply.choices[0].message.content,
    sequence,
    resets: myLogitProcessor.resets,
    several,
  };
}
