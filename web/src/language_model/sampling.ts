// The sampling options of a session: a named mode, or temperature and top-k.

// The specification leaves the temperature of each mode to the implementation.
const MODE_TEMPERATURES = {
  "most-predictable": 0,
  predictable: 0.3,
  "slightly-predictable": 0.5,
  balanced: 0.7,
  "slightly-creative": 0.85,
  creative: 1,
  "most-creative": 1.3,
} as const;

export type SamplingMode = keyof typeof MODE_TEMPERATURES;

export interface Sampling {
  readonly temperature: number;
  readonly topK: number | undefined;
  readonly samplingMode: SamplingMode | null;
}

export interface SamplingOptions {
  readonly topK?: number | undefined;
  readonly temperature?: number | undefined;
  readonly samplingMode?: SamplingMode | undefined;
}

/** Throws TypeError or RangeError for values that the specification rejects. */
export function readSampling({ topK, temperature, samplingMode }: SamplingOptions): Sampling {
  if (topK === undefined && temperature === undefined) {
    const mode = samplingMode ?? "balanced";
    if (!Object.hasOwn(MODE_TEMPERATURES, mode))
      throw new TypeError(`samplingMode is '${mode}', it must be one of ${Object.keys(MODE_TEMPERATURES).join(", ")}`);
    return { temperature: MODE_TEMPERATURES[mode], topK: undefined, samplingMode: mode };
  }
  if (samplingMode !== undefined) throw new TypeError("samplingMode cannot be used together with topK or temperature");
  if (topK !== undefined && !(topK >= 1)) throw new RangeError(`topK is ${topK}, it must be at least 1`);
  if (temperature !== undefined && !(temperature >= 0))
    throw new RangeError(`temperature is ${temperature}, it must be at least 0`);
  return {
    temperature: Math.min(temperature ?? MODE_TEMPERATURES.balanced, 2),
    topK: topK === undefined || topK > Number.MAX_SAFE_INTEGER ? undefined : Math.floor(topK),
    samplingMode: null,
  };
}
