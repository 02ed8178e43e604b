// Where an agent's tools come from: functions of the application, the page (WebMCP), and MCP servers. Each source lists
// tools, and runs the calls of its own.

import { RequestError, messageOf } from "../errors.js";
import type { ResultText } from "../shared/agent/results.js";
import { contentText, pageText, valueText } from "../shared/agent/results.js";
import type { Allow, ToolEntry } from "../shared/agent/tools.js";
import { allowOf, defaultAllow } from "../shared/agent/tools.js";

/** For all tools of a source, or by their names. */
export type AllowOption = Allow | Readonly<Record<string, Allow>>;

export interface SourceTool extends ToolEntry {
  /** Labels of a Hybrid's policy that the results have, so that private ones stay on the device. */
  readonly labels: readonly string[];
  /** Its arguments leave this page and its device, so a Hybrid's policy decides about them. */
  readonly remote: boolean;
  /** Throws what the tool throws. The signal ends the call. */
  readonly call: (values: never, signal: AbortSignal) => Promise<ResultText>;
}

export interface ToolSource {
  /** Whether its tools may change during a run, so that each step lists them again. */
  readonly changes: boolean;
  readonly list: (signal: AbortSignal) => Promise<readonly SourceTool[]>;
}

/** A function that a model may call. */
export interface FunctionToolOptions<Input> {
  readonly name: string;
  readonly description: string;
  /** A JSON schema of an object. */
  readonly parameters: Readonly<Record<string, unknown>>;
  /** Receives the arguments as one object. A result that is not a text is sent to the model as JSON. */
  readonly execute: (input: Input, options: { readonly signal: AbortSignal }) => unknown;
  /** Default: "always". */
  readonly allow?: Allow | undefined;
  /** It changes nothing, so the model may make the same call again after another one. Default: false. */
  readonly reads?: boolean | undefined;
  /** Labels of a Hybrid's policy that its results have. */
  readonly labels?: readonly string[] | undefined;
}

export interface SourceOptions {
  readonly allow?: AllowOption | undefined;
  /** Labels of a Hybrid's policy that the results have. */
  readonly labels?: readonly string[] | undefined;
}

export interface McpToolOptions extends SourceOptions {
  /** The server is on this device, such as one in the page: what it receives does not leave. Default: false. */
  readonly local?: boolean | undefined;
}

/** What of WebMCP's `document.modelContext` an agent in the page uses. */
export interface ModelContext {
  getTools(options?: { readonly fromOrigins?: readonly string[] }): Promise<readonly RegisteredTool[]>;
  executeTool(
    tool: RegisteredTool,
    input?: object,
    options?: { readonly signal?: AbortSignal },
  ): Promise<string | null | undefined>;
}

interface RegisteredTool {
  readonly name: string;
  readonly description: string;
  readonly inputSchema?: object | string | undefined;
  readonly origin?: string | undefined;
  readonly annotations?: object | null | undefined;
}

export interface PageToolOptions extends SourceOptions {
  /** By default the document's. */
  readonly modelContext?: ModelContext | undefined;
  /** Origins of frames whose tools the agent may call too. */
  readonly fromOrigins?: readonly string[] | undefined;
}

/** What of a client of MCP's TypeScript SDK an agent uses. */
export interface McpClient {
  listTools(
    params?: { cursor?: string },
    options?: { signal?: AbortSignal },
  ): Promise<{ readonly tools: readonly McpTool[]; readonly nextCursor?: string | undefined }>;
  callTool(
    params: { name: string; arguments?: Record<string, unknown> },
    schema?: undefined,
    options?: { signal?: AbortSignal; timeout?: number },
  ): Promise<unknown>;
}

interface McpTool {
  readonly name: string;
  readonly description?: string | undefined;
  readonly inputSchema: object;
  readonly annotations?: object | undefined;
}

const NO_PARAMETERS = { type: "object", properties: {}, additionalProperties: false };
// A server may list without an end.
const MOST_PAGES = 64;
/** Longer than any run, whose own limit ends the call. The client's default is a minute. */
const CALL_TIMEOUT_MS = 86_400_000;

