import { connectEngine } from "@nearfar/web/client";

import { LOAD, show } from "./ask.js";

void show(
  connectEngine(new Worker(new URL("./engine_worker.js", import.meta.url), { type: "module" }), "./bundle/", LOAD),
);
