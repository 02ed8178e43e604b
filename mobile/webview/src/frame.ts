// The frames between an app and the page in its web view, one JSON text per frame. A frame holds a wire message of
// @nearfar/web, or a greeting.
//
// The page has a new session each time that it is loaded, and the app has a new name each time that it starts. A
// message contains both, so that messages for an earlier page or app are recognised. The forms of "hello" and "refused"
// do not change in later protocols.

import type { ErrorJson, FromWorker, ToWorker } from "@nearfar/web/calls";
import { RequestError } from "@nearfar/web/calls";

import { fromJson, toJson } from "./values.js";

/** Increased by changes that the other side would misread. */
export const PROTOCOL = 1;

interface Numbered {
  /** The protocol of the sender. */
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
        /** The app that the page answers; null from a page that was just loaded. */
        readonly app: string | null;
        /** Why no model can run in this web view. */
        readonly problem: ErrorJson | null;
      }
    | { readonly type: "message"; readonly session: string; readonly app: string; readonly message: FromWorker }
    | { readonly type: "refused"; readonly session: string; readonly app: string | null; readonly error: ErrorJson }
  );

/** A frame without its number. */
type Unnumbered<Frame> = Frame extends unknown ? Omit<Frame, "nearfar"> : never;

/** Throws RequestError for values that cannot be sent. */
export function writeFrame(frame: Unnumbered<AppFrame | PageFrame>): string {
  return JSON.stringify(toJson({ nearfar: PROTOCOL, ...frame }, "frame"));
}

/** The frame in a text; null if the text is not a frame, because others may use the same channel. */
export function readFrame(text: unknown): Numbered | null {
  if (typeof text !== "string" || !text.startsWith("{")) return null;
  try {
    const frame = JSON.parse(text) as Partial<Numbered>;
    return typeof frame.nearfar === "number" ? (frame as Numbered) : null;
  } catch {
    return null;
  }
}

/** Checks a frame of our protocol and decodes its values. Throws RequestError. */
export function checkAppFrame(frame: Numbered): AppFrame {
  const { type, app, session, message } = frame as Partial<Extract<AppFrame, { type: "message" }>>;
  if (typeof app !== "string") throw malformed("app", "the name of the app");
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
  if (!is()) throw malformed("message", `a valid '${String(type)}' message`);
  return value as ToWorker;
}

function malformed(field: string, expected: string): RequestError {
  return new RequestError(
    `A frame's ${field} is not ${expected}; see the table of frames in the README of @nearfar/webview`,
    { field },
  );
}

/** A unique name. Apps and pages outside of a secure context may lack crypto.randomUUID, so it is not used. */
export function newName(): string {
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
}
