//! The accept loop: a bound on connections, deadlines on handshakes, heads, answers and their readers, and an end that lets
//! answers finish.

use std::{future::Future, io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::DefaultBodyLimit,
    http::{HeaderMap, Request, Response, StatusCode},
};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{debug, info, warn};

use crate::{
    guard::{Guard, said},
    paced::Paced,
};

/// What a client may use up.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at one time; more wait in the listener's backlog.
    pub connections: usize,
    /// Time in which the head of a request must have come, also for the next request of a kept connection.
    pub header_timeout: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Time in which a handler must have begun its answer; 503 after that.
    pub answer_timeout: Duration,
    /// Time in which a TLS handshake must be done.
    pub handshake_timeout: Duration,
    /// Time in which a client must take more of its answer (16 KiB, or all that is left); it is cut off after that.
    pub write_timeout: Duration,
    /// Time that running answers get once the server ends.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            header_timeout: Duration::from_secs(30),
            head_bytes: 16 * 1024,
            body_bytes: 1024 * 1024,
            answer_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            grace: Duration::from_secs(5),
        }
    }
}

/// Response extension: send nothing and close the connection, as a process that dies does.
#[derive(Clone, Copy, Debug)]
pub struct HangUp;

/// [`serve_with`] the default [`Limits`].
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    serve_with(listener, router, Limits::default(), shutdown).await
}

/// [`serve_guarded`] by a guard that lets everyone in.
pub async fn serve_with(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_guarded(listener, router, limits, Guard::default(), shutdown).await
}

