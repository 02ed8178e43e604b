// Privacy: whether a request may leave the device. Its labels and all of its texts flow in, a yes or no flows out; in doubt it is private.
//
// A text is searched as it stands and as it can be read: with the escapes of JSON undone, for arguments of tools are JSON in a text; with Unicode's
// compatible forms made one (NFKC: digits of full width, ligatures); with every dash a hyphen; and without characters that nobody sees.

import { compilePattern } from "./pattern.js";
import type { PrivateRules } from "./policy_schema.js";
import type { Situation } from "./situation.js";

const JSON_ESCAPE = /\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))/g;
const ESCAPED: Readonly<Record<string, string>> = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const DASHES = /[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]/g;
const UNSEEN = new RegExp("[\\u00ad\\u034f\\u061c\\u180e\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2064\\u2066-\\u2069\\ufe00-\\ufe0f\\ufeff]", "g");

/** The private rules of a policy, ready to search with. */
export class PrivateCheck {
  private constructor(
    private readonly labels: ReadonlySet<string>,
    private readonly patterns: readonly RegExp[],
    private readonly ignoreCase: boolean,
  ) {}

  static of({ labels, patterns, ignore_case }: PrivateRules): PrivateCheck {
    return new PrivateCheck(
      new Set(labels),
      patterns.map((pattern) => compilePattern(pattern, ignore_case)),
      ignore_case,
    );
  }

  /** By a label of the request or of any of its messages, or by a pattern in any of its texts. */
  isPrivate({ labels, messages, texts }: Situation): boolean {
    if ([...labels, ...messages.flatMap((message) => message.labels)].some((label) => this.labels.has(label))) return true;
    return [...messages.map(({ content }) => content), ...texts].some((text) => this.matches(text));
  }

  matches(text: string): boolean {
    if (this.patterns.length === 0) return false;
    return readings(text, this.ignoreCase).some((reading) => this.patterns.some((pattern) => pattern.test(reading)));
  }
}

/** The text, and what else it can be read as; each once, the text itself first. */
function readings(text: string, ignoreCase: boolean): readonly string[] {
  const ways = [text, jsonUnescaped(text)];
  ways.push(...ways.map((way) => way.replace(DASHES, "-").normalize("NFKC").replace(UNSEEN, "")));
  // Patterns have both cases of their own letters; this finds those that become others (final sigma) or two (sharp s).
  return [...new Set(ignoreCase ? [...ways, ...ways.map((way) => way.toUpperCase())] : ways)];
}

function jsonUnescaped(text: string): string {
  return text.replace(JSON_ESCAPE, (_, code: string | undefined, sign: string | undefined) =>
    code === undefined ? (ESCAPED[sign ?? ""] ?? sign ?? "") : String.fromCharCode(Number.parseInt(code, 16)),
  );
}
