// The page of bench_web_experts.py: generates tokens with a part of a mixture's experts on the device, and counts
// what was read and the bytes of all buffers that exist at the same time.

import { Engine } from "./nearfar.js";

let bytes = 0;
let largest = 0;
const { createBuffer } = GPUDevice.prototype;
GPUDevice.prototype.createBuffer = function (descriptor) {
  const buffer = createBuffer.call(this, descriptor);
  bytes += buffer.size;
  largest = Math.max(largest, bytes);
  const destroy = buffer.destroy.bind(buffer);
  let alive = true;
  buffer.destroy = () => {
    if (alive) bytes -= buffer.size;
    alive = false;
    destroy();
  };
  return buffer;
};

// Greedy answers of random weights repeat a few tokens, and so the experts that these choose.
const SAMPLING = { temperature: 1, seed: 7 };

window.measure = async ({ expertMemory, promptIds, maxTokens }) => {
  largest = bytes;
  const start = performance.now();
  const seconds = () => (performance.now() - start) / 1e3;
  let shown = 0;
  const onProgress = ({ phase, loadedBytes, totalBytes, compiledKernels, totalKernels }) => {
    if (seconds() < shown + 20) return;
    shown = seconds();
    const parts = [`${(loadedBytes / 1e6).toFixed()} of ${(totalBytes / 1e6).toFixed()} MB`];
    parts.push(`${compiledKernels} of ${totalKernels} kernels`);
    console.log(`${shown.toFixed()} s, ${phase}: ${parts.join(", ")}`);
  };
  const options = { tuning: false, selfTest: "never", maxSequences: 1, maxBatchTokens: 64, expertMemory, onProgress };
  const engine = await Engine.load("./bundle/", options);
  const loadSeconds = seconds();
  console.log(`loaded after ${loadSeconds.toFixed(1)} s`);
  const tokens = [];
  let first = null;
  for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens, sampling: SAMPLING })) {
    tokens.push(tokenId);
    console.log(`token ${tokens.length} after ${seconds().toFixed(1)} s`);
    first ??= { seconds: seconds(), experts: engine.counts.experts };
  }
  const last = { seconds: seconds(), experts: engine.counts.experts };
  const { adapter, activation, totalBytes } = engine.info;
  engine.destroy();
  const experts =
    last.experts && Object.fromEntries(Object.entries(last.experts).map(([key, n]) => [key, n - first.experts[key]]));
  return {
    tokens,
    adapter,
    activation,
    countedBytes: totalBytes,
    largestBufferBytes: largest,
    loadSeconds,
    firstTokenSeconds: first.seconds - loadSeconds,
    prompt: { tokens: promptIds.length, experts: first.experts },
    decode: { tokens: tokens.length - 1, seconds: last.seconds - first.seconds, experts },
  };
};
document.body.dataset.state = "ready";
