// Privacy: whether a request may leave the device. In doubt it is private.
//
// A pattern is searched in every reading of every text. The parts of a message are searched joined by nothing, by a
// space and by a line feed, because servers join them differently. They are also searched with a boundary between them:
// each part may begin or end a word there, and a match may continue into the next part. So are the texts of all messages,
// which meet in the prompt: joined by a space, by a line feed, and with boundaries.

import type { Automaton } from "./automaton.js";
import { Visits } from "./automaton.js";
import { compilePattern } from "./pattern.js";
import type { PrivateRules } from "./policy_schema.js";
import { BOUNDARY, readings } from "./readings.js";
import type { Situation } from "./situation.js";

/** The compiled private rules of a policy. */
export class PrivateCheck {
  private constructor(
    private readonly labels: ReadonlySet<string>,
    private readonly patterns: readonly Automaton[],
    private readonly ignoreCase: boolean,
  ) {}

  /** The patterns of ``masks`` are private too: what is masked is searched again. */
  static of({
    labels,
    patterns,
    ignore_case,
    masks,
  }: Pick<PrivateRules, "labels" | "patterns" | "ignore_case"> & Partial<PrivateRules>): PrivateCheck {
    const all = [...patterns, ...(masks?.patterns ?? []).map(({ pattern }) => pattern)];
    const compiled = all.map((pattern) => compilePattern(pattern, ignore_case));
    return new PrivateCheck(new Set(labels), compiled, ignore_case);
  }

  /** Whether the request or one of its messages has a private label, or one of its texts matches a pattern. */
  isPrivate({ labels, messages, texts }: Situation): boolean {
    if ([...labels, ...messages.flatMap((message) => message.labels)].some((label) => this.labels.has(label)))
      return true;
    const groups = [
      ...messages.flatMap(({ content, parts = [] }) => [[content], ...(parts.length > 0 ? [parts] : [])]),
      ...texts.map((text) => (typeof text === "string" ? [text] : text)),
    ];
    const met = messages.flatMap(({ content, parts = [] }) => (parts.length > 0 ? parts : [content]));
    return this.#anyMatch(groups, messages.length > 1 ? met.filter((text) => text !== "") : []);
  }

  /** Whether a text of these parts matches a pattern. */
  matches(...parts: readonly string[]): boolean {
    return this.#anyMatch([parts]);
  }

  /** Each of ``groups`` are the parts of a text; ``met`` are the texts of several messages. */
  #anyMatch(groups: readonly (readonly string[])[], met: readonly string[] = []): boolean {
    const visits = new Visits();
    const matchesText = (text: string, boundaries = false): boolean =>
      readings(text, this.ignoreCase).some((reading) =>
        this.patterns.some((pattern) => pattern.test(reading, boundaries, visits)),
      );
    if (this.patterns.length === 0) return false;
    const meets =
      met.length > 1 &&
      ([" ", "\n"].some((separator) => matchesText(met.join(separator))) || matchesText(met.join(BOUNDARY), true));
    if (meets) return true;
    return groups.some((parts) => {
      if (parts.length < 2) return matchesText(parts.join(""));
      return (
        ["", " ", "\n"].some((separator) => matchesText(parts.join(separator))) ||
        matchesText(parts.join(BOUNDARY), true)
      );
    });
  }
}
