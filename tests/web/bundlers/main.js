import { Engine } from "@nearfar/web";

import { LOAD, show } from "./ask.js";

void show(Engine.load("./bundle/", LOAD));
