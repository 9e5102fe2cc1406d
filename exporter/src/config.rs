//! The command line: dcgm-exporter's flags and variables first, ours beside them as `--strandline-*`.
//!
//! A flag wins over its variable, and that over the configuration file, whose keys are the flags' long names.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use regex_lite::Regex;

use crate::{
    render::{HostnameLabel, Style},
    select::Selection,
};

/// Largest configuration file, bytes.
const MAX_FILE: u64 = 64 << 10;

/// GPU metrics of this machine, under dcgm-exporter's names, through NVML.
///
/// Takes dcgm-exporter's flags and environment variables; what means nothing here is accepted and said once. Prints each reading
/// once, so that a plain sum is right: a GPU that is shared has one line, and who shares it is told by
/// strandline_gpu_holder_share_ratio.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "strandline-exporter",
    version,
    max_term_width = 120,
    after_help = "Example:\n  strandline-exporter -f counters.csv -k true --kubernetes-enable-pod-uid true\n  strandline-exporter --strandline-check\n\n\
Exit status: 0 it was told to end, 1 it failed, 2 wrong usage or configuration, 3 no driver library or no GPU\n\
(with --strandline-wait it waits for them).\n\n\
Signals: TERM and INT end it, HUP reads the collectors file again, USR1 lets go of the driver for ten minutes so that it can be\n\
unloaded, USR2 takes it up again."
)]
#[allow(clippy::struct_excessive_bools)]
pub struct Args {
    /// Which fields are printed: rows of field, type, help. Read again when it changes, and on HUP. Not given: /etc/dcgm-exporter/default-counters.csv where it is there, else a built-in list.
    #[arg(long, short = 'f', env = "DCGM_EXPORTER_COLLECTORS", hide_env_values = true, value_name = "FILE")]
    pub collectors: Option<PathBuf>,
    /// Where to listen; :PORT is every address.
    #[arg(
        long,
        short = 'a',
        env = "DCGM_EXPORTER_LISTEN",
        hide_env_values = true,
        default_value = ":9400",
        value_name = "ADDRESS"
    )]
    pub address: String,
    /// Time between two readings of everything, ms. Not given: --strandline-interval and --strandline-profiling-interval, which are shorter than dcgm-exporter's 30000.
    #[arg(long, short = 'c', env = "DCGM_EXPORTER_INTERVAL", hide_env_values = true, value_name = "MS")]
    pub collect_interval: Option<u64>,
    /// Tell which pods hold the GPUs, by the kubelet.
    #[arg(long, short = 'k', env = "DCGM_EXPORTER_KUBERNETES", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub kubernetes: bool,
    /// Label names of 1.x: uuid, container_name, pod_namespace, pod_name.
    #[arg(long, short = 'o', env = "DCGM_EXPORTER_USE_OLD_NAMESPACE", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub use_old_namespace: bool,
    /// Which devices: f (each GPU by its MIG instances, else whole), g or g:0,2 (GPUs), i or i:7 (instances, by GPU instance id), two by +.
    #[arg(
        long,
        short = 'd',
        env = "DCGM_EXPORTER_DEVICES_STR",
        hide_env_values = true,
        default_value = "f",
        value_name = "SELECTION"
    )]
    pub devices: String,
    /// Without the label hostname.
    #[arg(long, short = 'n', env = "DCGM_EXPORTER_NO_HOSTNAME", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub no_hostname: bool,
    /// Labels of pods as labels; from the kubelet's Pods API where its socket is there, else from the API server.
    #[arg(long, env = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub kubernetes_enable_pod_labels: bool,
    /// The UID of pods as label pod_uid, from where labels come from.
    #[arg(long, env = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub kubernetes_enable_pod_uid: bool,
    /// Labels of pods that are printed: regular expressions on their keys. Not given: all.
    #[arg(long, env = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", hide_env_values = true, value_name = "REGEX", value_delimiter = ',', action = ArgAction::Append)]
    pub kubernetes_pod_label_allowlist_regex: Vec<String>,
    /// uid or device-name; both are understood whichever is given.
    #[arg(
        long,
        env = "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE",
        hide_env_values = true,
        default_value = "uid",
        value_name = "TYPE"
    )]
    pub kubernetes_gpu_id_type: String,
    /// More names of resources that are GPUs, beside nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-*.
    #[arg(long, env = "NVIDIA_RESOURCE_NAMES", hide_env_values = true, value_name = "NAME", value_delimiter = ',', action = ArgAction::Append)]
    pub nvidia_resource_names: Vec<String>,
    /// GPUs of claims too (dynamic resource allocation), by ResourceSlices of the API server.
    #[arg(long, env = "KUBERNETES_ENABLE_DRA", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub kubernetes_enable_dra: bool,
    /// The kubelet's pod-resources socket.
    #[arg(
        long,
        env = "DCGM_POD_RESOURCES_KUBELET_SOCKET",
        hide_env_values = true,
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock",
        value_name = "PATH"
    )]
    pub pod_resources_kubelet_socket: String,
    /// Folder in which a batch system says which jobs a GPU has.
    #[arg(long, env = "DCGM_HPC_JOB_MAPPING_DIR", hide_env_values = true, value_name = "FOLDER")]
    pub hpc_job_mapping_dir: Option<PathBuf>,
    /// TLS, client certificates and users: Prometheus' web-config file.
    #[arg(long, env = "DCGM_EXPORTER_WEB_CONFIG_FILE", hide_env_values = true, value_name = "FILE")]
    pub web_config_file: Option<PathBuf>,
    /// Listen on the socket that systemd hands over.
    #[arg(long, env = "DCGM_EXPORTER_SYSTEMD_SOCKET", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub web_systemd_socket: bool,
    /// Window of DCGM_EXP_XID_ERRORS_COUNT, ms.
    #[arg(
        long,
        short = 'x',
        env = "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",
        hide_env_values = true,
        default_value = "300000",
        value_name = "MS"
    )]
    pub xid_count_window_size: String,
    /// Window of DCGM_EXP_CLOCK_EVENTS_COUNT, ms.
    #[arg(
        long,
        env = "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
        hide_env_values = true,
        default_value = "300000",
        value_name = "MS"
    )]
    pub clock_events_count_window_size: String,
    /// Dashes for blanks in modelName.
    #[arg(long, env = "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true, alias = "rbmn")]
    pub replace_blanks_in_model_name: bool,
    /// Log more.
    #[arg(long, env = "DCGM_EXPORTER_DEBUG", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub debug: bool,
    /// text or json.
    #[arg(long, env = "DCGM_EXPORTER_LOG_FORMAT", hide_env_values = true, default_value = "text", value_name = "FORMAT")]
    pub log_format: String,
    /// Here /health always fails where no GPU answers.
    #[arg(long, env = "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub health_require_gpus: bool,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, short = 'r', env = "DCGM_REMOTE_HOSTENGINE_INFO", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub remote_hostengine_info: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, short = 's', env = "DCGM_EXPORTER_OTHER_DEVICES_STR", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub switch_devices: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, short = 'p', env = "DCGM_EXPORTER_CPU_DEVICES_STR", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub cpu_devices: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, short = 'm', env = "DCGM_EXPORTER_CONFIGMAP_DATA", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub configmap_data: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_USE_FAKE_GPUS", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub fake_gpus: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_ENABLE_DCGM_LOG", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub enable_dcgm_log: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_DCGM_LOG_LEVEL", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub dcgm_log_level: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "KUBERNETES_VIRTUAL_GPUS", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub kubernetes_virtual_gpus: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_DUMP_ENABLED", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub dump_enabled: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_DUMP_DIRECTORY", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub dump_directory: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_DUMP_RETENTION", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub dump_retention: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_DUMP_COMPRESSION", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub dump_compression: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DISABLE_STARTUP_VALIDATE", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub disable_startup_validate: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub enable_gpu_bind_unbind_watch: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub gpu_bind_unbind_poll_interval: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_ENABLE_PPROF", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub enable_pprof: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_CONTAINER_LABELS", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub container_labels: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_CONTAINER_RUNTIME_SOCKET", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub container_runtime_socket: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub watch_max_keep_age: Option<String>,
    /// Accepted for dcgm-exporter's sake; it is said once that it does nothing here.
    #[arg(long, env = "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", hide_short_help = true, value_name = "ANY")]
    pub watch_max_keep_samples: Option<String>,
    /// Print what each GPU gives, by which call, and why the rest is missing; then end.
    #[arg(long, env = "STRANDLINE_CHECK", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub strandline_check: bool,
    /// Wait for the driver and for GPUs instead of ending with status 3.
    #[arg(long, env = "STRANDLINE_WAIT", hide_env_values = true, num_args = 0..=1, default_missing_value = "true", default_value = "false", value_name = "true|false", value_parser = switch, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub strandline_wait: bool,
    /// Time between two readings of all but profiling metrics.
    #[arg(long, env = "STRANDLINE_INTERVAL", hide_env_values = true, default_value = "1s", value_name = "TIME")]
    pub strandline_interval: String,
    /// Time between two readings of profiling metrics, which are means over it.
    #[arg(long, env = "STRANDLINE_PROFILING_INTERVAL", hide_env_values = true, default_value = "10s", value_name = "TIME")]
    pub strandline_profiling_interval: String,
    /// Readings that are older are left out. Not given: three intervals, at least 5 s.
    #[arg(long, env = "STRANDLINE_STALE_AFTER", hide_env_values = true, value_name = "TIME")]
    pub strandline_stale_after: Option<String>,
    /// hostname, or Hostname as dcgm-exporter had it until mid-2026.
    #[arg(long, env = "STRANDLINE_HOSTNAME_LABEL", hide_env_values = true, default_value = "hostname", value_name = "NAME")]
    pub strandline_hostname_label: String,
    /// The driver's library: a path, or a name on the loader's path.
    #[arg(
        long,
        env = "STRANDLINE_NVML_LIBRARY",
        hide_env_values = true,
        default_value = "libnvidia-ml.so.1",
        value_name = "LIBRARY"
    )]
    pub strandline_nvml_library: String,
    /// Where the kernel shows the PCI bus, to tell how many GPUs there should be.
    #[arg(long, env = "STRANDLINE_SYSFS", hide_env_values = true, default_value = "/sys", value_name = "FOLDER")]
    pub strandline_sysfs: String,
    /// How many GPUs there should be. Not given: those on the PCI bus.
    #[arg(long, env = "STRANDLINE_EXPECTED_GPUS", hide_env_values = true, value_name = "N")]
    pub strandline_expected_gpus: Option<usize>,
    /// Readings of a board that is cut by MIG: once, on a line of its own, so that a plain sum is right; or repeat, on the line of each instance, as dcgm-exporter prints them.
    #[arg(long, env = "STRANDLINE_MIG_BOARD_FIELDS", hide_env_values = true, default_value = "once", value_name = "once|repeat")]
    pub strandline_mig_board_fields: String,
    /// The kubelet's Pods API socket (Kubernetes 1.37).
    #[arg(
        long,
        env = "STRANDLINE_PODS_API_SOCKET",
        hide_env_values = true,
        default_value = "/var/lib/kubelet/pods-api/pods-api.sock",
        value_name = "PATH"
    )]
    pub strandline_pods_api_socket: String,
    /// Configuration file: YAML, whose keys are the long names of these flags.
    #[arg(long, env = "STRANDLINE_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub strandline_config: Option<PathBuf>,
}

