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

/** A pattern of private texts, and their ``kind`` in placeholders, of A to Z, such as "EMAIL". */
export interface MaskPattern {
  readonly kind: string;
  readonly pattern: string;
}

/** What the finder finds: its ``label`` is a kind that every `Finder` knows, such as "PERSON", and not a model's own name of it; ``kind`` is the word in placeholders, as in MaskPattern. */
export interface MaskEntity {
  readonly label: string;
  readonly kind: string;
}

/** Private texts that far may have placeholders for: those that match ``patterns``, and the ``entities`` that a model on the device finds. ``then``: with "mask" far receives placeholders, with "ask" after the application has agreed to what would leave, and with "near" the request stays on the device. ``strict``: only listed fields of a chat may leave, of which each is shown; see `web/src/shared/masks/strict.ts`. */
export interface MaskRules {
  readonly patterns: readonly MaskPattern[];
  readonly entities: readonly MaskEntity[];
  readonly then: "mask" | "ask" | "near";
  readonly strict: boolean;
}

/** The rules that make a request private. ``patterns`` are searched in all its texts; see `privacy`. ``masks`` are private texts that chats may leave without. ``media``: where pictures, recordings and files may go. "near" keeps a request with one on the device, and None one whose medium is not text, so that no pattern can be searched in it. "describe" lets a text that near makes of such a medium leave, and "far" all. The default is "far" if the policy lists no labels and no patterns here. */
export interface PrivateRules {
  readonly labels: readonly string[];
  readonly patterns: readonly string[];
  readonly ignore_case: boolean;
  readonly media: "near" | "far" | "describe" | null;
  readonly masks: MaskRules | null;
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

/** Far answers if the battery is below ``min_battery`` and not charging, if the device is hotter than ``max_thermal``, or if near's first token is expected after ``max_first_token_seconds``, however long far takes. */
export interface DeviceRules {
  readonly min_battery: number | null;
  readonly max_thermal: "nominal" | "fair" | "serious" | "critical" | null;
  readonly max_first_token_seconds: number | null;
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

/** When near answers, far may compute a prompt of at least ``min_tokens`` tokens that are not in near's cache, and near receives its keys and values, if that is expected to be sooner. It costs far the prompt, and counts in the budget. It is never done for a private request. Only pages do it. ``states``: how matrices of recurrent states travel, at 4, 8 or 16 bits. */
export interface Prefill {
  readonly min_tokens: number;
  readonly states: "q4" | "q8" | "float16";
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
  readonly prefill: Prefill | null;
  readonly fallback: Fallback;
  readonly timeouts: Timeouts;
  readonly retries: number;
  readonly breaker: Breaker;
}

export const POLICY_SCHEMA = {"properties":{"version":{"type":"integer 1..1"},"mode":{"type":"=near-only|far-only|prefer-near|prefer-far|auto"},"labels":{"default":[],"items":{"maxLength":100,"minLength":1,"type":"string"},"maxItems":100},"private":{"default":{},"properties":{"labels":{"default":["private"],"items":{"maxLength":100,"minLength":1,"type":"string"},"maxItems":100},"patterns":{"default":[],"items":{"type":"string"},"maxItems":100},"ignore_case":{"default":true,"type":"boolean"},"media":{"nullable":true,"type":"=near|far|describe"},"masks":{"nullable":true,"properties":{"patterns":{"default":[],"items":{"properties":{"kind":{"maxLength":20,"minLength":1,"type":"string"},"pattern":{"type":"string"}}},"maxItems":100},"entities":{"default":[],"items":{"properties":{"label":{"maxLength":100,"minLength":1,"type":"string"},"kind":{"maxLength":20,"minLength":1,"type":"string"}}},"maxItems":100},"then":{"default":"mask","type":"=mask|ask|near"},"strict":{"default":false,"type":"boolean"}}}}},"languages":{"default":{},"properties":{"near":{"items":{"maxLength":3,"minLength":2,"type":"string"},"maxItems":200,"nullable":true},"far":{"items":{"maxLength":3,"minLength":2,"type":"string"},"maxItems":200,"nullable":true}}},"budget":{"default":{},"properties":{"far_usd_per_day":{"nullable":true,"type":"number 0..1000000000.0"},"far_requests_per_day":{"nullable":true,"type":"integer 0..1000000000"}}},"price":{"default":{},"properties":{"prompt_usd_per_million":{"default":0.0,"type":"number 0..1000000000.0"},"completion_usd_per_million":{"default":0.0,"type":"number 0..1000000000.0"}}},"device":{"default":{},"properties":{"min_battery":{"nullable":true,"type":"number 0..1"},"max_thermal":{"nullable":true,"type":"=nominal|fair|serious|critical"},"max_first_token_seconds":{"nullable":true,"type":"number 0<..1000000.0"}}},"costs":{"default":{},"properties":{"usd_per_second":{"default":0.0,"type":"number 0..1000000000.0"},"max_first_token_seconds":{"nullable":true,"type":"number 0<..1000000.0"},"max_total_seconds":{"nullable":true,"type":"number 0<..1000000.0"}}},"quality":{"default":{},"properties":{"predictor":{"nullable":true,"properties":{"version":{"type":"integer 2..2"},"features":{"items":{"maxLength":100,"minLength":1,"type":"string"}},"terms":{"items":{"maxLength":1000,"minLength":1,"type":"string"},"maxItems":65536},"mean":{"items":{"type":"number -1000000000.0..1000000000.0"}},"scale":{"items":{"type":"number 1e-09..1000000000.0"}},"near":{"properties":{"weights":{"items":{"type":"number -1000000000.0..1000000000.0"}},"bias":{"type":"number -1000000000.0..1000000000.0"}}},"far":{"properties":{"weights":{"items":{"type":"number -1000000000.0..1000000000.0"}},"bias":{"type":"number -1000000000.0..1000000000.0"}}},"calibration":{"properties":{"near":{"items":{"type":"number -1000000000.0..1000000000.0"},"maxItems":2,"minItems":2},"far":{"items":{"type":"number -1000000000.0..1000000000.0"},"maxItems":2,"minItems":2}}},"embedding":{"nullable":true,"properties":{"model":{"maxLength":1000,"minLength":1,"type":"string"},"mean":{"items":{"type":"number -1000000000.0..1000000000.0"}},"components":{"items":{"items":{"type":"number -1000000000.0..1000000000.0"}}}}},"fitted":{"nullable":true,"properties":{"pairs":{"type":"integer 0..1000000000"},"date":{"type":"string"},"wanted":{"nullable":true,"properties":{"quality":{"nullable":true,"type":"number 0..1"},"far_share":{"nullable":true,"type":"number 0..1"}}}}}}},"threshold":{"default":0.0,"type":"number -1000000.0..1000000.0"}}},"escalation":{"default":{},"properties":{"then":{"default":"never","type":"=never|continue|restart"},"warm":{"default":"doubt","type":"=never|doubt|always"},"window_tokens":{"default":8,"type":"integer 1..1000"},"min_mean_logprob":{"default":-1.5,"nullable":true,"type":"number -1000..0"},"max_mean_entropy":{"nullable":true,"type":"number 0..1000"},"repetition":{"default":{},"nullable":true,"properties":{"tokens":{"default":8,"type":"integer 1..1000"},"times":{"default":3,"type":"integer 2..1000"}}},"failing_schema":{"default":true,"type":"boolean"}}},"speculation":{"nullable":true,"properties":{"draft_tokens":{"default":4,"type":"integer 1..16"}}},"prefill":{"nullable":true,"properties":{"min_tokens":{"default":256,"type":"integer 1..1000000"},"states":{"default":"q4","type":"=q4|q8|float16"}}},"fallback":{"default":{},"properties":{"near_continues":{"default":true,"type":"boolean"},"far_takes_over":{"default":true,"type":"boolean"}}},"timeouts":{"default":{},"properties":{"near_first_token_ms":{"default":20000,"type":"integer 1..86400000"},"far_first_token_ms":{"default":20000,"type":"integer 1..86400000"},"between_tokens_ms":{"default":20000,"type":"integer 1..86400000"},"hedge_after_ms":{"nullable":true,"type":"integer 1..86400000"}}},"retries":{"default":1,"type":"integer 0..10"},"breaker":{"default":{},"properties":{"failures":{"default":3,"type":"integer 1..1000"},"open_ms":{"default":10000,"type":"integer 1..86400000"}}}}};
