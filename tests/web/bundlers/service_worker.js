import { grammar } from "@nearfar/web/grammar";
import { serveEngine } from "@nearfar/web/worker";

serveEngine(self, { grammar });
