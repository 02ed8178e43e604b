// What Python evaluates of this package in QuickJS: one file without DOM, modules or input and output. Its functions
// receive and return JSON texts.

import { BundleError, RequestError, messageOf } from "../errors.js";
import type { Chat, TemplateParts } from "./chat.js";
import { renderChat } from "./chat.js";
import { LACKING_METHODS } from "./template/attributes.js";
import { FILTERS, OPEN_FILTERS } from "./template/filters.js";
import { LACKING_FUNCTIONS } from "./template/globals.js";
import { TESTS } from "./template/tests.js";
import { Unsupported } from "./template/values.js";

/** The names that templates may use here. */
function supported(): string {
  return JSON.stringify({
    filters: [...Object.keys(FILTERS), ...OPEN_FILTERS],
    tests: Object.keys(TESTS),
    lacking_methods: LACKING_METHODS,
    lacking_functions: LACKING_FUNCTIONS,
  });
}

/** Renders a chat: {text}, or {error, message} with the kind of the error. ``now``: year, month, and so on to ms. */
function render(template: string, chat: string, now: string): string {
  const [year = 0, month = 1, ...rest] = JSON.parse(now) as readonly number[];
  try {
    const date = new Date(year, month - 1, ...rest);
    return JSON.stringify({ text: renderChat(JSON.parse(template) as TemplateParts, JSON.parse(chat) as Chat, date) });
  } catch (error) {
    return JSON.stringify({ error: kindOf(error), message: messageOf(error) });
  }
}

function kindOf(error: unknown): string {
  if (error instanceof RequestError) return "request";
  if (!(error instanceof BundleError)) return "internal";
  return error.cause instanceof Unsupported ? "unsupported" : "template";
}

Object.assign(globalThis, { nearfar: { supported, render } });
