package android.content;

import java.io.File;

/** The signatures of Android's class that the sources use. */
public abstract class Context {
    public abstract File getFilesDir();

    public abstract Context getApplicationContext();
}
