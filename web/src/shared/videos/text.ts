// The text that stands for a video in a prompt.

import type { ImageSpec } from "../../runtime/manifest.js";
import type { Frames } from "./sampling.js";

/** ``features``: those of each tile. */
export function videoText(
  { prompt, video }: Pick<ImageSpec, "prompt" | "video">,
  indices: readonly number[],
  { total, fps }: Frames,
  features: number,
): string {
  if (video === null) return "";
  const tokens = prompt.placeholder.repeat(features);
  const tiles = Array.from({ length: Math.ceil(indices.length / video.frames) }, (_, tile) => {
    const [first = 0, last = first] = [tile * video.frames, (tile + 1) * video.frames - 1].map(
      (index) => Number(indices[Math.min(index, indices.length - 1)]) / fps,
    );
    const time = (first + last) / 2;
    return video.prompt.tile
      .replaceAll("{mm:ss}", minutes(time))
      .replaceAll("{seconds}", oneDecimal(time))
      .replaceAll("{features}", tokens);
  });
  const start = video.prompt.start
    .replaceAll("{count}", numberWords(indices.length))
    .replaceAll("{h:mm:ss}", hours(total / fps));
  return start + tiles.join(video.prompt.between) + video.prompt.end;
}

const twoDigits = (number: number): string => String(number).padStart(2, "0");

const minutes = (seconds: number): string =>
  `${twoDigits(Math.floor(seconds / 60))}:${twoDigits(Math.trunc(seconds % 60))}`;

function hours(seconds: number): string {
  const whole = Math.trunc(seconds);
  return `${Math.floor(whole / 3600)}:${minutes(whole % 3600)}`;
}

/** As Python formats it: of two numbers that are equally close, the one with an even digit. */
function oneDecimal(seconds: number): string {
  // Only odd quarters are halfway between two.
  const quarters = seconds * 4;
  if (quarters % 2 !== 1) return seconds.toFixed(1);
  const below = Math.floor(seconds * 10);
  return ((below + (below % 2)) / 10).toFixed(1);
}

const WORDS =
  "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(
    " ",
  );
const TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split(" ");

/** A number below 1000 in English words, as SmolVLM's processor writes it. */
export function numberWords(number: number): string {
  if (number >= 1000) return String(number);
  if (number >= 100) {
    const rest = number % 100;
    return `${numberWords(Math.floor(number / 100))} hundred${rest > 0 ? ` and ${numberWords(rest)}` : ""}`;
  }
  if (number < 20) return WORDS[number] ?? "";
  return [TENS[Math.floor(number / 10) - 2], ...(number % 10 > 0 ? [WORDS[number % 10]] : [])].join("-");
}
