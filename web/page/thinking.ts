// Separates a model's reasoning, which it writes between <think> and </think>, from its answer.

export interface Thought {
  /** Null if the model wrote no reasoning. */
  readonly thinking: string | null;
  /** Whether the reasoning has ended. */
  readonly ended: boolean;
  readonly answer: string;
}

const OPEN = "<think>";
const CLOSE = "</think>";

/** Some chat templates open the block in the prompt, so the closing tag may come alone. */
export function splitThinking(text: string): Thought {
  const start = text.trimStart();
  const opened = start.startsWith(OPEN);
  const close = text.indexOf(CLOSE);
  if (close < 0) {
    if (opened) return { thinking: start.slice(OPEN.length), ended: false, answer: "" };
    // The tag itself may still be arriving.
    return start !== "" && OPEN.startsWith(start)
      ? { thinking: null, ended: false, answer: "" }
      : { thinking: null, ended: true, answer: text };
  }
  const thinking = text.slice(opened ? text.indexOf(OPEN) + OPEN.length : 0, close).trim();
  return {
    thinking: thinking === "" ? null : thinking,
    ended: true,
    answer: text.slice(close + CLOSE.length).trimStart(),
  };
}
