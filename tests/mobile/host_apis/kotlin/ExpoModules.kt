// The signatures of expo-modules-core 58.1.0 that the module uses.
package expo.modules.kotlin.modules

import expo.modules.kotlin.AppContext
import expo.modules.kotlin.functions.AsyncFunctionBuilder

abstract class Module {
    val appContext: AppContext get() = throw UnsupportedOperationException()

    abstract fun definition(): ModuleDefinitionData

    fun sendEvent(name: String, body: Map<String, Any?>) = Unit
}

class ModuleDefinitionData

class ModuleDefinitionBuilder {
    fun Name(name: String) = Unit

    fun Events(vararg events: String) = Unit

    fun AsyncFunction(name: String) = AsyncFunctionBuilder(name)

    inline fun OnDestroy(crossinline body: () -> Unit) = Unit
}

inline fun Module.ModuleDefinition(crossinline block: ModuleDefinitionBuilder.() -> Unit) =
    ModuleDefinitionBuilder().also { it.block() }.let { ModuleDefinitionData() }
