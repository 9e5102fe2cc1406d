//! Targets from files, as Prometheus' `file_sd_configs` reads them: lists of `{targets, labels}` in JSON or YAML, by glob.
//!
//! ```text
//! patterns ──every refresh──> files ──where changed──> groups ──> targets ──> the agent, where they differ
//!                                        └─ a bad file: its last good targets stay, it is counted and named in the log
//! ```
//!
//! A target's node is its label `node`, or else the host of its address. `__scheme__`, `__metrics_path__` and
//! `__podres_socket__` go over the agent's own settings; all other labels are passed over.

use crate::agent::Target;
use crate::clock::Clock;
use crate::scrape::{Access, Address};
use crate::stamp::{self, Stamp};
use schemas::Timestamp;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Largest file of targets.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Most files of one pattern; those after it by name are left out, and it is counted.
const MAX_FILES: usize = 10_000;

/// How a target is asked where nothing of its own says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// `http` or `https`.
    pub scheme: String,
    /// Path of the page.
    pub metrics_path: String,
    /// TLS and credentials.
    pub access: Arc<Access>,
}

impl Defaults {
    /// The page at `text`: `host:port` gets scheme and path.
    ///
    /// Errors: a text that is no address, with what is wrong.
    pub fn address(&self, text: &str) -> Result<Address, String> {
        let whole = match text.split_once("://") {
            Some(_) => text.to_owned(),
            None if text.contains('/') => format!("{}://{text}", self.scheme),
            None => format!("{}://{text}{}", self.scheme, self.metrics_path),
        };
        whole.parse().map(|address: Address| address.with(self.access.clone())).map_err(|e| e.to_string())
    }
}

/// Where files are: a path whose last part may hold `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    folder: PathBuf,
    name: String,
}

impl Pattern {
    /// A pattern. Errors: what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        let path = Path::new(text);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new(""));
        if ![".json", ".yml", ".yaml"].iter().any(|end| name.to_ascii_lowercase().ends_with(end)) {
            return Err(format!("`{text}` ends neither in .json nor in .yml or .yaml"));
        }
        if folder.to_string_lossy().contains('*') {
            return Err(format!("`{text}` has a * in a folder; it may stand in the last part only"));
        }
        Ok(Pattern { folder: folder.to_owned(), name: name.to_owned() })
    }

    /// The files that are there, sorted.
    fn files(&self) -> io::Result<BTreeSet<PathBuf>> {
        if !self.name.contains('*') {
            return Ok([self.folder.join(&self.name)].into());
        }
        let folder = if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder };
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            if name.to_str().is_some_and(|name| matches(&self.name, name)) {
                found.insert(self.folder.join(name));
            }
        }
        Ok(found)
    }
}

/// Whether `name` is `pattern` with something, or nothing, in place of each `*`. As in a shell, no `*` stands for a dot at the
/// beginning.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    if first.is_empty() && name.starts_with('.') {
        return false;
    }
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        // The earliest place leaves the most for what follows.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Files of targets, and what was last found in them.
#[derive(Debug, Clone)]
pub struct Files {
    patterns: Vec<Pattern>,
    /// Time between two looks.
    refresh: Duration,
    defaults: Defaults,
    known: BTreeMap<PathBuf, Known>,
    /// Folders that could not be listed when they were last looked at.
    unlisted: BTreeSet<PathBuf>,
}

/// A file as it was last seen.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Of what was last read, good or bad; none: it could not be read.
    stamp: Option<Stamp>,
    targets: Vec<Target>,
    /// Its last reading failed.
    bad: bool,
    /// It was not there when it was last looked for.
    missing: bool,
}

/// One look at the files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Targets may have changed.
    pub changed: bool,
    /// Files and folders that could not be read, or are no lists of targets: counted when they become so, or change.
    pub failures: u64,
}

