// Which texts a grammar accepts, without tokens and masks, and whether a source has a grammar.

import { expect } from "vitest";

import { RequestError } from "../../src/errors.js";
import { sourceRules } from "../../src/shared/grammar/rules.js";
import type { GrammarWasm } from "../../src/grammar/wasm.js";

/** Whether the grammar of ``source`` accepts each complete text. */
export function accepts(
  wasm: GrammarWasm,
  source: Parameters<typeof sourceRules>[0],
  texts: readonly string[],
): boolean[] {
  const grammar = wasm.compile(sourceRules(source).text);
  const accepted = texts.map((text) => {
    const matcher = wasm.matcher(grammar);
    const isComplete = (text === "" || matcher.acceptText(text)) && matcher.complete();
    matcher.dispose();
    return isComplete;
  });
  grammar.delete();
  return accepted;
}

/** Fails unless ``source`` becomes rules or is refused; any other error is a defect. */
export function expectRulesOrRefusal(source: Parameters<typeof sourceRules>[0]): void {
  try {
    expect(sourceRules(source).text).toMatch(/^root ::= /);
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
  }
}
