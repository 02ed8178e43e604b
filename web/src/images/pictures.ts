// Pictures: those of a model's chats, from what a message names to images in the prompt.

import type { ChatPicture, ReadPictures } from "../api/model.js";
import type { PromptImage, TokenRequest } from "../engine/request.js";
import type { PlacedImages } from "../engine/sequence.js";
import { BundleError, NearfarError, RequestError } from "../errors.js";
import type { PatchBatch } from "../runtime/batch.js";
import { featureSize } from "../runtime/batch.js";
import type { ImageSpec, ModelSpec } from "../runtime/manifest.js";
import type { ControlTokens } from "../text/control_tokens.js";
import { BOUNDS } from "../shared/attachments.js";
import { imageLayout } from "../shared/images/layout.js";
import { decodeImage } from "./decode.js";
import type { PictureCounts, TileFeatures } from "./feature_cache.js";
import { FeatureCache } from "./feature_cache.js";
import { imageKey, imagePatches } from "./patches.js";
import { placeImages } from "./placed_images.js";
import { storedMessages } from "./stored_messages.js";
import type { Pixels } from "./resize.js";

/** Of the features that are retained. A picture has about 3 MB of them. */
const CAPACITY_BYTES = 64 * 2 ** 20;

/** A model that sees. ``features`` computes those of one tile. */
export interface PictureParts {
  readonly spec: ImageSpec;
  readonly model: Pick<ModelSpec, "hidden_size" | "vision">;
  readonly features: (batch: PatchBatch) => Promise<Float32Array>;
  readonly capacityBytes?: number;
}

/** The most pictures of addresses of `data:` of which the key is retained. */
const MAX_KNOWN = 64;

/** What is known of a picture that was decoded once. */
interface KnownPicture {
  readonly key: string;
  readonly text: string;
  /** The number of features of each tile. */
  readonly lengths: readonly number[];
  /** How many of them are side by side. */
  readonly columns: readonly number[];
}

interface Picture extends KnownPicture {
  /** Decodes it again unless it was just decoded. */
  readonly pixels: () => Promise<Pixels>;
}

export class Pictures {
  readonly #parts: PictureParts;
  readonly #cache: FeatureCache;
  /** By Blob, and by address of `data:`, whose bytes cannot change. */
  readonly #blobs = new WeakMap<Blob, KnownPicture>();
  readonly #addresses = new Map<string, KnownPicture>();

  constructor(parts: PictureParts) {
    this.#parts = parts;
    this.#cache = new FeatureCache(parts.capacityBytes ?? CAPACITY_BYTES);
  }

  get counts(): PictureCounts {
    return this.#cache.counts;
  }

  /** The messages of a session that is saved. */
  readonly stored = storedMessages;

  /** See `TokenModel.place`. */
  place(request: TokenRequest, maxTokens: number): PlacedImages | null {
    const { spec, model } = this.#parts;
    const isWhole = (model.vision?.both_ways ?? "none") !== "none";
    const rotates = (model.vision?.mrope_section ?? []).length > 0;
    const columns = featureSize(model);
    return placeImages(request, spec.prompt.placeholder_id, columns, isWhole ? maxTokens : null, rotates);
  }

  /**
   * Decode the pictures of a chat. Throws RequestError, which names the parameter, DeviceError if nothing decodes files
   * here, or the signal's reason.
   */
  async read(pictures: readonly ChatPicture[], signal = new AbortController().signal): Promise<ReadPictures> {
    const tooMany = pictures[BOUNDS.pictures];
    if (tooMany !== undefined)
      throw new RequestError(`The messages have ${pictures.length} pictures; send at most ${BOUNDS.pictures}`, {
        param: tooMany.param,
      });
    const read: Picture[] = [];
    // One after the other, because a picture may take 200 MB while it is decoded.
    for (const picture of pictures) read.push(await this.#decode(picture, signal));
    return {
      write: (marked, controls) => this.#write(marked, controls, read),
      place: (ids, until = signal) => this.#place(ids, read, until),
    };
  }

  async #decode({ source, param }: ChatPicture, signal: AbortSignal): Promise<Picture> {
    const { spec } = this.#parts;
    const known =
      source instanceof Blob
        ? this.#blobs.get(source)
        : typeof source === "string"
          ? this.#addresses.get(source)
          : undefined;
    if (known !== undefined) return { ...known, pixels: () => decodeImage(source) };
    try {
      const pixels = await decodeImage(source, { signal });
      const { text, features, tiles } = imageLayout(spec, pixels.width, pixels.height);
      const columns = tiles.map(({ width }) => Math.floor(width / (spec.patch * spec.block)));
      const found = { key: await imageKey(spec, pixels), text, lengths: features, columns };
      if (source instanceof Blob) this.#blobs.set(source, found);
      else if (typeof source === "string" && /^data:/i.test(source)) this.#remember(source, found);
      return { ...found, pixels: () => Promise.resolve(pixels) };
    } catch (error) {
      if (!(error instanceof NearfarError) || error.code !== "request_error") throw error;
      const message = error.message.replace(/^images: /, "");
      throw new RequestError(`${param}: ${message}`, { ...error.details, param }, { cause: error });
    }
  }

