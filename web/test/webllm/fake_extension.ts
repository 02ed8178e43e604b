// A fake chrome.runtime of an extension: messages are JSON, and each connection is a pair of ports.

import { vi } from "vitest";

import type { ExtensionPort } from "../../src/webllm/index.js";

export interface FakeExtension {
  /** The event that the service worker listens to. */
  readonly onConnect: { addListener(listener: (port: ExtensionPort) => void): void };
  /** Simulates that the browser stops the service worker. */
  readonly disconnect: () => void;
}

/** Stubs the global ``chrome`` of both sides. */
export function fakeExtension(): FakeExtension {
  const connected: ((port: ExtensionPort) => void)[] = [];
  const gone: (() => void)[] = [];
  const connect = (): ExtensionPort => {
    const listeners: ((message: unknown) => void)[][] = [[], []];
    const end = (mine: number): ExtensionPort & { readonly name: string } => ({
      name: "web_llm_service_worker",
      postMessage: (message) => {
        const copy = JSON.parse(JSON.stringify(message)) as unknown;
        queueMicrotask(() => {
          for (const listener of listeners[1 - mine] ?? []) listener(copy);
        });
      },
      onMessage: { addListener: (listener) => listeners[mine]?.push(listener) },
      onDisconnect: { addListener: (listener) => gone.push(listener) },
    });
    for (const listener of connected) listener(end(1));
    return end(0);
  };
  const onConnect = { addListener: (listener: (port: ExtensionPort) => void) => connected.push(listener) };
  vi.stubGlobal("chrome", { runtime: { connect, onConnect } });
  return {
    onConnect,
    disconnect: () => {
      for (const listener of gone.splice(0)) listener();
    },
  };
}
