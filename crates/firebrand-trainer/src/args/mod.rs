//! The options of a trainer on the command line and in a configuration file.

mod apply;
mod file;
mod options;
mod trainer_args;
mod values;

pub use trainer_args::TrainerArgs;

#[cfg(test)]
mod tests;
