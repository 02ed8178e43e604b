// Says in the reader's words why a message was not answered and what to do. The details hold the technical message.

import { DeviceError, NearfarError, RequestError, Unavailable } from "../src/index.js";
import { make } from "./elements.js";
import { formatCount } from "./format.js";

export interface Problem {
  readonly what: string;
  readonly fix: string;
}

/**
 * Whether a conversation has more tokens than a model reads at once. Servers report this with OpenAI's error code or
 * message; the router's code is "context".
 */
export function isContextFull(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { details } = error as { readonly details?: Readonly<Record<string, unknown>> };
  return (
    typeof details?.context === "number" ||
    details?.code === "context_length_exceeded" ||
    details?.code === "context" ||
    details?.code === "pinned_context" ||
    /maximum context length|context_length_exceeded/.test(error.message)
  );
}

/** The kinds of errors in the order of their checks. */
const PROBLEMS: readonly (Problem & { readonly is: (error: unknown) => boolean })[] = [
  {
    is: (error) => error instanceof NearfarError && error.details.code === "private",
    what: "The message was not sent to the server, because it or an earlier message is private.",
    fix: "Start a new chat to use the server.",
  },
  {
    // The router reports this code only if the server may not answer.
    is: (error) => error instanceof NearfarError && error.details.code === "near_unavailable",
    what: "This message was not sent: it is private, or the policy uses no server, and no model is ready on this device.",
    fix: "Wait until the model has loaded, or start a new chat without the private text.",
  },
  {
    is: (error) => error instanceof DeviceError,
    what: "The model stopped: this device's graphics processor failed.",
    fix: "Load the model again. If this happens again, close other tabs or choose a smaller model.",
  },
  {
    is: (error) => error instanceof Unavailable,
    what: "No side that may answer this message could do so.",
    fix: "Try again in a moment, check the connection to the server, or let the policy choose the side.",
  },
  {
    is: (error) => error instanceof TypeError,
    what: "The server could not be reached.",
    fix: "Check the network and the server's address, then try again.",
  },
  {
    is: (error) => error instanceof RequestError,
    what: "The model did not accept this message.",
    fix: "Check the settings, change the message, and send it again.",
  },
];

export function problemOf(error: unknown): Problem {
  if (isContextFull(error)) return tooLong(error as Error);
  return (
    PROBLEMS.find(({ is }) => is(error)) ?? {
      what: "Something unexpected went wrong.",
      fix: "Try again. If this happens again, reload the page.",
    }
  );
}

/** The elements of an error: what is wrong, what to do, and the technical message, folded. */
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
