// The signatures of Android's org.json that the sources use. They are in Java, whose types may be null, as Android's are.
package org.json;

import java.util.Map;

public class JSONObject {
    public JSONObject() {}

    public JSONObject(String json) throws JSONException {}

    public JSONObject(Map copyFrom) {}

    public JSONObject put(String name, long value) throws JSONException {
        return this;
    }

    public JSONObject put(String name, int value) throws JSONException {
        return this;
    }

    public JSONObject put(String name, Object value) throws JSONException {
        return this;
    }

    public boolean has(String name) {
        return false;
    }

    public boolean isNull(String name) {
        return true;
    }

    public Object opt(String name) {
        return null;
    }

    public int getInt(String name) throws JSONException {
        return 0;
    }

    public boolean optBoolean(String name) {
        return false;
    }

    public long getLong(String name) throws JSONException {
        return 0;
    }

    public JSONArray getJSONArray(String name) throws JSONException {
        return new JSONArray();
    }

    public int optInt(String name) {
        return 0;
    }

    public String getString(String name) throws JSONException {
        return "";
    }

    public String optString(String name) {
        return "";
    }

    public String optString(String name, String fallback) {
        return fallback;
    }

    public JSONObject getJSONObject(String name) throws JSONException {
        return this;
    }

    public JSONObject optJSONObject(String name) {
        return null;
    }
}