impl Files {
    /// Files by pattern, looked at every `refresh`.
    pub fn new(patterns: Vec<Pattern>, refresh: Duration, defaults: Defaults) -> Self {
        Files { patterns, refresh, defaults, known: BTreeMap::new(), unlisted: BTreeSet::new() }
    }

    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The targets of all files, by file.
    pub fn targets(&self) -> Vec<Target> {
        self.known.values().flat_map(|known| &known.targets).cloned().collect()
    }

    /// Looks at the files, and reads those that have changed. Blocks.
    pub fn look(&mut self) -> Look {
        let mut look = Look::default();
        let (mut there, mut unseen) = (BTreeSet::new(), BTreeSet::new());
        for pattern in &self.patterns {
            match pattern.files() {
                Ok(mut found) => {
                    self.unlisted.remove(&pattern.folder);
                    let over = found.len().saturating_sub(MAX_FILES);
                    while found.len() > MAX_FILES {
                        found.pop_last();
                    }
                    look.failures += over as u64;
                    there.append(&mut found);
                }
                Err(error) => {
                    // What was found there before stays: nobody has said that it is gone.
                    unseen.extend(self.known.keys().filter(|path| path.parent() == Some(&pattern.folder)).cloned());
                    if self.unlisted.insert(pattern.folder.clone()) {
                        look.failures += 1;
                        tracing::warn!(folder = %pattern.folder.display(), %error, "cannot list files of targets; the last good ones stay");
                    }
                }
            }
        }
        for path in &there {
            self.one(path, &mut look);
        }
        // A file that is written anew by way of another name may be away for a moment: it is gone when it is away twice.
        self.known.retain(|path, known| {
            let gone = !there.contains(path) && !unseen.contains(path) && std::mem::replace(&mut known.missing, true);
            if gone {
                look.changed |= !known.targets.is_empty();
                tracing::info!(file = %path.display(), targets = known.targets.len(), "a file of targets is gone");
            }
            !gone
        });
        look
    }

