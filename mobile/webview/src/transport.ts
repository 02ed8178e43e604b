// The channel between a page and the app around it, whichever the app offers: texts flow both ways, in order.

/** Either end of the channel. */
export interface Transport {
  send(text: string): void;
  /** Hands on what comes in. The function that it returns ends that. */
  listen(listener: (text: string) => void): () => void;
}

interface Sender {
  postMessage(text: string): void;
  addEventListener?(type: "message", listener: (event: { readonly data: unknown }) => void): void;
}

/** What apps put into a page's global scope. */
export interface AppScope {
  readonly webkit?: { readonly messageHandlers?: { readonly nearfar?: Sender } };
  readonly nearfarAndroid?: Sender;
  readonly ReactNativeWebView?: Sender;
  nearfarReceive?: (text: string) => void;
}

/**
 * iOS: a WKScriptMessageHandler named "nearfar". Android: an object "nearfarAndroid", from addWebMessageListener or addJavascriptInterface. React Native:
 * its own. Null where there is no app around the page. But for Android's message listener, which has events of its own, the app calls
 * ``nearfarReceive(text)`` in the page.
 */
export function findTransport(scope = globalThis as AppScope): Transport | null {
  // The object of an app must stay the receiver of its method, so it is never taken off.
  const sender = scope.webkit?.messageHandlers?.nearfar ?? scope.nearfarAndroid ?? scope.ReactNativeWebView;
  if (sender === undefined) return null;
  const listeners = new Set<(text: string) => void>();
  const receive = (text: unknown): void => {
    if (typeof text === "string") for (const listener of listeners) listener(text);
  };
  scope.nearfarReceive = receive;
  sender.addEventListener?.("message", ({ data }) => {
    receive(data);
  });
  return {
    send: (text) => {
      sender.postMessage(text);
    },
    listen: (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}
