// The two demo models, by the names that they are served under.

export const DEMO_MODELS = { near: "nearfar-demo", far: "demo-far" } as const;

/** Fitted to what both of them answer; the page's build puts it there. */
export const DEMO_POLICY = "./demo_policy.json";
