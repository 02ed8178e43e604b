// Why a message was not answered, in a reader's words: what went wrong and what to do. The technical message stays in the details.

import { DeviceError, RequestError, Unavailable } from "../src/index.js";
import { make } from "./elements.js";
import { formatCount } from "./format.js";

export interface Problem {
  readonly what: string;
  readonly fix: string;
}

/** Whether a conversation has more tokens than a model reads at once. Servers say so with OpenAI's code or its words. */
export function isContextFull(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { details } = error as { readonly details?: Readonly<Record<string, unknown>> };
  return (
    typeof details?.context === "number" ||
    details?.code === "context_length_exceeded" ||
    /maximum context length|context_length_exceeded/.test(error.message)
  );
}

export function problemOf(error: unknown): Problem {
  if (isContextFull(error)) return tooLong(error as Error);
  if (error instanceof DeviceError)
    return {
      what: "The model stopped: this device's graphics processor gave up.",
      fix: "Load the model again. If that repeats, close other tabs or choose a smaller model.",
    };
  if (error instanceof Unavailable)
    return {
      what: "Nobody could answer just now.",
      fix: "Try again in a moment, or check the connection to the server.",
    };
  if (error instanceof TypeError)
    return {
      what: "The server could not be reached.",
      fix: "Check the network and the server's address, then try again.",
    };
  if (error instanceof RequestError)
    return {
      what: "The model did not accept this message.",
      fix: "Check the settings, change the message, and send it again.",
    };
  return { what: "Something unexpected went wrong.", fix: "Try again. If that repeats, load the page again." };
}

/** What is wrong, what to do, and the technical message behind a fold. */
export function problemElements(error: unknown): readonly Node[] {
  const { what, fix } = problemOf(error);
  const technical = error instanceof Error ? error.message : String(error);
  return [
    make("span", "what", what),
    make("span", "unseen", " "),
    make("span", "fix", fix),
    make("details", "technical", make("summary", "", "Details"), make("p", "", technical)),
  ];
}

function tooLong({ details }: Error & { readonly details?: Readonly<Record<string, unknown>> }): Problem {
  const { tokens, context } = details ?? {};
  const sizes =
    typeof tokens === "number" && typeof context === "number"
      ? `: it has ${formatCount(tokens)} tokens, and the model reads ${formatCount(context)} at once`
      : "";
  return {
    what: `This message is too long for the model${sizes}.`,
    fix: "Shorten the message or the system prompt, or choose a model with a longer context.",
  };
}
