// The page's way to the far side: fetch, with a switch that plays a network which goes away, and a count of what went out. Requests flow in,
// responses flow out.

/** Of one request: its path, and the bytes of its body. */
export interface Sent {
  readonly method: string;
  readonly path: string;
  readonly bytes: number;
}

export class Network {
  /** Called after each request that went out. */
  onSent: () => void = () => undefined;
  readonly #sent: Sent[] = [];
  /** Null while the network is away. */
  #connected: AbortController | null = new AbortController();

  get sent(): readonly Sent[] {
    return this.#sent;
  }

  get on(): boolean {
    return this.#connected !== null;
  }

  /** Off breaks what is on its way, as a network does that goes away. */
  switch(on: boolean): void {
    if (on === this.on) return;
    this.#connected?.abort(new TypeError("The network is switched off"));
    this.#connected = on ? new AbortController() : null;
  }

  /** As the platform's fetch: a TypeError where there is no network. */
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
