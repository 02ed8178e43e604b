// Typed questions: what is asked about a context, and which answers a model may give. Each side computes how likely the
// model is to write each answer; `answers.ts` reads the decisions from that.
//
// The probability of an answer is that of all its tokens and of the token that ends a turn, given the prompt. Answers
// exclude each other therefore, even if one is the beginning of another.

import { RequestError } from "../../errors.js";
import { isObject, shown } from "../declared.js";
import { requireUnicode } from "../unicode.js";
import type { ChoiceQuestion, LabelsQuestion, ScoreQuestion, YesNoQuestion } from "./schema.js";

export type Question = ChoiceQuestion | YesNoQuestion | ScoreQuestion | LabelsQuestion;
export type Questions = Readonly<Record<string, Question>>;

/** The most questions of a request, answers of a question, answers of a request, and characters of an answer. */
export const QUESTION_BOUNDS = { questions: 64, answers: 64, allAnswers: 1024, characters: 400 };

/**
 * A prompt, and the answers whose probabilities are computed. A question of labels has one for each label, any other
 * question has one. ``key`` names it in a calibration, ``params`` the parameter of each answer.
 */
export interface Asked {
  readonly name: string;
  readonly key: string;
  /** What is asked, without the answers. */
  readonly question: string;
  /** What the user asks: it follows the context. */
  readonly text: string;
  readonly answers: readonly string[];
  readonly params: readonly string[];
}

const YES_NO = ["Yes", "No"] as const;
const FIELDS: Readonly<Record<string, readonly string[]>> = {
  choice: ["choices"],
  yes_no: [],
  score: ["minimum", "maximum", "scale"],
  labels: ["labels"],
};

/** Throws RequestError, whose ``details.code`` names the kind of fault, for questions that have no decision. */
export function askedOf(questions: Questions): readonly Asked[] {
  if (!isObject(questions)) throw wrong("questions", "bad_question", `is ${shown(questions)}, it must be an object`);
  const entries = Object.entries(questions);
  if (entries.length === 0) throw wrong("questions", "bad_question", "is empty; ask at least one");
  const { questions: most, allAnswers } = QUESTION_BOUNDS;
  if (entries.length > most)
    throw wrong("questions", "too_many_questions", `has ${entries.length}; at most ${most} are supported`);
  const asked = entries.flatMap(([name, question]) => asksOf(name, question));
  const count = asked.reduce((sum, { answers }) => sum + answers.length, 0);
  if (count > allAnswers)
    throw wrong("questions", "too_many_choices", `have ${count} answers in all; at most ${allAnswers} are supported`);
  const twice = asked.find(({ key }, index) => asked.findIndex((each) => each.key === key) < index);
  if (twice !== undefined)
    throw wrong(`questions.${twice.name}`, "bad_question", `has the label of another's name, ${shown(twice.key)}`);
  return asked;
}

/** The levels of a score, lowest first. */
export function levelsOf({ minimum, maximum, scale }: ScoreQuestion): readonly string[] {
  const [first, last] = [minimum ?? 0, maximum ?? 0];
  return scale ?? Array.from({ length: last - first + 1 }, (_, index) => String(first + index));
}

function asksOf(name: string, question: Question): readonly Asked[] {
  requireUnicode(name, "questions");
  const where = `questions.${name}`;
  checkFields(question, where);
  const one = (lines: readonly string[], answers: readonly string[], param: (index: number) => string): Asked => ({
    name,
    key: name,
    question: question.question,
    text: [question.question, ...lines].join("\n"),
    answers,
    params: answers.map((_, index) => param(index)),
  });
  switch (question.type) {
    case "choice": {
      const choices = namesOf(question.choices, `${where}.choices`, 2);
      return [one(["Answer with one of these only:", ...listed(choices)], choices, (at) => `${where}.choices[${at}]`)];
    }
    case "yes_no":
      return [one(["Answer Yes or No only."], YES_NO, () => where)];
    case "score": {
      const levels = scoreLevels(question, where);
      const [first = "", last = ""] = [levels[0], levels.at(-1)];
      const lines =
        question.scale == null
          ? [`Answer with an integer from ${first} to ${last} only.`]
          : ["Answer with one of these only, from the lowest to the highest:", ...listed(levels)];
      return [one(lines, levels, (at) => (question.scale == null ? where : `${where}.scale[${at}]`))];
    }
    case "labels":
      return namesOf(question.labels, `${where}.labels`, 1).map((label) => {
        const parts = question.question.split("{}");
        const text = parts.length > 1 ? parts.join(label) : `${question.question.replace(/:$/, "")}: ${label}`;
        return { ...one([], YES_NO, () => where), key: `${name}/${label}`, question: text, text: `${text}\nAnswer Yes or No only.` };
      });
    default:
      throw wrong(`${where}.type`, "bad_question", `is not one of ${Object.keys(FIELDS).join(", ")}`);
  }
}

