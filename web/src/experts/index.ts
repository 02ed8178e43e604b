// experts.js: what runs a mixture whose experts do not fit on the device. A page loads it with such a model only.

import type { ExpertCacheParts } from "./expert_cache.js";
import { ExpertCache } from "./expert_cache.js";

export type { ExpertCache, ExpertCounts } from "./expert_cache.js";

export const experts = { open: (parts: ExpertCacheParts): ExpertCache => new ExpertCache(parts) };

export type ExpertsModule = typeof experts;
