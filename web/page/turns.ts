// The turns of the conversation that the page shows.

import type { AnswerView } from "./answer_view.js";
import type { Attachment } from "./attachments.js";
import { withAttachments } from "./attachments.js";
import type { SavedTurn } from "./conversations.js";
import type { ChatMessage } from "./model.js";

/** A question, and the view with its answer so far. */
export interface Turn {
  readonly question: string;
  readonly attachments: readonly Attachment[];
  /** Whether it must stay on this device. */
  readonly private: boolean;
  readonly view: AnswerView;
}

export class Turns {
  readonly #turns: Turn[] = [];

  get length(): number {
    return this.#turns.length;
  }

  get last(): Turn | undefined {
    return this.#turns.at(-1);
  }

  at(index: number): Turn | undefined {
    return this.#turns[index];
  }

  /** The index of the turn with this view; -1 if it was removed. */
  indexOf(view: AnswerView): number {
    return this.#turns.findIndex((turn) => turn.view === view);
  }

  add(turn: Turn): void {
    this.#turns.push(turn);
  }

  /** Remove the turns from ``index`` on, and return them. */
  removeFrom(index: number): readonly Turn[] {
    return this.#turns.splice(index);
  }

  /** The numbers of pictures, videos and recordings in the conversation. */
  get media(): { readonly pictures: number; readonly videos: number; readonly sounds: number } {
    const all = this.#turns.flatMap(({ attachments }) => attachments);
    return {
      pictures: all.filter(({ picture }) => picture !== undefined).length,
      videos: all.filter(({ video }) => video !== undefined).length,
      sounds: all.filter(({ sound }) => sound !== undefined).length,
    };
  }

  /** Whether an answer that the model reads belongs to a private turn. */
  get carriesPrivate(): boolean {
    return this.#turns.some((turn) => turn.private && turn.view.text !== "");
  }

  /** The first turn that a model reads without the oldest ``dropped``. It has never read turns without an answer. */
  read(dropped: number): Turn | undefined {
    return this.#turns.filter((turn) => turn === this.last || turn.view.text !== "")[dropped];
  }

  /** The turns as they are stored, while ``answering`` is answered. */
  saved(answering: Turn | null): SavedTurn[] {
    return this.#turns.map((turn) => ({
      question: turn.question,
      attachments: turn.attachments,
      private: turn.private,
      answer: turn.view.written,
      ...(turn === answering || turn.view.isInterrupted ? { unfinished: true } : {}),
    }));
  }

  /** The conversation without questions that were not answered, except for the last one, whose answer may have begun. */
  messages(system: string): readonly ChatMessage[] {
    const turns = this.#turns.flatMap((turn): ChatMessage[] => {
      const question: ChatMessage = {
        role: "user",
        content: withAttachments(turn.question, turn.attachments),
        private: turn.private,
      };
      // A model continues its own text, reasoning included, and reads earlier answers without reasoning.
      const content = turn === this.last ? turn.view.written : turn.view.text;
      if (content !== "") return [question, { role: "assistant", content, private: turn.private }];
      return turn === this.last ? [question] : [];
    });
    if (system === "") return turns;
    return [{ role: "system", content: system, private: this.#turns.some((turn) => turn.private) }, ...turns];
  }
}
