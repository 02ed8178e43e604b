// The location of the app for Capacitor's tools. Its local server serves webDir: capacitor://localhost on iOS,
// https://localhost on Android.

const config = { appId: "org.nearfar.example", appName: "nearfar", webDir: "www" };

export default config;
