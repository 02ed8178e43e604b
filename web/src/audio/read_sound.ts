// Reads sound as models need it: one channel at 16 kHz. WAV files are read here; the browser decodes other formats.

import { DeviceError, RequestError, messageOf } from "../errors.js";
import { listen } from "./microphone.js";
import { SAMPLE_RATE, joined, resample } from "./resample.js";
import { isWav, monoOfWav, readWav } from "./wav.js";

/** The most seconds by default: their samples take 230 MB. */
export const MAX_SECONDS = 3600;
/** The rates that sound may have, in Hz. */
const LOWEST_RATE = 1000;
const HIGHEST_RATE = 768_000;
/** The loudest sample: floats may have the range of integers of 32 bits. Larger numbers become infinite in a model. */
const LOUDEST = 2 ** 31;

/** Samples from -1 to 1: of one channel, or of each channel. */
export interface RawSound {
  readonly samples: Float32Array | readonly Float32Array[];
  readonly sampleRate: number;
}

/**
 * What the browser has decoded, a file's content or address, samples, or a stream such as a microphone's, which is
 * recorded until its tracks end or are stopped.
 */
export type SoundSource = AudioBuffer | Blob | ArrayBuffer | Uint8Array | RawSound | string | URL | MediaStream;

export interface ReadOptions {
  /** Longer sound is refused; 3600 by default. */
  readonly maxSeconds?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * The samples (N,) of the mean of all channels at 16 kHz. Throws RequestError for sound that is empty, damaged, too long
 * or in a format that the browser does not know, DeviceError if nothing decodes such files here, or the signal's reason.
 */
export async function readSound(
  source: SoundSource,
  { maxSeconds = MAX_SECONDS, signal }: ReadOptions = {},
): Promise<Float32Array<ArrayBuffer>> {
  signal?.throwIfAborted();
  const { mono, rate } = await monoOf(source, maxSeconds, signal);
  signal?.throwIfAborted();
  if (mono.length === 0) throw new RequestError("audio: has no samples; send another recording");
  if (!mono.every(Number.isFinite))
    throw new RequestError("audio: has samples that are not finite numbers; it is damaged");
  if (mono.some((sample) => Math.abs(sample) > LOUDEST))
    throw new RequestError("audio: has samples beyond 2^31; it is damaged, samples are from -1 to 1");
  return resample(mono, rate, SAMPLE_RATE);
}

interface Mono {
  readonly mono: Float32Array<ArrayBuffer>;
  readonly rate: number;
}

async function monoOf(source: SoundSource, maxSeconds: number, signal?: AbortSignal): Promise<Mono> {
  if (source instanceof Blob) return monoOfFile(await source.arrayBuffer(), maxSeconds, signal);
  if (source instanceof ArrayBuffer || source instanceof Uint8Array) return monoOfFile(source, maxSeconds, signal);
  if (typeof source === "string" || source instanceof URL)
    return monoOf(await fetched(source, signal), maxSeconds, signal);
  if (isStream(source)) return recorded(source, maxSeconds, signal);
  if (isDecoded(source)) {
    const { numberOfChannels, sampleRate } = source;
    const channels = Array.from({ length: numberOfChannels }, (_, index) => source.getChannelData(index));
    return monoOfChannels(channels, sampleRate, maxSeconds);
  }
  if (!isRaw(source))
    throw new RequestError(
      "audio: must be an AudioBuffer, a Blob, the bytes or the address of a file, a MediaStream, or {samples, sampleRate} " +
        "with Float32Arrays",
    );
  const { samples, sampleRate } = source;
  return monoOfChannels(samples instanceof Float32Array ? [samples] : samples, sampleRate, maxSeconds);
}

async function fetched(address: string | URL, signal?: AbortSignal): Promise<Blob> {
  const failed = (why: string, cause?: unknown): RequestError =>
    new RequestError(`audio: ${String(address)} cannot be fetched (${why}); check the address`, {}, { cause });
  const response = await fetch(address, { signal: signal ?? null }).catch((error: unknown) => {
    signal?.throwIfAborted();
    throw failed(messageOf(error), error);
  });
  if (!response.ok) throw failed(`the server answers ${response.status}`);
  return response.blob();
}

async function recorded(stream: MediaStream, maxSeconds: number, signal?: AbortSignal): Promise<Mono> {
  const blocks: Float32Array[] = [];
  let length = 0;
  for await (const block of listen(stream, { signal })) {
    blocks.push(block);
    length += block.length;
    requireLength(length, SAMPLE_RATE, maxSeconds);
  }
  return { mono: joined(blocks), rate: SAMPLE_RATE };
}

const isStream = (source: object): source is MediaStream =>
  typeof (source as Partial<MediaStream> | null)?.getAudioTracks === "function";

const isDecoded = (source: object): source is AudioBuffer =>
  typeof (source as Partial<AudioBuffer> | null)?.getChannelData === "function";

function isRaw(source: unknown): source is RawSound {
  const { samples, sampleRate } = (source ?? {}) as Partial<RawSound>;
  const isSamples = (value: unknown): boolean => value instanceof Float32Array;
  return typeof sampleRate === "number" && (isSamples(samples) || (Array.isArray(samples) && samples.every(isSamples)));
}

async function monoOfFile(content: ArrayBuffer | Uint8Array, maxSeconds: number, signal?: AbortSignal): Promise<Mono> {
  const bytes = content instanceof Uint8Array ? content : new Uint8Array(content);
  if (bytes.length === 0) throw new RequestError("audio: is empty; send another file");
  if (isWav(bytes)) {
    const wav = readWav(bytes);
    requireLength(wav.frames, wav.rate, maxSeconds);
    return { mono: monoOfWav(wav), rate: wav.rate };
  }
  if (typeof OfflineAudioContext === "undefined")
    throw new DeviceError(
      "nothing decodes sound here but WAV files; decode it in the page with AudioContext.decodeAudioData, and pass " +
        "{samples, sampleRate}",
    );
  // It decodes to its own rate. It detaches what it reads, so it receives a copy.
  const context = new OfflineAudioContext(1, 1, SAMPLE_RATE);
  let decoded: AudioBuffer;
  try {
    decoded = await context.decodeAudioData(bytes.slice().buffer);
  } catch (error) {
    signal?.throwIfAborted();
    throw new RequestError(
      `audio: is no sound in a format that this browser reads (${messageOf(error)}); convert it to WAV`,
      {},
      { cause: error },
    );
  }
  return monoOf(decoded, maxSeconds);
}

/** The mean of channels of the same length. */
function monoOfChannels(channels: readonly Float32Array[], rate: number, maxSeconds: number): Mono {
  const frames = channels[0]?.length ?? 0;
  if (channels.some(({ length }) => length !== frames))
    throw new RequestError(
      `audio: its channels have ${channels.map(({ length }) => length).join(", ")} samples; pass as many of each`,
    );
  requireLength(frames, rate, maxSeconds);
  const mono = new Float32Array(frames);
  for (let frame = 0; frame < frames; frame++) {
    let sum = 0;
    for (const channel of channels) sum += Number(channel[frame]);
    mono[frame] = sum / channels.length;
  }
  return { mono, rate };
}

function requireLength(frames: number, rate: number, maxSeconds: number): void {
  if (!Number.isInteger(rate) || rate < LOWEST_RATE || rate > HIGHEST_RATE)
    throw new RequestError(
      `audio: has ${rate} samples a second; supported: ${LOWEST_RATE} to ${HIGHEST_RATE}, whole numbers`,
    );
  if (frames / rate > maxSeconds)
    throw new RequestError(`audio: is longer than ${maxSeconds} seconds; send parts of it`, {
      seconds: frames / rate,
      most: maxSeconds,
    });
}
