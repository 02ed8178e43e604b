package com.getcapacitor;

import android.content.Context;

public class Plugin {
    public void load() {}

    public Context getContext() {
        return null;
    }

    protected void handleOnDestroy() {}

    protected void notifyListeners(String eventName, JSObject data) {}
}
