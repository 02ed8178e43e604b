// What an application gives for bundles in ONNX's form: ONNX Runtime, of which this package brings none, and how it is to run.

/** What is used of `onnxruntime-common`'s API, which onnxruntime-web, onnxruntime-node and onnxruntime-react-native share. */
export interface OnnxRuntime {
  readonly InferenceSession: {
    create(model: Uint8Array | string, options?: object): Promise<OnnxSession>;
  };
  readonly Tensor: new (type: TensorType, data: TensorData, dims: readonly number[]) => OnnxTensor;
  readonly env: { readonly versions: object };
}

export interface OnnxSession {
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  run(
    feeds: Readonly<Record<string, OnnxTensor>>,
    fetches: readonly string[] | Readonly<Record<string, OnnxTensor | null>>,
  ): Promise<Readonly<Record<string, OnnxTensor>>>;
  release(): Promise<void>;
}

export type TensorType = "float32" | "float16" | "int64";
/** float16 as the bits of its numbers. */
export type TensorData = Float32Array | Uint16Array | BigInt64Array;

export interface OnnxTensor {
  readonly dims: readonly number[];
  readonly data: unknown;
}

/** A module as `import()` gives it: a CommonJS one has what it exports under "default" as well. */
export type OnnxModule = OnnxRuntime | { readonly default: OnnxRuntime };

export interface OnnxOptions {
  /**
   * ONNX Runtime: a function that imports it, `() => import("onnxruntime-web/wasm")`, so that a bundler finds it and nothing is loaded before it is
   * needed; or for a page without a bundler the address of its module, such as "./ort.wasm.min.mjs".
   */
  readonly runtime: string | URL | (() => Promise<unknown>);
  /** For `InferenceSession.create`, such as `{ intraOpNumThreads: 2 }` or `{ executionProviders: ["coreml"] }`. */
  readonly sessionOptions?: Readonly<Record<string, unknown>> | undefined;
}
