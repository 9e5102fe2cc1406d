//! A lake in a bucket of an object store that speaks as S3 does: what is created is one put with `If-None-Match: *`, what is
//! replaced under a guard one with `If-Match`.
//!
//! The lake's face is synchronous, and its callers may be anywhere, inside a runtime too. So a bucket has a thread and a runtime of
//! its own; requests run there, and the caller waits on a channel.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::Duration,
};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, RetryConfig, UpdateVersion,
    aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut},
    path::Path as Key,
};
use tokio::runtime::{Builder, Runtime};

use super::{Created, SCHEME, Version};
use crate::LakeError;

/// What the two puts of [`Bucket::prepare`] write. It stays: it says that there is a lake.
const PROBE: &str = "_state/probe";
/// The two differ, so that a store that compares bytes does not pass for one that refuses.
const PROBED: [&str; 2] = ["a strandline lake\n", "a strandline lake, written over\n"];
/// Tries at creating a file where the store says that one is there and then has none (two requests crossed).
const CROSSED: usize = 3;

/// How an object store is reached: the settings of the environment (`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, ...),
/// and how long it is waited for.
#[derive(Clone)]
pub struct Access {
    /// Settings by their names in the environment. Values may be secrets: they are never printed.
    pub settings: BTreeMap<String, String>,
    /// For one request and its answer. Default 30 s.
    pub timeout: Duration,
    /// For one request with all of its repetitions, of which there are ten at most. Default 60 s.
    pub retry_for: Duration,
}

