// Pictures: those of a model's chats, and sounds, from what a message names to images in the prompt.

import type { ChatPicture, ReadPictures } from "../api/model.js";
import type { PromptImage, TokenRequest } from "../engine/request.js";
import type { PlacedImages } from "../engine/sequence.js";
import { BundleError, NearfarError, RequestError } from "../errors.js";
import type { Batch, PatchBatch } from "../runtime/batch.js";
import { featureSize } from "../runtime/batch.js";
import type { ImagePrompt, ImageSpec, ModelSpec, SoundSpec } from "../runtime/manifest.js";
import type { ControlTokens } from "../text/control_tokens.js";
import { BOUNDS } from "../shared/attachments.js";
import { imageLayout } from "../shared/images/layout.js";
import { SOUND_RATE, soundLayout } from "../shared/sounds.js";
import { cutVideo, framesVideo } from "../videos/cut.js";
import type * as videos from "../videos/index.js";
import { dataFile, decodeImage, fetched } from "./decode.js";
import type { PictureCounts, TileFeatures } from "./feature_cache.js";
import { FeatureCache } from "./feature_cache.js";
import { framePatches, imageKey, imagePatches } from "./patches.js";
import { placeImages } from "./placed_images.js";
import type { SoundTools } from "./sounds.js";
import { soundFeatures, soundKey, soundRows } from "./sounds.js";
import { storedMessages } from "./stored_messages.js";
import type { Pixels } from "./resize.js";

/** Of the features that are retained. A picture has about 3 MB of them. */
const CAPACITY_BYTES = 64 * 2 ** 20;

/**
 * A model that sees, or hears. ``features`` computes those of one tile, or of rows of a sound. ``spec`` is null for a model
 * that sees no pictures, ``sounds`` for one that does not hear.
 */
