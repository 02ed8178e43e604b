// The fetch with which the page calls the server. It counts the requests, and a switch simulates a lost network.

/** One request: its method, its path, and the bytes of its body. */
export interface Sent {
  readonly method: string;
  readonly path: string;
  readonly bytes: number;
}

export class Network {
  /** Called for each request that is sent. */
  onSent: () => void = () => undefined;
  readonly #sent: Sent[] = [];
  /** Null while the network is switched off. */
  #connected: AbortController | null = new AbortController();

  get sent(): readonly Sent[] {
    return this.#sent;
  }

  get on(): boolean {
    return this.#connected !== null;
  }

  /** Switching off aborts the running requests, as a lost network does. */
  switch(on: boolean): void {
    if (on === this.on) return;
    this.#connected?.abort(new TypeError("The network is switched off"));
    this.#connected = on ? new AbortController() : null;
  }

  /** Like the platform's fetch: throws TypeError without a network. */
  readonly fetch: typeof globalThis.fetch = async (input, init) => {
    if (this.#connected === null) throw new TypeError("The network is switched off");
    const request = new Request(input, init);
    const { body } = init ?? {};
    this.#sent.push({
      method: request.method,
      path: new URL(request.url).pathname,
      bytes: typeof body === "string" ? new TextEncoder().encode(body).length : 0,
    });
    this.onSent();
    return globalThis.fetch(request, { signal: AbortSignal.any([request.signal, this.#connected.signal]) });
  };
}
