use firebrand_launch::environment_variable;
use firebrand_launch::slurm::{job_to_requeue, requeue};

use crate::Error;
use crate::callbacks::CheckpointRequest;
use crate::checkpoint::{Pointer, SaveOutcome, SaveRequest};
use crate::signals::Interrupt;

use super::counters::Counters;
use super::fit_loop::FitLoop;
use super::save::report_failure;

impl FitLoop<'_> {
    /// Between two updates, when everything that belongs to the first is done: checkpoints are taken and signals obeyed.
    pub(super) fn safe_point(&mut self) -> Result<(), Error> {
        self.take_checkpoints()?;
        self.poll_checkpoints();
        let Some(interrupt) = self.interrupted() else {
            return Ok(());
        };
        self.save_on_exit()?;
        self.flush_checkpoints();
        // No rank leaves before the checkpoint is on disk: a launcher ends the others when one has left.
        let told = (self.writer.is_some(), self.last.clone(), self.failed_saves);
        let told = self.parts.world.on_zero(|| Ok(told))?;
        let saved = match &told {
            (false, ..) => "no checkpoint was written, since checkpoints are off".to_owned(),
            (_, Some(last), 0) => format!("resume from {}", last.display()),
            (_, Some(last), _) => format!(
                "some checkpoints could not be written; the newest is {}",
                last.display()
            ),
            (_, None, _) => "its checkpoint could not be written".to_owned(),
        };
        if interrupt == Interrupt::Requeue && self.parts.world.is_global_zero() {
            // Its checkpoint is on disk: Slurm may end the job now and start it again.
            let job = job_to_requeue(&environment_variable).unwrap_or_default();
            requeue(&job)?;
            tracing::info!("job {job} is back in the queue");
        }
        Err(Error::Interrupted {
            signal: interrupt.name(),
            exit_code: interrupt.exit_code(),
            global_step: self.counters.global_step,
            saved,
        })
    }

    /// Saves where the run ends, unless that was done already, so that it can go on from there.
    pub(super) fn save_on_exit(&mut self) -> Result<(), Error> {
        if self.saved_at == Some(self.counters.total_batches) || self.counters.total_batches == 0 {
            return self.take_checkpoints();
        }
        self.requests.push(CheckpointRequest {
            last: true,
            ..CheckpointRequest::default()
        });
        self.take(true)
    }

    /// Takes the checkpoints that were asked for. The snapshot is made here, the files are written in the background.
    pub(super) fn take_checkpoints(&mut self) -> Result<(), Error> {
        self.take(false)
    }

    /// `on_exit` says that the checkpoint is there to go on from, and may go when the run has done so.
    fn take(&mut self, on_exit: bool) -> Result<(), Error> {
        let requests = std::mem::take(&mut self.requests);
        if requests.is_empty() {
            return Ok(());
        }
        if !self.parts.events.saves_checkpoints() {
            return Ok(());
        }
        self.parts.world.enter(|| "saving a checkpoint".to_owned());
        // What only rank 0 writes, all ranks have a part in.
        self.unite_buffers()?;
        let epoch_values = self.epoch_values.save_over(&self.parts.world)?;
        // What was logged before the checkpoint must be on disk before the checkpoint is: a resumed run does not log it again.
        self.parts.loggers.flush();
        let snapshot = self.writer.is_some().then(|| {
            let _span = self.parts.profiler.span("checkpoint_snapshot");
            self.saved().snapshot(on_exit, epoch_values)
        });
        self.saved_at = Some(self.counters.total_batches);
        let _span = self.parts.profiler.span("checkpoint_submit");
        let kept: Vec<String> = self
            .parts
            .events
            .iter()
            .flat_map(|callback| callback.kept_checkpoints())
            .collect();
        let joined = joined(requests, &self.counters);
        // One copy for each request, and none beyond that: a snapshot is as large as the model and its optimizer.
        for ((name, wanted), snapshot) in joined.iter().zip(std::iter::repeat_n(snapshot, joined.len())) {
            let mut save = snapshot.map(|snapshot| SaveRequest::new(name, snapshot));
            if wanted.last {
                save = save.map(|save| save.point(Pointer::Last));
            }
            if wanted.best {
                save = save.map(|save| save.point(Pointer::Best));
            }
            // It is what `last` points to until another one is.
            let outdated = if wanted.last {
                self.exit_checkpoint.take()
            } else {
                None
            };
            let names = wanted.remove.iter().filter_map(|path| path.file_name());
            let names = names
                .map(|name| name.to_string_lossy().into_owned())
                .chain(outdated);
            // Another callback may still count on what one lets go.
            for old in names.filter(|old| !kept.contains(old)) {
                save = save.map(|save| save.remove(old));
            }
            let Some(run) = &self.parts.run else { break };
            let path = run.checkpoints().join(name);
            if wanted.last {
                self.submitted_last = Some(path.clone());
            }
            if wanted.best {
                self.submitted_best = Some(path.clone());
            }
            self.submitted.push_back(path);
            if let Some((writer, save)) = self.writer.as_mut().zip(save) {
                let outcomes = writer.submit(save);
                self.take_outcomes(outcomes);
            }
        }
        self.enter_epoch();
        Ok(())
    }

    fn poll_checkpoints(&mut self) {
        if let Some(writer) = &mut self.writer {
            let outcomes = writer.poll();
            self.take_outcomes(outcomes);
        }
    }

    /// Waits until everything that was submitted is written.
    pub(super) fn flush_checkpoints(&mut self) {
        if let Some(writer) = &mut self.writer {
            let outcomes = writer.flush();
            self.take_outcomes(outcomes);
            self.settle_written();
        }
    }

    /// Takes what the writer has done, in the order in which it was asked to. A failure stops nothing.
    fn take_outcomes(&mut self, outcomes: Vec<SaveOutcome>) {
        for outcome in outcomes {
            if let Err(error) = &outcome.result {
                self.failed_saves += 1;
                report_failure(error);
            }
            self.written.push(outcome.result.is_ok());
        }
        // Several ranks must decide alike, so that all hear of it at the same update.
        if self.parts.world.size() == 1 {
            self.settle_written();
        }
    }

    /// What became of checkpoints and is not settled yet: how many, and which of them failed, the first in the lowest bit.
    pub(super) fn unsettled(&self) -> (u32, u64) {
        let told = self.written.iter().take(MOST_TOLD);
        let failed = told.clone().enumerate().filter(|(_, written)| !**written);
        let mask = failed.fold(0, |mask, (number, _)| mask | (1 << number));
        (told.count() as u32, mask)
    }

    /// Settles what rank 0 has told.
    pub(super) fn settle_told(&mut self, count: u32, failed: u64) {
        for number in 0..count {
            if !self.written.is_empty() {
                self.written.remove(0);
            }
            self.settle(failed & (1 << number) == 0);
        }
    }

    fn settle_written(&mut self) {
        for written in std::mem::take(&mut self.written) {
            self.settle(written);
        }
    }

    /// Tells the callbacks what became of the oldest checkpoint that they do not know of.
    fn settle(&mut self, written: bool) {
        let Some(path) = self.submitted.pop_front() else {
            return;
        };
        let callbacks = self.parts.events.iter_mut();
        if !written {
            callbacks.for_each(|callback| callback.on_checkpoint_failed(&path));
            return;
        }
        callbacks.for_each(|callback| callback.on_checkpoint_saved(&path));
        if self.submitted_last.as_ref() == Some(&path) {
            self.last = Some(path.clone());
        }
        if self.submitted_best.as_ref() == Some(&path) {
            self.best = Some(path);
        }
    }
}

