// From the frames of a video to the tiles that a model's tower reads. `compiler/runtime/images/videos.py` does the same.

import { RequestError } from "../errors.js";
import type { ImageSource } from "../images/decode.js";
import { decodeImage } from "../images/decode.js";
import { framesKey } from "../images/patches.js";
import type { Pixels } from "../images/resize.js";
import { resizeU8 } from "../images/resize.js";
import type { ImageSpec } from "../runtime/manifest.js";
import type { VideoLayout } from "../shared/videos/layout.js";
import { videoLayout } from "../shared/videos/layout.js";
import type { VideoFrames } from "./decode.js";
import { damagedVideo } from "./track.js";

/** A tile is one frame, or those that the tower joins. */
export interface CutVideo extends VideoLayout {
  readonly frames: readonly (readonly Pixels[])[];
  readonly key: string;
}

/** Throws RequestError for videos that are not read. */
export async function cutVideo(spec: ImageSpec, video: VideoFrames, signal: AbortSignal): Promise<CutVideo> {
  const layout = videoLayout(spec, video);
  const frames: Pixels[] = [];
  const changes: RequestError[] = [];
  await video.read(
    layout.indices,
    (frame) => {
      if (frame.width !== video.width || frame.height !== video.height) changes.push(sizesChange(video, frame));
      frames.push(layout.resizes.reduce((sized, size) => resizeU8(sized, size, spec.filter), frame));
    },
    signal,
  );
  const [changed] = changes;
  if (changed !== undefined) throw changed;
  if (frames.length !== layout.indices.length) throw damagedVideo();
  const each = spec.video?.frames ?? 1;
  const padded = [...frames, ...frames.slice(-1)];
  const tiles = Array.from({ length: layout.tiles }, (_, tile) => padded.slice(tile * each, (tile + 1) * each));
  return { ...layout, frames: tiles, key: await framesKey(spec, frames) };
}

/** A video whose frames the page has. */
export async function framesVideo(
  sources: readonly ImageSource[],
  fps: number,
  signal: AbortSignal,
): Promise<VideoFrames> {
  const frames: Pixels[] = [];
  for (const source of sources) frames.push(await decodeImage(source, { signal }));
  const [first = { width: 0, height: 0 }] = frames;
  const other = frames.find(({ width, height }) => width !== first.width || height !== first.height);
  if (other !== undefined) throw sizesChange(first, other);
  return {
    total: frames.length,
    fps,
    width: first.width,
    height: first.height,
    read: async (indices, take) => {
      for (const index of indices) take(frames[index] ?? (first as Pixels));
      return Promise.resolve();
    },
  };
}

type Sides = Pick<Pixels, "width" | "height">;

const sizesChange = (from: Sides, to: Sides): RequestError =>
  new RequestError(
    `videos: the size of the frames changes from ${from.width} x ${from.height} to ${to.width} x ${to.height}; ` +
      "convert the video to a single size",
  );
