// A download as JavaScript describes it (mobile/native/src/native_downloads.ts), and where its files are.

package org.nearfar.downloads

import org.json.JSONObject
import java.io.File

/** The folder of all bundles. @nearfar/react-native has its files there, too. */
class BundleFolders(filesDir: File) {
    val root = File(filesDir, "nearfar")

    fun bundle(id: String) = File(root, checked(id))

    /** The text of a job; a worker's input may have only 10 kB. */
    fun job(id: String) = File(root, "jobs/${checked(id)}.json")

    /** The manifest of the bundle at an address. */
    fun record(name: String) = File(root, "${checked(name)}.json")

    private fun checked(name: String): String {
        if (!name.matches(Regex("[0-9a-f]{64}"))) throw DownloadException("request_error", "$name: is not a SHA-256")
        return name
    }
}

class DownloadJob(text: String) {
    private val json = JSONObject(text)
    val id: String = json.getString("id")
    val wifiOnly = json.optBoolean("wifiOnly")
    val entries: List<FileEntry> = json.getJSONArray("files").let { files ->
        List(files.length()) { index ->
            val file = files.getJSONObject(index)
            checkName(file.getString("file"))
            val size = if (file.isNull("size")) null else file.getLong("size")
            FileEntry(file.getString("url"), file.getString("file"), size, file.getString("sha256"))
        }
    }

    /** Makes the complete bundle known. The manifest comes last: a folder that has it is complete. */
    fun finish(folders: BundleFolders) {
        val manifest = if (json.isNull("manifest")) null else json.getString("manifest")
        if (manifest != null) {
            replace(File(folders.bundle(id), "manifest.json"), manifest)
            replace(folders.record(json.getString("record")), manifest)
        }
        folders.job(id).delete()
    }
}

/** Replaces a file atomically. */
internal fun replace(file: File, text: String) {
    file.parentFile?.mkdirs()
    val part = File("${file.path}.part")
    part.writeText(text)
    if (!part.renameTo(file)) throw DownloadException("storage_error", "${file.path}: cannot be replaced")
}
