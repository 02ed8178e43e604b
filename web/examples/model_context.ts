// WebMCP's document.modelContext for browsers that do not have it yet, for the tools of one document. Source: the draft
// of October 2026, https://webmachinelearning.github.io/webmcp/

export interface PageTool {
  readonly name: string;
  readonly description: string;
  readonly inputSchema?: object;
  readonly annotations?: { readonly readOnlyHint?: boolean; readonly consequentialHint?: boolean };
  readonly execute: (input: never, options: { readonly signal: AbortSignal }) => unknown;
}

interface Registered extends Omit<PageTool, "execute"> {
  readonly title: string;
  readonly window: typeof globalThis;
  readonly origin: string;
}

export class ModelContext extends EventTarget {
  readonly #tools = new Map<string, PageTool>();

  registerTool(tool: PageTool, { signal }: { readonly signal?: AbortSignal } = {}): Promise<void> {
    if (this.#tools.has(tool.name) || !/^[A-Za-z0-9_.-]{1,128}$/.test(tool.name) || tool.description === "")
      return Promise.reject(new DOMException(`${tool.name} cannot be registered`, "InvalidStateError"));
    this.#tools.set(tool.name, tool);
    this.dispatchEvent(new Event("toolchange"));
    signal?.addEventListener("abort", () => {
      this.#tools.delete(tool.name);
      this.dispatchEvent(new Event("toolchange"));
    });
    return Promise.resolve();
  }

  getTools(): Promise<readonly Registered[]> {
    const { origin } = globalThis;
    const listed = [...this.#tools.values()].map(({ name, description, inputSchema, annotations }) => ({
      ...{ name, title: name, description, window: globalThis, origin },
      ...structuredClone({ ...(inputSchema && { inputSchema }), ...(annotations && { annotations }) }),
    }));
    return Promise.resolve(listed);
  }

  async executeTool(
    { name }: { readonly name: string },
    input: object = {},
    { signal }: { readonly signal?: AbortSignal } = {},
  ): Promise<string> {
    signal?.throwIfAborted();
    const tool = this.#tools.get(name);
    if (tool === undefined) throw new DOMException(`there is no tool ${name}`, "UnknownError");
    const controller = new AbortController();
    signal?.addEventListener("abort", () => {
      controller.abort(signal.reason);
    });
    const value = await tool.execute(JSON.parse(JSON.stringify(input)) as never, { signal: controller.signal });
    return JSON.stringify(value ?? null);
  }
}

/** The document's own, if the browser has one. */
export function modelContext(): ModelContext {
  const page = document as unknown as { modelContext?: ModelContext };
  return (page.modelContext ??= new ModelContext());
}
