// The names of the two demo models, and the policy that was fitted to them.

export const DEMO_MODELS = { near: "nearfar-demo", far: "demo-far" } as const;

/** Fitted to the answers of both models. The page's build copies it here. */
export const DEMO_POLICY = "./demo_policy.json";
