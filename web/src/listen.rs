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
