// What crosses between an app and the page in its web view: one JSON text a frame. A frame carries a wire message of @nearfar/web, or a greeting.
//
// The page has a new session each time that it is loaded, the app a new name each time that it starts; a message names both, so that what one of
// them meant for the other's earlier life is told apart. The forms of "hello" and "refused" stay as they are in every later protocol.

import type { ErrorJson, FromWorker, ToWorker } from "@nearfar/web/calls";
import { RequestError } from "@nearfar/web/calls";

import { fromJson, toJson } from "./values.js";

/** Raised by what the other side would misread. */
export const PROTOCOL = 1;

interface Numbered {
  /** The protocol that the sender speaks. */
  readonly nearfar: number;
}

export type AppFrame = Numbered &
  (
    | { readonly type: "hello"; readonly app: string }
    | { readonly type: "message"; readonly app: string; readonly session: string; readonly message: ToWorker }
  );

export type PageFrame = Numbered &
  (
    | {
        readonly type: "hello";
        readonly session: string;
        /** The app that is answered; null from a page that was just loaded. */
        readonly app: string | null;
        /** Why no model will run in this web view. */
        readonly problem: ErrorJson | null;
      }
    | { readonly type: "message"; readonly session: string; readonly app: string; readonly message: FromWorker }
    | { readonly type: "refused"; readonly session: string; readonly app: string | null; readonly error: ErrorJson }
  );

/** A frame without its number. */
type Unnumbered<Frame> = Frame extends unknown ? Omit<Frame, "nearfar"> : never;

/** Throws RequestError for what cannot be sent. */
export function writeFrame(frame: Unnumbered<AppFrame | PageFrame>): string {
  return JSON.stringify(toJson({ nearfar: PROTOCOL, ...frame }, "frame"));
}

/** Null where the text is no frame: others may use the same channel. */
export function readFrame(text: unknown): Numbered | null {
  if (typeof text !== "string" || !text.startsWith("{")) return null;
  try {
    const frame = JSON.parse(text) as Partial<Numbered>;
    return typeof frame.nearfar === "number" ? (frame as Numbered) : null;
  } catch {
    return null;
  }
}

/** A frame of our protocol, with its values. Throws RequestError that says what is wrong with it. */
export function checkAppFrame(frame: Numbered): AppFrame {
  const { type, app, session, message } = frame as Partial<Extract<AppFrame, { type: "message" }>>;
  if (typeof app !== "string") throw malformed("app", "the name that the app gave itself");
  if ((type as string) === "hello") return { ...frame, type: "hello", app };
  if (type !== "message") throw malformed("type", "'hello' or 'message'");
  if (typeof session !== "string") throw malformed("session", "the session of the page's hello");
  return { ...frame, type, app, session, message: checkMessage(fromJson(message)) };
}

function checkMessage(value: unknown): ToWorker {
  const { type, id, ...rest } = Object(value) as Partial<Record<string, unknown>>;
  if (!Number.isInteger(id)) throw malformed("message.id", "an integer");
  const is = {
    call: () =>
      Array.isArray(rest.path) && rest.path.every((name) => typeof name === "string") && Array.isArray(rest.args),
    more: () => Number.isInteger(rest.count),
    leave: () => true,
    abort: () => Number.isInteger(rest.signal) && typeof rest.reason === "object",
  }[type as ToWorker["type"]] as (() => boolean) | undefined;
  if (is === undefined) throw malformed("message.type", "'call', 'more', 'leave' or 'abort'");
  if (!is()) throw malformed("message", `what '${String(type)}' needs`);
  return value as ToWorker;
}

function malformed(field: string, wanted: string): RequestError {
  return new RequestError(
    `A frame's ${field} is not ${wanted}; see the table of frames in the README of @nearfar/webview`,
    { field },
  );
}

/** A name that nobody else has. Neither pages that are no secure context nor apps need have crypto.randomUUID. */
export function newName(): string {
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
}