/// A switch as dcgm-exporter's flag library reads it.
fn switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".into()),
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// Wrong usage, help or version: clap says it.
    #[error("{0}")]
    Usage(clap::Error),
    /// A value that means nothing.
    #[error("--{flag} {value}: {wanted}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: String,
    },
    /// The configuration file.
    #[error("{}: {what}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        what: String,
    },
}

/// The command line, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Collectors file; none: the built-in list.
    pub collectors: Option<PathBuf>,
    /// Address to listen on.
    pub address: web::Address,
    /// Listen on systemd's socket instead.
    pub systemd: bool,
    /// TLS and users.
    pub web_config: Option<PathBuf>,
    /// Time between two rounds.
    pub interval: Duration,
    /// Time between two rounds of profiling metrics.
    pub profiling_interval: Duration,
    /// Readings of the device that are older are left out.
    pub stale_after: Duration,
    /// The same of profiling metrics.
    pub profiling_stale_after: Duration,
    /// Ask the kubelet who holds the GPUs.
    pub kubernetes: bool,
    /// Labels of pods: by which keys; empty: all.
    pub pod_labels: Option<Vec<Regex>>,
    /// UIDs of pods.
    pub pod_uid: bool,
    /// Devices of claims.
    pub dra: bool,
    /// More resource names.
    pub resource_names: Vec<String>,
    /// The kubelet's pod-resources socket.
    pub podres_socket: PathBuf,
    /// The kubelet's Pods API socket.
    pub pods_api_socket: PathBuf,
    /// Jobs of a batch system.
    pub hpc: Option<PathBuf>,
    /// Spellings.
    pub style: Style,
    /// Devices.
    pub selection: Selection,
    /// Board readings on each instance's line.
    pub repeat: bool,
    /// Windows of counts, XIDs' and clock events'.
    pub windows: [Duration; 2],
    /// The driver's library.
    pub library: PathBuf,
    /// The kernel's view of its devices.
    pub sysfs: PathBuf,
    /// How many GPUs there should be.
    pub expected: Option<usize>,
    /// Wait for the driver.
    pub wait: bool,
    /// Print what each GPU gives, and end.
    pub check: bool,
    /// Log more.
    pub debug: bool,
    /// Log as JSON.
    pub json: bool,
    /// What was given and does nothing here, and what to do instead.
    pub warnings: Vec<String>,
}

