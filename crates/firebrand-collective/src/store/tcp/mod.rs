//! The store over TCP: one process serves a [`MemoryStore`](super::MemoryStore), all others are its clients.

mod client;
mod protocol;
mod server;
mod session;
#[cfg(test)]
mod tests;

pub use client::TcpStore;
pub use server::{StoreLimits, StoreServer};
