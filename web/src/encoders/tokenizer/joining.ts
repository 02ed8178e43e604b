// How the post-processor of tokenizer.json joins one or two texts with special tokens.

import type { Part } from "./normalizers.js";

/** A special token, or the tokens of the first or the second text; ``type`` is that of the tokens. */
export interface JoinedPart {
  readonly source: "first" | "second" | number;
  readonly type: number;
}

export interface Joining {
  readonly single: readonly JoinedPart[];
  readonly pair: readonly JoinedPart[];
}

const PLAIN: Joining = {
  single: [{ source: "first", type: 0 }],
  pair: [
    { source: "first", type: 0 },
    { source: "second", type: 1 },
  ],
};

/** Throws an error that names what is not supported. */
export function joiningOf(part: Part | null | undefined): Joining {
  if (part == null) return PLAIN;
  switch (part.type) {
    case "ByteLevel":
      return PLAIN;
    case "Sequence": {
      const joining = (part.processors as readonly Part[]).map(joiningOf).filter((each) => each !== PLAIN);
      if (joining.length > 1) throw new Error("a Sequence of several post-processors is not supported");
      return joining[0] ?? PLAIN;
    }
    case "BertProcessing":
    case "RobertaProcessing": {
      const [begin, end] = [idOf(part.cls), idOf(part.sep)];
      const isRoberta = part.type === "RobertaProcessing";
      const type = isRoberta ? 0 : 1;
      const single: readonly JoinedPart[] = [begin, "first" as const, end].map((source) => ({ source, type: 0 }));
      const second = [...(isRoberta ? [end] : []), "second" as const, end].map((source) => ({ source, type }));
      return { single, pair: [...single, ...second] };
    }
    case "TemplateProcessing":
      return { single: template(part, "single"), pair: template(part, "pair") };
    default:
      throw new Error(`post-processor ${part.type} is not supported`);
  }
}

function idOf(token: unknown): number {
  return Number((token as readonly unknown[])[1]);
}

interface TemplatePiece {
  readonly SpecialToken?: { readonly id: string; readonly type_id: number };
  readonly Sequence?: { readonly id: string; readonly type_id: number };
}

function template(part: Part, kind: "single" | "pair"): readonly JoinedPart[] {
  const tokens = part.special_tokens as Readonly<Record<string, { readonly ids: readonly number[] }>>;
  return (part[kind] as readonly TemplatePiece[]).flatMap(({ SpecialToken: token, Sequence: text }): JoinedPart[] => {
    if (text !== undefined) return [{ source: text.id === "A" ? "first" : "second", type: text.type_id }];
    const { id = "", type_id: type = 0 } = token ?? {};
    return (tokens[id]?.ids ?? []).map((source) => ({ source, type }));
  });
}
