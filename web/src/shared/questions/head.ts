// Typed questions to a model with a decision head (transformers' JevForDecision): one prompt for each, which the model's
// template writes, and at its end one score for each option.

import { RequestError } from "../../errors.js";
import type { DecisionSpec } from "../../runtime/manifest.js";
import { isObject } from "../declared.js";
import type { Questions } from "./questions.js";
import { askedOf } from "./questions.js";

/** What the template reads besides the state, in transformers' names. Levels of a score are described, not named. */
export interface HeadQuestion {
  readonly name: string;
  readonly type: "noul" | "choice" | "score";
  readonly instructions: string;
  readonly options: readonly string[];
  readonly labels: readonly string[];
  readonly descriptions: readonly (string | null)[];
}

export interface HeadPrompt {
  readonly question: HeadQuestion;
  /** The score of each answer, in the order of `askedOf`, by its index. */
  readonly scores: readonly number[];
  readonly temperature: number;
}

/** The prompt of each of `askedOf`. Throws RequestError for questions with more options than the head scores. */
export function headPrompts(questions: Questions, { kinds, yes_first: yesFirst }: DecisionSpec): readonly HeadPrompt[] {
  return askedOf(questions).map(({ name, key, question: instructions, answers }) => {
    const type = questions[name]?.type;
    const kind = type === "choice" || type === "score" ? type : "yes_no";
    const own = kinds.find((each) => each.kind === kind);
    const most = own?.labels.length ?? 0;
    if (own === undefined || answers.length > most)
      throw new RequestError(
        `questions.${name} has ${answers.length} answers, and this model decides questions of the type ${kind} with at ` +
          `most ${most}; give fewer, or ask a model that generates text`,
        { param: `questions.${name}`, code: "too_many_choices" },
      );
    const places = answers.map((_, index) => index);
    const [options, order] =
      kind === "choice"
        ? [answers, places]
        : kind === "score"
          ? [places.map(String), places]
          : yesFirst
            ? [["true", "false"], places]
            : [["false", "true"], [...places].reverse()];
    return {
      question: {
        name: key,
        type: kind === "yes_no" ? "noul" : kind,
        instructions,
        options,
        labels: own.labels.slice(0, options.length),
        descriptions: kind === "score" ? answers : answers.map(() => null),
      },
      scores: order.map((place) => own.first + place),
      temperature: own.temperature,
    };
  });
}

/** The log-probability of each answer to each prompt, from the model's scores at its end. */
export function headLogprobs(
  prompts: readonly HeadPrompt[],
  rows: readonly ArrayLike<number>[],
): readonly (readonly number[])[] {
  return prompts.map(({ scores, temperature }, index) => {
    const own = scores.map((at) => (rows[index]?.[at] ?? NaN) / temperature);
    const largest = Math.max(...own);
    const total = largest + Math.log(own.reduce((sum, score) => sum + Math.exp(score - largest), 0));
    return own.map((score) => score - total);
  });
}

/**
 * The messages of a chat as a state: the role and the text of each. Throws RequestError for what is no text, which the
 * prompts of decision heads have no place for.
 */
export function headState(messages: readonly unknown[]): readonly { readonly role: string; readonly content: string }[] {
  return messages.map((message, index) => {
    const { role, content, tool_calls: calls } = (isObject(message) ? message : {}) as Readonly<Record<string, unknown>>;
    const parts = Array.isArray(content) ? (content as readonly unknown[]) : [{ type: "text", text: content }];
    const texts = parts.map((part) => (isObject(part) && part.type === "text" ? part.text : null));
    if (typeof role !== "string" || !texts.every((text) => typeof text === "string") || calls != null)
      throw new RequestError(
        `messages[${index}] must have a role and a text; this model decides about texts only, without pictures and calls`,
        { param: `messages[${index}]` },
      );
    return { role, content: texts.join("") };
  });
}
