import { expect, test } from "vitest";

import type { Constraint } from "../../src/engine/request.js";
import { ReasoningConstraint } from "../../src/grammar/reasoning_constraint.js";
import type { State } from "../../src/text/reasoning.js";
import { ReasoningParser, reasoningOf } from "../../src/text/reasoning.js";
import vectors from "../../../tests/conformance/reasoning.json" with { type: "json" };

const [END, OPEN, CLOSE, BREAK, PLAIN] = [0, 1, 2, 3, 4];
const dialect = { open: "<think>", close: "</think>", label: "\n", beforeClose: "\n", afterClose: "\n\n" };

type Piece = string | { readonly marker: string };

test.each(vectors.models)(
  "a model's markers are those of its tokens and template: $template",
  ({ template, tokens, open }) => {
    const tokenId = (token: string): number | undefined =>
      (tokens as readonly string[]).includes(token) ? tokens.indexOf(token) : undefined;
    expect(reasoningOf(template, { tokenId, encode: () => [], decode: () => "" })?.dialect.open ?? null).toBe(open);
  },
);

test.each(vectors.splits)(
  "any split of a text gives the same reasoning and content: $name",
  ({ start, pieces, reasoning, content, label = "" }) => {
    for (const size of [10_000, 1, 2, 3, 5]) {
      const cut = (pieces as readonly Piece[]).flatMap((piece): readonly Piece[] => {
        if (typeof piece !== "string") return [piece];
        const characters = Array.from(piece);
        return Array.from({ length: Math.ceil(characters.length / size) }, (_, index) =>
          characters.slice(index * size, (index + 1) * size).join(""),
        );
      });
      expect(parsed(start as State, cut, label)).toEqual([reasoning, content]);
    }
  },
);

test("text is held back only while it may be left out, and a special marker has no text", () => {
  const parser = new ReasoningParser("reasoning", { openId: OPEN, closeId: CLOSE, dialect });
  expect(["\n", "a", "\n", "\n", "b\n"].map((text) => parser.feed(text, PLAIN))).toEqual([
    ["", ""],
    ["a", ""],
    ["", ""],
    ["", ""],
    ["\n\nb", ""],
  ]);
  expect(parser.held).toBe("\n");
  expect(parser.feed("", CLOSE)).toEqual(["", ""]);
  expect(["\n", "\nc", "\n"].map((text) => parser.feed(text, PLAIN))).toEqual([
    ["", ""],
    ["", "c"],
    ["", "\n"],
  ]);
  expect(parser.tokens).toBe(6);
});

test.each(vectors.constraints)("a constraint bounds the reasoning and the form follows: $name", (vector) => {
  const form = vector.form ? new Form(vector.needed ?? undefined) : undefined;
  const reasoning = {
    openId: OPEN,
    closeId: CLOSE,
    endingIds: [BREAK, CLOSE, BREAK],
    isBlank: (id: number) => id === BREAK,
  };
  const limits = { maxTokens: vector.max_tokens, vocabSize: 8, endTokenIds: [END, END] };
  const make = (): Constraint =>
    new ReasoningConstraint(
      { reasoning, state: vector.start as State, budget: vector.budget ?? undefined },
      limits,
      form,
    );
  if (vector.masks === "refused") {
    expect(make).toThrow("raise it");
    expect(form?.disposed).toBe(true);
    return;
  }
  const constraint = make();
  const allowed: Record<string, readonly number[] | null> = {
    any: null,
    "no end": [1, 2, 3, 4, 5, 6, 7],
    form: [0, 5],
    "form or open": [0, 1, 5],
  };
  for (const [step, wanted] of Array.from(vector.masks).entries()) {
    expect(ids(constraint.mask()), `step ${step}`).toEqual(typeof wanted === "string" ? allowed[wanted] : [wanted]);
    const isWhole = form !== undefined && wanted === "form" && form.accepted > 0;
    expect([constraint.complete, constraint.finished]).toEqual([isWhole, isWhole]);
    const token = vector.tokens[step];
    if (token !== undefined) constraint.accept(token);
  }
  expect(form?.spent ?? null).toBe(vector.spent);
});

/** A form of 5s that may end after any of them. */
class Form implements Constraint {
  spent: number | null = null;
  accepted = 0;
  disposed = false;

  constructor(readonly needed: number | undefined) {}

  mask(): Int32Array<ArrayBuffer> {
    return Int32Array.of((1 << END) | (1 << 5));
  }

  accept(tokenId: number): void {
    expect(tokenId).toBe(5);
    this.accepted++;
  }

  spend(tokens: number): void {
    expect(this.spent).toBeNull();
    this.spent = tokens;
  }

  get finished(): boolean {
    return this.accepted > 0;
  }

  get complete(): boolean {
    return this.accepted > 0;
  }

  dispose(): void {
    this.disposed = true;
  }
}

function ids(mask: Int32Array | null): readonly number[] | null {
  return mask === null
    ? null
    : Array.from({ length: 8 }, (_, id) => id).filter((id) => (((mask[0] ?? 0) >>> id) & 1) === 1);
}

function parsed(start: State, pieces: readonly Piece[], label: string): readonly [string, string] {
  const parser = new ReasoningParser(start, { openId: OPEN, closeId: CLOSE, dialect: { ...dialect, label } });
  const parts = pieces.map((piece) => {
    if (typeof piece === "string") return parser.feed(piece, PLAIN);
    // This simulates a marker that is a special token, which has no text.
    return parser.feed("", piece.marker === "open" ? OPEN : CLOSE);
  });
  parts.push(parser.feed("", null));
  return [parts.map(([reasoning]) => reasoning).join(""), parts.map(([, content]) => content).join("")];
}
