use std::fmt;

/// An error of any kind, as user code returns it from a step.
///
/// `?` turns every [`std::error::Error`], `String` and `&str` into one.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The result of user code: steps, hooks, samples.
pub type Result<T, E = BoxError> = std::result::Result<T, E>;

/// A broken contract between a module, its batches and the trainer.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two parameters have the same identity, as after cloning a layer.
    #[error(
        "the parameters '{first}' and '{second}' are clones of one parameter: only one of them would be trained. \
         Build the second layer with its own `init`, or declare the pair with `LightningModule::tied_parameters`"
    )]
    SharedParameter {
        /// The path that was visited first.
        first: String,
        /// The path that was visited second.
        second: String,
    },
    /// Two parameters share a path.
    #[error("two parameters have the path '{path}'; give the fields of the module different names")]
    DuplicatePath {
        /// The path that occurs twice.
        path: String,
    },
    /// A path names no parameter of the module.
    #[error("no parameter matches '{path}'; the module has {known}")]
    UnknownParameter {
        /// The path or pattern that was given.
        path: String,
        /// The paths that exist, shortened.
        known: String,
    },
    /// A parameter is of a kind that cannot be trained.
    #[error("the parameter '{path}' cannot be trained: {reason}")]
    Untrainable {
        /// The path of the parameter.
        path: String,
        /// Why it cannot be trained and what to do.
        reason: String,
    },
    /// A value for a parameter has another shape than the parameter.
    #[error("'{path}' has the shape {expected:?}, and the value for it has {found:?}")]
    ShapeMismatch {
        /// The path of the parameter or buffer.
        path: String,
        /// The shape in the module.
        expected: Vec<usize>,
        /// The shape of the value.
        found: Vec<usize>,
    },
    /// A value for a parameter has an unusable dtype.
    #[error("'{path}' holds {expected}, and the value for it holds {found}")]
    DTypeMismatch {
        /// The path of the parameter or buffer.
        path: String,
        /// The dtype in the module.
        expected: String,
        /// The dtype of the value.
        found: String,
    },
    /// A batch of another type than the module's was handed to it.
    #[error("the module takes batches of `{expected}`, and the data loader makes `{found}`")]
    BatchType {
        /// The batch type of the module.
        expected: &'static str,
        /// The batch type that arrived.
        found: &'static str,
    },
    /// The fields of one batch disagree about the number of samples.
    #[error(
        "the batch field '{field}' holds {found} samples, and the fields before it hold {expected}; mark a field \
         that is not per sample with `#[batch(shared)]`"
    )]
    BatchLength {
        /// The field that disagrees.
        field: &'static str,
        /// The number of samples in the fields before it.
        expected: usize,
        /// The number of samples in the field.
        found: usize,
    },
    /// A module lacks the step for what was asked of it.
    #[error("`{module}` does not implement `{method}`, which `{entry}` needs")]
    MissingStep {
        /// The type of the module.
        module: &'static str,
        /// The method to implement.
        method: &'static str,
        /// The entry point that needs it.
        entry: &'static str,
    },
    /// Metric states of different kinds were logged under one name.
    #[error("'{name}' was logged as {first} and then as {second}; give them different names")]
    MetricKind {
        /// The name of the metric.
        name: String,
        /// The kind that was logged first.
        first: String,
        /// The kind that was logged then.
        second: String,
    },
    /// A saved state does not fit what is to take it.
    #[error("the saved state of {what} cannot be used: {reason}")]
    State {
        /// What the state belongs to.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ErrorChain(self))
    }
}

/// Displays an error and its causes, one after the other: `cannot do this: because of that: since …`.
pub struct ErrorChain<'a>(pub &'a (dyn std::error::Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        f.write_str(&text)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            let next = cause.to_string();
            // A cause that its parent already spelled out is not repeated.
            if !text.contains(&next) {
                write!(f, ": {next}")?;
            }
            text = next;
            source = cause.source();
        }
        Ok(())
    }
}
