// The passages that an answer may use, and which of them may leave this device.

import type { Policy } from "../../src/shared/decision/policy.js";
import { PrivateCheck } from "../../src/shared/decision/privacy.js";
import type { Hit } from "../../src/retrieval/index.js";

/** A passage that was found. ``private``: whether the policy keeps it on this device. */
export interface Source extends Hit {
  /** Its number in the answer, from 1. */
  readonly number: number;
  readonly private: boolean;
}

/** A private text that a passage cuts through still has a part in it, so this much around a passage counts too. */
export const BORDER_CHARACTERS = 64;

/**
 * ``texts``: the text of each document. A passage is private if the policy's patterns match it, its surroundings, its
 * headings or its document's title, or if the user has locked its document.
 */
export function sourcesOf(
  hits: readonly Hit[],
  texts: ReadonlyMap<string, string>,
  policy: Policy | null,
  locked: ReadonlySet<string>,
): readonly Source[] {
  const check = policy === null ? null : PrivateCheck.of(policy.private);
  return hits.map((hit, index) => {
    const { start, end, headings } = hit.passage;
    const around = (texts.get(hit.document) ?? hit.passage.text).slice(
      Math.max(0, start - BORDER_CHARACTERS),
      end + BORDER_CHARACTERS,
    );
    const isPrivate =
      check !== null &&
      (locked.has(hit.document) || [around, hit.title, ...headings].some((text) => check.matches(text)));
    return { ...hit, number: index + 1, private: isPrivate };
  });
}

/** Whether a text of the user matches a private pattern of the policy. */
export function isPrivateText(text: string, policy: Policy): boolean {
  return PrivateCheck.of(policy.private).matches(text);
}

/** The question with its passages, as a model reads them. */
export function promptOf(question: string, sources: readonly Source[], style: "numbered" | "plain"): string {
  // The demo models read a text and a question, and no instructions.
  if (style === "plain") return [...sources.map(({ passage }) => flat(passage.text)), question].join(" ");
  const passages = sources.map(({ number, title, passage: { text, headings } }) =>
    [`[${number}] ${[title, ...headings].join(" > ")}`, text].join("\n"),
  );
  return [
    "Answer the question from these passages of the user's documents. Cite the passages that you use by their numbers, " +
      "such as [1]. If they do not contain the answer, say so.",
    ...passages,
    `Question: ${question}`,
  ].join("\n\n");
}

function flat(text: string): string {
  return text.replace(/\s+/g, " ").trim();
}