/// Of how many checkpoints one update tells: what a float keeps exactly.
const MOST_TOLD: usize = 48;

/// Requests by name: several for one place become one.
fn joined(requests: Vec<CheckpointRequest>, counters: &Counters) -> Vec<(String, CheckpointRequest)> {
    let default_name = Counters::checkpoint_name(counters.last_epoch(), counters.global_step);
    let mut joined: Vec<(String, CheckpointRequest)> = Vec::new();
    for request in requests {
        let name = request.name.clone().unwrap_or_else(|| default_name.clone());
        match joined.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => {
                known.last |= request.last;
                known.best |= request.best;
                known.remove.extend(request.remove);
            }
            None => joined.push((name, request)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_one_place_are_one() {
        let counters = Counters {
            epoch: 3,
            global_step: 12,
            ..Counters::default()
        };
        let request = |last, best| CheckpointRequest {
            last,
            best,
            ..CheckpointRequest::default()
        };
        let named = CheckpointRequest {
            name: Some("kept".into()),
            ..CheckpointRequest::default()
        };
        let joined = joined(vec![request(true, false), named, request(false, true)], &counters);
        assert_eq!(joined.len(), 2);
        assert_eq!(joined[0].0, "epoch=002-step=000012");
        assert!(joined[0].1.last && joined[0].1.best);
        assert_eq!(joined[1].0, "kept");
    }
}
