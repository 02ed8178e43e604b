// The results of a plan: which of its outputs the host reads, and what their bytes mean.

import { BundleError, DeviceError, RequestError } from "../errors.js";
import { elements } from "./expr.js";
import type { Manifest, PlanEntry } from "./manifest.js";
import { planOf } from "./plan.js";

/** The results to read back in addition to the tokens. */
export interface ResultOptions {
  readonly logprobs?: boolean;
  readonly alternatives?: boolean;
  /** Run the plan of the model's own heads, which reads the batch's ``kept_rows``. */
  readonly heads?: boolean;
  /** A token whose logits are not numbers is -1 instead of an error, as for a draft, which ends there. */
  readonly notNumbers?: boolean;
  /**
   * Called with the logits (V,) of each sampled row and the row's index. It may change the logits, and the token is
   * sampled from the result. Nothing else may be submitted before it has been called.
   */
  readonly onLogits?: ((logits: Float32Array, sample: number) => void) | undefined;
}

/**
 * For each sampled row the token, its log-probability, and the most likely tokens, best first: 20 for each row, or the
 * entire vocabulary if it is smaller. Null if they were not requested.
 */
export interface StepResult {
  readonly tokenIds: Int32Array;
  readonly logprobs: Float32Array | null;
  readonly alternatives: { readonly ids: Int32Array; readonly logprobs: Float32Array } | null;
}

const GENERATED = ["logits", "next_token_ids", "token_logprobs", "top_token_ids", "top_logprobs"] as const;

type OutputRole = (typeof GENERATED)[number] | "embeddings" | "scores" | "features" | "rows";

/** The name of an output's buffer, and the number of 32-bit values for each sampled row, or for each token. */
export interface Result {
  readonly name: string;
  readonly columns: number;
  readonly perToken: boolean;
}

export class Results {
  /** The roles in `GENERATED` if the bundle generates text, otherwise only "embeddings" or "scores". */
  readonly #outputs: Readonly<Partial<Record<OutputRole, Result>>>;

  /** The result of the plan "vision"; null if the model sees no pictures. */
  readonly features: Result | null;

  /** That of the plan "hearing"; null if the model does not hear. */
  readonly heard: Result | null;

  /** What the model does, for an error. */
  readonly #makes: string;

  /** Throws BundleError for an output that is no buffer of the plan. */
  constructor(private readonly manifest: Manifest) {
    const { embedding, classifier } = manifest;
    const [makes, roles] =
      embedding !== null
        ? (["makes embeddings", ["embeddings"]] as const)
        : classifier !== null || manifest.ctc !== null
          ? ([manifest.ctc === null ? "classifies texts" : "transcribes sound", ["scores"]] as const)
          : (["generates text", GENERATED] as const);
    this.#makes = makes;
    this.#outputs = Object.fromEntries(roles.map((role) => [role, findResult(planOf(manifest), role)]));
    const { vision, hearing } = manifest.plans;
    this.heard = hearing === undefined ? null : findResult(hearing, "rows");
    this.features = vision === undefined ? null : findResult(vision, "features");
  }

  get logits(): Result {
    return this.#output("logits");
  }

  /** The result of a model that makes vectors or scores. */
  get encoded(): Result {
    return this.#outputs.scores ?? this.#output("embeddings");
  }

  /** The results of a step, in the order in which `readStep` expects their bytes. */
  ofStep({ logprobs, alternatives }: ResultOptions): readonly Result[] {
    const roles: OutputRole[] = ["next_token_ids"];
    if (logprobs) roles.push("token_logprobs");
    if (alternatives) roles.push("top_token_ids", "top_logprobs");
    return roles.map((role) => this.#output(role));
  }

  /** Throws DeviceError if the logits were not numbers, unless ``notNumbers`` are allowed. */
  readStep(bytes: ArrayBuffer, rows: number, { logprobs, alternatives, notNumbers }: ResultOptions): StepResult {
    let offset = 0;
    const next = (role: OutputRole): [ArrayBuffer, number, number] => {
      const count = rows * this.#output(role).columns;
      offset += count * 4;
      return [bytes, offset - count * 4, count];
    };
    const tokenIds = new Int32Array(...next("next_token_ids"));
    if (!notNumbers && tokenIds.some((id) => id < 0)) {
      throw new DeviceError(
        "The device computed logits that are not numbers; load the model again, or report it with the device's name",
      );
    }
    return {
      tokenIds,
      logprobs: logprobs ? new Float32Array(...next("token_logprobs")) : null,
      alternatives: alternatives
        ? { ids: new Int32Array(...next("top_token_ids")), logprobs: new Float32Array(...next("top_logprobs")) }
        : null,
    };
  }

  /** The number of 32-bit values of the logits, and of all other results together, for a number of rows and tokens. */
  sizes(rows: number, tokens: number): readonly [logits: number, others: number] {
    const { logits, ...others } = this.#outputs;
    let sum = 0;
    for (const { columns, perToken } of Object.values(others)) sum += (perToken ? tokens : rows) * columns;
    return [rows * (logits?.columns ?? 0), sum];
  }

  #output(role: OutputRole): Result {
    const result = this.#outputs[role];
    if (result === undefined) throw new RequestError(`${this.manifest.model} has no output ${role}; it ${this.#makes}`);
    return result;
  }
}

function findResult(plan: PlanEntry, role: OutputRole): Result {
  const name = plan.outputs[role] ?? "";
  const entry = plan.buffers[name];
  if (entry === undefined) {
    throw new BundleError(`manifest.json: output ${role} names no buffer; compile the bundle again`, { output: role });
  }
  return { name, columns: elements(entry.shape.slice(1), {}), perToken: entry.shape[0] === "S" };
}
