// A document for React in Node, from happy-dom. Node's own globals, which happy-dom would replace, remain.

import { Window } from "happy-dom";
import type { ReactNode } from "react";

export interface Root {
  readonly render: (node: ReactNode) => void;
  readonly unmount: () => void;
}

const window = new Window();
Object.assign(globalThis, { window, document: window.document });
// Node has this global from version 21 on.
if (typeof navigator === "undefined") Object.assign(globalThis, { navigator: window.navigator });
// React looks for a document when it is imported.
const { createRoot } = await import("react-dom/client");

export function root(): Root {
  const root = createRoot(window.document.createElement("div") as never);
  return {
    render: (node) => {
      root.render(node);
    },
    unmount: () => {
      root.unmount();
    },
  };
}

/** Run an action, and let React render the result. */
export async function doing(task: () => unknown): Promise<void> {
  await task();
  await settle();
}

/** Let promises, timers of 0 ms and React's renders run. */
export async function settle(turns = 10): Promise<void> {
  for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setTimeout(resolve, 0));
}