/// Where dcgm-exporter's image has its list.
const DEFAULT_LIST: &str = "/etc/dcgm-exporter/default-counters.csv";

/// The shortest interval, and the longest.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));

impl Config {
    /// Reads arguments (the program's name first), the environment and the configuration file.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, UsageError> {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        let first = Args::command().ignore_errors(true).try_get_matches_from(&arguments);
        let file = first.ok().and_then(|matches| matches.get_one::<PathBuf>("strandline_config").cloned());
        if let Some(path) = file {
            let given = from_file(&path, &arguments)?;
            arguments.extend(given);
        }
        let matches = Args::command().try_get_matches_from(&arguments).map_err(UsageError::Usage)?;
        let args = Args::from_arg_matches(&matches).map_err(UsageError::Usage)?;
        Self::checked(args)
    }

    fn checked(args: Args) -> Result<Self, UsageError> {
        let warnings = needless(&args);
        let both = args.collect_interval.map(Duration::from_millis);
        let interval = both.map_or_else(|| time("strandline-interval", &args.strandline_interval), Ok)?;
        let profiling_interval = match both {
            Some(both) => both,
            None => time("strandline-profiling-interval", &args.strandline_profiling_interval)?.max(interval),
        };
        for (flag, interval) in [("collect-interval", interval), ("strandline-profiling-interval", profiling_interval)] {
            if !(INTERVALS.0..=INTERVALS.1).contains(&interval) {
                return Err(bad(flag, &format!("{interval:?}"), "write between 10ms and 1h"));
            }
        }
        let least = Duration::from_secs(5);
        let told = args.strandline_stale_after.as_deref().map(|text| time("strandline-stale-after", text)).transpose()?;
        let hostname = match (args.no_hostname, args.strandline_hostname_label.as_str()) {
            (true, _) => HostnameLabel::Absent,
            (false, "hostname") => HostnameLabel::Lower,
            (false, "Hostname") => HostnameLabel::Classic,
            (false, other) => return Err(bad("strandline-hostname-label", other, "write hostname or Hostname")),
        };
        let repeat = match args.strandline_mig_board_fields.as_str() {
            "once" => false,
            "repeat" => true,
            other => return Err(bad("strandline-mig-board-fields", other, "write once or repeat")),
        };
        if !["uid", "device-name"].contains(&args.kubernetes_gpu_id_type.as_str()) {
            return Err(bad("kubernetes-gpu-id-type", &args.kubernetes_gpu_id_type, "write uid or device-name"));
        }
        let json = match args.log_format.as_str() {
            "text" => false,
            "json" => true,
            other => return Err(bad("log-format", other, "write text or json")),
        };
        let regexes = args.kubernetes_pod_label_allowlist_regex.iter().filter(|regex| !regex.is_empty()).map(|regex| {
            let wanted = |err: regex_lite::Error| format!("no regular expression: {err}");
            Regex::new(regex).map_err(|err| bad("kubernetes-pod-label-allowlist-regex", regex, wanted(err)))
        });
        let regexes = regexes.collect::<Result<Vec<_>, _>>()?;
        let selection = Selection::parse(&args.devices).map_err(|err| bad("devices", &args.devices, err))?;
        let address = address(&args.address)?;
        let window = |flag, text: &str| {
            let ms = text.parse().ok().filter(|ms| (1..=86_400_000).contains(ms));
            ms.map(Duration::from_millis).ok_or_else(|| bad(flag, text, "write milliseconds, at most a day's"))
        };
        let default = Path::new(DEFAULT_LIST);
        Ok(Self {
            collectors: args.collectors.or_else(|| default.exists().then(|| default.to_owned())),
            address,
            systemd: args.web_systemd_socket,
            web_config: args.web_config_file.filter(|path| !path.as_os_str().is_empty()),
            stale_after: told.unwrap_or((interval * 3).max(least)),
            profiling_stale_after: told.unwrap_or((profiling_interval * 3).max(least)).max(profiling_interval * 2),
            interval,
            profiling_interval,
            kubernetes: args.kubernetes,
            pod_labels: args.kubernetes_enable_pod_labels.then_some(regexes),
            pod_uid: args.kubernetes_enable_pod_uid,
            dra: args.kubernetes_enable_dra,
            resource_names: args.nvidia_resource_names.into_iter().filter(|name| !name.is_empty()).collect(),
            podres_socket: args.pod_resources_kubelet_socket.into(),
            pods_api_socket: args.strandline_pods_api_socket.into(),
            hpc: args.hpc_job_mapping_dir.filter(|path| !path.as_os_str().is_empty()),
            style: Style { hostname, old_namespace: args.use_old_namespace, dashes_in_model: args.replace_blanks_in_model_name },
            selection,
            repeat,
            windows: [
                window("xid-count-window-size", &args.xid_count_window_size)?,
                window("clock-events-count-window-size", &args.clock_events_count_window_size)?,
            ],
            library: args.strandline_nvml_library.into(),
            sysfs: args.strandline_sysfs.into(),
            expected: args.strandline_expected_gpus,
            wait: args.strandline_wait,
            check: args.strandline_check,
            debug: args.debug,
            json,
            warnings,
        })
    }
}

