// The signatures of Android's classes that the host uses.
package android.content

abstract class Context
