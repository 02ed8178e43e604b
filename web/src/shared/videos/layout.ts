// The layout of a video: its frames that a model reads, the sizes to which they are resized, and its text in the prompt.
// A tile is one frame, or several consecutive ones that the tower joins.

import { RequestError } from "../../errors.js";
import type { FrameVolume, ImageSpec, VideoSpec } from "../../runtime/manifest.js";
import { BOUNDS } from "../attachments.js";
import type { Resize, Size } from "../images/layout.js";
import { halfToEven, largestArea, longestEdge } from "../images/layout.js";
import type { Frames } from "./sampling.js";
import { sampledFrames } from "./sampling.js";
import { videoText } from "./text.js";

export interface VideoShape extends Frames, Size {}

/** ``indices``: the frames to decode. ``tiles``: how many there are, each with ``features``, ``columns`` side by side. */
export interface VideoLayout {
  readonly indices: readonly number[];
  readonly resizes: readonly Resize[];
  readonly tiles: number;
  readonly features: number;
  readonly columns: number;
  readonly text: string;
}

/** Throws RequestError for a video that is not read, or that the model's own processor refuses, too. */
export function videoLayout(spec: ImageSpec, shape: VideoShape): VideoLayout {
  const { video } = spec;
  if (video === null) throw new RequestError("videos: this model reads no videos; send pictures of it");
  requireBounds(shape);
  const indices = sampledFrames(video, shape);
  const sizes = sizesOf(spec, video, shape, indices.length);
  const side = spec.patch * spec.block;
  const { width, height } = sizes.at(-1) ?? shape;
  const columns = Math.floor(width / side);
  const features = columns * Math.floor(height / side);
  const text = videoText(spec, indices, shape, features);
  const resizes = sizes.map((size, from) => ({ from, ...size }));
  return { indices, resizes, tiles: Math.ceil(indices.length / video.frames), features, columns, text };
}

/** Throws RequestError for a file of too many bytes, before anything of it is read. */
export function requireVideoBytes(bytes: number): void {
  if (bytes > BOUNDS.video_bytes)
    throw new RequestError(`videos: the video has ${bytes} bytes; at most ${BOUNDS.video_bytes} are read; shorten it`);
}

function requireBounds({ total, fps, width, height }: VideoShape): void {
  if (!(Number.isSafeInteger(total) && total > 0))
    throw new RequestError("videos: the video has no frames; send another one");
  if (![width, height].every((each) => Number.isSafeInteger(each) && each > 0))
    throw new RequestError(`videos: a video of ${width} x ${height} pixels has none; send another one`);
  if (!(fps > 0 && fps <= BOUNDS.video_fps))
    throw new RequestError(`videos: the video has ${fps} frames a second; it must have up to ${BOUNDS.video_fps}`);
  const seconds = total / fps;
  if (seconds > BOUNDS.video_seconds)
    throw new RequestError(
      `videos: the video is ${Math.round(seconds)} s long; at most ${BOUNDS.video_seconds} s are read; cut it`,
      { seconds },
    );
  if (width * height > BOUNDS.video_pixels)
    throw new RequestError(
      `videos: the video has ${width} x ${height} pixels; at most ${BOUNDS.video_pixels} are read; make it smaller`,
      { width, height },
    );
}

function sizesOf(
  spec: ImageSpec,
  { size, frames }: VideoSpec,
  { width, height }: Size,
  count: number,
): readonly Size[] {
  const side = spec.patch * spec.block;
  switch (size.rule) {
    case "edge":
      return [longestEdge(size, { width, height }), { width: size.side, height: size.side }];
    case "area":
      return [largestArea(size, { width, height }, side)];
    case "volume":
      return [frameVolume(size, { width, height }, side, { count, together: frames }, spec.size)];
    default:
      return size satisfies never;
  }
}

/** As the processor of Qwen3-VL, but a frame is no larger than a picture may be. */
function frameVolume(
  size: FrameVolume,
  frame: Size,
  side: number,
  { count, together }: { readonly count: number; readonly together: number },
  of: ImageSpec["size"],
): Size {
  if (count < together)
    throw new RequestError(`videos: the video has ${count} of at least ${together} frames; send it as a picture`);
  let { width, height } = frame;
  if (Math.min(width, height) < side) {
    const scale = Math.max(side / height, side / width);
    [width, height] = [Math.trunc(width * scale), Math.trunc(height * scale)];
  }
  if (Math.max(width, height) / Math.min(width, height) > size.max_aspect)
    throw new RequestError(
      `videos: one side of a video of ${frame.width} x ${frame.height} pixels is more than ${size.max_aspect} times ` +
        "the other one; crop it",
    );
  const floored = (scale: number): Size => {
    const length = (each: number): number => Math.max(side, Math.floor(each / scale / side) * side);
    return { width: length(width), height: length(height) };
  };
  let found = { width: halfToEven(width / side) * side, height: halfToEven(height / side) * side };
  const { least, most, each } = size;
  const all =
    each === null ? most : Math.max(Math.min(each, Math.floor(most / count)), Math.trunc(least * 1.05)) * count;
  const volume = halfToEven(count / together) * together * found.width * found.height;
  if (volume > all) found = floored(Math.sqrt((count * height * width) / all));
  else if (volume < least) {
    const scale = Math.sqrt(least / (count * height * width));
    const length = (own: number): number => Math.ceil((own * scale) / side) * side;
    found = { width: length(width), height: length(height) };
  }
  const largest = of.rule === "area_bounds" ? of.most : Infinity;
  if (found.width * found.height > largest) found = floored(Math.sqrt((height * width) / largest));
  if (found.width * found.height > largest)
    throw new RequestError(
      `videos: a video of ${frame.width} x ${frame.height} pixels cannot be read: its sides are too unequal for the model; crop it`,
    );
  return found;
}
