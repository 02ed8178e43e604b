// An engine in an app that comes and goes: what the system says of the app flows in, and the engine rests, saves and frees memory.

import type { Engine } from "../../../web/src/engine.js";
import type { Session } from "../../../web/src/session.js";

/** What is used of React Native's AppState. */
export interface AppState {
  addEventListener(type: "change", listener: (state: string) => void): { remove(): void };
  addEventListener(type: "memoryWarning", listener: () => void): { remove(): void };
}

export interface FollowOptions {
  /** The open conversations by the names to save them under, when the app goes to the background. */
  readonly sessions?: (() => Iterable<readonly [name: string, session: Session]>) | undefined;
  /** Told what went wrong, such as a session that could not be saved. */
  readonly onError?: ((error: unknown) => void) | undefined;
}

/**
 * In the background answers stop between two tokens, as the system ends apps that go on computing, and sessions are saved; one that is at an answer stays
 * as it was saved before. Back in the foreground all goes on. Short of memory, an engine that has nothing to do gives back the model and loads it again
 * with the next answer. The function that comes back ends it.
 */
export function followApp(
  engine: Pick<Engine, "pause" | "resume" | "unload">,
  appState: AppState,
  { sessions = () => [], onError = () => undefined }: FollowOptions = {},
): () => void {
  let last: Promise<void> = Promise.resolve();
  // An app may come back while the last step still runs.
  const inOrder = (task: () => Promise<void>): void => {
    last = last.then(task).catch(onError);
  };
  const rest = async (): Promise<void> => {
    await engine.pause();
    for (const [name, session] of sessions()) if (!session.isAnswering) await session.save(name).catch(onError);
  };
  const listeners = [
    appState.addEventListener("change", (state) => {
      if (state === "background") inOrder(rest);
      if (state === "active") inOrder(() => engine.resume());
    }),
    appState.addEventListener("memoryWarning", () => {
      engine.unload();
    }),
  ];
  return () => {
    for (const listener of listeners) listener.remove();
  };
}
