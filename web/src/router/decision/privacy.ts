// Privacy: whether a request may leave the device. In doubt it is private.
//
// A pattern is searched in every reading of every text. The parts of a message are searched joined by nothing, by a space and by a line feed, for servers
// differ in how they join them; and with a boundary between them, where each part may begin or end a word and a match may go on into the next part.

import type { Automaton } from "./automaton.js";
import { Visits } from "./automaton.js";
import { compilePattern } from "./pattern.js";
import type { PrivateRules } from "./policy_schema.js";
import { BOUNDARY, readings } from "./readings.js";
import type { Situation } from "./situation.js";

/** The private rules of a policy, ready to search with. */
export class PrivateCheck {
  private constructor(
    private readonly labels: ReadonlySet<string>,
    private readonly patterns: readonly Automaton[],
    private readonly ignoreCase: boolean,
  ) {}

  static of({ labels, patterns, ignore_case }: PrivateRules): PrivateCheck {
    const compiled = patterns.map((pattern) => compilePattern(pattern, ignore_case));
    return new PrivateCheck(new Set(labels), compiled, ignore_case);
  }

  /** By a label of the request or of any of its messages, or by a pattern in any of its texts. */
  isPrivate({ labels, messages, texts }: Situation): boolean {
    if ([...labels, ...messages.flatMap((message) => message.labels)].some((label) => this.labels.has(label)))
      return true;
    return this.#finds([
      ...messages.flatMap(({ content, parts = [] }) => [[content], ...(parts.length > 1 ? [parts] : [])]),
      ...texts.map((text) => [text]),
    ]);
  }

  /** Whether a pattern is found in a text of these parts. */
  matches(...parts: readonly string[]): boolean {
    return this.#finds([parts]);
  }

  /** Each text by its parts. */
  #finds(texts: readonly (readonly string[])[]): boolean {
    const visits = new Visits();
    const foundIn = (text: string, boundaries = false): boolean =>
      readings(text, this.ignoreCase).some((reading) =>
        this.patterns.some((pattern) => pattern.test(reading, boundaries, visits)),
      );
    if (this.patterns.length === 0) return false;
    return texts.some((parts) => {
      if (parts.length < 2) return foundIn(parts.join(""));
      return ["", " ", "\n"].some((separator) => foundIn(parts.join(separator))) || foundIn(parts.join(BOUNDARY), true);
    });
  }
}
