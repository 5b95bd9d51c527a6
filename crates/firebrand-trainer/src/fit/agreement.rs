//! What ranks tell each other with every update, so that all do the same without waiting for one another another time: whether a
//! signal came, the clock of the first rank, and what became of the checkpoints that it writes.

use super::fit_loop::FitLoop;
use crate::signals::Interrupt;

impl FitLoop<'_> {
    /// What this rank says with the next update.
    pub(super) fn said(&self) -> Vec<f64> {
        let asked = |signal: Interrupt| f64::from(u8::from(self.signals.requested() == Some(signal)));
        let (clock, written, failed) = if self.parts.world.is_global_zero() {
            let (written, failed) = self.unsettled();
            (self.elapsed() as f64, f64::from(written), failed as f64)
        } else {
            (0.0, 0.0, 0.0)
        };
        vec![
            asked(Interrupt::Terminate),
            asked(Interrupt::Keyboard),
            asked(Interrupt::Requeue),
            clock,
            written,
            failed,
        ]
    }

    /// Takes over what all ranks said with an update.
    pub(super) fn hear(&mut self) {
        let &[terminate, keyboard, requeue, clock, written, failed] = self.engine.notes() else {
            return;
        };
        if terminate > 0.0 {
            self.interrupt = Some(Interrupt::Terminate);
        } else if keyboard > 0.0 {
            self.interrupt = Some(Interrupt::Keyboard);
        } else if requeue > 0.0 {
            self.interrupt = Some(Interrupt::Requeue);
        }
        if self.parts.world.size() > 1 {
            self.counters.elapsed_ms = clock as u64;
            self.settle_told(written as u32, failed as u64);
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
