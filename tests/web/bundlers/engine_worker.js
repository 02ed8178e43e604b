import { serveEngine } from "@nearfar/web/worker";

serveEngine(self);
