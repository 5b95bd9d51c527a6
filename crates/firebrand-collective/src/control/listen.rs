use std::net::{SocketAddr, TcpListener};

use crate::{Error, Result};

/// Listens at one address, whose port may be 0 for any free one. `what` is who listens, such as `the rendezvous store`.
///
/// # Errors
///
/// If the port is taken, the address is not of this machine, or it stands for all interfaces.
pub(crate) fn listen(address: SocketAddr, what: &str) -> Result<TcpListener> {
    refuse_all_interfaces(address, what)?;
    TcpListener::bind(address).map_err(|error| Error::Connect {
        what: format!("{what} cannot listen at {address}"),
        reason: match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "port {} is taken by another process; end that process, or choose another port (0 takes any free one)",
                address.port()
            ),
            std::io::ErrorKind::AddrNotAvailable => format!(
                "{} is no address of this machine; choose one that `ip address` lists",
                address.ip()
            ),
            std::io::ErrorKind::PermissionDenied => {
                format!("port {} needs privileges; choose one from 1024", address.port())
            }
            _ => error.to_string(),
        },
    })
}

/// The address of a socket that listens already.
///
/// # Errors
///
/// If it listens on all interfaces.
pub(crate) fn check_listener(listener: &TcpListener, what: &str) -> Result<SocketAddr> {
    let address = listener
        .local_addr()
        .map_err(|error| Error::system(format!("the address of {what} is not known"), error))?;
    refuse_all_interfaces(address, what)?;
    Ok(address)
}

fn refuse_all_interfaces(address: SocketAddr, what: &str) -> Result<()> {
    if address.ip().is_unspecified() {
        return Err(Error::argument(format!(
            "{what} does not listen on all interfaces ({address}): give the address of the one by which the ranks reach it"
        )));
    }
    Ok(())
}
