use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::report::Report;

pub fn examine(report: &mut Report) {
    report.section("Network");
    match if_addrs::get_if_addrs() {
        Ok(mut interfaces) => {
            interfaces.sort_by(|a, b| (&a.name, a.ip()).cmp(&(&b.name, b.ip())));
            for interface in &interfaces {
                let kind = if interface.is_loopback() {
                    " (this machine only)"
                } else {
                    ""
                };
                report.fact(interface.name.clone(), format!("{}{kind}", interface.ip()));
            }
            if !interfaces.iter().any(if_addrs::Interface::is_loopback) {
                report.problem(
                    "there is no loopback interface, by which the ranks of one machine meet",
                    "run `ip link set lo up`",
                );
            }
            if interfaces.iter().all(if_addrs::Interface::is_loopback) {
                report.fact(
                    "other machines",
                    "none can be reached: there is no interface but loopback",
                );
            }
        }
        Err(error) => report.problem(
            format!("the network interfaces cannot be listed: {error}"),
            "allow netlink sockets in the container",
        ),
    }
    let local = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| {
        let address = listener.local_addr()?;
        TcpStream::connect_timeout(&address, std::time::Duration::from_secs(2))
    });
    match local {
        Ok(_) => report.fact("127.0.0.1", "connections work"),
        Err(error) => report.problem(
            format!("a connection to 127.0.0.1 fails: {error}"),
            "run `ip link set lo up`, and see that no firewall closes loopback",
        ),
    }
}
