// The images of a prompt in its tokens: what the prefix cache compares in the place of placeholders, and the features that
// replace their embeddings. `server_fallback/engine/images.py` does the same.

import type { PromptImage, TokenRequest } from "../engine/request.js";
import type { PlacedImages } from "../engine/sequence.js";
import { RequestError } from "../errors.js";

// A key is read in windows of this many hexadecimal digits, of which a SHA-256 has five whole ones: numbers are exact up
// to 53 bits.
const DIGITS = 12;
const WINDOWS = 5;

/**
 * What the prefix cache compares instead of the id of the placeholder of a picture's feature ``index``: a number below 0,
 * which is no token's id.
 *
 * Consecutive placeholders have different windows of the key, so pictures agree in five of them only if they agree in 240
 * bits. tests/conformance/image_keys.json holds every runtime to these numbers.
 */
export function placeholderKey(key: string, index: number): number {
  const start = (index % WINDOWS) * DIGITS;
  return -1 - index - Number.parseInt(key.slice(start, start + DIGITS), 16);
}

/** The tokens of a prompt as the prefix cache compares them. */
export function promptKeys(
  tokens: readonly number[],
  images: readonly Pick<PromptImage, "offset" | "length" | "key" | "first">[],
): readonly number[] {
  const keys = [...tokens];
  for (const { offset, length, key, first = 0 } of images)
    for (let index = 0; index < length; index++) keys[offset + index] = placeholderKey(key, first + index);
  return keys;
}

/** The placeholder of pictures and that of sounds; null for a model that does not see or hear. */
export interface Placeholders {
  readonly picture: number | null;
  readonly sound: number | null;
}

/**
 * The images of a request in its prompt; null for a prompt without any. Throws RequestError unless each placeholder of the
 * prompt is one of an image of its kind, and the other way round, and each image has features of ``columns`` numbers.
 * ``wholeTokens``: the most tokens of a step, if each token of an image sees all of it; null for other models.
 * ``rotates``: tokens have positions by row and column.
 */
export function placeImages(
  request: TokenRequest,
  placeholders: Placeholders,
  columns: number,
  wholeTokens: number | null = null,
  rotates = false,
): PlacedImages | null {
  const { promptIds, images = [], whenFull } = request;
  if (images.length > 0 && typeof whenFull === "object")
    throw new RequestError("whenFull drops old tokens, but images cannot be dropped in part; use 'stop'", {
      param: "whenFull",
    });
  let end = 0;
  for (const [index, { offset, length, key, features, columns: across = 0, isSound = false }] of images.entries()) {
    if (!(offset >= end && length > 0 && offset + length <= promptIds.length))
      throw wrong(
        `image ${index} takes ${length} tokens from token ${offset} on; images must be in order, and within the ` +
          `prompt of ${promptIds.length} tokens`,
      );
    end = offset + length;
    if (!/^[0-9a-f]{64}$/.test(key)) throw wrong(`the key of image ${index} is not a SHA-256 in hexadecimal digits`);
    if (features.length !== length * columns)
      throw wrong(`image ${index} has ${features.length} numbers; it needs ${length} features of ${columns}`);
    if (rotates && !isSound && !(across > 0 && length % across === 0))
      throw wrong(`image ${index} has ${length} features, ${across} side by side; this model needs complete rows`);
    const [what, placeholder] = isSound ? ["sound", placeholders.sound] : ["image", placeholders.picture];
    if (promptIds.slice(offset, end).some((id) => id !== placeholder))
      throw wrong(`image ${index} takes tokens that are not the ${what} token ${placeholder}`);
  }
  for (const [what, placeholder] of [
    ["image", placeholders.picture] as const,
    ["sound", placeholders.sound] as const,
  ]) {
    const places = placeholder === null ? 0 : promptIds.filter((id) => id === placeholder).length;
    const own = images.filter(({ isSound = false }) => isSound === (what === "sound"));
    const taken = own.reduce((sum, { length }) => sum + length, 0);
    if (places !== taken)
      throw wrong(
        `the prompt has ${places} ${what} tokens (${placeholder}), and its ${what}s take ${taken}; send ${what}s where ` +
          `the prompt has ${what} tokens`,
      );
  }
  if (images.length === 0) return null;
  // Sounds may be cut.
  const whole = wholeTokens === null ? [] : images.filter(({ isSound = false }) => !isSound);
  if (wholeTokens !== null) checkWholeImages(request, whole, wholeTokens);
  return {
    keys: promptKeys(promptIds, images),
    end: (start, stop) => {
      const cut = whole.find(({ offset, length }) => offset < stop && stop < offset + length);
      return cut === undefined ? stop : Math.max(start, cut.offset);
    },
    between: (start, stop) =>
      images.flatMap(({ offset, length, features, isSound = false }) => {
        const [first, last] = [Math.max(start, offset), Math.min(stop, offset + length)];
        const part = features.subarray((first - offset) * columns, (last - offset) * columns);
        return first < last ? [[first, last - first, part, isSound] as const] : [];
      }),
    ...(rotates && { ropePositions: (start, stop) => ropePositions(images, start, stop) }),
  };
}

/** Each token of an image sees all of it: it fits a step of ``most`` tokens, and nothing else belongs to it. */
function checkWholeImages({ promptLogprobs = 0 }: TokenRequest, images: readonly PromptImage[], most: number): void {
  if (promptLogprobs > 0 && images.length > 0)
    throw new RequestError(
      "promptLogprobs cannot be combined with images that this model reads as a whole; leave it out",
      { param: "promptLogprobs" },
    );
  for (const [index, { offset, length }] of images.entries()) {
    if (length > most)
      throw wrong(
        `an image takes ${length} tokens, and a step computes at most ${most}; this model reads an image in one step: ` +
          "open it with more tokens a step",
      );
    const { offset: before = 0, length: taken = 0 } = images[index - 1] ?? {};
    // Both would be one image to the model, and the prefix cache would take the first one for the same without it.
    if (index > 0 && before + taken === offset)
      throw wrong(
        `there is no token of text between image ${index - 1} and image ${index}; this model reads an image as a ` +
          "whole, and needs a token that separates them",
      );
  }
}

/**
 * The positions (stop - start, 3) in time, rows and columns by which tokens [start, stop) of a prompt rotate, in models
 * with M-RoPE (Qwen3-VL). A picture is at one time; its rows and columns count from there. What follows begins at one more
 * than the largest position. `rope_positions_between` of compiler/runtime/placed_features.py does the same.
 */
export function ropePositions(
  images: readonly Pick<PromptImage, "offset" | "length" | "columns">[],
  start: number,
  stop: number,
): readonly number[] {
  const found: number[] = [];
  let saved = 0;
  let next = 0;
  const skip = (position: number): PromptSpan | undefined => {
    for (;;) {
      const image = images[next];
      if (image === undefined || position < image.offset) return undefined;
      const { offset, length, columns = length } = image;
      if (position < offset + length) return { offset, columns };
      saved += length - Math.max(length / columns, columns);
      next++;
    }
  };
  for (let position = start; position < stop; position++) {
    const inside = skip(position);
    if (inside === undefined) found.push(position - saved, position - saved, position - saved);
    else {
      const [time, index] = [inside.offset - saved, position - inside.offset];
      found.push(time, time + Math.floor(index / inside.columns), time + (index % inside.columns));
    }
  }
  return found;
}

interface PromptSpan {
  readonly offset: number;
  readonly columns: number;
}

const wrong = (message: string): RequestError => new RequestError(message, { param: "images" });