impl Access {
    /// As the environment says: every variable that begins with `AWS_`.
    pub fn from_env() -> Self {
        let text =
            |(name, value): (std::ffi::OsString, std::ffi::OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        let settings = std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("AWS_")).collect();
        Self { settings, timeout: Duration::from_secs(30), retry_for: Duration::from_secs(60) }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.settings.keys().collect();
        f.debug_struct("Access").field("settings", &names).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// A prefix in a bucket.
pub(crate) struct Bucket {
    location: PathBuf,
    name: String,
    /// Before every key: nothing, or names with `/` behind each.
    prefix: String,
    access: Access,
    store: Arc<dyn ObjectStore>,
    /// Always there; taken when the bucket is dropped.
    runtime: Option<Runtime>,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // Dropped as it is, a runtime waits for its threads, which panics inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Bucket {
    /// The bucket and prefix at `place`, which is `bucket/prefix`. Nothing is asked of it yet.
    pub(super) fn new(place: &str, access: Access) -> Result<Self, LakeError> {
        let location = PathBuf::from(format!("{SCHEME}{}", place.trim_end_matches('/')));
        let wrong = |why: &'static str| LakeError::Location { location: location.clone(), why };
        let mut parts = place.trim_end_matches('/').split('/');
        let name = parts.next().unwrap_or_default();
        let plain = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.=".contains(&b)) && !part.starts_with("..")
        };
        if !plain(name) {
            return Err(wrong("it names no bucket"));
        }
        let mut prefix = String::new();
        for part in parts {
            if !plain(part) || part == "." {
                return Err(wrong("a prefix has letters, digits, `-`, `_`, `.`, `=`, and one `/` between its parts"));
            }
            prefix.push_str(part);
            prefix.push('/');
        }
        let name = name.to_owned();
        let store = client(&location, &name, &access)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("lake").enable_all().build();
        let runtime = Some(runtime.map_err(LakeError::io("start a thread for", &location))?);
        Ok(Self { location, name, prefix, access, store, runtime })
    }

    pub(super) fn location(&self) -> &Path {
        &self.location
    }

    pub(super) fn client(&self) -> Result<Arc<dyn ObjectStore>, LakeError> {
        client(&self.location, &self.name, &self.access)
    }

    pub(super) fn is_there(&self) -> Result<bool, LakeError> {
        let prefix = (!self.prefix.is_empty()).then(|| self.key(""));
        let first = self.run(move |store| async move { store.list(prefix.as_ref()).try_next().await });
        first.map(|found| found.is_some()).map_err(self.failed("list", ""))
    }

    /// Puts a file twice, create-if-absent: a store that lets the second through would lose rows of two sinks (D2).
    pub(super) fn prepare(&self) -> Result<(), LakeError> {
        // The first may find the file of an earlier run, and is then refused as the second must be.
        self.put(PROBE, PROBED[0].into(), PutMode::Create)?;
        match self.put(PROBE, PROBED[1].into(), PutMode::Create)? {
            None => Ok(()),
            Some(_) => Err(LakeError::Unconditional(self.location.clone())),
        }
    }

    pub(super) fn create(&self, key: &str, bytes: Bytes) -> Result<Created, LakeError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let put = self.put(key, bytes.clone(), PutMode::Create);
            if let Ok(Some(_)) = put {
                return Ok(Created::New);
            }
            // Refused, which may be a repetition of our own put whose answer was lost; or it failed, and may be there all the same.
            match (self.read(key), put) {
                (Ok(Some((found, _))), _) => return Ok(if found == bytes { Created::New } else { Created::There }),
                (Ok(None), Ok(_)) if tries < CROSSED => {}
                (Ok(None), Ok(_)) => return Err(LakeError::Crossed(self.location.join(key))),
                (_, Err(error)) | (Err(error), _) => return Err(error),
            }
        }
    }

    pub(super) fn replace(&self, key: &str, bytes: Bytes) -> Result<(), LakeError> {
        self.put(key, bytes, PutMode::Overwrite).map(|_| ())
    }

    pub(super) fn replace_if(&self, key: &str, bytes: Bytes, over: Option<&Version>) -> Result<Option<Version>, LakeError> {
        let mode = match over {
            None => PutMode::Create,
            Some(version) => PutMode::Update(UpdateVersion { e_tag: version.0.clone(), version: None }),
        };
        let put = self.put(key, bytes.clone(), mode);
        if let Ok(Some(version)) = put {
            return Ok(Some(version));
        }
        // As above: what is there may be ours.
        match (self.read(key), put) {
            (Ok(Some((found, version))), _) if found == bytes => Ok(Some(version)),
            (Ok(_), Ok(_)) => Ok(None),
            (_, Err(error)) | (Err(error), _) => Err(error),
        }
    }

    pub(super) fn read(&self, key: &str) -> Result<Option<(Bytes, Version)>, LakeError> {
        let at = self.key(key);
        let got = self.run(move |store| async move {
            let got = store.get(&at).await?;
            let version = Version(got.meta.e_tag.clone());
            Ok((got.bytes().await?, version))
        });
        self.there(got).map_err(self.failed("read", key))
    }

    /// The whole file, which must be there.
    pub(super) fn bytes(&self, key: &str) -> Result<Bytes, LakeError> {
        self.read(key)?.map(|(bytes, _)| bytes).ok_or_else(|| self.missing(key))
    }

    /// The last `length` bytes of the file (all, where it has less), and how many it has.
    pub(super) fn tail(&self, key: &str, length: u64) -> Result<(Bytes, u64), LakeError> {
        let at = self.key(key);
        let got = self.run(move |store| async move {
            // Not every store takes a range that is counted from the end.
            let meta = store.head(&at).await?;
            if meta.size == 0 {
                return Ok((Bytes::new(), 0));
            }
            let options = GetOptions {
                range: Some((meta.size.saturating_sub(length)..meta.size).into()),
                // It may be another one by now.
                if_match: meta.e_tag,
                ..GetOptions::default()
            };
            Ok((store.get_opts(&at, options).await?.bytes().await?, meta.size))
        });
        self.there(got).map_err(self.failed("read", key))?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn look(&self, key: &str) -> Result<Option<(u64, Version)>, LakeError> {
        let at = self.key(key);
        let found = self.run(move |store| async move { store.head(&at).await });
        let found = self.there(found).map_err(self.failed("look at", key))?;
        Ok(found.map(|meta| (meta.size, Version(meta.e_tag))))
    }

    pub(super) fn list(&self, folder: &str) -> Result<Vec<String>, LakeError> {
        let at = self.key(folder);
        let found: Result<Vec<ObjectMeta>, Error> =
            self.run(move |store| async move { store.list(Some(&at)).try_collect().await });
        let found = found.map_err(self.failed("list", folder))?;
        let below = |meta: &ObjectMeta| meta.location.as_ref().strip_prefix(&self.prefix).map(str::to_owned);
        let mut keys: Vec<String> = found.iter().filter_map(below).collect();
        keys.sort();
        Ok(keys)
    }

    pub(super) fn remove(&self, key: &str) -> Result<(), LakeError> {
        let at = self.key(key);
        let removed = self.run(move |store| async move { store.delete(&at).await });
        self.there(removed).map(|_| ()).map_err(self.failed("remove", key))
    }

    /// One put; none where its condition did not hold.
    fn put(&self, key: &str, bytes: Bytes, mode: PutMode) -> Result<Option<Version>, LakeError> {
        let at = self.key(key);
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.run(move |store| async move { store.put_opts(&at, bytes.into(), options).await }) {
            Ok(put) => Ok(Some(Version(put.e_tag))),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(None),
            Err(error) => Err(self.failed("write", key)(error)),
        }
    }

    /// A name in the bucket. Ours are made from checked parts, so that nothing in them has to be written otherwise.
    fn key(&self, key: &str) -> Key {
        Key::from(format!("{}{key}", self.prefix))
    }

    /// Has a request done by the bucket's own thread.
    fn run<T: Send + 'static, F>(&self, request: impl FnOnce(Arc<dyn ObjectStore>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (answer, answered) = mpsc::sync_channel(1);
        let request = request(self.store.clone());
        let broke = |what: &'static str| Error::Generic { store: "S3", source: what.into() };
        let runtime = self.runtime.as_ref().ok_or_else(|| broke("the lake is being closed"))?;
        runtime.spawn(async move { answer.send(request.await) });
        answered.recv().unwrap_or_else(|_| Err(broke("the request broke off")))
    }

    /// Nothing there is an answer, not an error.
    fn there<T>(&self, got: Result<T, Error>) -> Result<Option<T>, Error> {
        match got {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn missing(&self, key: &str) -> LakeError {
        LakeError::io("open", &self.location.join(key))(std::io::ErrorKind::NotFound.into())
    }

    fn failed(&self, what: &'static str, key: &str) -> impl FnOnce(Error) -> LakeError {
        let path = self.location.join(key);
        move |error| LakeError::Store { what, path, source: Box::new(error) }
    }
}

/// A client of the bucket.
fn client(location: &Path, name: &str, access: &Access) -> Result<Arc<dyn ObjectStore>, LakeError> {
    let failed = |error| LakeError::Store { what: "reach", path: location.to_owned(), source: Box::new(error) };
    let options =
        ClientOptions::new().with_timeout(access.timeout).with_connect_timeout(access.timeout.min(Duration::from_secs(5)));
    let retry = RetryConfig {
        backoff: BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(5), base: 2.0 },
        max_retries: 10,
        retry_timeout: access.retry_for,
    };
    let mut builder = AmazonS3Builder::new().with_client_options(options).with_retry(retry);
    for (key, value) in &access.settings {
        if let Ok(key) = key.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let endpoint =
        [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint].iter().find_map(|key| builder.get_config_value(key));
    // Rows go over an open wire only where it does not leave the machine, or where that was asked for.
    let asked = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp)).is_some_and(|v| v == "true");
    match endpoint.filter(|endpoint| endpoint.starts_with("http://") && !asked) {
        Some(endpoint) if is_loopback(&endpoint) => builder = builder.with_allow_http(true),
        Some(endpoint) => return Err(LakeError::OpenWire { lake: location.to_owned(), endpoint }),
        None => {}
    }
    let store = builder.with_bucket_name(name).with_conditional_put(S3ConditionalPut::ETagMatch).build().map_err(failed)?;
    Ok(Arc::new(store))
}