/** A function of the application as a source of one tool. */
export function functionTool<Input = Record<string, unknown>>(tool: FunctionToolOptions<Input>): ToolSource {
  const { name, description, parameters, execute, allow = "always", reads = false, labels = [] } = tool;
  if (typeof execute !== "function")
    throw new RequestError(`the tool '${name}' needs \`execute\`, the function that runs when the model calls it`, {
      param: "tools",
    });
  return fixed([
    {
      name,
      description,
      schema: parameters,
      server: null,
      allow,
      reads,
      labels,
      remote: false,
      call: async (values, signal) => ({ text: valueText(await execute(values, { signal })), failed: false }),
    },
  ]);
}

/**
 * The tools that the page has registered with `document.modelContext` (WebMCP). Its reading tools run; calls of others
 * are asked for. Throws RequestError if the browser has no modelContext.
 */
export function pageTools({ modelContext, fromOrigins, allow, labels = [] }: PageToolOptions = {}): ToolSource {
  const context = modelContext ?? documentContext();
  const list: ToolSource["list"] = async () => {
    const tools = await context.getTools(fromOrigins === undefined ? {} : { fromOrigins });
    return tools.map((tool): SourceTool => {
      const { name, description, inputSchema, annotations, origin } = tool;
      const isOurs = origin === undefined || origin === globalThis.origin;
      return {
        name,
        description,
        schema: pageSchema(inputSchema),
        server: isOurs ? "page" : origin,
        allow: allowOf(allow ?? null, name, defaultAllow("page", annotations)),
        reads: readOnly(annotations),
        labels,
        remote: !isOurs,
        call: async (values, signal) => pageText((await context.executeTool(tool, values, { signal })) ?? null),
      };
    });
  };
  return { changes: true, list };
}

/**
 * The tools of an MCP server, by its connected client. Each call is asked for, unless ``allow`` says otherwise: a server's
 * hints about its tools are only its own claims.
 *
 * ``server`` names it for people and in names that are taken.
 */
export function mcpTools(
  server: string,
  client: McpClient,
  { allow, labels = [], local = false }: McpToolOptions = {},
): ToolSource {
  const list: ToolSource["list"] = async (signal) => {
    const tools: McpTool[] = [];
    let cursor: string | undefined;
    for (let page = 0; page === 0 || cursor !== undefined; page++) {
      if (page === MOST_PAGES)
        throw new RequestError(`the MCP server ${server} lists its tools on more than ${MOST_PAGES} pages`, {
          param: "tools",
        });
      const answer = await client.listTools(cursor === undefined ? {} : { cursor }, { signal });
      tools.push(...answer.tools);
      cursor = answer.nextCursor;
    }
    return tools.map(({ name, description = "", inputSchema, annotations }): SourceTool => ({
      name,
      description,
      schema: inputSchema as Readonly<Record<string, unknown>>,
      server,
      allow: allowOf(allow ?? null, name, defaultAllow("mcp", annotations)),
      reads: readOnly(annotations),
      labels,
      remote: !local,
      call: async (values, signal) =>
        contentText(
          await client.callTool({ name, arguments: values }, undefined, { signal, timeout: CALL_TIMEOUT_MS }),
        ),
    }));
  };
  return { changes: false, list };
}

function fixed(tools: readonly SourceTool[]): ToolSource {
  return { changes: false, list: () => Promise.resolve(tools) };
}

function documentContext(): ModelContext {
  const { document, navigator } = globalThis as {
    readonly document?: { readonly modelContext?: ModelContext };
    readonly navigator?: { readonly modelContext?: ModelContext };
  };
  const found = document?.modelContext ?? navigator?.modelContext;
  if (typeof found?.getTools !== "function" || typeof found.executeTool !== "function")
    throw new RequestError(
      "this page has no document.modelContext with getTools and executeTool (WebMCP); load a polyfill, or give the " +
        "functions themselves with functionTool",
      { param: "tools" },
    );
  return found;
}

/** Earlier drafts had the schema as JSON text. */
function pageSchema(given: object | string | undefined): Readonly<Record<string, unknown>> {
  if (given === undefined || given === "") return NO_PARAMETERS;
  if (typeof given !== "string") return given as Readonly<Record<string, unknown>>;
  try {
    return JSON.parse(given) as Readonly<Record<string, unknown>>;
  } catch (error) {
    throw new RequestError(`a tool of the page has a schema that is not JSON: ${messageOf(error)}`, { param: "tools" });
  }
}

function readOnly(annotations: unknown): boolean {
  return (Object(annotations) as { readonly readOnlyHint?: unknown }).readOnlyHint === true;
}
