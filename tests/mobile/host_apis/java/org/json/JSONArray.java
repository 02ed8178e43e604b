package org.json;

import java.util.Collection;

public class JSONArray {
    public JSONArray() {}

    public JSONArray(Collection<?> copyFrom) {}
}
