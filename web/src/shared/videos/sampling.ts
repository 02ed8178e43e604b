// Which frames of a video a model reads. The rules are those of transformers' processors, to the last rounding.

import type { ByCount, ByRate, BySeconds, VideoSpec } from "../../runtime/manifest.js";
import { halfToEven } from "../images/layout.js";

/** A video's number of frames, and how many of them a second takes on average. */
export interface Frames {
  readonly total: number;
  readonly fps: number;
}

/** The indices of the frames, in order. */
export function sampledFrames({ sampling }: Pick<VideoSpec, "sampling">, frames: Frames): readonly number[] {
  switch (sampling.rule) {
    case "seconds":
      return bySeconds(sampling, frames);
    case "rate":
      return byRate(sampling, frames);
    case "count":
      return byCount(sampling, frames);
    default:
      return sampling satisfies never;
  }
}

function bySeconds({ fps, most, skip }: BySeconds, { total, fps: own }: Frames): readonly number[] {
  const seconds = total / own;
  const count = Math.max(Math.min(halfToEven(fps * seconds), most), 1);
  let [first, last] = [0, total - 1];
  if (skip > 0 && seconds - 2 * skip > most * fps)
    [first, last] = [Math.trunc(skip * own), Math.min(Math.trunc(total - skip * own), total - 1)];
  if (first >= last) [first, last] = [0, total - 1];
  return Array.from(new Set(evenly(first, last, count).map(Math.floor)));
}

function byRate({ fps, least, most }: ByRate, { total, fps: own }: Frames): readonly number[] {
  const count = Math.min(Math.max(Math.trunc((total / own) * fps), least), most, total);
  return evenly(0, total - 1, count).map(halfToEven);
}

function byCount({ count }: ByCount, { total }: Frames): readonly number[] {
  if (total <= count) return Array.from({ length: total }, (_, index) => index);
  const step = total / count;
  return Array.from({ length: Math.ceil(total / step) }, (_, index) => Math.trunc(index * step));
}

/** As NumPy's linspace. */
function evenly(first: number, last: number, count: number): number[] {
  const step = (last - first) / Math.max(count - 1, 1);
  return Array.from({ length: count }, (_, index) => (index > 0 && index === count - 1 ? last : index * step + first));
}
