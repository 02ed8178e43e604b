// The finder of a policy's `private.masks`: a classifier of tokens on this device, whose labels become kinds of private
// texts. It is a module of its own, which a page imports if it has one.

import type { ClassifyParams } from "../api/encoder_types.js";
import type { Classification, ClassifyResponse } from "../api/replies.js";
import type { RequestOptions } from "../api/types.js";
import type { Engine } from "../engine.js";
import { BundleError, RequestError } from "../errors.js";
import type { BundleAddress, LoadOptions } from "../load_options.js";
import type { MaskEntity } from "../shared/decision/policy_schema.js";
import { kindsOfLabels, kindsOfPolicy } from "../shared/masks/kinds.js";
import type { EntityFinder } from "./masks.js";

export interface FinderOptions {
  /**
   * The kind of each label ("MISC" of "B-MISC") that has another one than its name says, or that no known kind has for a
   * name: letters A to Z, or null if it is not private.
   */
  readonly kinds?: Readonly<Record<string, string | null>> | undefined;
}

export class Finder<Model extends EntityFinder = EntityFinder> implements EntityFinder {
  /** The kind of each name of the model's labels; null for one that is not private. */
  readonly kinds: readonly (readonly [name: string, kind: string | null])[];
  /** The kinds that it finds, as the ``entities`` of a policy that masks all of them. */
  readonly entities: readonly MaskEntity[];

  /**
   * ``engine``: of this page or of a worker, and the caller's to unload. ``labels``: those of its model, as its manifest has them (`classifier.labels`). Throws RequestError for
   * labels that no kind has for a name and ``options.kinds`` lacks.
   */
  constructor(
    readonly engine: Model,
    labels: readonly string[],
    { kinds }: FinderOptions = {},
  ) {
    this.kinds = kindsOfLabels(labels, kinds);
    const found = [...new Set(this.kinds.map(([, kind]) => kind))].filter((kind) => kind !== null);
    this.entities = found.map((kind) => ({ label: kind, kind }));
  }

  /**
   * Loads a bundle of a classifier of tokens. Its labels are checked before its weights are downloaded. Throws
   * RequestError as the constructor and for another model, and what `Engine.load` throws.
   */
  static async load(address: BundleAddress, options: FinderOptions & LoadOptions = {}): Promise<Finder<Engine>> {
    const { kinds, ...loading } = options;
    const labels = await tokenLabels(address, loading.signal);
    kindsOfLabels(labels, kinds);
    const { Engine: OfPage } = await import("../index.js");
    return new Finder(await OfPage.load(address, loading), labels, { kinds });
  }

  /** The spans of texts, labelled with their kinds. Throws what ``engine`` throws. */
  async classify(params: ClassifyParams, options: RequestOptions = {}): Promise<Pick<ClassifyResponse, "data">> {
    const { data } = await this.engine.classify(params, options);
    return { data: data.map((each) => this.#ofKinds(each)) };
  }

  #ofKinds({ spans, ...rest }: Classification): Classification {
    if (spans === undefined) return rest;
    return {
      ...rest,
      spans: spans.flatMap((span) => {
        const [, kind] = this.kinds.find(([name]) => name === span.label) ?? [];
        if (kind === undefined)
          throw new BundleError(`the model labels ${span.label}, which is not among its labels; load its own bundle`);
        return kind === null ? [] : [{ ...span, label: kind }];
      }),
    };
  }
}

/**
 * A finder of a policy's ``entities``: they may name labels that no known kind has for a name. Throws RequestError as the
 * constructor of `Finder`.
 */
export function finderFor<Model extends EntityFinder>(
  engine: Model,
  labels: readonly string[],
  entities: readonly MaskEntity[],
): Finder<Model> {
  return new Finder(engine, labels, { kinds: kindsOfPolicy(labels, entities) });
}

/**
 * The labels of a bundle's classifier of tokens, as its manifest has them. Throws BundleError, and RequestError for
 * another model.
 */
export async function tokenLabels(address: BundleAddress, signal?: AbortSignal): Promise<readonly string[]> {
  const { httpSource } = await import("../index.js");
  const source = typeof address === "string" || address instanceof URL ? httpSource(address) : address;
  return labelsOf(await manifestOf(source, signal));
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
