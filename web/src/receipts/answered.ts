// One answer on its way to its receipt: what its chunks, or the complete answer, say of its tokens.

import type { EngineApi } from "../api/engine_api.js";
import type { SignedReceipt } from "../api/types.js";
import { canonicalJson, requestSampling, requestText } from "../shared/receipt.js";
import { sha256 } from "../runtime/read_file.js";
import { version } from "../../package.json";

type Receipt = SignedReceipt["receipt"];

/** The fields that chats and texts, and their chunks, share. */
export interface AnyChoice {
  readonly index: number;
  readonly finish_reason: string | null;
  readonly token_ids?: readonly number[];
  readonly prompt_token_ids?: readonly number[];
}

export interface AnyAnswer {
  readonly choices: readonly AnyChoice[];
  readonly prompt_token_ids?: readonly number[];
}

export type AnyParams = Readonly<Record<string, unknown>> & {
  readonly n?: number | null | undefined;
  readonly return_token_ids?: boolean | null | undefined;
};

interface Told {
  promptIds: readonly number[] | undefined;
  tokenIds: number[];
  finishReason: string | null;
}

export class Answered {
  /** The request without what only says how its answer is delivered. */
  readonly #text: string;
  readonly #choices = new Map<number, Told>();
  /** A chat has one prompt. */
  #promptIds: readonly number[] | undefined;

  /** ``params`` are the caller's. Throws RequestError for parameters that no receipt covers. */
  constructor(
    private readonly params: AnyParams,
    private readonly seed: number,
    private readonly info: EngineApi["info"],
  ) {
    this.#text = requestText(params);
  }

  get hasTokens(): boolean {
    return [...this.#choices.values()].some(({ tokenIds }) => tokenIds.length > 0);
  }

  note({ choices, prompt_token_ids: promptIds }: AnyAnswer): void {
    this.#promptIds ??= promptIds;
    for (const { index, finish_reason: end, token_ids: ids = [], prompt_token_ids: ownIds } of choices) {
      const told: Told = this.#choices.get(index) ?? { promptIds: undefined, tokenIds: [], finishReason: null };
      told.promptIds ??= ownIds;
      told.tokenIds.push(...ids);
      told.finishReason = end ?? told.finishReason;
      this.#choices.set(index, told);
    }
  }

  /** ``isWhole`` is false for an answer that was broken off. */
  async receipt(isWhole: boolean): Promise<Receipt> {
    const { params, info } = this;
    const { selfTest } = info;
    const sorted = [...this.#choices].sort(([first], [second]) => first - second);
    return {
      version: 1,
      side: "near",
      runtime: `@nearfar/web ${version}`,
      time: Math.floor(Date.now() / 1000),
      model: info.model,
      bundle: info.bundle,
      request: await hash(this.#text),
      device: {
        name: info.adapter,
        target: info.target,
        activation: info.activation,
        self_test: {
          state: selfTest.state,
          largest_deviation: selfTest.largestDeviation,
          switched_off: [...selfTest.switchedOff],
        },
      },
      sampling: requestSampling(params),
      choices: await Promise.all(
        sorted.map(async ([index, { promptIds = this.#promptIds ?? [], tokenIds, finishReason }]) => ({
          index,
          seed: (this.seed + (index % (params.n ?? 1))) >>> 0,
          prompt: await hash(canonicalJson(promptIds)),
          prompt_tokens: promptIds.length,
          answer: await hash(canonicalJson(tokenIds)),
          answer_tokens: tokenIds.length,
          finish_reason: isWhole ? finishReason : null,
          token_ids: params.return_token_ids === true ? tokenIds : null,
        })),
      ),
    };
  }
}

function hash(text: string): Promise<string> {
  return sha256(new TextEncoder().encode(text));
}
