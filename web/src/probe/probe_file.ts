// probe.json of a bundle: a few of the model's layers, with which a device is measured.

import { isObject } from "../api/params.js";
import { BundleError } from "../errors.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import { checkManifest } from "../runtime/load_manifest.js";
import type { Manifest } from "../runtime/manifest.js";
import type { Bytes } from "../runtime/read_file.js";
import { objectOf, shown, typeOf } from "../shared/declared.js";
import { PROBE_FILE } from "../shared/files_to_load.js";
import type { ProbeFile } from "./schema.js";

/** The version of probe.json that this file reads. */
const PROBE_VERSION = 2;

/** What a probe has besides the parts of a manifest, which are checked as such. */
const PROBE = objectOf(
  {
    probe_version: "integer 0..",
    layers: "integer 0..[]",
    plans: "object",
    weights: "object",
    shards: "object[]",
    values: "number[]{}",
    self_test: "object?",
    vector_test: "object?",
  } satisfies Record<keyof ProbeFile, string>,
  typeOf,
);

/** Throws BundleError. */
export function readProbe(bytes: Bytes): ProbeFile {
  const wrong = (problem: string, cause?: unknown): BundleError =>
    new BundleError(`${PROBE_FILE}: ${problem}; compile the bundle again`, { file: PROBE_FILE }, { cause });
  let data: unknown;
  try {
    data = JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw wrong("is not JSON", error);
  }
  if (!isObject(data)) throw wrong(`must be an object, not ${shown(data)}`);
  if (data.probe_version !== PROBE_VERSION)
    throw wrong(`has version ${shown(data.probe_version)}, this @nearfar/web reads ${PROBE_VERSION}`);
  const fault = PROBE.fault(data, "");
  if (fault === null) return data as unknown as ProbeFile;
  throw wrong(
    fault.expected === ""
      ? `key '${fault.path}' is not known here`
      : `${fault.path} must be ${fault.expected}, not ${shown(fault.value)}`,
  );
}

/** The manifest of the probe's layers. Throws BundleError. */
export function probedManifest(manifest: Manifest, file: ProbeFile): Manifest {
  const { plans, weights, shards, self_test, vector_test } = file;
  const others = { host_weights: {}, vision_test: null, hearing_test: null };
  const found = checkManifest({ ...manifest, ...others, plans, weights, shards, self_test, vector_test });
  return found as Manifest;
}

export function withoutProbe({ model }: AnyManifest): BundleError {
  return new BundleError(
    `${model}: the bundle has no ${PROBE_FILE}; compile it again for WebGPU, with its self-test (models that write down ` +
      "sound, or whose layers read tables of the host or states of other layers, have none)",
    { file: PROBE_FILE },
  );
}
