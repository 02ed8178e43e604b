// The texts of which receipts hold hashes, and the text that is signed. Their SHA-256 and the signatures are of their
// UTF-8 bytes.

import { RequestError } from "../errors.js";

/** Before the receipt's own text, so that no signature of something else is one of a receipt. */
const SIGNED_AS = "nearfar receipt 1\n";
/** They say how an answer is delivered, and the bundle says which model gave it. The rest of a request decides what it is. */
const DELIVERY: readonly string[] = [
  ...["model", "stream", "stream_options", "receipt", "return_token_ids", "signal", "priority"],
  ...["logprobs", "top_logprobs", "prompt_logprobs"],
];
/** OpenAI's defaults, and "off" for the extensions. */
const SAMPLING = {
  temperature: 1,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  repetition_penalty: 1,
  frequency_penalty: 0,
  presence_penalty: 0,
} as const;

export type ReceiptSampling = Record<keyof typeof SAMPLING, number>;

/**
 * RFC 8785 (JSON Canonicalization Scheme). Throws RequestError for a value that is not JSON, and for a number that
 * languages read differently: above 2^53.
 */
export function canonicalJson(value: unknown, path = "the request"): string {
  if (value === null || typeof value === "boolean") return JSON.stringify(value);
  if (typeof value === "string" && value.isWellFormed()) return JSON.stringify(value);
  if (typeof value === "number" && Math.abs(value) <= Number.MAX_SAFE_INTEGER) return JSON.stringify(value);
  if (Array.isArray(value))
    return `[${value.map((item, index) => canonicalJson(item, `${path}[${index}]`)).join(",")}]`;
  if (typeof value === "object" && (Object.getPrototypeOf(value) ?? Object.prototype) === Object.prototype) {
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    // The order of UTF-16 code units, as the RFC wants it.
    entries.sort(([first], [second]) => (first < second ? -1 : 1));
    return `{${entries.map(([key, item]) => `${canonicalJson(key, path)}:${canonicalJson(item, `${path}.${key}`)}`).join(",")}}`;
  }
  throw new RequestError(
    `${path} has no form that a receipt could cover; send texts, numbers up to 2^53, lists and objects, or no receipt`,
    { param: "receipt" },
  );
}

/** A request as receipts cover it. Null is the same as leaving a parameter out. */
export function requestText(request: Readonly<Record<string, unknown>>): string {
  const covered = Object.entries(request).filter(([key, value]) => value != null && !DELIVERY.includes(key));
  return canonicalJson(Object.fromEntries(covered));
}

/** The sampling parameters of a request. */
export function requestSampling(request: Readonly<Record<string, unknown>>): ReceiptSampling {
  const given = Object.entries(SAMPLING).map(([name, missing]) => [name, Number(request[name] ?? missing)] as const);
  const sampling = Object.fromEntries(given) as ReceiptSampling;
  return { ...sampling, top_k: Math.max(0, sampling.top_k) };
}

/** What the side signs. */
export function signedText(receipt: object): string {
  return SIGNED_AS + canonicalJson(receipt, "the receipt");
}

/** The text of a manifest whose hash is the bundle's id, as `bundleId` makes it. */
export function bundleText(manifest: string): string {
  const data = JSON.parse(manifest) as Record<string, unknown>;
  data.origin ??= null;
  return JSON.stringify(data);
}
