// The test of a bundle on a device: the self-test if the bundle generates text, with that of its tower if it sees
// pictures, otherwise its vector test.

import type { EncodersModule } from "../encoders/index.js";
import { BundleError } from "../errors.js";
import type { ImagesModule } from "../images/index.js";
import type { Batch, PatchBatch } from "./batch.js";
import { variantName } from "./choices.js";
import type { Front } from "./choices.js";
import { importAudio, importEncoders, importImages } from "./import_later.js";
import type { FeatureTestEntry, Manifest } from "./manifest.js";
import type { Runner } from "./runner.js";
import { selfTest } from "./self_test.js";
import type { TrialWatch, Verdict } from "./trials.js";
import type { ActivationDtype } from "./variants.js";

export interface DeviceTest {
  /** The results that are compared, for messages. */
  readonly subject: "logits" | "logits, or features of pictures," | "logits, or features," | "vectors" | "scores";
  /** For each activation dtype, the largest allowed error. */
  readonly tolerances: Readonly<Record<string, number>>;
  /**
   * Finds the variants that compute wrongly. ``front`` are the rows that are tried first on a device that has passed.
   * Throws what the runner throws, BundleError for an unknown dtype, DeviceError if encoders.js cannot be imported,
   * and the signal's reason.
   */
  run(
    runner: Runner,
    activation: ActivationDtype,
    front: Front,
    watch: TrialWatch,
    signal: AbortSignal,
  ): Promise<Verdict>;
}

/** What has the tests of vectors and of towers; by default it is imported for them. */
interface TestModules {
  readonly encoders?: EncodersModule | undefined;
  readonly images?: ImagesModule | undefined;
}

/** Null if the bundle has no test. */
export function deviceTest(manifest: Manifest, { encoders, images }: TestModules = {}): DeviceTest | null {
  const { self_test: prompt, vector_test: texts, page_size: pageSize, embedding, classifier } = manifest;
  if (prompt !== null) {
    return {
      subject:
        manifest.hearing_test !== null
          ? "logits, or features,"
          : manifest.vision_test === null
            ? "logits"
            : "logits, or features of pictures,",
      tolerances: prompt.tolerances,
      run: async (opened, activation, front, watch, signal) => {
        const runner = manifest.speech === null ? opened : (await importAudio()).hearing(opened);
        const tower = await towerDeviation(runner, activation, images);
        const tested = {
          numPages: runner.limits.groups.map(({ pages }) => pages),
          forwardLogits: runner.forwardLogits.bind(runner),
          sample: async (batch: Batch) => {
            let logits: Float32Array = new Float32Array();
            const onLogits = (row: Float32Array): void => void (logits = row);
            const { tokenIds } = await runner.submit(batch, { onLogits });
            return [logits, tokenIds[0] ?? -1] as const;
          },
          choose: runner.choose.bind(runner),
        };
        const options = optionsOf(runner, prompt, activation, front);
        return selfTest(tested, { ...prompt, ...options, watch, pageSize, signal, tower });
      },
    };
  }
  if (texts === null) return null;
  return {
    subject: embedding === null ? "scores" : "vectors",
    tolerances: texts.tolerances,
    run: async (runner, activation, front, watch, signal) => {
      const { groups, tokens, sequences, splitsTexts } = runner.limits;
      const tested = {
        numPages: splitsTexts === false ? [] : groups.map(({ pages }) => pages),
        tokens,
        sequences,
        encode: async (batch: Batch) => {
          const { conformer } = manifest.spec;
          return runner.encode(conformer === null ? batch : (await importAudio()).withTestFrames(batch, conformer));
        },
        choose: runner.choose.bind(runner),
      };
      const perToken = manifest.ctc !== null || (classifier?.per_token ?? false);
      const options = optionsOf(runner, texts, activation, front);
      const { vectorTest } = encoders ?? (await importEncoders());
      return vectorTest(tested, { ...texts, ...options, watch, pageSize, perToken, signal });
    },
  };
}

/**
 * Measures the error of towers' features, in units of the largest that is allowed; not defined for a bundle without
 * their tests.
 */
async function towerDeviation(
  runner: Pick<Runner, "manifest" | "limits" | "features">,
  activation: ActivationDtype,
  given?: ImagesModule,
): Promise<(() => Promise<number>) | undefined> {
  const { vision_test: seen, hearing_test: heard, images, spec } = runner.manifest;
  const patches = runner.limits.patches ?? 0;
  const sees = seen !== null && images !== null && patches > 0;
  const hears = heard !== null && spec.hearing !== null;
  if (!sees && !hears) return undefined;
  const { testPatches, testSound, visionDeviation } = given ?? (await importImages());
  const tests: (readonly [FeatureTestEntry, PatchBatch | Batch])[] = [];
  if (sees) tests.push([seen, testPatches(images, patches, spec.vision?.tile_side)]);
  if (hears) tests.push([heard, testSound(spec.hearing)]);
  return async () => {
    let largest = 0;
    for (const [test, batch] of tests) {
      const deviation = visionDeviation(test, await runner.features(batch), spec) / toleranceOf(test, activation);
      largest = Math.max(largest, deviation);
    }
    return largest;
  };
}

function optionsOf(
  runner: Pick<Runner, "rows">,
  { tolerances }: Pick<DeviceTest, "tolerances">,
  activation: ActivationDtype,
  front: Front,
) {
  const variants = new Map([...runner.rows].map(([list, rows]) => [list, [...new Set(rows.map(variantName))]]));
  return { tolerance: toleranceOf({ tolerances }, activation), variants, front };
}

function toleranceOf({ tolerances }: Pick<DeviceTest, "tolerances">, activation: ActivationDtype): number {
  const tolerance = tolerances[activation];
  if (tolerance === undefined) {
    throw new BundleError(
      `manifest.json: the tolerances of its test have none for ${activation}; compile the bundle again`,
      { activation },
    );
  }
  return tolerance;
}
