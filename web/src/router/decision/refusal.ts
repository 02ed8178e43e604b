// Why nobody answers: a decision without a side flows in, the error for whoever asked flows out.

import type { NearfarError } from "../../errors.js";
import { RequestError, Unavailable } from "../../errors.js";
import type { Decision, Lack } from "./decision.js";

const WHY: Readonly<Record<Lack, string>> = {
  private: "it is private, so it does not leave this device, and this device cannot answer it",
  mode: "the policy's mode leaves no side",
  near_unavailable: "no model is ready on this device",
  offline: "there is no network",
  circuit_open: "the side that is left failed several times and is left alone for a while",
  context: "it is longer than the context of the side that is left",
  tools: "the side that is left knows no tools",
  vision: "the side that is left reads texts only",
  language: "the side that is left does not know the language",
  budget: "the budget of today is spent",
};
/** The same request will not be answered later either. */
const FOR_GOOD: readonly Lack[] = ["private", "mode", "context", "tools", "vision", "language"];

/** ``near`` says in words why there is no engine, where there is none. */
export function refusal({ reason }: Decision, near: string | null): NearfarError {
  const lack = reason.replace(/^pinned_/, "") as Lack;
  const pinned = lack === reason ? "" : " and it is pinned to a side";
  const more = near !== null && (lack === "private" || lack === "near_unavailable") ? ` (${near})` : "";
  const message = `Nobody can answer the request: ${WHY[lack]}${pinned}${more}`;
  return FOR_GOOD.includes(lack) && near === null ? new RequestError(message, { code: reason }) : new Unavailable(message, { code: reason });
}
