//! The store that torchrun's agent serves: PyTorch's `TCPStore`.

mod client;
mod stream;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;

pub use client::TorchStore;
