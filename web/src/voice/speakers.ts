// Synthesisers behind the interface of `Speaker`: the browser's own, Kokoro through kokoro-js, and a server's.

import { DeviceError, RequestError, Unavailable, messageOf } from "../errors.js";
import { unlessAborted } from "../runtime/abort.js";
import type { Speaker, Speech } from "./speaker.js";

export interface BrowserSpeakerOptions {
  /** The code of the language, such as "en-GB"; by default that of the page. */
  readonly language?: string | undefined;
  /** The name of a voice of `speechSynthesis.getVoices()`; by default the browser chooses. */
  readonly voice?: string | undefined;
  /** 1 is the voice's own speed. */
  readonly rate?: number | undefined;
}

/** The browser's own voices (`speechSynthesis`), which need no download. Some browsers send the text to a server. */
export function browserSpeaker({ language, voice, rate = 1 }: BrowserSpeakerOptions = {}): Speaker {
  const { speechSynthesis: synthesis } = globalThis as { readonly speechSynthesis?: SpeechSynthesis };
  if (synthesis === undefined) throw new DeviceError("this browser has no speechSynthesis; use another speaker");
  const speech = (text: string): Speech => ({
    async play({ signal, onSound }) {
      const utterance = new SpeechSynthesisUtterance(text);
      if (language !== undefined) utterance.lang = language;
      utterance.rate = rate;
      utterance.voice = synthesis.getVoices().find(({ name }) => name === voice) ?? null;
      const ended = new Promise<void>((resolve, reject) => {
        utterance.onstart = onSound;
        utterance.onend = () => {
          resolve();
        };
        utterance.onerror = ({ error }) => {
          reject(new DeviceError(`the browser cannot speak (${error}); install a voice, or use another speaker`));
        };
      });
      synthesis.speak(utterance);
      try {
        await unlessAborted(ended, signal);
      } finally {
        if (signal.aborted) synthesis.cancel();
      }
    },
  });
  return { prepare: (text) => Promise.resolve(speech(text)) };
}

/** What is used of kokoro-js. */
export interface KokoroModule {
  readonly KokoroTTS: {
    from_pretrained(model: string, options: object): Promise<KokoroModel>;
  };
}

export interface KokoroModel {
  generate(text: string, options: object): Promise<{ readonly audio: Float32Array; readonly sampling_rate: number }>;
}

export interface KokoroSpeakerOptions {
  /** Imports kokoro-js, which the application installs: `() => import("kokoro-js")`. */
  readonly load: () => Promise<unknown>;
  /** The model on the Hugging Face Hub; by default onnx-community/Kokoro-82M-v1.0-ONNX. */
  readonly model?: string | undefined;
  /** By default "af_heart". */
  readonly voice?: string | undefined;
  readonly speed?: number | undefined;
  readonly dtype?: "fp32" | "fp16" | "q8" | "q4" | "q4f16" | undefined;
  readonly device?: "wasm" | "webgpu" | undefined;
  readonly onProgress?: ((progress: unknown) => void) | undefined;
}

/** Kokoro (82 million parameters) in the page, through kokoro-js. The model is loaded with the first sentence. */
export function kokoroSpeaker({
  load,
  model = "onnx-community/Kokoro-82M-v1.0-ONNX",
  voice = "af_heart",
  speed = 1,
  dtype = "q8",
  device = "wasm",
  onProgress,
}: KokoroSpeakerOptions): Speaker {
  let opening: Promise<KokoroModel> | null = null;
  const open = async (): Promise<KokoroModel> => {
    try {
      const { KokoroTTS } = (await load()) as KokoroModule;
      return await KokoroTTS.from_pretrained(model, { dtype, device, progress_callback: onProgress ?? null });
    } catch (error) {
      // The next sentence tries again.
      opening = null;
      throw new DeviceError(
        `kokoro-js cannot load ${model} (${messageOf(error)}); install kokoro-js, and check the network`,
        {},
        { cause: error },
      );
    }
  };
  return {
    async prepare(text, { signal }) {
      opening ??= open();
      const kokoro = await unlessAborted(opening, signal);
      const { audio, sampling_rate: rate } = await unlessAborted(kokoro.generate(text, { voice, speed }), signal);
      requirePlayer();
      const buffer = new AudioBuffer({ length: Math.max(1, audio.length), sampleRate: rate });
      buffer.copyToChannel(new Float32Array(audio), 0);
      return soundOf(buffer);
    },
  };
}

export interface FarSpeakerOptions {
  /** The server's name of its model. */
  readonly model: string;
  readonly voice: string;
  readonly apiKey?: string | undefined;
  readonly speed?: number | undefined;
  readonly fetch?: typeof fetch | undefined;
}

/** A server with OpenAI's `/v1/audio/speech`. ``baseURL`` with or without /v1 at its end. Throws RequestError. */
export function farSpeaker(baseURL: string | URL, options: FarSpeakerOptions): Speaker {
  const { model, voice, apiKey, speed, fetch: send = fetch } = options;
  const base = String(baseURL);
  if (!URL.canParse(base))
    throw new RequestError(`farSpeaker: '${base}' is not the URL of a server; write http://host:port/v1`);
  const address = `${base.replace(/\/+$/, "").replace(/\/v1$/, "")}/v1/audio/speech`;
  return {
    async prepare(text, { signal }) {
      const failed = (why: string, cause?: unknown): Unavailable =>
        new Unavailable(`${address} does not speak (${why}); check the server`, {}, { cause });
      const response = await send(address, {
        method: "POST",
        headers: {
          "Content-Type": "application/json",
          ...(apiKey === undefined ? {} : { Authorization: `Bearer ${apiKey}` }),
        },
        body: JSON.stringify({ model, input: text, voice, response_format: "wav", speed }),
        signal,
      }).catch((error: unknown) => {
        signal.throwIfAborted();
        throw failed(messageOf(error), error);
      });
      if (!response.ok) throw failed(`it answers ${response.status}: ${(await response.text()).slice(0, 200)}`);
      const bytes = await response.arrayBuffer();
      signal.throwIfAborted();
      return soundOf(
        await player()
          .decodeAudioData(bytes)
          .catch((error: unknown) => {
            throw failed(`its sound cannot be decoded: ${messageOf(error)}`, error);
          }),
      );
    },
  };
}

let context: AudioContext | null = null;

/** The page's player. A page may play sound after a click only. Throws DeviceError in a browser without one. */
function player(): AudioContext {
  requirePlayer();
  return (context ??= new AudioContext());
}

function requirePlayer(): void {
  if (!("AudioContext" in globalThis))
    throw new DeviceError("this browser has no AudioContext, which plays speech; show the text instead");
}

function soundOf(buffer: AudioBuffer): Speech {
  return {
    async play({ signal, onSound }) {
      const output = player();
      await unlessAborted(output.resume(), signal);
      const source = new AudioBufferSourceNode(output, { buffer });
      const ended = new Promise<void>((resolve) => {
        source.onended = () => {
          resolve();
        };
      });
      source.connect(output.destination);
      source.start();
      onSound();
      try {
        await unlessAborted(ended, signal);
      } finally {
        if (signal.aborted) source.stop();
      }
    },
  };
}
