// The options for ONNX bundles: ONNX Runtime, which this package does not contain, and the settings with which it runs.

/**
 * The part of `onnxruntime-common`'s API that is used here; onnxruntime-web, onnxruntime-node and
 * onnxruntime-react-native share it.
 */
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

/** The result of `import()`. A CommonJS module also has its exports under "default". */
export type OnnxModule = OnnxRuntime | { readonly default: OnnxRuntime };

export interface OnnxOptions {
  /**
   * ONNX Runtime: a function that imports it, `() => import("onnxruntime-web/wasm")`, so that a bundler finds it and
   * loads it only when it is needed; or, for a page without a bundler, the address of its module, such as
   * "./ort.wasm.min.mjs".
   */
  readonly runtime: string | URL | (() => Promise<unknown>);
  /**
   * Options for `InferenceSession.create`, such as `{ intraOpNumThreads: 2 }` or `{ executionProviders: ["coreml"] }`.
   */
  readonly sessionOptions?: Readonly<Record<string, unknown>> | undefined;
}
