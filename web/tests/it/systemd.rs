//! Sockets that systemd hands over: tests start this test program again as a unit would be.

use std::{
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixListener},
    process::{Command, Stdio},
};

const CHILD: &str = "STRANDLINE_TEST_SYSTEMD_CHILD";

/// What a unit is: inert, unless one of the tests below starts it.
#[tokio::test]
async fn unit() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    match web::listen_systemd() {
        Ok(listener) => {
            println!("address={}", listener.local_addr().unwrap());
            println!("again={}", web::listen_systemd().unwrap_err());
            let router = web::health_pages(web::Ready::at_once());
            let asked = super::get(listener.local_addr().unwrap(), "/-/healthy");
            let answer = tokio::select! {
                answer = asked => answer,
                ended = web::serve(listener, router, std::future::pending()) => panic!("{ended:?}"),
            };
            println!("answer={}", answer.lines().next().unwrap());
        }
        Err(err) => println!("error={err}"),
    }
}

/// What [`unit`] prints with `socket` as its descriptors 3 and 4, `sockets` of them told.
fn told(socket: impl Into<OwnedFd>, sockets: u32) -> String {
    let script = format!("exec 3<&0 4<&0; LISTEN_PID=$$ LISTEN_FDS={sockets} exec \"$0\" --exact systemd::unit --nocapture");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .stdin(Stdio::from(socket.into()))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_listener_of_the_unit_is_served() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let said = told(socket, 1);
    assert!(said.contains(&format!("address={address}")), "{said}");
    assert!(said.contains("answer=HTTP/1.1 200 OK"), "{said}");
    assert!(said.contains("again=no socket of systemd: LISTEN_FDS and LISTEN_PID name none"), "{said}");
}

#[test]
fn what_is_no_single_tcp_listener_is_refused() {
    let tcp = || TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let unix = UnixListener::bind(folder.path().join("socket")).unwrap();
    for (said, expected) in [
        (told(tcp(), 0), "error=no socket of systemd: LISTEN_FDS and LISTEN_PID name none for this process"),
        (told(tcp(), 2), "error=no socket of systemd: the .socket unit has 2 sockets; leave one"),
        (told(unix, 1), "error=no socket of systemd: it is no TCP listener"),
    ] {
        assert!(said.contains(expected), "{said}");
    }
}
