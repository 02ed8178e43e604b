// Decodes the frames of a video at the wanted indices with WebCodecs, in pages and workers alike. Python decodes the same
// frames; the colours of a browser's decoder may differ by a few levels.

import { DeviceError, NearfarError, RequestError } from "../errors.js";
import { pixelsOf } from "../images/decode.js";
import type { Pixels } from "../images/resize.js";
import { requireVideoBytes } from "../shared/videos/layout.js";
import { videoKind } from "../shared/videos/kind.js";
import { readMp4 } from "./mp4.js";
import { damagedVideo } from "./track.js";
import { readWebm } from "./webm.js";

/** ``read`` calls back with the frames at ascending indices. */
export interface VideoFrames {
  readonly total: number;
  readonly fps: number;
  readonly width: number;
  readonly height: number;
  readonly read: (indices: readonly number[], take: (frame: Pixels) => void, signal: AbortSignal) => Promise<void>;
}

/** Chunks that wait in the decoder. */
const QUEUE = 16;

/**
 * Throws RequestError for files that are no videos, are damaged, or have a codec that this browser does not decode;
 * DeviceError where nothing decodes videos; the signal's reason.
 */
export async function openVideo(file: Blob, signal: AbortSignal): Promise<VideoFrames> {
  requireVideoBytes(file.size);
  const bytes = new Uint8Array(await file.arrayBuffer());
  signal.throwIfAborted();
  const { container, problem } = videoKind(String.fromCharCode(...bytes.subarray(0, 1024)), bytes.length);
  if (problem !== null) throw new RequestError(`videos: the video ${problem}`);
  const track = container === "webm" ? readWebm(bytes) : readMp4(bytes);
  const hidden = track.samples.filter(({ time }) => time < track.start).length;
  const total = track.samples.length - hidden;
  if (total === 0) throw new RequestError("videos: the video has no frames; send another one");
  const lacks = ["VideoDecoder", "createImageBitmap", "OffscreenCanvas"].find((name) => !(name in globalThis));
  if (lacks !== undefined)
    throw new DeviceError(
      `nothing decodes videos here, because this browser has no ${lacks}; send their frames: {type: 'video', frames, fps}`,
    );
  const config: VideoDecoderConfig = {
    codec: track.codec,
    ...(track.description === null ? {} : { description: track.description }),
  };
  const { supported } = await VideoDecoder.isConfigSupported(config).catch(() => ({ supported: false }));
  if (supported !== true)
    throw new RequestError(
      `videos: this browser does not decode the codec ${track.codec}; convert the video to VP9 in WebM, or send its frames`,
    );
  // The number of each sample in the order in which frames are shown.
  const shown = track.samples.map((_, index) => index);
  shown.sort((one, other) => timeOf(one) - timeOf(other));
  function timeOf(index: number): number {
    return track.samples[index]?.time ?? 0;
  }
  const ranks = new Map(shown.map((sample, rank) => [sample, rank - hidden]));

  async function read(indices: readonly number[], take: (frame: Pixels) => void, until: AbortSignal): Promise<void> {
    const wanted = [...indices];
    const taken: Promise<void>[] = [];
    let failure: unknown = null;
    let last: Promise<unknown> = Promise.resolve();
    const decoder = new VideoDecoder({
      output: (frame) => {
        const rank = frame.timestamp;
        if (wanted[0] === undefined || rank < wanted[0]) {
          frame.close();
          return;
        }
        // A frame that is not shown stands for the next one.
        const times = wanted.filter((index) => index <= rank).length;
        wanted.splice(0, times);
        last = Promise.all([last, createImageBitmap(frame)]).then(([, bitmap]) => {
          frame.close();
          const pixels = turned(pixelsOf(bitmap), track.turns);
          bitmap.close();
          for (let time = 0; time < times; time++) take(pixels);
        });
        taken.push(last as Promise<void>);
      },
      error: (error) => {
        failure = error;
      },
    });
    try {
      decoder.configure(config);
      for (const [first, end] of groupsOf(indices.map((index) => shown[index + hidden] ?? 0))) {
        for (let index = first; index < end; index++) {
          const sample = track.samples[index];
          if (sample === undefined) throw damagedVideo();
          const { offset, size, isKey } = sample;
          const data = bytes.subarray(offset, offset + size);
          decoder.decode(
            new EncodedVideoChunk({ type: isKey ? "key" : "delta", timestamp: ranks.get(index) ?? 0, data }),
          );
          // oxlint-disable-next-line no-unmodified-loop-condition -- the decoder changes it
          while (decoder.decodeQueueSize > QUEUE && failure === null)
            await new Promise((resolve) => {
              setTimeout(resolve, 1);
            });
          until.throwIfAborted();
        }
        await decoder.flush();
      }
      await Promise.all(taken);
    } catch (error) {
      until.throwIfAborted();
      if (error instanceof NearfarError) throw error;
      throw damagedVideo(failure ?? error);
    } finally {
      if (decoder.state !== "closed") decoder.close();
    }
    if (wanted.length > 0) throw damagedVideo();
  }

  /** From the key frame before wanted samples to the last of them, and some more, because frames may wait for others. */
  function groupsOf(samples: readonly number[]): readonly (readonly [first: number, end: number])[] {
    const groups = new Map<number, number>();
    for (const sample of samples) {
      let first = sample;
      while (first > 0 && track.samples[first]?.isKey !== true) first--;
      groups.set(first, Math.max(groups.get(first) ?? 0, sample + 1));
    }
    return [...groups].sort(([one], [other]) => one - other);
  }

  const first: Pixels[] = [];
  await read([0], (frame) => first.push(frame), signal);
  const { width = 0, height = 0 } = first[0] ?? {};
  return { total, fps: Math.round(track.fps * 1e6) / 1e6, width, height, read };
}

/** Turned clockwise by quarters. */
export function turned(pixels: Pixels, turns: number): Pixels {
  let { width, height, data } = pixels;
  for (let turn = 0; turn < turns; turn++) {
    const next = new Uint8Array(data.length);
    for (let y = 0; y < height; y++)
      for (let x = 0; x < width; x++) {
        const [from, to] = [(y * width + x) * 3, (x * height + height - 1 - y) * 3];
        for (let channel = 0; channel < 3; channel++) next[to + channel] = Number(data[from + channel]);
      }
    [width, height, data] = [height, width, next];
  }
  return { width, height, data };
}
