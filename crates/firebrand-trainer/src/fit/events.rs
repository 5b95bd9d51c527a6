use firebrand_core::Result;

use crate::Error;
use crate::callbacks::{Callback, Commands, View};

/// The callbacks of a trainer, in the order in which they are called.
#[derive(Default)]
pub(crate) struct Events {
    callbacks: Vec<Box<dyn Callback>>,
}

/// A method of [`Callback`] that takes a view and commands.
type Method = fn(&mut dyn Callback, &View<'_>, &mut Commands) -> Result<()>;

impl Events {
    /// Those that save checkpoints come last.
    pub(crate) fn new(mut callbacks: Vec<Box<dyn Callback>>) -> Self {
        callbacks.sort_by_key(|callback| callback.saves_checkpoints());
        Self { callbacks }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn Callback> {
        self.callbacks.iter().map(|callback| callback.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Callback>> {
        self.callbacks.iter_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.callbacks.is_empty()
    }

    pub(crate) fn saves_checkpoints(&self) -> bool {
        self.callbacks.iter().any(|callback| callback.saves_checkpoints())
    }

    /// Calls one method of every callback and collects what they want.
    pub(crate) fn call(
        &mut self,
        event: &'static str,
        method: Method,
        view: &View<'_>,
    ) -> Result<Commands, Error> {
        let mut commands = Commands::default();
        for callback in &mut self.callbacks {
            method(callback.as_mut(), view, &mut commands).map_err(|source| Error::Callback {
                name: callback.name(),
                event,
                source,
            })?;
        }
        Ok(commands)
    }
}

/// What callbacks see now. A macro, since a method would borrow all of the loop.
macro_rules! view {
    ($self:ident, $stage:expr, $update:expr) => {
        $crate::callbacks::View {
            config: $self.parts.config,
            stage: $stage,
            epoch: $self.counters.epoch,
            global_step: $self.counters.global_step,
            batches_in_epoch: $self.counters.batches_in_epoch,
            num_training_batches: $self.num_training_batches,
            metrics: &$self.metrics,
            learning_rates: &$self.rates,
            module: $self.module.as_ref(),
            table: $self.engine.table(),
            trained: &|index| $self.engine.is_trained(index),
            update: $update,
            elapsed: std::time::Duration::from_millis($self.counters.elapsed_ms),
            run: $self.parts.run.as_ref(),
            is_global_zero: $self.parts.world.is_global_zero(),
        }
    };
}

/// Lets every callback see an event and does what they want.
macro_rules! callbacks {
    ($self:ident, $method:ident, $stage:expr, $update:expr) => {{
        let commands = if $self.parts.events.is_empty() {
            $crate::callbacks::Commands::default()
        } else {
            let view = $crate::fit::events::view!($self, $stage, $update);
            let method =
                |callback: &mut dyn $crate::callbacks::Callback,
                 view: &$crate::callbacks::View<'_>,
                 commands: &mut $crate::callbacks::Commands| callback.$method(view, commands);
            $self.parts.events.call(stringify!($method), method, &view)?
        };
        $self.obey(commands)?
    }};
}

/// Calls a hook of the module with a context of its own; what it logs counts as one value of the epoch.
macro_rules! module_hook {
    ($self:ident, $hook:ident) => {{
        let mut step = $self.context(0);
        let _span = $self.parts.profiler.span(stringify!($hook));
        $self
            .module
            .$hook(&mut step)
            .map_err(|source| $self.hook_failed(stringify!($hook), source))?;
        $self.add_logs(step.take_logs(), 1.0)?;
    }};
}

pub(super) use {callbacks, module_hook, view};
