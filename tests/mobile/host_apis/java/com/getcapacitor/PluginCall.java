// The signatures of @capacitor/android 8.5.2 that the plugin uses. Capacitor's types may be null where its sources do
// not say otherwise.
package com.getcapacitor;

public class PluginCall {
    public void resolve(JSObject data) {}

    public void reject(String msg, String code, Exception ex) {}

    public void reject(String msg, String code) {}

    public String getString(String name) {
        return null;
    }
}
