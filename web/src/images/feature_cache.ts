// The features of pictures on the host, by the pictures' keys. A picture that several answers ask for at once is computed
// once; those that were not used for longest are dropped first.

import { unlessAborted } from "../runtime/abort.js";

/** ``queries``: pictures of answers. ``hits``: those whose features were retained, or on their way. */
export interface PictureCounts {
  readonly queries: number;
  readonly hits: number;
  /** The bytes of the features that are retained. */
  readonly retainedBytes: number;
}

/** By tile, (features, E). */
export type TileFeatures = readonly Float32Array[];

interface Entry {
  readonly features: Promise<TileFeatures>;
  readonly stop: AbortController;
  /** Answers that wait for it. */
  waiting: number;
  /** 0 while it is computed. */
  bytes: number;
}

export class FeatureCache {
  readonly #entries = new Map<string, Entry>();
  readonly #counts = { queries: 0, hits: 0, retainedBytes: 0 };

  constructor(private readonly capacityBytes: number) {}

  get counts(): PictureCounts {
    return { ...this.#counts };
  }

  /** The features of a picture. ``compute`` stops when nobody waits for them. Throws its errors, or the signal's reason. */
  async get(
    key: string,
    compute: (signal: AbortSignal) => Promise<TileFeatures>,
    signal: AbortSignal,
  ): Promise<TileFeatures> {
    signal.throwIfAborted();
    const known = this.#entries.get(key);
    this.#counts.queries++;
    if (known !== undefined) this.#counts.hits++;
    const entry = known ?? this.#start(key, compute);
    // The last entry is the one that was used last.
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    entry.waiting++;
    try {
      return await unlessAborted(entry.features, signal);
    } finally {
      entry.waiting--;
      if (entry.waiting === 0 && entry.bytes === 0) this.#drop(key, entry);
    }
  }

  #start(key: string, compute: (signal: AbortSignal) => Promise<TileFeatures>): Entry {
    const stop = new AbortController();
    const entry: Entry = { features: compute(stop.signal), stop, waiting: 0, bytes: 0 };
    entry.features.then(
      (tiles) => {
        if (this.#entries.get(key) !== entry) return;
        entry.bytes = tiles.reduce((sum, { byteLength }) => sum + byteLength, 0);
        this.#counts.retainedBytes += entry.bytes;
        for (const [name, other] of this.#entries)
          if (this.#counts.retainedBytes > this.capacityBytes && other.bytes > 0) this.#drop(name, other);
      },
      // The answers that wait receive the error.
      () => {
        this.#drop(key, entry);
      },
    );
    return entry;
  }

  #drop(key: string, entry: Entry): void {
    if (this.#entries.get(key) !== entry) return;
    this.#entries.delete(key);
    this.#counts.retainedBytes -= entry.bytes;
    entry.stop.abort();
  }
}
