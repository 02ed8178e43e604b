// The variables of a part of a template. compiler/runtime/text/template_tree.py decides where each name is defined.

import type { Value } from "./values.js";
import { Undefined } from "./values.js";

/** The names that a scope defines, with their first value: 0 none, 1 the render call's, 2 the enclosing scope's. */
export type ScopeNames = Readonly<Record<string, number>>;

export class Scope {
  readonly #values = new Map<string, Value | undefined>();

  constructor(
    private readonly given: ReadonlyMap<string, Value>,
    private readonly parent: Scope | null,
    private readonly names: ScopeNames,
  ) {
    this.enter();
  }

  inner(names: ScopeNames): Scope {
    return new Scope(this.given, this, names);
  }

  /** Gives every name its first value, also at each iteration of a loop. */
  enter(): void {
    for (const [name, kind] of Object.entries(this.names)) {
      this.#values.set(name, kind === 1 ? this.given.get(name) : kind === 2 ? this.parent?.find(name) : undefined);
    }
  }

  get(name: string): Value {
    const value = this.find(name);
    return value === undefined ? new Undefined(`'${name}' is undefined`) : value;
  }

  set(name: string, value: Value | undefined): void {
    this.#values.set(name, value);
  }

  find(name: string): Value | undefined {
    return this.#values.has(name) ? this.#values.get(name) : this.parent?.find(name);
  }
}
