"use client";

import { Engine } from "@nearfar/web";
import { useEffect } from "react";

import { LOAD, show } from "../ask.js";

export default function Page() {
  useEffect(() => {
    void show(Engine.load("./bundle/", LOAD));
  }, []);
  return <p>nearfar</p>;
}
