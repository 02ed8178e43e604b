// The policy's types and JSON Schema, written by server_fallback/router/decision/schema.py.
// To change them, edit policy.py and predictor.py there.

/** One weight for each feature, then one for each term, then one for each component of the text's vector. */
export interface Weights {
  readonly weights: readonly number[];
  readonly bias: number;
}

/** The calibrated logit is ``a * logit + b`` with [a, b]. */
export interface Calibration {
  readonly near: readonly number[];
  readonly far: readonly number[];
}

/** How a text's vector (E,) from the embedding model ``model`` becomes inputs: ``components`` (K, E) times the vector less ``mean`` (E,). */
export interface Components {
  readonly model: string;
  readonly mean: readonly number[];
  readonly components: readonly (readonly number[])[];
}

/** The target that the threshold was chosen for: one of the two. */
export interface Wanted {
  readonly quality: number | null;
  readonly far_share: number | null;
}

/** Where the weights come from; no decision depends on it. ``date`` is ISO 8601. */
export interface Fitted {
  readonly pairs: number;
  readonly date: string;
  readonly wanted: Wanted | null;
}

/** ``mean`` and ``scale`` (F,) of ``features`` (F,); ``terms`` (T,) as `text_inputs` has them; ``embedding`` with K components; ``weights`` (F + T + K,). */
export interface Predictor {
  readonly version: 2;
  readonly features: readonly string[];
  readonly terms: readonly string[];
  readonly mean: readonly number[];
  readonly scale: readonly number[];
  readonly near: Weights;
  readonly far: Weights;
  readonly calibration: Calibration;
  readonly embedding: Components | null;
  readonly fitted: Fitted | null;
}

/** The rules that make a request private. ``patterns`` are searched in all its texts; see `privacy`. */
export interface PrivateRules {
  readonly labels: readonly string[];
  readonly patterns: readonly string[];
  readonly ignore_case: boolean;
}

/** Limits on the cost of the far side in a UTC day. */
export interface Budget {
  readonly far_usd_per_day: number | null;
  readonly far_requests_per_day: number | null;
}

/** The languages that each side's model knows; None for all. A request with a ``language`` is sent to a side that knows it. */
export interface ModelLanguages {
  readonly near: readonly string[] | null;
  readonly far: readonly string[] | null;
}

/** The far side's prices in US dollars. */
export interface Price {
  readonly prompt_usd_per_million: number;
  readonly completion_usd_per_million: number;
}

/** Far answers if the battery is below ``min_battery`` and not charging, or if the device is hotter than ``max_thermal``. */
export interface DeviceRules {
  readonly min_battery: number | null;
  readonly max_thermal: "nominal" | "fair" | "serious" | "critical" | null;
}

/** The cost of a second of waiting, and time limits. A side that is expected to exceed a limit loses to one that is not. */
export interface Costs {
  readonly usd_per_second: number;
  readonly max_first_token_seconds: number | null;
  readonly max_total_seconds: number | null;
}

/** Far answers if its gain is above the threshold. */
export interface Quality {
  readonly predictor: Predictor | null;
  readonly threshold: number;
}

/** The last ``tokens * times`` tokens repeat one piece of at most ``tokens`` tokens. */
export interface Repetition {
  readonly tokens: number;
  readonly times: number;
}

/** When near's answer is handed over to far: with "continue" far continues the text, with "restart" it starts over. ``warm``: when far computes the prompt of an answer that near writes, so that it can start at once at a hand-over: "always" from the start, "doubt" once near's answer begins to go wrong. It costs far the prompt and one token, and counts in the budget. It is never done for a private request, nor if far is of the dialect openai. */
export interface Escalation {
  readonly then: "never" | "continue" | "restart";
  readonly warm: "never" | "doubt" | "always";
  readonly window_tokens: number;
  readonly min_mean_logprob: number | null;
  readonly max_mean_entropy: number | null;
  readonly repetition: Repetition | null;
  readonly failing_schema: boolean;
}

/** The sides that continue if the other side fails in the middle of an answer. The default of both is false in the modes near-only and far-only. */
export interface Fallback {
  readonly near_continues: boolean;
  readonly far_takes_over: boolean;
}

/** In milliseconds. If near has sent no token after ``hedge_after_ms``, far is asked too, and the first token wins. */
export interface Timeouts {
  readonly near_first_token_ms: number;
  readonly far_first_token_ms: number;
  readonly between_tokens_ms: number;
  readonly hedge_after_ms: number | null;
}

/** After this number of failures in a row, a side is not asked for ``open_ms``; then one request tries it. */
export interface Breaker {
  readonly failures: number;
  readonly open_ms: number;
}

/** When far answers, near guesses ``draft_tokens`` tokens at a time and far checks them: the same answer in fewer of far's forwards. */
export interface Speculation {
  readonly draft_tokens: number;
}

/** The complete file. ``labels`` are those that requests and messages may have besides the private ones. */
export interface Policy {
  readonly version: 1;
  readonly mode: "near-only" | "far-only" | "prefer-near" | "prefer-far" | "auto";
  readonly labels: readonly string[];
  readonly private: PrivateRules;
  readonly languages: ModelLanguages;
  readonly budget: Budget;
  readonly price: Price;
  readonly device: DeviceRules;
  readonly costs: Costs;
  readonly quality: Quality;
  readonly escalation: Escalation;
  readonly speculation: Speculation | null;
  readonly fallback: Fallback;
  readonly timeouts: Timeouts;
  readonly retries: number;
  readonly breaker: Breaker;
}

