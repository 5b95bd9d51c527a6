use firebrand_core::Result;

use super::{Callback, Commands, View};

type Event = Box<dyn FnMut(&View<'_>, &mut Commands) -> Result<()> + Send>;

/// A callback of closures, one per event, for a few lines that need no type of their own. It keeps no state.
///
/// ```
/// use firebrand_trainer::callbacks::Lambda;
///
/// let stop_early = Lambda::new("stop at 100").on_train_batch_end(|view, commands| {
///     if view.global_step == 100 {
///         commands.stop("a hundred updates are enough");
///     }
///     Ok(())
/// });
/// ```
#[must_use]
pub struct Lambda {
    name: String,
    fit_start: Option<Event>,
    fit_end: Option<Event>,
    train_epoch_start: Option<Event>,
    train_batch_end: Option<Event>,
    train_epoch_end: Option<Event>,
    evaluation_start: Option<Event>,
    evaluation_end: Option<Event>,
}

impl Lambda {
    /// A callback that does nothing yet, with a name for messages; two callbacks of a trainer must not share one.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            fit_start: None,
            fit_end: None,
            train_epoch_start: None,
            train_batch_end: None,
            train_epoch_end: None,
            evaluation_start: None,
            evaluation_end: None,
        }
    }
}

macro_rules! events {
    ($($event:ident $field:ident),+ $(,)?) => {
        impl Lambda {
            $(
                #[doc = concat!("Calls the closure in [`Callback::", stringify!($event), "`].")]
                pub fn $event(
                    mut self,
                    event: impl FnMut(&View<'_>, &mut Commands) -> Result<()> + Send + 'static,
                ) -> Self {
                    self.$field = Some(Box::new(event));
                    self
                }
            )+
        }

        impl Callback for Lambda {
            fn name(&self) -> String {
                self.name.clone()
            }

            $(
                fn $event(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
                    self.$field.as_mut().map_or(Ok(()), |event| event(view, commands))
                }
            )+
        }
    };
}

events!(
    on_fit_start fit_start,
    on_fit_end fit_end,
    on_train_epoch_start train_epoch_start,
    on_train_batch_end train_batch_end,
    on_train_epoch_end train_epoch_end,
    on_evaluation_start evaluation_start,
    on_evaluation_end evaluation_end,
);

impl std::fmt::Debug for Lambda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lambda({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::test_fixture::{Fixture, commands};

    #[test]
    fn each_event_calls_its_own_closure() {
        let mut lambda = Lambda::new("mine");
        let mut fixture = Fixture::new();
        assert!(
            commands(|commands| Callback::on_fit_start(&mut lambda, &fixture.view(), commands))
                .log
                .is_empty()
        );

        let log = |name: &'static str| {
            let mut calls = 0.0;
            move |_: &View<'_>, commands: &mut Commands| {
                calls += 1.0;
                commands.log(name, calls);
                Ok(())
            }
        };
        let mut lambda = lambda
            .on_fit_start(log("fit_start"))
            .on_fit_end(log("fit_end"))
            .on_train_epoch_start(log("epoch_start"))
            .on_train_batch_end(log("batch_end"))
            .on_train_epoch_end(log("epoch_end"))
            .on_evaluation_start(log("evaluation_start"))
            .on_evaluation_end(|_, _| Err("no".into()));
        type Method = fn(&mut Lambda, &View<'_>, &mut Commands) -> Result<()>;
        let events: [(&str, Method); 6] = [
            ("fit_start", Callback::on_fit_start),
            ("fit_end", Callback::on_fit_end),
            ("epoch_start", Callback::on_train_epoch_start),
            ("batch_end", Callback::on_train_batch_end),
            ("epoch_end", Callback::on_train_epoch_end),
            ("evaluation_start", Callback::on_evaluation_start),
        ];
        for calls in [1.0, 2.0] {
            for (name, event) in events {
                let commands = commands(|commands| event(&mut lambda, &fixture.view(), commands));
                assert_eq!(commands.log, [(name.to_owned(), calls)]);
            }
        }
        let error =
            Callback::on_evaluation_end(&mut lambda, &fixture.view(), &mut Commands::default()).unwrap_err();
        assert_eq!(error.to_string(), "no");
        assert_eq!(lambda.name(), "mine");
    }
}
