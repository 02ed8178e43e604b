// Pauses the engine, saves sessions and frees memory when the app's state changes.

import type { Engine } from "../../../web/src/engine.js";
import type { Session } from "../../../web/src/session.js";

/** The part of React Native's AppState that is used. */
export interface AppState {
  addEventListener(type: "change", listener: (state: string) => void): { remove(): void };
  addEventListener(type: "memoryWarning", listener: () => void): { remove(): void };
}

export interface FollowOptions {
  /** The open conversations, and the names under which they are saved when the app goes to the background. */
  readonly sessions?: (() => Iterable<readonly [name: string, session: Session]>) | undefined;
  /** Receives errors, such as that of a session that could not be saved. */
  readonly onError?: ((error: unknown) => void) | undefined;
}

/**
 * In the background, answers stop between two tokens, because the system ends apps that keep computing. Sessions are
 * saved, except those that are answering, whose last saved state stays. In the foreground, answers continue. On a
 * memory warning, an idle engine unloads the model, and loads it again for the next answer. The returned function stops
 * this.
 */
export function followApp(
  engine: Pick<Engine, "pause" | "resume" | "unload">,
  appState: AppState,
  { sessions = () => [], onError = () => undefined }: FollowOptions = {},
): () => void {
  let last: Promise<void> = Promise.resolve();
  // The app may return to the foreground while the last step is still running.
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
