//! The server over real loopback sockets.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use axum::{Router, body::Bytes, extract::Extension, response::IntoResponse, routing};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use web::{Guard, HangUp, Limits, Metrics, Ready};

mod secure;
mod slow;
mod systemd;

struct Running {
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    done: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn start(router: Router, limits: Limits) -> Running {
    start_guarded(router, limits, Guard::default()).await
}

async fn start_guarded(router: Router, limits: Limits, guard: Guard) -> Running {
    let listener = web::listen("0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    assert!(address.ip().is_loopback());
    let (stop, stopped) = oneshot::channel();
    let shutdown = async { stopped.await.unwrap_or(()) };
    Running { address, stop, done: tokio::spawn(web::serve_guarded(listener, router, limits, guard, shutdown)) }
}

/// What comes back for `request` until the server closes.
async fn say(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

/// Waits until `done`, a minute at most.
async fn until<F: Future<Output = bool>>(what: &str, mut done: impl FnMut() -> F) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_ok(), "{what} did not come");
}

/// A line of `metrics`' page, by all but its value.
fn shown(metrics: &Metrics, series: &str) -> u64 {
    let page = metrics.render();
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}")).trim().parse().unwrap()
}

fn refused(metrics: &Metrics, reason: &str) -> u64 {
    shown(metrics, &format!("web_refused_total{{reason=\"{reason}\"}}"))
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    say(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
}

#[tokio::test]
async fn pages_say_health_readiness_and_metrics() {
    let (metrics, ready) = (Metrics::new(), Ready::new());
    metrics.counter("things_total", "things", &[]).add(7);
    let server = start(web::pages(metrics, ready.clone()), Limits::default()).await;
    assert!(get(server.address, "/-/healthy").await.starts_with("HTTP/1.1 200"));
    assert!(get(server.address, "/-/ready").await.starts_with("HTTP/1.1 503"));
    ready.set(true);
    assert!(get(server.address, "/-/ready").await.starts_with("HTTP/1.1 200"));
    let page = get(server.address, "/metrics").await;
    assert!(
        page.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n") && page.contains("\nthings_total 7\n"),
        "{page}"
    );
    assert!(get(server.address, "/nothing").await.starts_with("HTTP/1.1 404"));
    assert!(say(server.address, "what is this\r\n\r\n").await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn a_slow_head_and_a_late_answer_are_cut_off() {
    let limits =
        Limits { header_timeout: Duration::from_millis(50), answer_timeout: Duration::from_millis(50), ..Limits::default() };
    let late = Router::new().route("/late", routing::get(std::future::pending::<()>));
    let server = start(late, limits).await;
    let answer = say(server.address, "GET / HTTP/1.1\r\nHost: x\r\n").await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(get(server.address, "/late").await.starts_with("HTTP/1.1 503"));
}

#[tokio::test]
async fn large_heads_and_bodies_are_refused() {
    let limits = Limits { body_bytes: 100, ..Limits::default() };
    let server = start(Router::new().route("/", routing::post(|body: Bytes| async move { body })), limits).await;
    let post = |n: usize| {
        let request = format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {n}\r\n\r\n{}", "x".repeat(n));
        async move { say(server.address, &request).await }
    };
    assert!(post(100).await.starts_with("HTTP/1.1 200"));
    assert!(post(101).await.starts_with("HTTP/1.1 413"));
    let head = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert!(say(server.address, &head).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn a_hang_up_sends_nothing() {
    let gone = || async { (Extension(HangUp), "never seen").into_response() };
    let server = start(Router::new().route("/gone", routing::get(gone)), Limits::default()).await;
    assert_eq!(get(server.address, "/gone").await, "");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let server = start(web::health_pages(Ready::at_once()), limits).await;
    let held = TcpStream::connect(server.address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await; // the server takes the first connection
    let waiting = tokio::spawn(get(server.address, "/-/healthy"));
    assert!(
        tokio::time::timeout(Duration::from_millis(100), async {
            while !waiting.is_finished() {
                tokio::task::yield_now().await
            }
        })
        .await
        .is_err()
    );
    drop(held);
    assert!(waiting.await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn the_end_lets_a_running_answer_finish() {
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        "done"
    };
    let server = start(Router::new().route("/slow", routing::get(slow)), Limits::default()).await;
    let answer = tokio::spawn(get(server.address, "/slow"));
    tokio::time::sleep(Duration::from_millis(30)).await; // the request is under way
    let idle = TcpStream::connect(server.address).await.unwrap();
    server.stop.send(()).unwrap();
    assert!(answer.await.unwrap().ends_with("done"));
    server.done.await.unwrap().unwrap();
    drop(idle);
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_port_in_use_is_said_so() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let err = web::listen(web::Address(taken.local_addr().unwrap())).await.unwrap_err();
    assert!(err.to_string().contains("cannot listen on 127.0.0.1:"), "{err}");
}
