// The page of check_voice.py: speaks sentences with kokoroSpeaker, and returns what was played.

import { listen } from "./audio.js";
import { kokoroSpeaker } from "./voice.js";

const RATE = 16_000;

// All that is played also goes here.
let tap = null;
const { connect } = AudioNode.prototype;
AudioNode.prototype.connect = function (to, ...rest) {
  if (to instanceof AudioDestinationNode) {
    tap ??= to.context.createMediaStreamDestination();
    connect.call(this, tap);
  }
  return connect.call(this, to, ...rest);
};

// kokoro-js reads its model and its voices from the hub; this site has them.
const HUB = "https://huggingface.co/onnx-community/Kokoro-82M-v1.0-ONNX/resolve/main/";
const { fetch } = globalThis;
globalThis.fetch = (input, options) => {
  const address = String(input?.url ?? input);
  return fetch(address.startsWith(HUB) ? `./kokoro/${address.slice(HUB.length)}` : input, options);
};

const speaker = kokoroSpeaker({
  load: async () => {
    const module = await import("./kokoro.web.js");
    module.env.wasmPaths = new URL("./ort/", location.href).href;
    return module;
  },
});

/** For each sentence its sound at 16 kHz in base64, and milliseconds: until it is prepared, heard and ended. */
window.speak = async (sentences) => {
  const { signal } = new AbortController();
  const spoken = [];
  for (const sentence of sentences) {
    const begun = performance.now();
    const speech = await speaker.prepare(sentence, { signal });
    const preparedMs = performance.now() - begun;
    let heardMs = null;
    const ears = new AbortController();
    let heard = null;
    await speech.play({
      signal,
      onSound: () => {
        heardMs = performance.now() - begun;
        heard = samplesOf(listen(tap.stream, { signal: ears.signal }));
      },
    });
    const endedMs = performance.now() - begun;
    await new Promise((resolve) => setTimeout(resolve, 300));
    ears.abort();
    spoken.push({ sentence, preparedMs, heardMs, endedMs, rate: RATE, sound: base64Of(await heard) });
  }
  return spoken;
};

async function samplesOf(blocks) {
  const parts = [];
  try {
    for await (const block of blocks) parts.push(block.slice());
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
  return new Blob(parts).arrayBuffer();
}

function base64Of(bytes) {
  let text = "";
  for (const byte of new Uint8Array(bytes)) text += String.fromCharCode(byte);
  return btoa(text);
}

document.body.dataset.state = "ready";
