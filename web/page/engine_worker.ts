// The script of a worker that holds an engine of the pages.

import { serveEngine } from "../src/worker/index.js";

serveEngine(self);
