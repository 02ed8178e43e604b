// Passes the end of downloads in the background to BundleDownloads: iOS starts the app for it.

import ExpoModulesCore
import UIKit

public class NearfarAppDelegate: ExpoAppDelegateSubscriber {
    public func application(
        _: UIApplication, handleEventsForBackgroundURLSession identifier: String,
        completionHandler: @escaping () -> Void
    ) {
        // Expo waits for all of its subscribers.
        let isOurs = BundleDownloads.shared.handleEvents(of: identifier, completion: completionHandler)
        if !isOurs { completionHandler() }
    }
}
