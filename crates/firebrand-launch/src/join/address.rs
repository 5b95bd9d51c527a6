//! Where the ranks find each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use crate::{Error, MasterAddress, Result};

/// The address of a host, an IPv4 one if it has both.
pub(super) fn resolve(master: &MasterAddress) -> Result<SocketAddr> {
    let found = (master.host.as_str(), master.port).to_socket_addrs();
    let mut found: Vec<SocketAddr> = found.map_err(|error| Error::host(master, &error))?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found
        .first()
        .copied()
        .ok_or_else(|| Error::host(master, &"it has no address"))
}

/// The own address that the way to another one begins at: by it, the others reach this process.
pub(super) fn reached_from(other: SocketAddr) -> Result<IpAddr> {
    let any: SocketAddr = match other {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Nothing is sent: the system only looks up the way.
    UdpSocket::bind(any)
        .and_then(|socket| {
            socket.connect(other)?;
            socket.local_addr()
        })
        .map(|address| address.ip())
        .map_err(|error| Error::no_way(other, &error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_this_machine_begins_at_it() {
        let here = reached_from(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9)).unwrap();
        assert_eq!(here, IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}
