// Which files of a bundle a load reads, in addition to its manifest and kernels. The sizes of these files are the size of a
// download wherever one is shown: the manifest has them, and a load reads few of the kernels.

/** The folder of the graph and the weights in an ONNX bundle. */
export const ONNX_FOLDER = "onnx/";
/** What a probe reads before a load. */
export const PROBE_FILE = "probe.json";

/** The keys and values of the start of prompts are read for one. */
const LATER = /^(?:probe\.json$|prefixes\/)/;

/** The part of a manifest that lists files; exports have no shards. */
export interface ListedFiles<F extends { readonly file: string }> {
  readonly target: string;
  readonly shards?: readonly F[];
  readonly files: readonly F[];
  readonly tokenizer: { readonly file: string };
}

export function filesToLoad<F extends { readonly file: string }>({
  target,
  shards = [],
  files,
  tokenizer,
}: ListedFiles<F>): readonly F[] {
  // The other files are for the framework's own tools.
  if (target === "onnx") return files.filter(({ file }) => file.startsWith(ONNX_FOLDER) || file === tokenizer.file);
  return [...shards, ...files.filter(({ file }) => !LATER.test(file))];
}