fn bad(flag: &'static str, value: &str, wanted: impl ToString) -> UsageError {
    UsageError::Value { flag, value: value.chars().take(80).collect(), wanted: wanted.to_string() }
}

/// `500ms`, `1s`, `2m`, `1h`.
fn time(flag: &'static str, text: &str) -> Result<Duration, UsageError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let each = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(each)).filter(|ms| *ms > 0);
    ms.map(Duration::from_millis).ok_or_else(|| bad(flag, text, "write a time such as 500ms, 1s or 2m"))
}

/// `:9400` is every address, IPv6's among them.
fn address(text: &str) -> Result<web::Address, UsageError> {
    let whole = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    whole.parse().map_err(|err: web::ListenError| bad("address", text, err))
}

/// What was given and does nothing here.
fn needless(args: &Args) -> Vec<String> {
    let set = |value: &Option<String>| value.as_deref().is_some_and(|value| !["", "false", "0", "none"].contains(&value));
    let rows: [(&str, &Option<String>, &str); 20] = [
        (
            "remote-hostengine-info",
            &args.remote_hostengine_info,
            "readings come from NVML on this machine, and from no host engine",
        ),
        ("switch-devices", &args.switch_devices, "NVSwitches are not read"),
        ("cpu-devices", &args.cpu_devices, "CPUs are not read"),
        ("configmap-data", &args.configmap_data, "mount the ConfigMap as a file and name it by -f"),
        ("fake-gpus", &args.fake_gpus, "for GPUs that are not there run it under `strandline-sim nvml`"),
        ("enable-dcgm-log", &args.enable_dcgm_log, "there is no DCGM here"),
        ("dcgm-log-level", &args.dcgm_log_level, "there is no DCGM here"),
        (
            "kubernetes-virtual-gpus",
            &args.kubernetes_virtual_gpus,
            "strandline_gpu_holder_share_ratio tells who shares a GPU, and repeats no series",
        ),
        ("dump-enabled", &args.dump_enabled, "nothing is dumped; --strandline-check prints what is read"),
        ("dump-directory", &args.dump_directory, "nothing is dumped"),
        ("dump-retention", &args.dump_retention, "nothing is dumped"),
        ("dump-compression", &args.dump_compression, "nothing is dumped"),
        ("disable-startup-validate", &args.disable_startup_validate, "use --strandline-wait to start without a driver"),
        ("enable-gpu-bind-unbind-watch", &args.enable_gpu_bind_unbind_watch, "GPUs that come and go are always followed"),
        ("gpu-bind-unbind-poll-interval", &args.gpu_bind_unbind_poll_interval, "GPUs are counted every ten seconds"),
        ("enable-pprof", &args.enable_pprof, "there is no such endpoint; /metrics tells the process's own cost"),
        ("container-labels", &args.container_labels, "labels of pods can be had, those of containers cannot"),
        ("container-runtime-socket", &args.container_runtime_socket, "no container runtime is asked"),
        ("watch-max-keep-age", &args.watch_max_keep_age, "nothing but the last reading is kept"),
        ("watch-max-keep-samples", &args.watch_max_keep_samples, "nothing but the last reading is kept"),
    ];
    let given = rows.into_iter().filter(|(_, value, _)| set(value));
    given.map(|(flag, _, instead)| format!("--{flag} does nothing here: {instead}")).collect()
}

