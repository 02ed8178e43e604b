package com.getcapacitor;

import org.json.JSONObject;

public class JSObject extends JSONObject {
    public JSObject put(String key, String value) {
        return this;
    }
}
