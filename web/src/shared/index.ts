// What Python evaluates of this package in QuickJS: one file without DOM, modules or input and output. Its functions
// receive and return JSON texts.

import { BundleError, RequestError, messageOf } from "../errors.js";
import type { TemplateParts } from "./chat.js";
import { renderChat } from "./chat.js";
import type { ServerSource } from "./grammar/rules.js";
import { sourceRules } from "./grammar/rules.js";
import { closeAnswer, openAnswer, stepAnswer, watchAnswer } from "./router/answers.js";
import { LACKING_METHODS } from "./template/attributes.js";
import { wrongPart } from "./template/check_tree.js";
import { FILTERS, OPEN_FILTERS } from "./template/filters.js";
import { LACKING_FUNCTIONS } from "./template/globals.js";
import { TESTS } from "./template/tests.js";
import { loads } from "./template/json.js";
import type { Value } from "./template/values.js";
import { Dict, Unsupported, isList, str } from "./template/values.js";

/** The names that templates may use here. */
function supported(): string {
  return JSON.stringify({
    filters: [...Object.keys(FILTERS), ...OPEN_FILTERS],
    tests: Object.keys(TESTS),
    lacking_methods: LACKING_METHODS,
    lacking_functions: LACKING_FUNCTIONS,
  });
}

/**
 * Renders a chat: {text}, or {error, message} with the kind of the error. ``chat``: {messages, tools, variables,
 * add_generation_prompt}. ``now``: year, month, and so on to milliseconds.
 */
function render(template: string, chat: string, now: string): string {
  const read = loads(chat);
  const part = (name: string): Value => (read instanceof Dict ? (read.get(name) ?? null) : null);
  const [messages, tools, variables] = [part("messages"), part("tools"), part("variables")];
  const pairs = variables instanceof Dict ? variables.pairs() : [];
  const [year = 0, month = 1, ...rest] = JSON.parse(now) as readonly number[];
  try {
    const date = new Date(year, month - 1, ...rest);
    const given = {
      messages: isList(messages) ? messages : [],
      tools: isList(tools) ? tools : null,
      variables: new Map(Array.from(pairs, ([name, value]) => [str(name), value])),
      addGenerationPrompt: part("add_generation_prompt") === true,
    };
    return JSON.stringify({ text: renderChat(JSON.parse(template) as TemplateParts, given, date) });
  } catch (error) {
    return JSON.stringify({ error: kindOf(error), message: messageOf(error) });
  }
}

/** The rules of a ServerSource for the server's xgrammar: Rules, or {error, message, details}. */
function grammarRules(source: string): string {
  try {
    return JSON.stringify(sourceRules(JSON.parse(source) as ServerSource, false));
  } catch (error) {
    const details = error instanceof RequestError ? error.details : {};
    return JSON.stringify({ error: kindOf(error), message: messageOf(error), details });
  }
}

function kindOf(error: unknown): string {
  if (error instanceof RequestError) return "request";
  if (!(error instanceof BundleError)) return "internal";
  return error.cause instanceof Unsupported ? "unsupported" : "template";
}

/** The path of the first part of a template's tree that is wrong; null if it is a tree. */
function wrongTreePart(tree: string): string {
  return JSON.stringify(wrongPart(JSON.parse(tree)));
}

Object.assign(globalThis, {
  nearfar: { supported, render, wrongTreePart, grammarRules, openAnswer, stepAnswer, watchAnswer, closeAnswer },
});