export interface PictureParts {
  readonly spec: ImageSpec | null;
  readonly sounds?: SoundSpec | null | undefined;
  readonly model: Pick<ModelSpec, "hidden_size" | "vision" | "hearing">;
  readonly features: (batch: PatchBatch | Batch) => Promise<Float32Array>;
  /** audio.js, for models that hear. */
  readonly audio?: (() => Promise<SoundTools>) | undefined;
  /** videos.js, for models that read videos. */
  readonly videos?: (() => Promise<typeof videos>) | undefined;
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
  readonly isSound: boolean;
  readonly isVideo?: boolean;
  /** By tile. Decodes a picture again unless it was just decoded. */
  readonly features: (signal: AbortSignal) => Promise<TileFeatures>;
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
    const { spec, sounds, model } = this.#parts;
    const isWhole = (model.vision?.both_ways ?? "none") !== "none";
    const rotates = (model.vision?.mrope_section ?? []).length > 0;
    const placeholders = {
      picture: spec?.prompt.placeholder_id ?? null,
      sound: sounds?.prompt.placeholder_id ?? null,
    };
    return placeImages(request, placeholders, featureSize(model), isWhole ? maxTokens : null, rotates);
  }

  /**
   * Decode the pictures and sounds of a chat. Throws RequestError, which names the parameter, DeviceError if nothing
   * decodes files here, or the signal's reason.
   */
  async read(pictures: readonly ChatPicture[], signal = new AbortController().signal): Promise<ReadPictures> {
    for (const kind of ["picture", "video"] as const) {
      const own = pictures.filter((each) => each.kind === kind);
      const most = BOUNDS[`${kind}s`];
      const tooMany = own[most];
      if (tooMany !== undefined)
        throw new RequestError(`The messages have ${own.length} ${kind}s; send at most ${most}`, {
          param: tooMany.param,
        });
    }
    const read: Picture[] = [];
    // One after the other, because a picture may take 200 MB while it is decoded.
    for (const picture of pictures) {
      try {
        if (picture.kind === "sound") read.push(await this.#hear(picture, signal));
        else read.push(await (picture.kind === "video" ? this.#watch(picture, signal) : this.#decode(picture, signal)));
      } catch (error) {
        if (!(error instanceof NearfarError) || error.code !== "request_error") throw error;
        const message = error.message.replace(/^(?:images|videos|audio): /, "");
        const details = { ...error.details, param: picture.param };
        throw new RequestError(`${picture.param}: ${message}`, details, { cause: error });
      }
    }
    return {
      write: (marked, controls) => this.#write(marked, controls, read),
      place: (ids, until = signal) => this.#place(ids, read, until),
    };
  }

  async #decode({ source }: ChatPicture & { readonly kind: "picture" }, signal: AbortSignal): Promise<Picture> {
    const { spec } = this.#parts;
    if (spec === null) throw new Error("a model that sees no pictures has none");
    const known =
      source instanceof Blob
        ? this.#blobs.get(source)
        : typeof source === "string"
          ? this.#addresses.get(source)
          : undefined;
    const featuresOf = (pixels: () => Promise<Pixels>) => async (until: AbortSignal) =>
      this.#features(spec, await pixels(), until);
    if (known !== undefined) return { ...known, isSound: false, features: featuresOf(() => decodeImage(source)) };
    const pixels = await decodeImage(source, { signal });
    const { text, features, tiles } = imageLayout(spec, pixels.width, pixels.height);
    const columns = tiles.map(({ width }) => Math.floor(width / (spec.patch * spec.block)));
    const found = { key: await imageKey(spec, pixels), text, lengths: features, columns };
    if (source instanceof Blob) this.#blobs.set(source, found);
    else if (typeof source === "string" && /^data:/i.test(source)) this.#remember(source, found);
    return { ...found, isSound: false, features: featuresOf(() => Promise.resolve(pixels)) };
  }

  async #watch({ source }: ChatPicture & { readonly kind: "video" }, signal: AbortSignal): Promise<Picture> {
    const { spec, videos: files } = this.#parts;
    if (spec?.video == null)
      throw new RequestError("is a video, and this model reads pictures and texts only; send pictures of it");
    const address = typeof source === "string" ? source : null;
    const file =
      address === null ? source : /^data:/i.test(address) ? dataFile(address) : await fetched(address, signal);
    const video =
      file instanceof Blob
        ? await (await files?.())?.openVideo(file, signal)
        : typeof file === "object"
          ? await framesVideo(file.frames, file.fps, signal)
          : null;
    if (video == null) throw new Error("a video is a file, which needs videos.js, or frames");
    const { frames, key, text, features, columns } = await cutVideo(spec, video, signal);
    return {
      key,
      text,
      lengths: frames.map(() => features),
      columns: frames.map(() => columns),
      isSound: false,
      isVideo: true,
      features: async (until) => {
        const tiles: Float32Array[] = [];
        for (const tile of frames) {
          until.throwIfAborted();
          tiles.push(await this.#parts.features(framePatches(spec, tile)));
        }
        return tiles;
      },
    };
  }

  async #hear({ source }: ChatPicture & { readonly kind: "sound" }, signal: AbortSignal): Promise<Picture> {
    const { sounds, model, features, audio } = this.#parts;
    const { hearing } = model;
    if (!sounds || hearing === null || audio === undefined) throw new Error("a model that does not hear has no sounds");
    const tools = await audio();
    const samples = await tools.readSound(source, { maxSeconds: sounds.most / SOUND_RATE, signal });
    const { text, features: length } = soundLayout(sounds, samples.length);
    return {
      key: await soundKey(sounds, samples),
      text,
      lengths: [length],
      columns: [0],
      isSound: true,
      features: async (until) => [await soundFeatures(hearing, soundRows(sounds, samples, tools), features, until)],
    };
  }

  #remember(address: string, picture: KnownPicture): void {
    const [oldest] = this.#addresses.keys();
    if (this.#addresses.size === MAX_KNOWN && oldest !== undefined) this.#addresses.delete(oldest);
    this.#addresses.set(address, picture);
  }

  /** A rendered prompt in which the text of each picture and sound replaces a mark that the template wrote itself. */
  #write(marked: string, controls: ControlTokens, pictures: readonly Picture[]): string {
    const { spec, sounds } = this.#parts;
    const texts = (isSound: boolean, isVideo = false): string[] =>
      pictures
        .filter((each) => each.isSound === isSound && (each.isVideo ?? false) === isVideo)
        .map(({ text }) => text);
    const still = spec === null ? marked : replaced(marked, controls, spec.prompt, texts(false), "picture");
    // Its text may have the mark of pictures.
    const video = spec?.video?.prompt;
    const films = texts(false, true);
    const seen = video === undefined || films.length === 0 ? still : replaced(still, controls, video, films, "video");
    return sounds ? replaced(seen, controls, sounds.prompt, texts(true), "sound") : seen;
  }

  async #place(
    ids: readonly number[],
    pictures: readonly Picture[],
    signal: AbortSignal,
  ): Promise<readonly PromptImage[]> {
    const { spec, sounds } = this.#parts;
    const images: PromptImage[] = [];
    for (const [isSound, prompt] of [[false, spec?.prompt] as const, [true, sounds?.prompt] as const]) {
      if (prompt === undefined) continue;
      const own = pictures.filter((each) => each.isSound === isSound);
      const places = placesOf(ids, prompt, own, isSound ? "sounds" : "pictures");
      let place = 0;
      for (const { features, key, lengths, columns } of own) {
        const tiles = await this.#cache.get(key, features, signal);
        let first = 0;
        for (const [index, length] of lengths.entries()) {
          const [offset, rows] = [places[place] ?? 0, tiles[index] ?? new Float32Array()];
          const image = { offset, length, key, first, columns: columns[index], features: rows };
          images.push(isSound ? { ...image, isSound } : image);
          first += length;
          place += length;
        }
      }
    }
    return images.sort((one, other) => one.offset - other.offset);
  }

  /** Tile after tile, so that other answers continue between them. */
  async #features(spec: ImageSpec, pixels: Pixels, signal: AbortSignal): Promise<TileFeatures> {
    const { features } = this.#parts;
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

