//! Ranks that are threads of this process: each has a trainer of its own, and makes a module of its own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use firebrand_collective::{Error as Collective, Topology};
use firebrand_core::{ErasedModule, ErrorChain};
use firebrand_launch::{JoinOptions, ThreadRanks, Ticket, environment_variable};

use crate::accelerator::Chosen;
use crate::callbacks::Callback;
use crate::fit::FitReport;
use crate::world::World;
use crate::{Error, Trainer, TrainerConfig};

/// Makes a callback for a rank.
pub(crate) type CallbackFactory = Arc<dyn Fn() -> Box<dyn Callback> + Send + Sync>;

/// What a fit gives back.
type Trained = (Box<dyn ErasedModule>, FitReport);

/// What every rank does with its trainer.
pub(crate) type Program = Arc<dyn Fn(&mut Trainer) -> Result<Trained, Error> + Send + Sync>;

/// What the trainer of a rank is made from.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub config: TrainerConfig,
    pub callbacks: Vec<CallbackFactory>,
    pub hyper_parameters: toml::Table,
}

impl Recipe {
    fn trainer(&self, world: World) -> Result<Trainer, Error> {
        let callbacks = self.callbacks.iter().map(|make| make()).collect();
        let (config, parameters) = (self.config.clone(), self.hyper_parameters.clone());
        let local_rank = world.topology().local_rank;
        let chosen = Chosen::for_rank(config.accelerator, config.precision, local_rank)?;
        Trainer::new(world, chosen, config, callbacks, None, None, parameters)
    }
}

/// The ranks of a trainer that are threads. The first is whichever thread calls the trainer; the others live for one fit.
pub(crate) struct Team {
    ranks: ThreadRanks,
    topology: Topology,
    options: JoinOptions,
    recipe: Recipe,
    /// The trainers of the other ranks between two fits, with what their callbacks know.
    trainers: Vec<Option<Trainer>>,
}

/// What came of another rank: its trainer, unless it panicked.
type End = (Option<Trainer>, Result<(), Error>);

impl Team {
    pub(crate) fn new(num_ranks: usize, recipe: Recipe) -> Result<Self, Error> {
        let ranks = ThreadRanks::new(num_ranks)?;
        let first = ranks.topologies().next().cloned();
        let topology = first.unwrap_or(Topology::single());
        Ok(Self {
            options: JoinOptions::from_environment(&environment_variable)?,
            trainers: (1..topology.world_size).map(|_| None).collect(),
            topology,
            ranks,
            recipe,
        })
    }

    /// Who the first rank is.
    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Lets every rank run the program, the first one here. Nothing of it is left running when this returns, unless a rank
    /// does not come back from the user's code: then its thread is left behind, since nothing can end it. A panic here is `Err`.
    pub(crate) fn run(
        &mut self,
        first: &mut Trainer,
        program: &Program,
    ) -> std::thread::Result<Result<Trained, Error>> {
        let mut tickets = self.ranks.tickets(self.options).into_iter();
        let mine = tickets.next();
        let (tell, told) = channel();
        for (ticket, seat) in tickets.zip(&mut self.trainers) {
            let rank = ticket.topology().global_rank;
            let (trainer, recipe, program) = (seat.take(), self.recipe.clone(), Arc::clone(program));
            let tell = tell.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn(move || {
                    let end = quietly(|| other_rank(ticket, trainer, &recipe, &program));
                    // The first rank may have given up.
                    let _ = tell.send((rank, end));
                });
            // Its ticket is dropped, which the ranks before it hear of.
            if let Err(error) = spawned {
                return Ok(Err(Error::Launch(firebrand_launch::Error::System {
                    what: format!("the thread of rank {rank} could not be started"),
                    reason: error.to_string(),
                })));
            }
        }
        let Some(mine) = mine else {
            return Ok(program(first));
        };
        let outcome = as_rank(mine, |world| {
            first.enter(world);
            program(first)
        });
        first.enter(World::single());
        let in_order = matches!(&outcome, Ok(Ok(_) | Err(Error::Interrupted { .. })));
        let patience = match in_order {
            true => self.options.timeout,
            false => self.options.silence,
        };
        let others = self.gather(&told, patience);
        outcome.map(|outcome| outcome.and_then(|trained| others.map(|()| trained)))
    }

    /// Waits for the other ranks; returns the first error among them.
    fn gather(&mut self, told: &Receiver<(usize, End)>, patience: Duration) -> Result<(), Error> {
        let begun = Instant::now();
        let mut outcome = Ok(());
        let mut missing: Vec<usize> = (1..=self.trainers.len()).collect();
        while !missing.is_empty() {
            let Ok((rank, (trainer, end))) = told.recv_timeout(patience.saturating_sub(begun.elapsed()))
            else {
                tracing::warn!(
                    "the ranks {missing:?} do not come back from what they do; their threads are left behind"
                );
                let late = Collective::Timeout {
                    operation: "the end of the fit".to_owned(),
                    waiting_for: missing,
                    after: patience,
                };
                return outcome.and(Err(late.into()));
            };
            missing.retain(|other| *other != rank);
            if let Some(seat) = self.trainers.get_mut(rank - 1) {
                *seat = trainer;
            }
            let end = end.map_err(|error| match error.of_ranks() {
                Some(_) => error,
                None => {
                    let cause = ErrorChain(&error).to_string();
                    if !matches!(error, Error::Interrupted { .. }) {
                        // It may know more than what the first rank has heard of it.
                        tracing::error!("rank {rank}: {cause}");
                    }
                    failed(rank, cause)
                }
            });
            outcome = outcome.and(end);
        }
        outcome
    }
}

fn failed(rank: usize, cause: String) -> Error {
    Collective::RankFailed { rank, cause }.into()
}

/// Runs the program as a rank other than the first.
fn other_rank(ticket: Ticket, mut trainer: Option<Trainer>, recipe: &Recipe, program: &Program) -> End {
    let rank = ticket.topology().global_rank;
    let outcome = as_rank(ticket, |world| {
        let trainer = match &mut trainer {
            Some(trainer) => {
                trainer.enter(world);
                trainer
            }
            none => none.insert(recipe.trainer(world)?),
        };
        program(trainer).map(drop)
    });
    match outcome {
        Ok(outcome) => {
            if let Some(trainer) = &mut trainer {
                trainer.enter(World::single());
            }
            (trainer, outcome)
        }
        // Who knows what state it is in.
        Err(panic) => (None, Err(failed(rank, told_by(panic.as_ref())))),
    }
}

/// Does something as one rank. The others hear of its error or panic, which is `Err`.
fn as_rank<T>(
    ticket: Ticket,
    run: impl FnOnce(World) -> Result<T, Error>,
) -> std::thread::Result<Result<T, Error>> {
    let session = match ticket.join() {
        Ok(session) => Arc::new(session),
        Err(error) => return Ok(Err(error.into())),
    };
    let world = World::of(Arc::clone(&session));
    let outcome = catch_unwind(AssertUnwindSafe(|| run(world.clone())));
    match outcome {
        Ok(outcome) => Ok(world.reported(outcome)),
        Err(panic) => {
            session.fail(&told_by(panic.as_ref()));
            Err(panic)
        }
    }
}

/// What a panic says.
fn told_by(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    match text.or_else(|| panic.downcast_ref::<String>().cloned()) {
        Some(text) => format!("it panicked: {text}"),
        None => "it panicked".to_owned(),
    }
}

/// Without the log of this thread, so that what every rank would say is said once, by the first.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), run)
}
