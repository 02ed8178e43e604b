import { connectEngine } from "@nearfar/web/client";

import { LOAD, show } from "./ask.js";

void show(navigator.serviceWorker.ready.then(({ active }) => connectEngine(active, "./bundle/", LOAD)));