/// Whether an `http://` address is this machine's own.
fn is_loopback(endpoint: &str) -> bool {
    let Some(rest) = endpoint.strip_prefix("http://") else { return false };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_open_wire_is_this_machines_own() {
        for own in ["http://127.0.0.1:9000", "http://localhost", "http://[::1]:9000/x"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in [
            "http://10.0.0.1",
            "http://127.0.0.1.example",
            "http://localhost.example:1",
            "https://127.0.0.1",
            "http://a@127.0.0.1",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn a_location_is_a_bucket_and_plain_names() {
        let access = || Access { settings: BTreeMap::new(), ..Access::from_env() };
        let at = |place: &str| Bucket::new(place, access()).map(|b| (b.name.clone(), b.prefix.clone()));
        assert_eq!(at("hours").unwrap(), ("hours".into(), String::new()));
        assert_eq!(at("hours/reef/lake/").unwrap(), ("hours".into(), "reef/lake/".into()));
        for bad in ["", "/x", "hours//x", "hours/../x", "hours/.", "hours/a b", "hours/a?b"] {
            let error = at(bad).unwrap_err();
            assert!(matches!(error, LakeError::Location { .. }), "{bad}: {error}");
        }
    }

    #[test]
    fn an_access_prints_no_secret() {
        let settings = BTreeMap::from([("AWS_SECRET_ACCESS_KEY".to_owned(), "hush".to_owned())]);
        let text = format!("{:?}", Access { settings, ..Access::from_env() });
        assert!(text.contains("AWS_SECRET_ACCESS_KEY") && !text.contains("hush"), "{text}");
    }
}
