// An engine, or a Hybrid, with some methods replaced.

/** The engine with ``own`` in place of its members of these names. */
export function withMethods(engine: object, own: Readonly<Record<string, unknown>>): object {
  return new Proxy(engine, {
    get: (target, name) => {
      if (typeof name === "string" && Object.hasOwn(own, name)) return own[name];
      // The methods and getters of a class read its private fields.
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
    has: (target, name) => (typeof name === "string" && Object.hasOwn(own, name)) || Reflect.has(target, name),
  });
}
