// The channel between a page and the app around it. It sends texts in both directions, in order.

/** Either end of the channel. */
export interface Transport {
  send(text: string): void;
  /** Calls the listener with each text that arrives. The returned function removes the listener. */
  listen(listener: (text: string) => void): () => void;
}

interface Sender {
  postMessage(text: string): void;
  addEventListener?(type: "message", listener: (event: { readonly data: unknown }) => void): void;
}

/** The objects that apps add to a page's global scope. */
export interface AppScope {
  readonly webkit?: { readonly messageHandlers?: { readonly nearfar?: Sender } };
  readonly nearfarAndroid?: Sender;
  readonly ReactNativeWebView?: Sender;
  nearfarReceive?: (text: string) => void;
}

/**
 * The channel to the app; null if there is no app around the page. iOS: a WKScriptMessageHandler named "nearfar".
 * Android: an object "nearfarAndroid", from addWebMessageListener or addJavascriptInterface. React Native: its own
 * object. The app calls ``nearfarReceive(text)`` in the page, except with Android's message listener, which has its own
 * events.
 */
export function findTransport(scope = globalThis as AppScope): Transport | null {
  // The method must be called on the app's object, so it is not stored separately.
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
