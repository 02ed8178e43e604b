import { expect, test } from "vitest";

import type { AppScope } from "../src/transport.js";
import { findTransport } from "../src/transport.js";

/** A native object whose method, as in real ones, must be called on the object. */
class Sender {
  readonly texts: string[] = [];

  postMessage(text: string): void {
    this.texts.push(text);
  }
}

test.each(["webkit", "nearfarAndroid", "ReactNativeWebView"] as const)(
  "an app that puts %s into the page is found, and answers through nearfarReceive",
  (name) => {
    const sender = new Sender();
    const scope: AppScope =
      name === "webkit" ? { webkit: { messageHandlers: { nearfar: sender } } } : { [name]: sender };
    const transport = findTransport(scope);
    const heard: string[] = [];
    const unlisten = transport?.listen((text) => heard.push(text));
    transport?.send("out");
    scope.nearfarReceive?.("in");
    unlisten?.();
    scope.nearfarReceive?.("late");
    expect([sender.texts, heard]).toEqual([["out"], ["in"]]);
  },
);

test("Android's message listener answers with its own events", () => {
  const target = new EventTarget();
  const sender = Object.assign(target, { postMessage: () => undefined });
  const heard: string[] = [];
  findTransport({ nearfarAndroid: sender as unknown as Sender })?.listen((text) => heard.push(text));
  target.dispatchEvent(new MessageEvent("message", { data: "in" }));
  target.dispatchEvent(new MessageEvent("message", { data: new ArrayBuffer(1) }));
  expect(heard).toEqual(["in"]);
});

test("without an app around the page there is no transport, even with other handlers", () => {
  expect(findTransport({})).toBeNull();
  expect(findTransport({ webkit: { messageHandlers: {} } })).toBeNull();
});
