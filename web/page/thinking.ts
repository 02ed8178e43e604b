// A model's reasoning, which the page keeps in the answer's text between <think> and </think>.

export interface Thought {
  /** Null if the model wrote no reasoning. */
  readonly thinking: string | null;
  /** Whether the reasoning has ended. */
  readonly ended: boolean;
  readonly answer: string;
}

const OPEN = "<think>";
const CLOSE = "</think>";

/** Writes reasoning that arrives apart from the answer into the answer's text, between <think> and </think>. */
export class ThinkingTags {
  #open: boolean;

  /** ``begun`` is the answer's text so far, whose reasoning may still be open. */
  constructor(begun = "") {
    this.#open = begun.trimStart().startsWith(OPEN) && !begun.includes(CLOSE);
  }

  /** The text for one piece of reasoning and one of the answer; each may be empty. */
  feed(reasoning: string, content: string): string {
    let text = "";
    if (reasoning !== "" && !this.#open) {
      this.#open = true;
      text += OPEN;
    }
    text += reasoning;
    return content === "" ? text : text + this.end() + content;
  }

  /** The closing tag if the reasoning is still open. */
  end(): string {
    if (!this.#open) return "";
    this.#open = false;
    return `${CLOSE}\n\n`;
  }
}

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
