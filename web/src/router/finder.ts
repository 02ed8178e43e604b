// The finder of a policy's `private.masks`: a classifier of tokens on this device, whose labels become kinds of private
// texts. It is a module of its own, which a page imports if it has one.

import type { ClassifyParams } from "../api/encoder_types.js";
import type { Classification, ClassifyResponse } from "../api/replies.js";
import { anySignal } from "../api/stream.js";
import type { RequestOptions } from "../api/types.js";
import type { Engine } from "../engine.js";
import { BundleError, DeviceError, RequestError } from "../errors.js";
import type { BundleAddress, LoadOptions } from "../load_options.js";
import { unlessAborted } from "../runtime/abort.js";
import type { MaskEntity } from "../shared/decision/policy_schema.js";
import { kindsOfLabels } from "../shared/masks/kinds.js";
import type { EntityFinder } from "./masks.js";

export interface FinderOptions {
  /**
   * The kind of each label ("MISC" of "B-MISC") that has another one than its name says, or that no known kind has for a
   * name: letters A to Z, or null if it is not private.
   */
  readonly kinds?: Readonly<Record<string, string | null>> | undefined;
  /** The characters of a text that is searched; a longer one is not, so its request stays on the device. By default 100,000. */
  readonly mostCharacters?: number | undefined;
  /** The milliseconds that the search of a text may take; after them its request stays on the device. By default 20,000. */
  readonly timeoutMs?: number | undefined;
}

export class Finder<Model extends EntityFinder = EntityFinder> implements EntityFinder {
  /** The kinds that it finds, and the ``entities`` of a policy that masks all of them. */
  readonly entities: readonly MaskEntity[];
  readonly #kinds: ReadonlyMap<string, string | null>;
  readonly #mostCharacters: number;
  readonly #timeoutMs: number;

  /**
   * ``engine``: of this page or of a worker, and the caller's to unload. ``labels``: those of its model, as its manifest has them (`classifier.labels`). Throws RequestError for
   * labels that no kind has for a name and ``options.kinds`` lacks.
   */
  constructor(
    readonly engine: Model,
    labels: readonly string[],
    { kinds, mostCharacters = 100_000, timeoutMs = 20_000 }: FinderOptions = {},
  ) {
    const named = kindsOfLabels(labels, kinds);
    this.#kinds = new Map(named);
    this.#mostCharacters = mostCharacters;
    this.#timeoutMs = timeoutMs;
    const found = [...new Set(named.map(([, kind]) => kind))].filter((kind) => kind !== null);
    this.entities = found.map((kind) => ({ label: kind, kind }));
  }

  /**
   * Loads a bundle of a classifier of tokens. Its labels are checked before its weights are downloaded. Throws
   * RequestError as the constructor and for another model, and what `Engine.load` throws.
   */
  static async load(address: BundleAddress, options: FinderOptions & LoadOptions = {}): Promise<Finder<Engine>> {
    const { kinds, mostCharacters, timeoutMs, ...loading } = options;
    const own = { kinds, mostCharacters, timeoutMs };
    const { Engine: OfPage, httpSource } = await import("../index.js");
    const source = typeof address === "string" || address instanceof URL ? httpSource(address) : address;
    const labels = labelsOf(await manifestOf(source, loading.signal));
    kindsOfLabels(labels, kinds);
    return new Finder(await OfPage.load(address, loading), labels, own);
  }

  /** The spans of texts, labelled with their kinds. Throws RequestError, DeviceError, or the signal's reason. */
  async classify(params: ClassifyParams, { signal }: RequestOptions = {}): Promise<Pick<ClassifyResponse, "data">> {
    const characters = [params.input]
      .flat()
      .reduce((sum: number, text) => sum + (typeof text === "string" ? text.length : 0), 0);
    if (characters > this.#mostCharacters)
      throw new RequestError(
        `the finder searches at most ${this.#mostCharacters} characters of a text, which has ${characters}; shorten it, or raise mostCharacters`,
        { param: "input" },
      );
    const limit = AbortSignal.timeout(this.#timeoutMs);
    const either = anySignal(signal, limit);
    try {
      const { data } = await unlessAborted(Promise.resolve(this.engine.classify(params, { signal: either })), either);
      return { data: data.map((each) => this.#ofKinds(each)) };
    } catch (error) {
      if (limit.aborted && signal?.aborted !== true)
        throw new DeviceError(`the finder has not searched a text within ${this.#timeoutMs} ms`, {}, { cause: error });
      throw error;
    }
  }

  #ofKinds({ spans, ...rest }: Classification): Classification {
    if (spans === undefined) return rest;
    return {
      ...rest,
      spans: spans.flatMap((span) => {
        const kind = this.#kinds.get(span.label);
        if (kind === undefined)
          throw new BundleError(`the model labels ${span.label}, which is not among its labels; load its own bundle`);
        return kind === null ? [] : [{ ...span, label: kind }];
      }),
    };
  }
}

interface Opens {
  readonly location: string;
  open(file: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>>;
}

async function manifestOf(source: Opens, signal = new AbortController().signal): Promise<unknown> {
  const stream = await source.open("manifest.json", signal);
  try {
    return await new Response(stream as ReadableStream<Uint8Array<ArrayBuffer>>).json();
  } catch (error) {
    signal.throwIfAborted();
    throw new BundleError(
      `manifest.json: cannot be read; check that ${source.location} is a bundle's folder`,
      { file: "manifest.json" },
      { cause: error },
    );
  }
}

function labelsOf(manifest: unknown): readonly string[] {
  const { classifier } = manifest as {
    readonly classifier?: { readonly per_token: boolean; readonly labels: readonly string[] } | null;
  };
  if (classifier?.per_token !== true)
    throw new RequestError("the bundle's model labels no tokens; use a classifier of tokens", { param: "finder" });
  return classifier.labels;
}
