// Privacy: whether a request may leave the device. In doubt it is private.
//
// A pattern is searched in every reading of every text. The parts of a message are searched joined by nothing, by a space and by a line feed, for servers
// differ in how they join them; and with a boundary between them, where each part may begin or end a word and a match may go on into the next part.

import { compilePattern } from "./pattern.js";
import type { PrivateRules } from "./policy_schema.js";
import { BOUNDARY, readings } from "./readings.js";
import type { Situation } from "./situation.js";

/** The private rules of a policy, ready to search with. */
export class PrivateCheck {
  private constructor(
    private readonly labels: ReadonlySet<string>,
    private readonly patterns: readonly RegExp[],
    /** For texts with boundaries. */
    private readonly across: readonly RegExp[],
    private readonly ignoreCase: boolean,
  ) {}

  static of({ labels, patterns, ignore_case }: PrivateRules): PrivateCheck {
    const compiled = (boundaries: boolean): RegExp[] => patterns.map((pattern) => compilePattern(pattern, ignore_case, boundaries));
    return new PrivateCheck(new Set(labels), compiled(false), compiled(true), ignore_case);
  }

  /** By a label of the request or of any of its messages, or by a pattern in any of its texts. */
  isPrivate({ labels, messages, texts }: Situation): boolean {
    if ([...labels, ...messages.flatMap((message) => message.labels)].some((label) => this.labels.has(label))) return true;
    return messages.some(({ content, parts = [] }) => this.matches(content) || this.matches(...parts)) || texts.some((text) => this.matches(text));
  }

  /** Whether a pattern is found in a text of these parts. */
  matches(...parts: readonly string[]): boolean {
    if (this.patterns.length === 0) return false;
    if (this.foundIn(parts.join(""), this.patterns)) return true;
    if (parts.length < 2) return false;
    return [" ", "\n"].some((separator) => this.foundIn(parts.join(separator), this.patterns)) || this.foundIn(parts.join(BOUNDARY), this.across);
  }

  private foundIn(text: string, patterns: readonly RegExp[]): boolean {
    return readings(text, this.ignoreCase).some((reading) => patterns.some((pattern) => pattern.test(reading)));
  }
}
