// Reads the manifest and checks it key by key, so that this package understands all of it.

import { BundleError } from "../errors.js";
import type { Fault, FaultOf } from "../shared/declared.js";
import { check, isObject, matching, shown, tableReader } from "../shared/declared.js";
import { wrongPart } from "../shared/template/check_tree.js";
import type { AnyManifest } from "./any_manifest.js";
import { MANIFEST_FILE } from "./any_manifest.js";
import { disagreement } from "./check_agreement.js";
import { isComparison, isOperator } from "./expr.js";
import type { TokenizerEntry } from "./manifest.js";
import { DIMS, FORMAT_VERSION } from "./manifest.js";
import types from "./manifest_types.json" with { type: "json" };
import { readFile, sha256 } from "./read_file.js";
import type { Bytes, Source } from "./source.js";

/**
 * Throws BundleError if the manifest is missing, is not JSON, has another format version or target, or has missing or
 * unknown keys, and what ``checkBytes`` throws.
 */
export async function loadManifest(
  source: Source,
  signal: AbortSignal,
  checkBytes?: (bytes: Bytes) => Promise<void> | undefined,
): Promise<AnyManifest> {
  const bytes = await readFile(source, { file: MANIFEST_FILE }, signal);
  await checkBytes?.(bytes);
  const text = new TextDecoder().decode(bytes);
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw new BundleError(
      `${MANIFEST_FILE}: is not JSON (it starts with ${JSON.stringify(text.slice(0, 20))}); check that ${source.location} is a bundle's folder`,
      { file: MANIFEST_FILE },
      { cause: error },
    );
  }
  const manifest = checkManifest(data);
  await checkTemplate(manifest.tokenizer);
  return manifest;
}

/** A chat template that was edited in the manifest would be rendered by its old tree. */
async function checkTemplate({ chat_template: template, chat_tree: tree }: TokenizerEntry): Promise<void> {
  if (tree === null || tree.template_sha256 === (await sha256(new TextEncoder().encode(template ?? "")))) return;
  throw new BundleError(
    `${MANIFEST_FILE}: tokenizer.chat_template has changed since chat_tree was made of it; change the checkpoint's template, and compile the bundle again`,
    { file: MANIFEST_FILE, key: "tokenizer.chat_template" },
  );
}

export function checkManifest(data: unknown): AnyManifest {
  if (!isObject(data)) throw refused({ path: "", expected: "an object", value: data });
  if (data.format_version !== FORMAT_VERSION) {
    const found = shown(data.format_version);
    throw new BundleError(
      `${MANIFEST_FILE}: has format version ${found}, this @nearfar/web reads ${FORMAT_VERSION}; compile the bundle again, or use the @nearfar/web of its release`,
      { file: MANIFEST_FILE, found, expected: FORMAT_VERSION },
    );
  }
  if (data.target !== "webgpu" && data.target !== "onnx") {
    const found = shown(data.target);
    throw new BundleError(
      `${MANIFEST_FILE}: is for target ${found}; this package runs "webgpu" and "onnx": compile with --target webgpu`,
      {
        file: MANIFEST_FILE,
        found,
      },
    );
  }
  // Bundles of earlier releases do not have them.
  data.origin ??= null;
  data.prefixes ??= [];
  const manifest = data as unknown as AnyManifest;
  const fault = read(data.target === "onnx" ? "ExportManifest" : "Manifest").fault(data, "");
  if (fault !== null) throw refused(fault);
  const [path, value] = disagreement(manifest) ?? [];
  if (path !== undefined) throw refused({ path, expected: "consistent with the rest of the manifest", value });
  return manifest;
}

// Deeper nesting is refused, so that no manifest exhausts the stack.
const MAX_PATH = 2000;

const expr: FaultOf = (value, path) => {
  if (typeof value === "string") return DIMS.includes(value) ? null : { path, expected: "a dim", value };
  if (!Array.isArray(value)) return read("Natural").fault(value, path);
  if (value.length !== 3 || !isOperator(value[0]) || path.length > MAX_PATH)
    return { path, expected: "a size expression", value };
  const divisor = value[0] === "ceildiv" ? read("Count").fault(value[2], `${path}[2]`) : expr(value[2], `${path}[2]`);
  return expr(value[1], `${path}[1]`) ?? divisor;
};

const condition: FaultOf = (value, path) => {
  if (value === null) return null;
  const [operator] = Array.isArray(value) && value.length === 3 ? (value as unknown[]) : [];
  if ((operator !== "and" && !isComparison(operator)) || path.length > MAX_PATH)
    return { path, expected: "a condition", value };
  const [, left, right] = value as readonly unknown[];
  const operand = operator === "and" ? condition : expr;
  return operand(left, `${path}[1]`) ?? operand(right, `${path}[2]`);
};

const tree: FaultOf = (value, path) => {
  const wrong = wrongPart(value);
  if (wrong === null) return null;
  return { path: path + wrong, expected: "a part of a template's syntax tree", value: partAt(value, wrong) };
};

const ACTIVATIONS = "=float32|float16";
/** Of some types, WebGPU and ONNX Runtime in browsers have fewer values. */
const TYPES: Readonly<Record<string, string | object>> = {
  ...types,
  Activation: `${ACTIVATIONS}|int8`,
  ExportActivation: ACTIVATIONS,
  Layout: "=rows",
};
const OWN: Readonly<Record<string, FaultOf>> = {
  Expr: expr,
  Condition: condition,
  TemplateTree: tree,
  FileName: check("a plain name", matching(types.FileName.pattern)),
  Sha256: check("a SHA-256", matching(types.Sha256.pattern)),
};
const read = tableReader(TYPES, OWN);

function refused({ path, expected, value }: Fault): BundleError {
  const location = path === "" ? "" : `${path} `;
  const problem =
    expected === ""
      ? `key '${path}' is not known here; use the @nearfar/web of the bundle's release`
      : `${location}must be ${expected}, not ${shown(value)}; compile the bundle again`;
  return new BundleError(`${MANIFEST_FILE}: ${problem}`, { file: MANIFEST_FILE, key: path });
}

/** ``path``: indices, as "[1][0]". */
function partAt(value: unknown, path: string): unknown {
  return (path.match(/\d+/g) ?? []).reduce((part, index) => (part as readonly unknown[])[Number(index)], value);
}