  #remember(address: string, picture: KnownPicture): void {
    const [oldest] = this.#addresses.keys();
    if (this.#addresses.size === MAX_KNOWN && oldest !== undefined) this.#addresses.delete(oldest);
    this.#addresses.set(address, picture);
  }

  /** A rendered prompt in which the text of each picture replaces a mark that the template wrote itself. */
  #write(marked: string, controls: ControlTokens, pictures: readonly Picture[]): string {
    const { mark } = this.#parts.spec.prompt;
    if (!controls.controls.includes(mark))
      throw new BundleError(
        `tokenizer.json: '${mark}', which stands for a picture, is not a special token; correct the checkpoint, and ` +
          "compile the bundle again",
      );
    const own = controls.find(marked).filter(([, content]) => content === mark);
    if (own.length !== pictures.length)
      throw new RequestError(
        `This model's chat template does not write '${mark}' once for each of the ${pictures.length} pictures of these ` +
          "messages; send pictures in messages of the user only",
        { param: "messages" },
      );
    let [text, end] = ["", 0];
    for (const [index, [, , at]] of own.entries()) {
      text += marked.slice(end, at) + (pictures[index]?.text ?? "");
      end = at + mark.length;
    }
    return text + marked.slice(end);
  }

  async #place(
    ids: readonly number[],
    pictures: readonly Picture[],
    signal: AbortSignal,
  ): Promise<readonly PromptImage[]> {
    const { placeholder, placeholder_id: id } = this.#parts.spec.prompt;
    const places = ids.flatMap((each, index) => (each === id ? [index] : []));
    const needed = pictures.reduce((sum, { lengths }) => lengths.reduce((total, length) => total + length, sum), 0);
    if (places.length !== needed)
      throw new BundleError(
        `tokenizer.json: the text of the pictures has ${needed} times '${placeholder}', and the prompt ` +
          `${places.length} times token ${id}; correct the checkpoint's tokenizer, and compile the bundle again`,
      );
    const images: PromptImage[] = [];
    let place = 0;
    for (const { pixels, key, lengths, columns } of pictures) {
      const tiles = await this.#cache.get(key, async (until) => this.#features(await pixels(), until), signal);
      let first = 0;
      for (const [index, length] of lengths.entries()) {
        const [offset, own] = [places[place] ?? 0, tiles[index] ?? new Float32Array()];
        images.push({ offset, length, key, first, columns: columns[index], features: own });
        first += length;
        place += length;
      }
    }
    return images;
  }

  /** Tile after tile, so that other answers continue between them. */
  async #features(pixels: Pixels, signal: AbortSignal): Promise<TileFeatures> {
    const { spec, features } = this.#parts;
    const { patches, rows, weights, positions, starts } = imagePatches(spec, pixels);
    const count = starts.at(-1) ?? 0;
    const tiles: Float32Array[] = [];
    for (const [index, start] of starts.subarray(0, -1).entries()) {
      signal.throwIfAborted();
      const end = starts[index + 1] ?? 0;
      const part = <A extends Float32Array | Int32Array>(array: A): A => {
        const columns = array.length / count;
        return array.subarray(start * columns, end * columns) as A;
      };
      const table = { patch_rows: part(rows), patch_weights: part(weights), patch_positions: part(positions) };
      tiles.push(await features({ patches: part(patches), ...table, patch_starts: [0, end - start] }));
    }
    return tiles;
  }
}