/// Serves HTTP/1.1 to whom `guard` lets in, all paths alike, until `shutdown` is done; then takes no more, lets answers finish for
/// at most `limits.grace` and returns.
///
/// An error of one connection ends that connection only.
pub async fn serve_guarded(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    guard: Guard,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = router.layer(DefaultBodyLimit::max(limits.body_bytes));
    let room = Arc::new(Semaphore::new(limits.connections));
    let (ending, _) = watch::channel(false);
    let mut untaken = Untaken::default();
    tokio::pin!(shutdown);
    loop {
        let permit = tokio::select! {
            biased;
            () = &mut shutdown => break,
            permit = room.clone().acquire_owned() => permit.expect("the semaphore is never closed"),
        };
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                untaken.went_well();
                let connection = Connection { router: router.clone(), limits: limits.clone(), guard: guard.clone() };
                let ending = ending.subscribe();
                tokio::spawn(async move {
                    if let Err(err) = connection.run(stream, ending).await {
                        debug!(%peer, %err, "connection ended");
                    }
                    drop(permit);
                });
            }
            Err(err) => {
                // Out of files, or the peer was gone before we took it: neither may end the server or spin it.
                untaken.failed(&err);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let _ = ending.send(true);
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    if tokio::time::timeout(limits.grace, room.acquire_many(all)).await.is_err() {
        warn!(grace = ?limits.grace, "answers were still running at the end of the grace");
    }
    Ok(())
}

/// Tries in a row that took no connection: the first is told, and that it goes well again.
#[derive(Debug, Default)]
struct Untaken(u64);

impl Untaken {
    /// Whether it was told.
    fn failed(&mut self, err: &io::Error) -> bool {
        self.0 += 1;
        let first = self.0 == 1;
        if first {
            warn!(%err, "cannot take connections; tries go on, the next line of this says when it goes well again");
        }
        first
    }

    /// Whether it was told.
    fn went_well(&mut self) -> bool {
        let tries = std::mem::take(&mut self.0);
        if tries > 0 {
            info!(tries, "takes connections again");
        }
        tries > 0
    }
}

/// What one connection needs.
struct Connection {
    router: Router,
    limits: Limits,
    guard: Guard,
}

#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("no TLS: {0}")]
    Handshake(#[source] io::Error),
    #[error("no TLS handshake in time")]
    LateHandshake,
    #[error("plain HTTP on a port of TLS")]
    PlainHttp,
    #[error("{0}")]
    Http(#[source] hyper::Error),
}

impl Connection {
    async fn run(self, stream: TcpStream, mut ending: watch::Receiver<bool>) -> Result<(), ConnectionError> {
        let _ = stream.set_nodelay(true);
        let tls = match self.guard.config().await {
            Some(config) => config.tls.clone(),
            None => None,
        };
        let Some(tls) = tls else {
            let stream = self.paced(stream);
            return self.answer(stream, ending).await;
        };
        let handshake = tokio::time::timeout(self.limits.handshake_timeout, self.handshake(stream, tls.into()));
        let shaken = tokio::select! {
            shaken = handshake => shaken,
            () = ended(&mut ending) => return Ok(()),
        };
        match shaken {
            Ok(Ok(Some(stream))) => self.answer(stream, ending).await,
            Ok(Ok(None)) => Ok(()),
            Ok(Err(err)) => Err(err),
            Err(_) => {
                self.guard.refused.late_handshake.inc();
                Err(ConnectionError::LateHandshake)
            }
        }
    }

    fn paced(&self, stream: TcpStream) -> Paced<TcpStream> {
        Paced::new(stream, self.limits.write_timeout, self.guard.refused.too_slow.clone())
    }

    /// The stream inside TLS; none where the peer left without a word, as those do that only ask whether the port is open.
    async fn handshake(
        &self,
        mut stream: TcpStream,
        acceptor: TlsAcceptor,
    ) -> Result<Option<TlsStream<Paced<TcpStream>>>, ConnectionError> {
        const HANDSHAKE: u8 = 0x16; // first byte of every TLS connection; no letter, so of no HTTP request
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(0) => return Ok(None),
            Ok(_) if first[0].is_ascii_uppercase() => {
                self.guard.refused.plain_http.inc();
                say_tls_is_needed(&mut stream).await;
                return Err(ConnectionError::PlainHttp);
            }
            Ok(_) if first[0] != HANDSHAKE => {
                self.guard.refused.tls_handshake.inc();
                return Err(ConnectionError::Handshake(io::Error::new(io::ErrorKind::InvalidData, "the first byte is not TLS")));
            }
            Ok(_) => {}
            Err(err) => return Err(ConnectionError::Handshake(err)),
        }
        acceptor.accept(self.paced(stream)).await.map(Some).map_err(|err| {
            self.guard.refused.tls_handshake.inc();
            ConnectionError::Handshake(err)
        })
    }

    async fn answer<S>(self, stream: S, mut ending: watch::Receiver<bool>) -> Result<(), ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { router, limits, guard } = self;
        let answers = TowerToHyperService::new(router);
        let answer_timeout = limits.answer_timeout;
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (answers, guard) = (answers.clone(), guard.clone());
            async move {
                let config = guard.config().await;
                let answer = async {
                    let refusal = match &config {
                        Some(config) => guard.refusal(config, request.headers()).await,
                        None => None,
                    };
                    match refusal {
                        Some(refusal) => refusal,
                        None => match answers.call(request.map(Body::new)).await {
                            Ok(response) => response,
                            Err(never) => match never {},
                        },
                    }
                };
                let mut response = match tokio::time::timeout(answer_timeout, answer).await {
                    Ok(response) if response.extensions().get::<HangUp>().is_some() => return Err(HungUp),
                    Ok(response) => response,
                    Err(_) => {
                        guard.refused.late_answer.inc();
                        said(StatusCode::SERVICE_UNAVAILABLE, "no answer in time\n")
                    }
                };
                let headers = config.iter().flat_map(|config| config.headers.iter().cloned());
                response.headers_mut().extend(headers.collect::<HeaderMap>());
                Ok::<Response<Body>, HungUp>(response)
            }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(limits.head_bytes)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(serving);
        let served = tokio::select! {
            done = &mut serving => done,
            () = ended(&mut ending) => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        served.map_err(ConnectionError::Http)
    }
}

async fn ended(ending: &mut watch::Receiver<bool>) {
    drop(ending.wait_for(|ending| *ending).await);
}

/// Answers a request that came without TLS, as Go's server does.
async fn say_tls_is_needed(stream: &mut TcpStream) {
    const ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
        this port speaks HTTPS; ask for https://\n";
    const REST_BYTES: u64 = 64 * 1024;
    // What fails here fails for a peer that is refused anyway. Its request is read, for a socket closed with bytes unread is
    // reset, which can take our answer along; the deadline is the handshake's.
    if stream.write_all(ANSWER).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream.take(REST_BYTES), &mut tokio::io::sink()).await;
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the connection was closed on purpose")]
struct HungUp;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_files_is_told_once_until_it_goes_well() {
        let mut untaken = Untaken::default();
        let told = |untaken: &mut Untaken| untaken.failed(&io::ErrorKind::Other.into());
        assert!(!untaken.went_well());
        assert_eq!([told(&mut untaken), told(&mut untaken), told(&mut untaken)], [true, false, false]);
        assert_eq!([untaken.went_well(), untaken.went_well()], [true, false]);
        assert!(told(&mut untaken));
    }
}