/// Arguments for what the file says and neither the command line nor the environment does.
fn from_file(path: &Path, arguments: &[OsString]) -> Result<Vec<OsString>, UsageError> {
    let wrong = |what: String| UsageError::File { path: path.to_owned(), what };
    let metadata = path.metadata().map_err(|err| wrong(format!("cannot be read: {err}; is the path right?")))?;
    if !metadata.is_file() {
        return Err(wrong("it is not a regular file; reading it might never end".into()));
    }
    let size = metadata.len();
    if size > MAX_FILE {
        return Err(wrong(format!("{size} bytes are more than a configuration has; the limit is {MAX_FILE}")));
    }
    let text = std::fs::read_to_string(path).map_err(|err| wrong(format!("cannot be read: {err}; is the path right?")))?;
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    // A mapping of its own kind: it refuses a key that stands twice.
    let keys: serde_yaml_ng::Mapping = serde_yaml_ng::from_str(&text).map_err(|err| wrong(err.to_string()))?;
    let command = Args::command();
    let matches = Args::command().ignore_errors(true).try_get_matches_from(arguments).ok();
    let mut given = Vec::new();
    for (key, value) in keys {
        let key = key.as_str().ok_or_else(|| wrong("a key is no text; keys are the long names of flags".into()))?.to_owned();
        let known = command.get_arguments().find(|arg| arg.get_long() == Some(&key) && key != "strandline-config");
        let Some(arg) = known else {
            return Err(wrong(format!("`{key}` is no flag of this program; see --help for their long names")));
        };
        let source = matches.as_ref().and_then(|matches| matches.value_source(arg.get_id().as_str()));
        if matches!(source, Some(clap::parser::ValueSource::CommandLine | clap::parser::ValueSource::EnvVariable)) {
            continue;
        }
        let items = match value {
            serde_yaml_ng::Value::Sequence(items) => items,
            one => vec![one],
        };
        for item in items {
            let text = match item {
                serde_yaml_ng::Value::String(text) => text,
                serde_yaml_ng::Value::Bool(value) => value.to_string(),
                serde_yaml_ng::Value::Number(number) => number.to_string(),
                _ => return Err(wrong(format!("`{key}` is neither a text, a number, a switch nor a list of them"))),
            };
            given.push(format!("--{key}={text}").into());
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(arguments: &[&str]) -> Result<Config, UsageError> {
        Config::read(std::iter::once("strandline-exporter").chain(arguments.iter().copied()).map(OsString::from))
    }

    fn refusal(arguments: &[&str]) -> String {
        read(arguments).unwrap_err().to_string()
    }

    #[test]
    fn flags_are_dcgm_exporters() {
        let config = read(&[]).unwrap();
        assert_eq!(config.address.to_string(), "[::]:9400");
        assert_eq!((config.interval.as_millis(), config.profiling_interval.as_millis()), (1000, 10_000));
        assert!(!config.kubernetes && config.pod_labels.is_none() && config.warnings.is_empty());
        let config =
            read(&["-k", "-f", "x.csv", "-a", "127.0.0.1:1", "-c", "30000", "-d", "g:0", "-n", "-o", "-x", "1000"]).unwrap();
        assert!(config.kubernetes && config.style.old_namespace && config.style.hostname == HostnameLabel::Absent);
        assert_eq!((config.interval.as_secs(), config.profiling_interval.as_secs(), config.stale_after.as_secs()), (30, 30, 90));
        assert_eq!((config.collectors, config.windows[0].as_secs()), (Some("x.csv".into()), 1));
        let config = read(&["--kubernetes=true", "--kubernetes-enable-pod-labels", "true", "--rbmn"]).unwrap();
        assert!(config.kubernetes && config.pod_labels.is_some_and(|allowed| allowed.is_empty()) && config.style.dashes_in_model);
        let config = read(&["--kubernetes-enable-pod-labels", "--kubernetes-pod-label-allowlist-regex", "^a$,^b"]).unwrap();
        assert_eq!(config.pod_labels.map(|allowed| allowed.len()), Some(2));
    }

    #[test]
    fn what_does_nothing_here_is_said_with_what_to_do() {
        let config = read(&["-r", "localhost:5555", "-m", "ns:map", "--enable-pprof", "--fake-gpus=false"]).unwrap();
        assert_eq!(config.warnings.len(), 3, "{:?}", config.warnings);
        assert!(config.warnings[1].contains("name it by -f"), "{:?}", config.warnings);
        assert!(read(&["-m", "none"]).unwrap().warnings.is_empty(), "its default");
    }

    #[test]
    fn bad_values_are_refused_with_their_flag() {
        for (arguments, says) in [
            (&["-d", "x"][..], "--devices x: "),
            (&["-a", "nonsense"], "--address nonsense: "),
            (&["-c", "1"], "between 10ms and 1h"),
            (&["--strandline-interval", "fast"], "--strandline-interval fast: write a time such as"),
            (&["--log-format", "xml"], "write text or json"),
            (&["--kubernetes-pod-label-allowlist-regex", "("], "no regular expression"),
            (&["--strandline-mig-board-fields", "twice"], "write once or repeat"),
            (&["--no-such-flag"], "unexpected argument"),
            (&["-k", "perhaps"], "write true or false"),
        ] {
            assert!(refusal(arguments).contains(says), "{arguments:?}: {}", refusal(arguments));
        }
    }

    #[test]
    fn a_file_says_what_flags_do_not() {
        let path = std::env::temp_dir().join(format!("exporter-config-{}.yaml", std::process::id()));
        let with = |text: &str, arguments: &[&str]| {
            std::fs::write(&path, text).unwrap();
            read(&[&["--strandline-config", path.to_str().unwrap()], arguments].concat())
        };
        let text = "address: 127.0.0.1:7\nkubernetes: true\ncollect-interval: 2000\nnvidia-resource-names: [a/b, c/d]\n";
        let config = with(text, &["-a", "127.0.0.1:8"]).unwrap();
        assert_eq!((config.address.to_string().as_str(), config.kubernetes), ("127.0.0.1:8", true));
        assert_eq!((config.interval.as_secs(), config.resource_names), (2, vec!["a/b".to_owned(), "c/d".to_owned()]));
        for (text, says) in [
            ("adress: x", "`adress` is no flag"),
            ("address: {a: b}", "neither a text"),
            ("- a", "invalid type"),
            ("address: a:1\naddress: b:1", "duplicate entry"),
            ("7: a", "a key is no text"),
            ("strandline-config: x", "is no flag"),
        ] {
            let err = with(text, &[]).unwrap_err().to_string();
            assert!(err.contains(says) && err.contains("exporter-config"), "{text}: {err}");
        }
        assert!(with("", &[]).is_ok());
        std::fs::remove_file(&path).unwrap();
        for odd in ["/dev/zero", "/tmp"] {
            assert!(refusal(&["--strandline-config", odd]).contains("not a regular file"), "{odd}");
        }
        assert!(refusal(&["--strandline-config", "/nonexistent"]).contains("is the path right?"));
    }

    #[test]
    fn the_help_is_well_formed() {
        Args::command().debug_assert();
    }
}
