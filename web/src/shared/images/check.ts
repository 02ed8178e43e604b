// Checks that the numbers of an ImageSpec agree with each other, and bounds them: a bundle may come from anywhere.

import type { ImageSpec } from "../../runtime/manifest.js";

/** The most pixels of a picture after a resize; 16 million are the most of a published model. */
const MAX_PIXELS = 2 ** 26;
/** In units of the largest value of a channel. */
const [MOST_MEAN, LEAST_STD, MOST_STD] = [16, 2 ** -8, 2 ** 8];

/** The part that is wrong, and what is wrong with it; null if nothing is. */
export function wrongImages(spec: ImageSpec, vocabSize: number): readonly [part: string, what: string] | null {
  const { mean, std, positions, prompt } = spec;
  const channels = [mean, std].map((each) => each?.length ?? 3);
  if ((mean === null) !== (std === null) || channels.some((count) => count !== 3))
    return ["mean", "and std must have a number for each of 3 channels, or both be null"];
  // Those of published models are between 0 and 1; others are no pictures of any.
  if (mean?.some((each) => !(Math.abs(each) <= MOST_MEAN)) === true) return ["mean", `is ${mean.join(", ")}`];
  if (std?.some((each) => !(each >= LEAST_STD && each <= MOST_STD)) === true) return ["std", `is ${std.join(", ")}`];
  const wrong = wrongSize(spec) ?? wrongTiles(spec);
  if (wrong !== null) return wrong;
  if (positions.taps > positions.side ** 2 || (positions.rule === "axes" && positions.taps !== 2))
    return ["positions.taps", `is ${positions.taps}, for a table of side ${positions.side}`];
  if (prompt.mark === "" || prompt.placeholder === "") return ["prompt", "has no text for a picture"];
  if (prompt.placeholder_id >= vocabSize)
    return ["prompt.placeholder_id", `is ${prompt.placeholder_id}, beyond the vocabulary of ${vocabSize}`];
  return wrongVideo(spec);
}

/** Frames are tiles of the same tower. */
function wrongVideo({ patch, block, size, tiles, prompt, video }: ImageSpec): readonly [string, string] | null {
  if (video === null) return null;
  const { size: frame, frames, prompt: text } = video;
  if (frames > 2) return ["video.frames", `is ${frames}; towers join at most 2`];
  if (text.mark === "" || text.mark === prompt.mark || text.tile.split("{features}").length !== 2)
    return ["video.prompt", "needs a mark of its own, and a tile with {features}"];
  const largest = size.rule === "fixed" ? size.width * size.height : size.rule === "longest_edge" ? 0 : size.most;
  if (frame.rule === "edge" && frame.side !== tiles?.side)
    return ["video.size", `makes frames of ${frame.side} pixels a side, which are no tiles of pictures`];
  if (frame.rule === "area" && !(frame.most >= (patch * block) ** 2 && frame.most <= largest))
    return ["video.size", `allows frames of ${frame.most} pixels, and pictures have up to ${largest}`];
  if (frame.rule === "volume" && !(frame.least <= frame.most && size.rule === "area_bounds"))
    return ["video.size", `allows ${frame.least} to ${frame.most} pixels, with pictures of the rule ${size.rule}`];
  return null;
}

function wrongSize({ size, patch, block, tiles, positions }: ImageSpec): readonly [string, string] | null {
  const side = patch * block;
  const [least, most] =
    size.rule === "fixed"
      ? [size.width * size.height, size.width * size.height]
      : size.rule === "longest_edge"
        ? [size.pixels, Math.min(size.pixels, size.most) ** 2]
        : [size.rule === "area_bounds" ? size.least : side ** 2, size.most];
  if (!(least <= most && side ** 2 <= most && most <= MAX_PIXELS))
    return ["size", `allows up to ${most} pixels, and blocks have ${side} x ${side}`];
  if (size.rule === "longest_edge" && tiles?.rule !== "even")
    return ["size", "needs even tiles, without which its sides are no multiples of a block"];
  if (size.rule === "fixed" && [size.width, size.height].some((length) => Math.floor(length / patch) % block > 0))
    return ["size", `${size.width} x ${size.height} has no whole blocks of ${side} pixels`];
  // The rows of the table are those of a picture of this size, or of the longest one.
  const rows =
    size.rule === "fixed"
      ? Math.max(size.width, size.height) / patch
      : size.rule === "largest_area"
        ? (most / side ** 2) * block
        : Infinity;
  const { rule } = positions;
  if ((rule === "plain" || rule === "axes") && Math.floor(rows) > positions.side)
    return ["positions.side", `is ${positions.side}, but a picture has up to ${Math.floor(rows)} patches in a row`];
  return null;
}

function wrongTiles({ size, patch, block, tiles }: ImageSpec): readonly [string, string] | null {
  if (tiles === null) return null;
  const { side } = tiles;
  const patches = Math.floor(side / patch);
  if (patches === 0 || patches % block > 0)
    return ["tiles.side", `is ${side}, in which blocks of ${block} patches of ${patch} pixels leave a rest`];
  if (tiles.rule === "even") {
    const longest = size.rule === "longest_edge" ? Math.ceil(Math.min(size.pixels, size.most) / side) * side : Infinity;
    return longest ** 2 > MAX_PIXELS ? ["tiles.side", `is ${side}, which needs pictures of ${longest} pixels`] : null;
  }
  if (side % (patch * block) > 0) return ["tiles.side", `is ${side}, no multiple of a block's ${patch * block} pixels`];
  if (!(tiles.least >= 2 && tiles.least <= tiles.most && tiles.most * side ** 2 <= MAX_PIXELS))
    return ["tiles.most", `allows ${tiles.least} to ${tiles.most} tiles of ${side} pixels`];
  return null;
}
