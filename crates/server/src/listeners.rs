//! Listening sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use crate::config::ListenAddress;

/// Connections that may wait to be accepted: thousands of clients come back at the same moment after a restart. The kernel cuts it to `somaxconn`.
const BACKLOG: i32 = 4096;

/// Binds a listener. Must be called on the runtime.
///
/// # Errors
/// The system's: address in use, not permitted, not there.
pub(crate) fn bind(address: ListenAddress) -> io::Result<TcpListener> {
    match address {
        ListenAddress::Ip(address) => bind_to(address),
        ListenAddress::Any(port) => match bind_to((Ipv6Addr::UNSPECIFIED, port).into()) {
            // No IPv6 in this kernel or container. A port in use is an error in both families.
            Err(error)
                if error.kind() != io::ErrorKind::AddrInUse && error.kind() != io::ErrorKind::PermissionDenied =>
            {
                bind_to((Ipv4Addr::UNSPECIFIED, port).into())
            }
            bound => bound,
        },
    }
}

fn bind_to(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // "::" also takes IPv4, whatever the system's default is.
        socket.set_only_v6(false)?;
    }
    // A restarted node gets its port back while old connections linger.
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit it: a small delivery must not wait for the acknowledgement of the one before.
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// The addresses, as they are told when the node is ready.
pub(crate) fn describe(listeners: &[TcpListener]) -> String {
    let addresses: Vec<String> =
        listeners.iter().filter_map(|listener| listener.local_addr().ok()).map(|address| address.to_string()).collect();
    if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_interfaces_take_ipv4_too() {
        let listener = bind(ListenAddress::Any(0)).expect("a free port");
        let port = listener.local_addr().unwrap().port();
        let (client, accepted) =
            tokio::join!(tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)), listener.accept());
        assert!(client.is_ok());
        assert!(accepted.expect("accepted").0.nodelay().expect("readable"), "inherited from the listener");
    }

    #[tokio::test]
    async fn port_in_use_is_an_error_and_not_another_family() {
        let first = bind(ListenAddress::Any(0)).expect("a free port");
        let port = first.local_addr().unwrap().port();
        let error = bind(ListenAddress::Any(port)).expect_err("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(describe(&[]), "no address");
    }
}