export const POLICY_SCHEMA = {"properties":{"version":{"const":1,"type":"integer"},"mode":{"enum":["near-only","far-only","prefer-near","prefer-far","auto"],"type":"string"},"labels":{"default":[],"items":{"maxLength":100,"minLength":1,"type":"string"},"maxItems":100,"type":"array"},"private":{"default":{},"properties":{"labels":{"default":["private"],"items":{"maxLength":100,"minLength":1,"type":"string"},"maxItems":100,"type":"array"},"patterns":{"default":[],"items":{"type":"string"},"maxItems":100,"type":"array"},"ignore_case":{"default":true,"type":"boolean"}},"type":"object"},"languages":{"default":{},"properties":{"near":{"items":{"maxLength":3,"minLength":2,"type":"string"},"maxItems":200,"nullable":true,"type":"array"},"far":{"items":{"maxLength":3,"minLength":2,"type":"string"},"maxItems":200,"nullable":true,"type":"array"}},"type":"object"},"budget":{"default":{},"properties":{"far_usd_per_day":{"maximum":1000000000.0,"minimum":0,"nullable":true,"type":"number"},"far_requests_per_day":{"maximum":1000000000,"minimum":0,"nullable":true,"type":"integer"}},"type":"object"},"price":{"default":{},"properties":{"prompt_usd_per_million":{"default":0.0,"maximum":1000000000.0,"minimum":0,"type":"number"},"completion_usd_per_million":{"default":0.0,"maximum":1000000000.0,"minimum":0,"type":"number"}},"type":"object"},"device":{"default":{},"properties":{"min_battery":{"maximum":1,"minimum":0,"nullable":true,"type":"number"},"max_thermal":{"enum":["nominal","fair","serious","critical"],"nullable":true,"type":"string"}},"type":"object"},"costs":{"default":{},"properties":{"usd_per_second":{"default":0.0,"maximum":1000000000.0,"minimum":0,"type":"number"},"max_first_token_seconds":{"exclusiveMinimum":0,"maximum":1000000.0,"nullable":true,"type":"number"},"max_total_seconds":{"exclusiveMinimum":0,"maximum":1000000.0,"nullable":true,"type":"number"}},"type":"object"},"quality":{"default":{},"properties":{"predictor":{"nullable":true,"properties":{"version":{"const":2,"type":"integer"},"features":{"items":{"maxLength":100,"minLength":1,"type":"string"},"type":"array"},"terms":{"items":{"maxLength":1000,"minLength":1,"type":"string"},"maxItems":65536,"type":"array"},"mean":{"items":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"},"type":"array"},"scale":{"items":{"maximum":1000000000.0,"minimum":1e-09,"type":"number"},"type":"array"},"near":{"properties":{"weights":{"items":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"},"type":"array"},"bias":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"}},"type":"object"},"far":{"properties":{"weights":{"items":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"},"type":"array"},"bias":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"}},"type":"object"},"calibration":{"properties":{"near":{"items":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"},"maxItems":2,"minItems":2,"type":"array"},"far":{"items":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"},"maxItems":2,"minItems":2,"type":"array"}},"type":"object"},"embedding":{"nullable":true,"properties":{"model":{"maxLength":1000,"minLength":1,"type":"string"},"mean":{"items":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"},"type":"array"},"components":{"items":{"items":{"maximum":1000000000.0,"minimum":-1000000000.0,"type":"number"},"type":"array"},"type":"array"}},"type":"object"},"fitted":{"nullable":true,"properties":{"pairs":{"maximum":1000000000,"minimum":0,"type":"integer"},"date":{"type":"string"},"wanted":{"nullable":true,"properties":{"quality":{"maximum":1,"minimum":0,"nullable":true,"type":"number"},"far_share":{"maximum":1,"minimum":0,"nullable":true,"type":"number"}},"type":"object"}},"type":"object"}},"type":"object"},"threshold":{"default":0.0,"maximum":1000000.0,"minimum":-1000000.0,"type":"number"}},"type":"object"},"escalation":{"default":{},"properties":{"then":{"default":"never","enum":["never","continue","restart"],"type":"string"},"warm":{"default":"doubt","enum":["never","doubt","always"],"type":"string"},"window_tokens":{"default":8,"maximum":1000,"minimum":1,"type":"integer"},"min_mean_logprob":{"default":-1.5,"maximum":0,"minimum":-1000,"nullable":true,"type":"number"},"max_mean_entropy":{"maximum":1000,"minimum":0,"nullable":true,"type":"number"},"repetition":{"default":{},"nullable":true,"properties":{"tokens":{"default":8,"maximum":1000,"minimum":1,"type":"integer"},"times":{"default":3,"maximum":1000,"minimum":2,"type":"integer"}},"type":"object"},"failing_schema":{"default":true,"type":"boolean"}},"type":"object"},"speculation":{"nullable":true,"properties":{"draft_tokens":{"default":4,"maximum":16,"minimum":1,"type":"integer"}},"type":"object"},"fallback":{"default":{},"properties":{"near_continues":{"default":true,"type":"boolean"},"far_takes_over":{"default":true,"type":"boolean"}},"type":"object"},"timeouts":{"default":{},"properties":{"near_first_token_ms":{"default":20000,"maximum":86400000,"minimum":1,"type":"integer"},"far_first_token_ms":{"default":20000,"maximum":86400000,"minimum":1,"type":"integer"},"between_tokens_ms":{"default":20000,"maximum":86400000,"minimum":1,"type":"integer"},"hedge_after_ms":{"maximum":86400000,"minimum":1,"nullable":true,"type":"integer"}},"type":"object"},"retries":{"default":1,"maximum":10,"minimum":0,"type":"integer"},"breaker":{"default":{},"properties":{"failures":{"default":3,"maximum":1000,"minimum":1,"type":"integer"},"open_ms":{"default":10000,"maximum":86400000,"minimum":1,"type":"integer"}},"type":"object"}},"type":"object"};