/** A text in which each mark that the template wrote itself is replaced. */
function replaced(
  marked: string,
  controls: ControlTokens,
  { mark }: Pick<ImagePrompt, "mark">,
  texts: readonly string[],
  what: string,
): string {
  if (!controls.controls.includes(mark))
    throw new BundleError(
      `tokenizer.json: '${mark}', which stands for a ${what}, is not a special token; correct the checkpoint, and ` +
        "compile the bundle again",
    );
  const own = controls.find(marked).filter(([, content]) => content === mark);
  if (own.length !== texts.length)
    throw new RequestError(
      `This model's chat template does not write '${mark}' once for each of the ${texts.length} ${what}s of these ` +
        `messages; send ${what}s in messages of the user only`,
      { param: "messages" },
    );
  let [text, end] = ["", 0];
  for (const [index, [, , at]] of own.entries()) {
    text += marked.slice(end, at) + (texts[index] ?? "");
    end = at + mark.length;
  }
  return text + marked.slice(end);
}

/** The positions of all placeholders. */
function placesOf(
  ids: readonly number[],
  { placeholder, placeholder_id: id }: ImagePrompt,
  pictures: readonly KnownPicture[],
  what: string,
): readonly number[] {
  const places = ids.flatMap((each, index) => (each === id ? [index] : []));
  const needed = pictures.reduce((sum, { lengths }) => lengths.reduce((total, length) => total + length, sum), 0);
  if (places.length !== needed)
    throw new BundleError(
      `tokenizer.json: the text of the ${what} has ${needed} times '${placeholder}', and the prompt ` +
        `${places.length} times token ${id}; correct the checkpoint's tokenizer, and compile the bundle again`,
    );
  return places;
}
