//! Where a server listens: loopback, unless the operator says otherwise.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

use tokio::net::TcpListener;

/// An address to listen on. `9400` is that port on loopback; `:9400` that port on every interface, as Go programs write it;
/// anything else is an address with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The text is no address.
    #[error("`{0}` is no address to listen on; give a port (9400: loopback only), `:9400` (every interface) or `10.0.0.5:9400`")]
    BadAddress(String),
    /// The operating system refuses.
    #[error("cannot listen on {address}; is another program on that port?")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// What the system says.
        #[source]
        err: io::Error,
    },
    /// systemd handed over no socket, several, or another kind.
    #[error("no socket of systemd: {problem}")]
    Systemd {
        /// What is wrong, and the next step.
        problem: String,
        /// What the system says, where it was asked.
        #[source]
        err: Option<io::Error>,
    },
}

impl FromStr for Address {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let on = |ip: Ipv4Addr, port: &str| port.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(ip), port));
        let address = match text.strip_prefix(':') {
            Some(port) => on(Ipv4Addr::UNSPECIFIED, port),
            None => on(Ipv4Addr::LOCALHOST, text).or_else(|| text.parse().ok()),
        };
        address.map(Self).ok_or_else(|| ListenError::BadAddress(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A listener on `address`; port 0 takes a free one.
pub async fn listen(address: Address) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address.0).await.map_err(|err| ListenError::Bind { address: address.0, err })
}

/// The one TCP listener that systemd hands over (socket activation: `LISTEN_FDS`, `LISTEN_PID`). Once a process: the sockets are
/// taken out of the environment.
pub fn listen_systemd() -> Result<TcpListener, ListenError> {
    let wrong = |problem: &str| ListenError::Systemd { problem: problem.to_owned(), err: None };
    let mut sockets = listenfd::ListenFd::from_env();
    match sockets.len() {
        0 => {
            return Err(wrong(
                "LISTEN_FDS and LISTEN_PID name none for this process; start it by its .socket unit, or give an address",
            ));
        }
        1 => {}
        n => return Err(wrong(&format!("the .socket unit has {n} sockets; leave one ListenStream= in it"))),
    }
    let failed = |err| {
        let problem =
            "it is no TCP listener; the .socket unit needs ListenStream= with a port or an address and a port".to_owned();
        ListenError::Systemd { problem, err: Some(err) }
    };
    let listener = sockets.take_tcp_listener(0).map_err(failed)?.ok_or_else(|| wrong("it was taken before; ask for it once"))?;
    listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)).map_err(failed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_bare_port_is_loopback_only() {
        for (text, means) in
            [("9400", "127.0.0.1:9400"), (":9400", "0.0.0.0:9400"), ("10.0.0.5:80", "10.0.0.5:80"), ("[::1]:80", "[::1]:80")]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), means);
        }
        for text in ["", "localhost", "70000", "9400x", "::1"] {
            let said = text.parse::<Address>().unwrap_err().to_string();
            assert!(said.contains("no address to listen on"), "{said}");
        }
    }
}
