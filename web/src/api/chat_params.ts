// The checks of a chat's parameters: those that Python declares (parameters.json), and what the page checks further.

import type { FaultOf, TypeName } from "../shared/declared.js";
import { isA, typeOf } from "../shared/declared.js";
import { chat, common } from "./parameters.json";
import type { Checks } from "./params.js";
import { check, isObject, signal } from "./params.js";

/** A value of a declared type that fulfils a further condition. */
const further =
  (type: TypeName, condition: FaultOf): FaultOf =>
  (value, path) =>
    typeOf(type).fault(value, path) ?? condition(value, path);

/** The parameters of both kinds of completions. */
export const COMMON: Checks = {
  ...common,
  stop: further(
    common.stop,
    check("without empty strings", (value) => ![value].flat().includes("")),
  ),
  logit_bias: further(
    common.logit_bias,
    check("an object from token ids to numbers", (value) =>
      Object.keys(value as object).every((id) => /^\d+$/.test(id)),
    ),
  ),
  stream_options: check(
    "an object with include_usage true or false",
    (value) =>
      isA("boolean{}", value) &&
      Object.entries(value as object).every(
        ([key, option]) => key === "include_usage" || (key === "include_obfuscation" && option === false),
      ),
  ),
  signal,
};

export const CHAT_PARAMS: Checks = {
  ...chat,
  ...COMMON,
  function_call: check(
    '"none", "auto" or an object with a name',
    (value) => (isObject(value) && typeof value.name === "string") || isA("=none|auto", value),
  ),
  // Only what the page does in any case.
  store: check("false", (value) => value === false),
  service_tier: "=auto|default",
};
