//! The accept loop: a bound on connections, deadlines on heads and answers, and an end that lets answers finish.

use std::{future::Future, io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::DefaultBodyLimit,
    http::{Request, Response, StatusCode},
};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tracing::{debug, warn};

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

/// Serves HTTP/1.1 until `shutdown` is done; then takes no more, lets answers finish for at most `limits.grace` and returns.
///
/// An error of one connection ends that connection only.
pub async fn serve_with(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = router.layer(DefaultBodyLimit::max(limits.body_bytes));
    let room = Arc::new(Semaphore::new(limits.connections));
    let (ending, _) = watch::channel(false);
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
                let connection = connection(stream, router.clone(), limits.clone(), ending.subscribe());
                tokio::spawn(async move {
                    if let Err(err) = connection.await {
                        debug!(%peer, %err, "connection ended");
                    }
                    drop(permit);
                });
            }
            Err(err) => {
                // Out of files, or the peer was gone before we took it: neither may end the server or spin it.
                warn!(%err, "cannot take a connection");
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

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    mut ending: watch::Receiver<bool>,
) -> Result<(), hyper::Error> {
    let _ = stream.set_nodelay(true);
    let answers = TowerToHyperService::new(router);
    let answer_timeout = limits.answer_timeout;
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let answer = answers.call(request.map(Body::new));
        async move {
            match tokio::time::timeout(answer_timeout, answer).await {
                Ok(Ok(response)) if response.extensions().get::<HangUp>().is_some() => Err(HungUp),
                Ok(Ok(response)) => Ok(response),
                Ok(Err(never)) => match never {},
                Err(_) => {
                    let mut late = Response::new(Body::from("no answer in time\n"));
                    *late.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    Ok(late)
                }
            }
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        done = &mut serving => done,
        () = async { drop(ending.wait_for(|ending| *ending).await) } => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the connection was closed on purpose")]
struct HungUp;
