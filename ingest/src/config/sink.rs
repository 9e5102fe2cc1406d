//! The sink's file and its command line.

use super::{ConfigError, KafkaFile, NO_LOG, Span, kafka, one_log, read};
use crate::transport::kafka::Options as KafkaOptions;
use crate::{close, sink};
use clap::Args;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `sink`.
#[derive(Debug, Clone, Default, Args)]
pub struct SinkArgs {
    /// YAML file; environment and flags go over it
    #[arg(long, env = "STRANDLINE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The lake: a folder, or s3://BUCKET/PREFIX (reached as AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ... say)
    #[arg(long, env = "STRANDLINE_LAKE", value_name = "DIR")]
    pub lake: Option<PathBuf>,
    /// Folder of the log that the agent writes
    #[arg(long, env = "STRANDLINE_LOG_DIR", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Brokers of Apache Kafka, instead of a log folder: host:port,host:port (TLS, SASL, groups and more: `kafka` in the file)
    #[arg(long, env = "STRANDLINE_KAFKA", value_name = "SERVERS")]
    pub kafka: Option<String>,
    /// Age at which rows are published even if they are few [default: 60s]
    #[arg(long, env = "STRANDLINE_CUT_AGE")]
    pub cut_age: Option<Span>,
    /// Time past its end after which an hour is closed [default: 10m]
    #[arg(long, env = "STRANDLINE_CLOSE_AFTER")]
    pub close_after: Option<Span>,
    /// Time past its end until which late rows reopen an hour [default: 7d]
    #[arg(long, env = "STRANDLINE_LATE_LIMIT")]
    pub late_limit: Option<Span>,
    /// Time after which hot files go whose rows are all in closed hours; at least `late_limit` and 2h [default: 14d]
    #[arg(long, env = "STRANDLINE_HOT_RETENTION")]
    pub hot_retention: Option<Span>,
    /// Time after which goes what hour rows were made from; the hour rows stay [default: never]
    #[arg(long, env = "STRANDLINE_CLOSED_RETENTION")]
    pub closed_retention: Option<Span>,
    /// Go on although a topic was created anew; its old messages must all be in the lake
    #[arg(long)]
    pub accept_new_topic: bool,
    /// Go on although messages were dropped before they were read; they are counted in `rejects`
    #[arg(long)]
    pub skip_lost: bool,
    /// Where to serve /metrics, /-/healthy and /-/ready [default: 127.0.0.1:9402]
    #[arg(long, env = "STRANDLINE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Prometheus web-config file for those pages: TLS, client certificates, users; read again when it changes [default: plain HTTP]
    #[arg(long, env = "STRANDLINE_WEB_CONFIG_FILE", value_name = "FILE")]
    pub web_config_file: Option<PathBuf>,
}

/// The sink's file. Every key may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
struct SinkFile {
    lake: Option<PathBuf>,
    log_dir: Option<PathBuf>,
    cut_age: Option<Span>,
    cut_bytes: Option<usize>,
    cut_rows: Option<usize>,
    total_bytes: Option<usize>,
    close_after: Option<Span>,
    late_limit: Option<Span>,
    hot_retention: Option<Span>,
    closed_retention: Option<Span>,
    kafka: Option<KafkaFile>,
    listen: Option<String>,
    web_config_file: Option<PathBuf>,
}

const SINK_KEYS: &[&str] = &[
    "lake",
    "log_dir",
    "kafka",
    "cut_age",
    "cut_bytes",
    "cut_rows",
    "total_bytes",
    "close_after",
    "late_limit",
    "hot_retention",
    "closed_retention",
    "listen",
    "web_config_file",
];

/// What a sink follows.
#[derive(Debug, Clone)]
pub enum SinkTransport {
    /// The embedded log in this folder.
    Log(PathBuf),
    /// Kafka.
    Kafka(KafkaOptions),
}

/// What `sink` runs with.
#[derive(Debug, Clone)]
pub struct SinkConfig {
    /// The lake.
    pub lake: PathBuf,
    /// The log.
    pub transport: SinkTransport,
    /// How it cuts.
    pub sink: sink::Options,
    /// How it closes.
    pub close: close::Options,
    /// Time between two tries after something that may pass: a log that is not there yet, a full disk.
    pub retry_every: Duration,
    /// Where its own pages are.
    pub listen: String,
    /// Web-config file of those pages; none: plain HTTP, for everyone.
    pub web_config_file: Option<PathBuf>,
}

impl SinkConfig {
    /// The configuration that these arguments, and the file they name, add up to.
    pub fn load(args: SinkArgs) -> Result<Self, ConfigError> {
        let file: SinkFile = read(args.config.as_deref(), SINK_KEYS)?;
        let lake = args.lake.or(file.lake).ok_or(ConfigError::Missing(
            "no lake; give --lake DIR (or s3://BUCKET/PREFIX), STRANDLINE_LAKE, or `lake:` in the file",
        ))?;
        let kafka = kafka(file.kafka, args.kafka, true)?;
        let transport = match (one_log(args.log_dir.or(file.log_dir), kafka.is_some())?, kafka) {
            (Some(dir), _) => SinkTransport::Log(dir),
            (None, Some(options)) => SinkTransport::Kafka(options),
            (None, None) => return Err(NO_LOG),
        };
        let mut sink = sink::Options::default();
        sink.cut_age_ms = args.cut_age.or(file.cut_age).map_or(sink.cut_age_ms, Span::ms);
        sink.cut_bytes = file.cut_bytes.unwrap_or(sink.cut_bytes);
        sink.cut_rows = file.cut_rows.unwrap_or(sink.cut_rows);
        sink.total_bytes = file.total_bytes.unwrap_or(sink.total_bytes);
        sink.accept_new_topic = args.accept_new_topic;
        sink.skip_lost = args.skip_lost;
        let mut close = close::Options::default();
        close.close_after_ms = args.close_after.or(file.close_after).map_or(close.close_after_ms, Span::ms);
        close.late_limit_ms = args.late_limit.or(file.late_limit).map_or(close.late_limit_ms, Span::ms);
        let hot = args.hot_retention.or(file.hot_retention).map_or(14 * schemas::time::DAY_MS, Span::ms);
        let closed = args.closed_retention.or(file.closed_retention).map(Span::ms);
        let least = close.late_limit_ms.saturating_add(2 * schemas::HOUR_MS);
        if hot < least || closed.is_some_and(|closed| closed < hot) {
            return Err(ConfigError::Bad {
                key: if hot < least { "hot_retention" } else { "closed_retention" },
                reason:
                    "at least `late_limit` and 2h for hot files, and no less for closed hours: what may be written again is kept"
                        .to_owned(),
            });
        }
        // It tries again every minute, and reads the log meanwhile.
        close.wait = Duration::from_secs(1);
        close.hot_retention_ms = Some(hot);
        close.closed_retention_ms = closed;
        let listen = args.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:9402".to_owned());
        let web_config_file = args.web_config_file.or(file.web_config_file);
        Ok(SinkConfig { lake, transport, sink, close, retry_every: Duration::from_secs(5), listen, web_config_file })
    }
}
