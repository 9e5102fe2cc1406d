//! Topics as they must be: created where they are missing, and refused where they would lose or change what is taken.

use super::{Context, Options, TransportError, describe};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// See [`super::Kafka::prepare`].
pub(super) fn prepare(options: &Options, names: &[&'static str]) -> Result<(), TransportError> {
    let admin: AdminClient<Context> = options.properties.client("admin", &[], Context)?;
    let missing: Vec<&'static str> = names
        .iter()
        .copied()
        .filter_map(|name| match describe::topics(admin.inner(), options, &[name]) {
            Ok(_) => None,
            Err(TransportError::NoTopic { .. }) => Some(Ok(name)),
            Err(error) => Some(Err(error)),
        })
        .collect::<Result<_, _>>()?;
    if !missing.is_empty() {
        create(&admin, options, &missing)?;
        appear(&admin, options, &missing)?;
    }
    check(&admin, options, names)
}

fn create(admin: &AdminClient<Context>, options: &Options, names: &[&'static str]) -> Result<(), TransportError> {
    let retention = options.retention_ms.to_string();
    let bytes = options.batch_bytes().max(1_048_588).to_string();
    let in_sync = if options.replication.unwrap_or(1) > 2 { "2" } else { "1" };
    let new = |name: &&'static str| {
        let partitions = i32::try_from(options.partitions).unwrap_or(1);
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(options.replication.map_or(-1, i32::from)))
            .set("cleanup.policy", "delete")
            .set("retention.ms", &retention)
            .set("message.timestamp.type", "CreateTime")
            .set("max.message.bytes", &bytes);
        // Without a stated number of replicas the broker's own minimum is left alone.
        if options.replication.is_some() { topic.set("min.insync.replicas", in_sync) } else { topic }
    };
    let topics: Vec<NewTopic<'_>> = names.iter().map(new).collect();
    let wanted = AdminOptions::new().request_timeout(Some(options.timeout)).operation_timeout(Some(options.timeout));
    let results = wait(admin.create_topics(&topics, &wanted));
    for result in results.map_err(|e| options.properties.failed("create topics", e))? {
        match result {
            Ok(topic) => tracing::info!(topic, partitions = options.partitions, "created a topic"),
            // Another process was faster.
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => {
                return Err(TransportError::NotCreated { topic, source: KafkaError::AdminOp(code) });
            }
        }
    }
    Ok(())
}

/// Waits until brokers know the topics.
fn appear(admin: &AdminClient<Context>, options: &Options, names: &[&'static str]) -> Result<(), TransportError> {
    let deadline = Instant::now() + options.timeout;
    loop {
        match describe::topics(admin.inner(), options, names) {
            Err(TransportError::NoTopic { .. }) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            result => return result.map(drop),
        }
    }
}

/// Settings without which what was taken could be lost or changed before it is read.
fn check(admin: &AdminClient<Context>, options: &Options, names: &[&'static str]) -> Result<(), TransportError> {
    let resources: Vec<ResourceSpecifier<'_>> = names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
    let wanted = AdminOptions::new().request_timeout(Some(options.timeout));
    let failed = |e| options.properties.failed("read topic settings", e);
    let results = wait(admin.describe_configs(&resources, &wanted)).map_err(failed)?;
    for (name, result) in names.iter().zip(results) {
        let resource = match result {
            Ok(resource) => resource,
            // Whoever may not read settings cannot be held up by them.
            Err(code @ (RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed)) => {
                tracing::warn!(topic = name, %code, "the topic's settings cannot be checked: no right to describe its configuration");
                continue;
            }
            Err(code) => return Err(failed(KafkaError::AdminOp(code))),
        };
        let settings = resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?)));
        fits(name, &settings.collect(), options)?;
    }
    Ok(())
}

fn fits(topic: &str, settings: &BTreeMap<String, String>, options: &Options) -> Result<(), TransportError> {
    let number = |key: &str| settings.get(key).and_then(|value| value.parse::<i64>().ok());
    let refuse = |setting: &'static str, want: String| {
        let have = settings.get(setting).cloned().unwrap_or_default();
        Err(TransportError::Setting { topic: topic.to_owned(), setting, have, want })
    };
    if settings.get("cleanup.policy").is_some_and(|policy| policy != "delete") {
        return refuse("cleanup.policy", "delete".to_owned());
    }
    // Negative: for ever.
    if number("retention.ms").is_some_and(|ms| (0..options.retention_ms).contains(&ms)) {
        return refuse("retention.ms", options.retention_ms.to_string());
    }
    if settings.get("message.timestamp.type").is_some_and(|kind| kind != "CreateTime") {
        return refuse("message.timestamp.type", "CreateTime".to_owned());
    }
    let bytes = i64::try_from(options.batch_bytes()).unwrap_or(i64::MAX);
    if number("max.message.bytes").is_some_and(|limit| limit < bytes) {
        return refuse("max.message.bytes", bytes.to_string());
    }
    Ok(())
}

/// Waits for one of librdkafka's futures, which need no runtime.
fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker: Waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = TaskContext::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Properties;
    use super::*;

    #[test]
    fn a_topic_that_could_lose_what_it_took_is_refused_with_the_command_to_mend_it() {
        let options = Options::new(Properties::new("a:1", BTreeMap::new()).unwrap());
        let check = |pairs: &[(&str, &str)]| {
            let settings = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            fits("t", &settings, &options).map_err(|e| e.to_string())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[("cleanup.policy", "delete"), ("retention.ms", "-1"), ("max.message.bytes", "1048588")]), Ok(()));
        let error = check(&[("retention.ms", "3600000")]).unwrap_err();
        assert!(error.contains("retention.ms=3600000") && error.contains("--add-config retention.ms=604800000"), "{error}");
        assert!(check(&[("cleanup.policy", "compact,delete")]).is_err());
        assert!(check(&[("message.timestamp.type", "LogAppendTime")]).is_err());
        assert!(check(&[("max.message.bytes", "100000")]).is_err());
    }
}
