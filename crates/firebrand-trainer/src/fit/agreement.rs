//! What ranks tell each other with every update, so that all do the same without waiting for one another another time: whether a
//! signal came, and the clock of the first rank.

use super::fit_loop::FitLoop;
use crate::signals::{Interrupt, SignalGuard};

/// What this rank says: whether it was asked to end, by which signal, and the time if it is the first.
pub(super) fn said(signals: &SignalGuard, is_global_zero: bool, elapsed: u64) -> Vec<f64> {
    let asked = |signal: Interrupt| f64::from(u8::from(signals.requested() == Some(signal)));
    let clock = if is_global_zero { elapsed as f64 } else { 0.0 };
    vec![asked(Interrupt::Terminate), asked(Interrupt::Keyboard), clock]
}

impl FitLoop<'_> {
    /// Takes over what all ranks said with an update.
    pub(super) fn hear(&mut self) {
        let &[terminate, keyboard, clock] = self.engine.notes() else {
            return;
        };
        if terminate > 0.0 {
            self.interrupt = Some(Interrupt::Terminate);
        } else if keyboard > 0.0 {
            self.interrupt = Some(Interrupt::Keyboard);
        }
        if self.parts.world.size() > 1 {
            self.counters.elapsed_ms = clock as u64;
        }
    }

    /// The signal that is to be obeyed now. A rank that is alone need not wait for the others to know of it.
    pub(super) fn interrupted(&self) -> Option<Interrupt> {
        if self.parts.world.size() > 1 {
            return self.interrupt;
        }
        self.signals.requested()
    }
}