const listed = (names: readonly string[]): readonly string[] => names.map((name) => `- ${name}`);

function checkFields(question: Question, where: string): void {
  if (!isObject(question)) throw wrong(where, "bad_question", `is ${shown(question)}, it must be an object`);
  const { type, question: text, ...others } = question;
  const known = typeof type === "string" && Object.hasOwn(FIELDS, type) ? FIELDS[type] : undefined;
  if (known === undefined)
    throw wrong(
      `${where}.type`,
      "bad_question",
      `is ${shown(type)}, it must be one of ${Object.keys(FIELDS).join(", ")}`,
    );
  if (typeof text !== "string" || text.trim() === "")
    throw wrong(`${where}.question`, "bad_question", `is ${shown(text)}, it must be a text`);
  requireUnicode(text, `${where}.question`);
  const unknown = Object.entries(others).find(([field, value]) => value != null && !known.includes(field))?.[0];
  if (unknown !== undefined)
    throw wrong(`${where}.${unknown}`, "bad_question", `does not belong to a question of the type ${type}; remove it`);
}

function scoreLevels(question: ScoreQuestion, where: string): readonly string[] {
  const { minimum, maximum, scale } = question;
  if (scale != null) {
    if (minimum != null || maximum != null)
      throw wrong(where, "bad_question", "has a scale and a range; give one of them");
    return namesOf(scale, `${where}.scale`, 2);
  }
  const bounds = [minimum, maximum];
  if (!bounds.every((bound) => Number.isSafeInteger(bound)) || Number(minimum) >= Number(maximum))
    throw wrong(where, "bad_question", "needs integers minimum < maximum, or a scale");
  const count = Number(maximum) - Number(minimum) + 1;
  if (count > QUESTION_BOUNDS.answers)
    throw wrong(where, "too_many_choices", `has ${count} scores; at most ${QUESTION_BOUNDS.answers} are supported`);
  return levelsOf(question);
}

/** Throws RequestError unless these are at least ``least`` different texts that an answer can consist of. */
function namesOf(names: unknown, where: string, least: number): readonly string[] {
  if (!Array.isArray(names) || !names.every((name) => typeof name === "string"))
    throw wrong(where, "bad_question", `is ${shown(names)}, it must be a list of texts`);
  const { answers, characters } = QUESTION_BOUNDS;
  if (names.length < least) throw wrong(where, "too_few_choices", `has ${names.length}; give at least ${least}`);
  if (names.length > answers)
    throw wrong(where, "too_many_choices", `has ${names.length}; at most ${answers} are supported`);
  names.forEach((name, index) => {
    const path = `${where}[${index}]`;
    const earlier = names.indexOf(name);
    if (name.trim() !== name || name === "")
      throw wrong(path, "bad_choice", `is ${shown(name)}; it must have characters, and no space around them`);
    if (name.includes("\n")) throw wrong(path, "bad_choice", `is ${shown(name)}; it must be one line`);
    if (name.length > characters)
      throw wrong(path, "choice_too_long", `has ${name.length} characters; at most ${characters} are supported`);
    if (earlier < index) throw wrong(path, "duplicate_choice", `is ${shown(name)}, as ${where}[${earlier}] is`);
    requireUnicode(name, path);
  });
  return names;
}

function wrong(param: string, code: string, what: string): RequestError {
  return new RequestError(`${param} ${what}`, { param, code });
}

/**
 * The tokens of each answer must differ, or they could not be told apart. ``tokens``: those of the answers of each
 * prompt. Throws RequestError.
 */
export function requireDistinct(
  asked: readonly Pick<Asked, "answers" | "params">[],
  tokens: readonly (readonly (readonly number[])[])[],
): void {
  asked.forEach(({ answers, params }, prompt) => {
    const texts = (tokens[prompt] ?? []).map(String);
    const index = texts.findIndex((text, at) => texts.indexOf(text) < at);
    if (index < 0) return;
    const earlier = answers[texts.indexOf(texts[index] ?? "")];
    throw wrong(
      params[index] ?? "",
      "duplicate_choice",
      `is ${shown(answers[index])}, whose tokens are those of ${shown(earlier)}`,
    );
  });
}
