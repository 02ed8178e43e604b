// Where Capacitor's tools find the app. Its local server serves webDir: capacitor://localhost on iOS, https://localhost on Android.

const config = { appId: "org.nearfar.example", appName: "nearfar", webDir: "www" };

export default config;
