//! An S3-compatible server on loopback, in this process, whose answers can be made to fail: s3s over a folder.
//!
//! s3s-fs looks whether an object is there and then writes it, in two steps. Puts are made one after another here, which makes
//! it as atomic as S3 is.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use hyper::{Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use lake::Access;
use s3s::{
    Body,
    auth::SimpleAuth,
    service::{S3Service, S3ServiceBuilder},
};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is done and answered.
    None,
    /// It is done, and the connection is cut before the answer.
    LostAnswer,
    /// It is not done; the answer is 503.
    Overloaded,
    /// It is done this much later.
    Late(Duration),
    /// It is done as if it had no condition: a store that does not know `If-None-Match`.
    Unconditional,
}

type Decide = Box<dyn FnMut(&Method, &str) -> Fault + Send>;

/// The server. It ends when this is dropped.
pub struct Server {
    address: SocketAddr,
    decide: Arc<Mutex<Decide>>,
    /// Dropped first: it ends the connections.
    _runtime: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
}

struct Shared {
    service: S3Service,
    decide: Arc<Mutex<Decide>>,
    puts: tokio::sync::Mutex<()>,
    folder: PathBuf,
}

impl Server {
    /// Starts one with an empty bucket `lake`.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lake")).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single("an-id", "a-secret"));
        let decide: Arc<Mutex<Decide>> = Arc::new(Mutex::new(Box::new(|_, _| Fault::None)));
        let puts = tokio::sync::Mutex::new(());
        let shared =
            Arc::new(Shared { service: builder.build(), decide: decide.clone(), puts, folder: folder.path().to_owned() });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(shared.clone(), request));
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, decide, _runtime: runtime, folder }
    }

    /// From now on, what happens to a request is what `decide` says of its method and path.
    pub fn faults(&self, decide: impl FnMut(&Method, &str) -> Fault + Send + 'static) {
        *self.decide.lock().unwrap() = Box::new(decide);
    }

    /// Puts an object into the bucket, as another program would.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.folder.path().join("lake").join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// A prefix in the bucket.
    pub fn location(&self, prefix: &str) -> PathBuf {
        format!("s3://lake/{prefix}").into()
    }

    /// How it is reached, with little patience.
    pub fn access(&self) -> Access {
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "an-id".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "a-secret".to_owned()),
        ];
        let settings: BTreeMap<String, String> = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Access { settings, timeout: Duration::from_secs(10), retry_for: Duration::from_secs(20) }
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    let fault = (shared.decide.lock().unwrap())(request.method(), request.uri().path());
    let _one_at_a_time = if request.method() == Method::PUT { Some(shared.puts.lock().await) } else { None };
    match fault {
        Fault::None | Fault::LostAnswer => {}
        Fault::Overloaded => {
            let mut refused = Response::new(Body::from("slow down".to_owned()));
            *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(refused);
        }
        Fault::Late(by) => tokio::time::sleep(by).await,
        // Its headers are signed; so it is what is there that goes.
        Fault::Unconditional => {
            let _ = std::fs::remove_file(shared.folder.join(request.uri().path().trim_start_matches('/')));
        }
    }
    let done = shared.service.call(request.map(Body::from)).await;
    match fault {
        Fault::LostAnswer => Err(std::io::ErrorKind::ConnectionReset.into()),
        _ => done.map_err(|error| std::io::Error::other(format!("{error:?}"))),
    }
}
