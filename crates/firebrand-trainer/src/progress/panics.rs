use std::panic;
use std::sync::Once;
use std::thread;

use super::terminal;

static INSTALL: Once = Once::new();

/// Sees to it that the message of a panic, on whatever thread, appears above the bars and stays: the hook that was there
/// writes it while they are suspended.
pub(super) fn install_panic_hook() {
    // A panicking thread may not change the hook.
    if thread::panicking() {
        return;
    }
    INSTALL.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| terminal::suspend(|| previous(info))));
    });
}
