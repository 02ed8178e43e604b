// The formats of JSON Schema strings as patterns, alone and beside a `pattern` of the schema.

import { RequestError } from "../../errors.js";
import type { Intersection, Language } from "./automaton.js";
import { parseRegex } from "./regex.js";

const DATE = "\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))";
const TIME = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
// These have few counts, because each count is a state, and compiling tries the entire vocabulary on each state.
const WORD = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*";
const LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,14}[A-Za-z0-9])?";
const BYTE = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const HEX_GROUP = "[0-9a-f]{1,4}";
/** Networks whose address has no bits after the prefix. */
const NETWORK = `${BYTE}\\.(0\\.0\\.0/8|${BYTE}\\.(0\\.0/16|${BYTE}\\.(0/24|${BYTE}/32)))`;

/**
 * Each pattern allows only texts of the format, but not all of them: a date is never the 29th of February. RFC 3339,
 * RFC 4122, RFC 5321, RFC 1123, RFC 2673, RFC 4291, RFC 3986.
 */
const FORMATS: Readonly<Record<string, string>> = {
  date: DATE,
  time: TIME,
  "date-time": `${DATE}T${TIME}`,
  duration: "P(\\d{1,4}W|\\d{1,4}D|\\d{1,4}Y|\\d{1,4}M|(\\d{1,4}D)?T(\\d{1,4}H|\\d{1,4}M|\\d{1,4}S))",
  uuid: "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
  email: `[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@(${WORD}\\.)+[A-Za-z]{2,6}`,
  hostname: `${LABEL}(\\.${LABEL}){0,2}`,
  ipv4: `${BYTE}\\.${BYTE}\\.${BYTE}\\.${BYTE}`,
  ipv6: `(${HEX_GROUP}:){7}${HEX_GROUP}`,
  uri: `https?://${WORD}(\\.${WORD})*(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~-]*)*(\\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?`,
  // pydantic's names.
  ...Object.fromEntries(
    [1, 3, 4, 5, 6, 7, 8].map((version) => [
      `uuid${version}`,
      `[0-9a-f]{8}-[0-9a-f]{4}-${version}[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`,
    ]),
  ),
  base64: "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?",
  base64url: "([A-Za-z0-9_-]{4})*([A-Za-z0-9_-][AQgw]==|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?",
  ipvanyaddress: `${BYTE}\\.${BYTE}\\.${BYTE}\\.${BYTE}`,
  ipv4network: NETWORK,
  ipvanynetwork: NETWORK,
  ipv4interface: NETWORK,
  ipvanyinterface: NETWORK,
};

/** The texts of `shortUri` have at most this many characters. */
export const SHORT_URI_LENGTH = 226;
const SHORT_URI_PATTERN = `https?://${LABEL}(\\.${LABEL}){0,3}(/[A-Za-z0-9._~=&?/-]{0,150})?`;

/** pydantic's names for its types that accept every text: bytes, SecretStr and Path. */
export const UNRESTRICTED: ReadonlySet<unknown> = new Set(["binary", "password", "path"]);

const LEAP_YEAR = "(\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48]|[02468][048]00|[13579][26]00)";
const ANY_DATE = `(${LEAP_YEAR}-02-29|${DATE})`;
const ANY_TIME = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?([Zz]|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
const LABELS = "[A-Za-z0-9]+(-+[A-Za-z0-9]+)*";
const ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
const GROUP = "[0-9a-fA-F]{1,4}";
const GROUP_AT_END = `:${GROUP}`;

/**
 * The texts that a format allows beside a pattern, for formats of which FORMATS leaves out texts that libraries'
 * patterns allow.
 */
const BESIDE_PATTERN: Readonly<Record<string, string>> = {
  date: ANY_DATE,
  time: ANY_TIME,
  "date-time": `${ANY_DATE}[Tt]${ANY_TIME}`,
  uuid: "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
  email: `${ATOM}(\\.${ATOM})*@${LABELS}(\\.${LABELS})*`,
  ipv6: [
    `(${GROUP}:){7}${GROUP}`,
    `(${GROUP}:){1,7}:`,
    ...[1, 2, 3, 4, 5, 6].map((after) => `(${GROUP}:){1,${7 - after}}(${GROUP_AT_END}){1,${after}}`),
    `:((${GROUP_AT_END}){1,7}|:)`,
  ].join("|"),
};

/** Names that are not formats of JSON Schema. Zod writes them beside the pattern that defines them. */
const DEFINED_BY_PATTERN: ReadonlySet<unknown> = new Set(
  (
    "base64 base64url cidrv4 cidrv6 cuid cuid2 e164 ends_with includes ksuid lowercase mac nanoid starts_with " +
    "template_literal ulid uppercase xid"
  ).split(" "),
);

/** Zod's patterns with lookahead, which grammars do not support. Each text of FORMATS matches them. */
const IMPLIED_PATTERNS: Readonly<Record<string, string>> = {
  duration: "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$",
  hostname:
    "^(?=.{1,253}\\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?" +
    "(?:\\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\\.?$",
};

/** Whether each text of the format matches the pattern, which grammars do not support. */
export function isImplied(format: unknown, pattern: unknown): boolean {
  return IMPLIED_PATTERNS[String(format)] === pattern;
}

/** URIs for schemas with a maxLength of at least SHORT_URI_LENGTH, such as pydantic's HttpUrl. */
export function shortUri(where: string): Language {
  return parseRegex(SHORT_URI_PATTERN, where);
}

/**
 * The texts that match ``pattern`` and have the ``format``; at least one of them is not undefined. Throws RequestError
 * for a pattern or a format that a grammar cannot enforce; ``where`` names the schema.
 */
export function stringLanguage(pattern: unknown, format: unknown, where: string): Language | Intersection {
  if (pattern !== undefined && typeof pattern !== "string") throw new RequestError(`${where}.pattern must be a string`);
  if (format === undefined && pattern !== undefined) return parseRegex(pattern, `${where}.pattern`, true);
  const name = String(format);
  const known = typeof format === "string" && Object.hasOwn(FORMATS, name) ? (FORMATS[name] ?? "") : null;
  const isDefined = pattern !== undefined && DEFINED_BY_PATTERN.has(format);
  if (known === null && !isDefined) {
    throw new RequestError(
      `${where}: the format ${JSON.stringify(format)} is not one of ${Object.keys(FORMATS).join(", ")}; ` +
        "remove it (in pydantic, declare a str), or replace it by a pattern",
    );
  }
  if (pattern === undefined || isImplied(name, pattern)) return parseRegex(known ?? "", where);
  const language = parseRegex(pattern, `${where}.pattern`, true);
  if (known === null) return language;
  return { kind: "intersection", parts: [language, parseRegex(BESIDE_PATTERN[name] ?? known, where)] };
}
