// The one list of an agent's tools, from functions, the page and several servers: their names, which of them may run,
// and the text that a model receives of a result.

import { RequestError } from "../../errors.js";
import { shown } from "../declared.js";
import { isObject } from "../grammar/schema_merge.js";
import { requireSchema } from "./schema_fault.js";

/** "always": a call runs. "ask": it runs if the application approves. "never": the model does not see the tool. */
export type Allow = "always" | "ask" | "never";

/** A tool as its source describes it. */
export interface ToolEntry {
  /** The name that the source calls it by. */
  readonly name: string;
  readonly description: string;
  /** A JSON schema of an object. */
  readonly schema: Readonly<Record<string, unknown>>;
  /** The name of the server; null for a function of the application. */
  readonly server: string | null;
  readonly allow: Allow;
  /** It changes nothing, so the same call may be made again after another one. */
  readonly reads: boolean;
}

/** A tool by the name that the model knows. */
export interface ListedTool extends ToolEntry {
  readonly listed: string;
}

/** The tool with which a model ends a run. */
export const ANSWER = "answer";
const ALLOWS: readonly unknown[] = ["always", "ask", "never"];
// What every server with OpenAI's API accepts.
const LONGEST_NAME = 64;
const MOST_TOOLS = 512;

/**
 * The tools that a model may call, in the order of their sources. A name that is taken, or not of letters, digits, "_"
 * and "-", becomes SERVER_NAME; if that is taken too, it gets a number. Throws RequestError for a tool that cannot be
 * called: one without a name or an object's schema, or whose schema has keywords that grammars cannot enforce; and for
 * two functions of one name.
 */
export function listTools(entries: readonly ToolEntry[]): readonly ListedTool[] {
  const taken = new Set<string>([ANSWER]);
  const functions = new Set<string>();
  const listed = entries.filter(checkEntry).map((entry): ListedTool => {
    const { server, name } = entry;
    if (server === null) {
      if (name === ANSWER)
        throw wrong(entry, `has the name with which an agent's model ends a run; give it another name`);
      if (functions.has(name)) throw wrong(entry, "exists twice; give each function its own name");
      functions.add(name);
    }
    const own = plain(name);
    const prefixed = plain(`${server ?? "function"}_${name}`);
    const wishes = own === name ? [own, prefixed] : [prefixed];
    const found = wishes.find((wish) => !taken.has(wish)) ?? numbered(prefixed, taken);
    taken.add(found);
    return { ...entry, listed: found };
  });
  if (listed.length > MOST_TOOLS)
    throw new RequestError(
      `there are ${listed.length} tools, an agent may have ${MOST_TOOLS}; choose some of each server's`,
      { param: "tools" },
    );
  return listed;
}

/** The error for tools that must be approved while nobody approves. */
export function requireApproval(tools: readonly ListedTool[], approves: boolean): void {
  const asking = tools.filter(({ allow }) => allow === "ask").map(({ listed }) => listed);
  if (approves || asking.length === 0) return;
  throw new RequestError(
    `nobody approves calls of ${asking.slice(0, 4).join(", ")}${asking.length > 4 ? ` and ${asking.length - 4} more` : ""}; ` +
      'give the agent `approve`, or set `allow` of the tools to "always" or "never"',
    { param: "approve" },
  );
}

/** What an application has set for a tool; ``given``: for all tools of a source, or by name. */
export function allowOf(given: Allow | Readonly<Record<string, Allow>> | null, name: string, fallback: Allow): Allow {
  const found =
    typeof given === "object" && given !== null ? (Object.hasOwn(given, name) ? given[name] : fallback) : given;
  const allow = found ?? fallback;
  if (!ALLOWS.includes(allow))
    throw new RequestError(
      `allow of the tool ${shown(name)} is ${shown(allow)}, it must be "always", "ask" or "never"`,
      {
        param: "allow",
      },
    );
  return allow;
}

/**
 * What a page or a server allows by default: an MCP server's hints are its own claims, so each of its calls is asked for;
 * a page's reading tools run.
 */
export function defaultAllow(kind: "page" | "mcp", annotations: unknown): Allow {
  const { readOnlyHint, consequentialHint } = Object(annotations) as Readonly<Record<string, unknown>>;
  return kind === "page" && readOnlyHint === true && consequentialHint !== true ? "always" : "ask";
}

/** Whether an application may see this tool. Throws RequestError for a wrong one. */
function checkEntry(entry: ToolEntry): boolean {
  const { name, description, schema } = entry as Partial<ToolEntry>;
  if (typeof name !== "string" || name === "") throw wrong(entry, "has no name");
  if (typeof description !== "string") throw wrong(entry, "has no description");
  allowOf(null, name, entry.allow);
  if (entry.allow === "never") return false;
  if (!isObject(schema)) throw wrong(entry, "has no schema of its arguments");
  if (schema.type !== "object" && schema.$ref === undefined && schema.properties === undefined)
    throw wrong(entry, `has a schema of type ${shown(schema.type)}, it must be of type "object"`);
  try {
    requireSchema(schema, "its schema");
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    throw wrong(entry, `cannot be called: ${error.message}`);
  }
  return true;
}

function wrong({ name, server }: Pick<ToolEntry, "name" | "server">, problem: string): RequestError {
  const of = server === null ? "" : ` of ${server}`;
  const advice = server === null ? "" : `; to use the others, set its \`allow\` to "never"`;
  return new RequestError(`the tool ${shown(name)}${of} ${problem}${advice}`, { param: "tools" });
}

function plain(name: string): string {
  const kept = name.replace(/[^A-Za-z0-9_-]+/g, "_");
  return kept.length <= LONGEST_NAME ? kept : kept.slice(0, LONGEST_NAME);
}

function numbered(name: string, taken: ReadonlySet<string>): string {
  for (let number = 2; ; number++) {
    const suffix = `_${number}`;
    const found = name.slice(0, LONGEST_NAME - suffix.length) + suffix;
    if (!taken.has(found)) return found;
  }
}
