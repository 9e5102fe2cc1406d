//! Clients that take their time.

use axum::body::Body;
use tokio::net::TcpSocket;

use super::*;

const PAGE_BYTES: usize = 24 * 1024 * 1024; // more than what the sockets of both ends hold

fn large() -> Router {
    let page = Bytes::from(vec![b'x'; PAGE_BYTES]);
    web::health_pages(Ready::at_once()).route("/large", routing::get(move || async move { Body::from(page) }))
}

async fn small_window(address: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    stream
}

#[tokio::test]
async fn a_client_that_never_reads_makes_room_for_others() {
    let metrics = Metrics::new();
    let limits = Limits { connections: 1, write_timeout: Duration::from_millis(200), ..Limits::default() };
    let server = start_guarded(large(), limits, Guard::open(&metrics)).await;
    let mut held = small_window(server.address).await;
    // The one place is taken once the answer has begun.
    held.readable().await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(30), get(server.address, "/-/healthy")).await;
    assert!(answer.expect("the place is free again").starts_with("HTTP/1.1 200"));
    assert_eq!(refused(&metrics, "too_slow"), 1);
    let mut rest = Vec::new();
    let _ = held.read_to_end(&mut rest).await;
    assert!(rest.len() < PAGE_BYTES, "all of it came");
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_it() {
    let metrics = Metrics::new();
    let limits = Limits { write_timeout: Duration::from_secs(2), ..Limits::default() };
    let server = start_guarded(large(), limits, Guard::open(&metrics)).await;
    let mut stream = small_window(server.address).await;
    let (mut all, mut some) = (0, vec![0; 256 * 1024]);
    loop {
        match stream.read(&mut some).await.unwrap() {
            0 => break,
            n => all += n,
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(all > PAGE_BYTES, "{all} bytes came");
    assert_eq!(refused(&metrics, "too_slow"), 0);
}