    fn one(&mut self, path: &Path, look: &mut Look) {
        let stamp = Stamp::of(path);
        let known = self.known.entry(path.to_owned()).or_default();
        if let Ok(stamp) = &stamp {
            known.missing = false;
            if known.stamp == Some(*stamp) {
                return;
            }
        }
        let was_there = known.stamp.is_some();
        known.stamp = stamp.as_ref().ok().copied();
        let read = stamp.map_err(|e| e.to_string()).and_then(|_| targets_of(path, &self.defaults));
        match read {
            Ok(targets) => {
                known.bad = false;
                look.changed |= known.targets != targets;
                tracing::info!(file = %path.display(), targets = targets.len(), "read a file of targets");
                known.targets = targets;
            }
            // A named file that is away twice is gone, as one of a glob is.
            Err(_) if known.stamp.is_none() && known.missing && !known.targets.is_empty() => {
                look.changed = true;
                tracing::info!(file = %path.display(), targets = known.targets.len(), "a file of targets is gone");
                known.targets.clear();
            }
            Err(reason) => {
                known.missing = known.stamp.is_none();
                if known.stamp.is_some() || was_there || !known.bad {
                    look.failures += 1;
                    let kept = known.targets.len();
                    tracing::warn!(file = %path.display(), reason, kept, "cannot use a file of targets; the last good ones stay");
                }
                known.bad = true;
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    labels: BTreeMap<String, serde_yaml_ng::Value>,
}

fn targets_of(path: &Path, defaults: &Defaults) -> Result<Vec<Target>, String> {
    let bytes = stamp::read(path, MAX_FILE_BYTES).map_err(|e| e.to_string())?;
    let json = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
    let groups: Option<Vec<Group>> = if json {
        serde_json::from_slice(&bytes).map_err(|e| e.to_string())?
    } else {
        serde_yaml_ng::from_slice(&bytes).map_err(|e| e.to_string())?
    };
    let mut targets = Vec::new();
    for (index, group) in groups.unwrap_or_default().into_iter().enumerate() {
        let bad = |what: String| format!("group {}: {what}", index + 1);
        let label = |name: &str| match group.labels.get(name) {
            None => Ok(None),
            Some(serde_yaml_ng::Value::String(text)) if text.is_empty() => Ok(None),
            Some(serde_yaml_ng::Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(bad(format!("label `{name}` is no text; put it in quotes"))),
        };
        let defaults = Defaults {
            scheme: label("__scheme__")?.unwrap_or_else(|| defaults.scheme.clone()),
            metrics_path: label("__metrics_path__")?.unwrap_or_else(|| defaults.metrics_path.clone()),
            access: defaults.access.clone(),
        };
        let (node, socket) = (label("node")?, label("__podres_socket__")?.map(PathBuf::from));
        for text in &group.targets {
            let address = defaults.address(text).map_err(&bad)?;
            let node = node.clone().unwrap_or_else(|| address.host().to_owned());
            targets.push(Target { node, address, podres_socket: socket.clone() });
        }
    }
    Ok(targets)
}

/// What a source of targets has found: all of them, in place of what it found before.
#[derive(Debug)]
pub struct Found {
    /// The source.
    pub source: &'static str,
    /// Its targets.
    pub targets: Vec<Target>,
    /// What it could not read or use since it last said something.
    pub failures: u64,
}

/// Name of the source that reads files.
pub const FILES: &str = "file_sd";

/// Looks at files until nobody listens any more.
pub async fn watch(mut files: Files, clock: Arc<dyn Clock>, found: mpsc::Sender<Found>) {
    let refresh_ms = i64::try_from(files.refresh.as_millis()).unwrap_or(i64::MAX);
    loop {
        let next = Timestamp::from_ms(clock.now().ms().saturating_add(refresh_ms));
        tokio::select! {
            () = clock.sleep_until(next) => {}
            () = found.closed() => return,
        }
        let looked = tokio::task::spawn_blocking(move || {
            let look = files.look();
            (files, look)
        });
        let Ok((again, look)) = looked.await else {
            tracing::error!("looking at files of targets failed; their targets stay as they are");
            return;
        };
        files = again;
        if look.changed || look.failures > 0 {
            let found_now = Found { source: FILES, targets: files.targets(), failures: look.failures };
            if found.send(found_now).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    fn files(dir: &Path, patterns: &[&str]) -> Files {
        let pattern = |name: &&str| Pattern::new(dir.join(name).to_str().unwrap()).unwrap();
        let defaults = Defaults { scheme: "http".into(), metrics_path: "/metrics".into(), access: Arc::default() };
        Files::new(patterns.iter().map(pattern).collect(), Duration::from_secs(5), defaults)
    }

    fn shown(files: &Files) -> Vec<String> {
        let socket = |t: &Target| t.podres_socket.as_ref().map_or(String::new(), |s| format!(" {}", s.display()));
        files.targets().iter().map(|t| format!("{} {}{}", t.node, t.address.as_text(), socket(t))).collect()
    }

    #[track_caller]
    fn looks(files: &mut Files, changed: bool, failures: u64) {
        assert_eq!(files.look(), Look { changed, failures });
    }

    #[test]
    fn files_of_both_kinds_are_read_by_glob_and_again_where_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let mut all = files(dir.path(), &["gpu-*.json", "*.yml"]);
        looks(&mut all, false, 0);
        fs::write(dir.path().join("gpu-1.json"), r#"[{"targets": ["dune-1:9400", "10.0.0.2:9400"], "labels": {"rack": 5}}]"#)
            .unwrap();
        let yaml = "- targets: ['surf-1:9400']\n  labels: {node: surf-one, __scheme__: https, __metrics_path__: /gpu, __podres_socket__: /s}\n\
                    - targets: ['http://surf-2:1/x']\n";
        fs::write(dir.path().join("more.yml"), yaml).unwrap();
        fs::write(dir.path().join("cpu-1.json"), "no list of targets, and not asked for").unwrap();
        looks(&mut all, true, 0);
        assert_eq!(
            shown(&all),
            [
                "dune-1 http://dune-1:9400/metrics",
                "10.0.0.2 http://10.0.0.2:9400/metrics",
                "surf-one https://surf-1:9400/gpu /s",
                "surf-2 http://surf-2:1/x"
            ]
        );
        looks(&mut all, false, 0);
        fs::write(dir.path().join("more.yml"), "").unwrap();
        looks(&mut all, true, 0);
        assert_eq!(shown(&all).len(), 2);
    }

    #[test]
    fn a_bad_file_keeps_its_last_good_targets_and_is_counted_once_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let mut all = files(dir.path(), &["a.json"]);
        looks(&mut all, false, 1);
        looks(&mut all, false, 0);
        fs::write(&path, r#"[{"targets": ["dune-1:9400"]}]"#).unwrap();
        looks(&mut all, true, 0);
        for bad in [
            "[{\"targets\": [\"dune-1:9400\"",
            "{}",
            r#"[{"targets": ["a b"]}]"#,
            r#"[{"target": ["a"]}]"#,
            r#"[{"targets": ["me:hush@a"]}]"#,
            r#"[{"targets": ["a"], "labels": {"node": 5}}]"#,
        ] {
            fs::write(&path, bad).unwrap();
            looks(&mut all, false, 1);
            looks(&mut all, false, 0);
            assert_eq!(shown(&all), ["dune-1 http://dune-1:9400/metrics"], "{bad}");
        }
        let reason = targets_of(&path, &all.defaults).unwrap_err();
        assert_eq!(reason, "group 1: label `node` is no text; put it in quotes");
        fs::write(&path, r#"[{"targets": ["dune-2:9400"]}]"#).unwrap();
        looks(&mut all, true, 0);
        assert_eq!(shown(&all), ["dune-2 http://dune-2:9400/metrics"]);
    }

    #[test]
    fn a_file_is_gone_when_it_is_away_twice() {
        let dir = tempfile::tempdir().unwrap();
        for pattern in ["a.yaml", "*.yaml"] {
            let path = dir.path().join("a.yaml");
            let good = "- targets: [dune-1]\n";
            fs::write(&path, good).unwrap();
            let mut all = files(dir.path(), &[pattern]);
            looks(&mut all, true, 0);
            fs::remove_file(&path).unwrap();
            all.look();
            assert_eq!(all.targets().len(), 1, "{pattern}: it may be written anew at this moment");
            fs::write(&path, good).unwrap();
            looks(&mut all, false, 0);
            assert_eq!(all.targets().len(), 1);
            fs::remove_file(&path).unwrap();
            all.look();
            assert!(all.look().changed, "{pattern}");
            assert_eq!(all.targets().len(), 0, "{pattern}");
            looks(&mut all, false, 0);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_listed_takes_nothing_away() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sd");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.yaml"), "- targets: [dune-1]\n").unwrap();
        let mut all = files(&folder, &["*.yaml"]);
        looks(&mut all, true, 0);
        let away = dir.path().join("away");
        fs::rename(&folder, &away).unwrap();
        all.look();
        all.look();
        all.look();
        assert!(!all.unlisted.is_empty());
        fs::rename(&away, &folder).unwrap();
        looks(&mut all, false, 0);
        assert_eq!(all.targets().len(), 1);
        assert!(all.unlisted.is_empty());
    }

    #[test]
    fn patterns_are_checked() {
        for (text, words) in [("a.txt", "ends neither"), ("*/a.json", "* in a folder"), ("", "ends neither")] {
            assert!(Pattern::new(text).unwrap_err().contains(words), "{text}");
        }
        for (pattern, name, right) in [
            ("*.json", "a.json", true),
            ("*.json", ".a.json", false),
            ("*.json", "a.jsonx", false),
            ("a*b*c.json", "axxbyc.json", true),
            ("a*b*c.json", "ac.json", false),
            ("ab*ba.json", "aba.json", false),
            ("a.json", "a.json", true),
            ("a.json", "xa.json", false),
        ] {
            assert_eq!(matches(pattern, name), right, "{pattern} {name}");
        }
    }
}
