//! The tables of the lake: names, columns, types, field ids and meanings (DESIGN 3.4).
//!
//! One [`Table`] a table; Arrow schemas and `tables.md` are made from it. A column is added at the end of its group with a
//! new field id, never renamed, retyped or renumbered.

use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Arc, LazyLock},
};

use arrow::datatypes::{DataType, Field as ArrowField, Schema, SchemaRef, TimeUnit};

use crate::{
    catalogue::{self, ValueType},
    status::{Cause, Tier},
};

/// Type of a column; no others are used, so that every reader of Parquet has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Plain UTF-8, dictionary-encoded in the file.
    Text,
    /// INT64.
    Int,
    /// FLOAT, byte-stream-split in the file; never NaN.
    Float,
    /// DOUBLE; only where the source is one.
    Double,
    /// INT64 microseconds adjusted to UTC, holding whole milliseconds.
    Time,
    /// BOOLEAN.
    Bool,
}

impl Type {
    /// The Arrow type.
    pub fn arrow(self) -> DataType {
        match self {
            Self::Text => DataType::Utf8,
            Self::Int => DataType::Int64,
            Self::Float => DataType::Float32,
            Self::Double => DataType::Float64,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Bool => DataType::Boolean,
        }
    }

    const fn sql(self) -> &'static str {
        match self {
            Self::Text => "VARCHAR",
            Self::Int => "BIGINT",
            Self::Float => "FLOAT",
            Self::Double => "DOUBLE",
            Self::Time => "TIMESTAMP WITH TIME ZONE",
            Self::Bool => "BOOLEAN",
        }
    }
}

/// One column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Parquet field id, unique in the table.
    pub id: i32,
    /// Name in snake case, ending in its unit where it has one.
    pub name: String,
    /// Type.
    pub kind: Type,
    /// Whether it may be null.
    pub nullable: bool,
    /// Meaning, in one line.
    pub doc: String,
}

/// One table.
#[derive(Debug)]
pub struct Table {
    /// Name, also its folder.
    pub name: &'static str,
    /// Meaning, in one line.
    pub doc: &'static str,
    /// Columns in order.
    pub columns: Vec<Column>,
    /// Columns that order the rows of a file.
    pub sort: &'static [&'static str],
    /// Column whose hour is the row's folder.
    pub time: &'static str,
    schema: SchemaRef,
}

impl Table {
    /// The Arrow schema, field ids included.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Position of a column.
    pub fn index(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == column)
    }
}

/// Metadata key under which Parquet keeps a column's field id.
pub const FIELD_ID_KEY: &str = "PARQUET:field_id";

fn col(id: i32, name: &str, kind: Type, nullable: bool, doc: &str) -> Column {
    Column { id, name: name.to_owned(), kind, nullable, doc: doc.to_owned() }
}

/// `col(...)` lines without the noise: `id name type` then `!` (never null) or `?`, then the meaning.
macro_rules! columns {
    ($($id:literal $name:ident $kind:ident $mark:tt $doc:literal)+) => {
        vec![$(col($id, stringify!($name), Type::$kind, columns!(@ $mark), $doc),)+]
    };
    (@ !) => { false };
    (@ ?) => { true };
}

fn table(
    name: &'static str,
    doc: &'static str,
    sort: &'static [&'static str],
    time: &'static str,
    columns: Vec<Column>,
) -> Table {
    let fields: Vec<ArrowField> = columns
        .iter()
        .map(|c| {
            ArrowField::new(&c.name, c.kind.arrow(), c.nullable)
                .with_metadata(HashMap::from([(FIELD_ID_KEY.to_owned(), c.id.to_string())]))
        })
        .collect();
    Table { name, doc, columns, sort, time, schema: Arc::new(Schema::new(fields)) }
}

/// Columns that say where in the log a row came from; they let SQL prove that nothing stands twice.
fn log_columns(from: i32) -> Vec<Column> {
    vec![
        col(from, "log_partition", Type::Int, true, "partition of the message that brought the row; null for imports"),
        col(from + 1, "log_offset", Type::Int, true, "offset of that message"),
    ]
}

fn gpu_samples() -> Table {
    let mut columns = columns! {
        1 cluster Text ! "cluster"
        2 node Text ! "node, as the scraper names it"
        3 device Text ! "device: GPU UUID, or parent UUID/GPU instance id"
        4 at Time ! "the agent's clock when the request went out"
        5 source Text ! "scraped target"
        6 sequence Int ! "the agent's count of rounds of this target"
        7 parent Text ? "UUID of the GPU that an instance is part of"
        8 instance_id Int ? "GPU instance id"
        9 profile Text ? "MIG profile"
        10 gpu_index Int ? "DCGM's index on the node; not an identity"
        11 product Text ? "product, as the page's modelName says"
        12 pci_bus_id Text ? "PCI address"
        13 hostname Text ? "the page's own host name"
        14 driver_version Text ? "driver version"
        15 namespace Text ? "namespace of the holder, where one pod holds the device"
        16 pod Text ? "pod that holds the device, where it is one"
        17 container Text ? "its container, where it is one"
        18 pod_uid Text ? "its UID, where the page says it"
        19 holders Int ? "pods that hold the device by the node's word; null where nobody could be asked"
        20 owner_source Text ? "podres or from_labels"
        21 join_reason Text ? "why the owner is missing or doubtful"
        22 held_over Bool ? "the last good answer of the kubelet stood in for a failed one"
        23 label_disagrees Bool ? "the page's pod labels name another pod than the kubelet"
        24 faults Text ? "readings that were dropped, clipped or in conflict: `id:reason`, by id, comma-joined"
        25 labels Text ? "labels that we do not use, as a JSON object with sorted keys"
        26 xid_message Text ? "text of the last XID"
    };
    columns.extend(log_columns(27));
    for (field, column) in catalogue::columns() {
        let kind = if field.value_type == ValueType::Double { Type::Float } else { Type::Int };
        let id = 10_000 + i32::from(field.id.expect("a metric with a column has a field id"));
        columns.push(col(id, column, kind, true, &format!("{}: {} ({})", field.name, field.meaning, field.unit)));
    }
    table(
        "gpu_samples",
        "One wide row per device and scrape. A null reading was not measured.",
        &["cluster", "node", "device", "at", "source"],
        "at",
        columns,
    )
}

fn gpu_hours_columns() -> Vec<Column> {
    let mut columns = columns! {
        1 hour_start Time ! "start of the UTC hour"
        2 cluster Text ! "cluster"
        3 node Text ! "node"
        4 device Text ? "device; null for time known by number only (rule A16)"
        5 parent Text ? "UUID of the GPU that an instance is part of"
        6 profile Text ? "MIG profile"
        7 product Text ? "product"
        8 region Text ? "region"
        9 provider Text ? "provider"
        10 purchase_option Text ? "reserved, on-demand, spot, block, ..."
        11 kind Text ! "owner, free or unavailable"
        12 reason Text ? "why it is free (unheld, shared_slack, held_unknown) or unavailable"
        13 pod_uid Text ? "owner"
        14 namespace Text ? "its namespace"
        15 pod Text ? "its name"
        16 workload Text ? "what made it: Job, Deployment, ..."
        17 team Text ? "who pays; null for unattributed"
        18 queue Text ? "its queue"
        19 ms Int ! "device-milliseconds, whole-GPU-equivalent; SUM(ms) over whole devices is capacity"
    };
    let mut id = 20;
    for tier in Tier::ALL {
        let mut memo = |name: String, doc: String| {
            columns.push(col(id, &name, Type::Int, true, &doc));
            id += 1;
        };
        memo(format!("{tier}_utilized_ms"), format!("utilized, tier {tier}; null where kind is not owner"));
        memo(format!("{tier}_stranded_ms"), format!("allocated and seen, but not utilized, tier {tier}"));
        for cause in Cause::ALL {
            memo(format!("{tier}_unobserved_{cause}_ms"), format!("allocated and not seen, tier {tier}, cause {cause}"));
        }
        memo(format!("{tier}_over_share_ms"), format!("utilized above the held share, tier {tier}; beside the sum"));
    }
    columns.extend(columns! {
        100 pre_start_ms Int ? "part of ms: bound, containers not started"
        101 terminating_ms Int ? "part of ms: deletion asked for"
        102 on_unready_ms Int ? "part of ms: on a device or node that was not ready"
        103 held_profile_ms Int ? "instance time held, weight not applied"
        104 energy_mj Int ? "energy of the owner's time, mJ; null where not computed, and on MIG instances"
        105 fb_used_mib_ms Int ? "frame buffer used times time; null where not computed"
        106 fb_unobserved_ms Int ? "time without a reading of it; null where not computed"
        107 overcommitted_ms Int ? "held by number beyond what the node has; beside the sum"
        108 allocation_source Text ? "api, podres or import"
        109 owner_source Text ? "how the device got its owner: podres, from_labels, api (by number)"
        110 flags Text ? "sorted, comma-joined"
        111 reservation Text ? "reservation that the device is part of"
    });
    columns
}

fn interval_columns() -> Vec<Column> {
    columns! {
        90 from_at Time ! "start of the row's part of the interval, inside the hour"
        91 to_at Time ! "end of that part"
        92 interval_from Time ! "start of the whole interval"
        93 interval_to Time ? "end of the whole interval; null while it lasts"
        94 source Text ! "api, podres, import, sim"
        95 observed_at Time ! "when this state was observed"
        96 revision Int ! "order of states observed at one instant"
    }
}

fn allocations_columns() -> Vec<Column> {
    let mut columns = columns! {
        1 cluster Text ! "cluster"
        2 node Text ! "node; `unplaced` where an import does not say"
        3 device Text ? "device; null where known by number only"
        4 holding_id Text ! "names the holding among those of (cluster, node, source)"
        5 pod_uid Text ? "UID; null where only the name is known"
        6 namespace Text ! "namespace"
        7 pod Text ! "pod"
        8 container Text ? "container"
        9 team Text ? "who pays; null for unattributed"
        10 workload Text ? "what made the pod"
        11 queue Text ? "queue"
        12 resource Text ? "resource name that was asked"
        13 count Int ? "devices held, where known by number only"
        14 weight_num Int ? "weight of each device held by number: numerator"
        15 weight_den Int ? "and denominator; both null: 1"
        16 ids Int ? "replica ids of the device held"
        17 replica_ids Text ? "the ids themselves, sorted, comma-joined"
        18 bound_at Time ? "when the scheduler bound the pod"
        19 known_from Time ? "when the kubelet named this device"
        20 started_at Time ? "when the containers started; null: not yet"
        21 terminating_from Time ? "when the deletion was asked for"
        22 end_reason Text ? "terminal, removed, unlisted"
        23 flags Text ? "sorted, comma-joined"
        24 last_listed Time ? "podres: the last listing that had it"
        25 last_checkpoint Time ? "the pod's own word, as of the row's writing: work before this is saved; the last hour's row has the last"
        26 terminal_phase Text ? "Succeeded or Failed: the phase in which the pod ended; null while it lasts, and where none was seen"
        27 shape Text ? "shape of the work, by label strandline.io/shape"
    };
    columns.extend(interval_columns());
    columns.extend(log_columns(97));
    columns
}

fn allocations() -> Table {
    table(
        "allocations",
        "Holdings: one row per holding and hour that it overlaps. Source api: by number, from the scheduler's book; podres: \
         which device, from the kubelet.",
        &["cluster", "node", "source", "holding_id", "from_at"],
        "from_at",
        allocations_columns(),
    )
}

fn carried_allocations() -> Table {
    let mut columns = allocations_columns();
    columns.push(col(200, "hour_start", Type::Time, false, "start of the UTC hour that hands the holding on"));
    table(
        "carried_allocations",
        "Memory of the hours job, for no one else: holdings that have ended and still matter to the hours after this one, as \
         they cut or name one that goes on.",
        &["cluster", "node", "source", "holding_id", "from_at"],
        "hour_start",
        columns,
    )
}

fn nodes() -> Table {
    let mut columns = columns! {
        1 cluster Text ! "cluster"
        2 node Text ! "node"
        3 kind Text ! "node, device or unavailable"
        4 device Text ? "device; null for the whole node"
        5 reason Text ? "kind unavailable: why"
        6 parent Text ? "UUID of the GPU that an instance is part of"
        7 profile Text ? "MIG profile"
        8 product Text ? "product"
        9 region Text ? "region"
        10 zone Text ? "zone"
        11 provider Text ? "provider"
        12 purchase_option Text ? "purchase option"
        13 reservation Text ? "reservation"
        14 capacity_gpus Int ? "GPUs of the node's status.capacity"
        15 allocatable_gpus Int ? "GPUs of its status.allocatable"
        16 weight_num Int ? "compute share of a whole GPU: numerator"
        17 weight_den Int ? "and denominator; both null: 1"
        18 replicas Int ? "replicas that the device is shared as; null: 1"
        19 telemetry Text ? "none: the product has no DCGM telemetry"
        20 labels Text ? "other labels, as a JSON object with sorted keys"
    };
    columns.extend(interval_columns());
    columns.extend(log_columns(97));
    table(
        "nodes",
        "Inventory: one row per node, device or spell of unavailability, and hour that it overlaps.",
        &["cluster", "node", "kind", "device", "reason", "from_at"],
        "from_at",
        columns,
    )
}

fn demand() -> Table {
    let mut columns = columns! {
        1 cluster Text ! "cluster"
        2 pod_uid Text ! "pod"
        3 namespace Text ! "namespace"
        4 pod Text ! "its name"
        5 team Text ? "who asks; null for unattributed"
        6 queue Text ? "queue"
        7 resource Text ? "resource name that was asked"
        8 gpus Int ! "GPUs asked"
        9 product Text ? "product asked"
        10 outcome Text ? "bound or withdrawn; null while it waits"
        11 node Text ? "node that it was bound to"
    };
    columns.extend(interval_columns());
    columns.extend(log_columns(97));
    table("demand", "Pods that wait, or waited, for GPUs.", &["cluster", "pod_uid", "from_at"], "from_at", columns)
}

fn reservations() -> Table {
    let mut columns = columns! {
        1 reservation Text ! "reservation"
        2 provider Text ? "provider"
        3 region Text ? "region"
        4 product Text ? "product"
        5 purchase_option Text ? "purchase option"
        6 gpus Int ! "GPUs paid for"
    };
    columns.extend(interval_columns());
    columns.extend(log_columns(97));
    table("reservations", "Capacity paid for ahead of use.", &["reservation", "from_at"], "from_at", columns)
}

fn scrapes() -> Table {
    let mut columns = columns! {
        1 cluster Text ! "cluster"
        2 node Text ! "node"
        3 at Time ! "the agent's clock when the request went out"
        4 source Text ! "scraped target"
        5 sequence Int ! "the agent's count of rounds of this target"
        6 status Text ! "ok, timeout, refused, http_4xx, http_5xx, parse_error, too_large, empty, restarted"
        7 error Text ? "what failed, in words"
        8 duration_ms Int ? "time the round took"
        9 interval_ms Int ! "scrape interval"
        10 collect_interval_ms Int ? "interval at which the exporter collects, where known"
        11 body_bytes Int ? "size of the page"
        12 series Int ? "series that were read"
        13 devices Int ? "devices of the page"
        14 bad_lines Int ? "lines kept out"
        15 duplicate_series Int ? "series that stood twice"
        16 refused_labels Int ? "labels that the contract refuses"
        17 skew_ms Int ? "clock of the node minus clock of the API server"
        18 join_reason Text ? "why no device could be joined"
        19 unmatched_ids Text ? "the kubelet's device ids that the page does not have, comma-joined"
    };
    columns.extend(log_columns(20));
    table("scrapes", "Every scrape round with its status, failed ones too.", &["cluster", "node", "at", "source"], "at", columns)
}

fn extra_samples() -> Table {
    let mut columns = columns! {
        1 cluster Text ! "cluster"
        2 node Text ! "node"
        3 device Text ? "device, where the series names one"
        4 at Time ! "the agent's clock when the request went out"
        5 source Text ! "scraped target"
        6 sequence Int ! "the agent's count of rounds of this target"
        7 name Text ! "metric name"
        8 labels Text ! "labels as a JSON object with sorted keys"
        9 value Double ? "value; null for NaN"
    };
    columns.extend(log_columns(10));
    table(
        "extra_samples",
        "Long form, for metrics that the catalogue does not know and families with several series a device.",
        &["cluster", "node", "name", "labels", "at", "source"],
        "at",
        columns,
    )
}

fn rejects() -> Table {
    let mut columns = columns! {
        1 cluster Text ? "cluster, where known"
        2 node Text ? "node, where known"
        3 at Time ! "time of the round, or of the refusal where no round is known"
        4 source Text ! "scraped target, topic or file"
        5 line Int ? "1-based line of a page or file"
        6 reason Text ! "why it was refused"
        7 text Text ? "the beginning of what was refused"
        8 rows Int ? "how many the row stands for"
    };
    columns.extend(log_columns(9));
    table("rejects", "What could not be parsed or joined.", &["cluster", "node", "at", "source", "line"], "at", columns)
}

fn device_hours() -> Table {
    table(
        "device_hours",
        "Capacity from the inventory alone; `strandline check` compares it with gpu_hours.",
        &["cluster", "node", "device", "hour_start"],
        "hour_start",
        columns! {
            1 hour_start Time ! "start of the UTC hour"
            2 cluster Text ! "cluster"
            3 node Text ! "node"
            4 device Text ! "device"
            5 capacity_ms Int ! "device-milliseconds in the inventory, whole-GPU-equivalent"
        },
    )
}

fn settled_holdings() -> Table {
    let columns = columns! {
        1 hour_start Time ! "start of the UTC hour"
        2 cluster Text ! "cluster"
        3 node Text ! "node"
        4 device Text ? "device; null for time known by number only (rule A16)"
        5 parent Text ? "UUID of the GPU that an instance is part of"
        6 profile Text ? "MIG profile"
        7 product Text ? "product"
        8 region Text ? "region"
        9 provider Text ? "provider"
        10 purchase_option Text ? "reserved, on-demand, spot, block, ..."
        11 kind Text ! "owner, free or unavailable: a piece of the account; held: who held the device at an instant, whether or not it was present; device: the device is listed"
        12 reason Text ? "why a piece is free (unheld, shared_slack) or unavailable"
        13 pod_uid Text ? "owner"
        14 namespace Text ? "its namespace"
        15 pod Text ? "its name"
        16 workload Text ? "what made it: Job, Deployment, ..."
        17 team Text ? "who pays; null for unattributed"
        18 queue Text ? "its queue"
        19 from_at Time ! "start of the piece; held: up to one horizon before the hour"
        20 to_at Time ! "end of the piece"
        21 held_from Time ? "kind owner: since when the owner holds the device without a break (bound and known)"
        22 ids Int ! "replica ids of the piece; 0 for held and device, and where device is null"
        23 replicas Int ? "replica ids of the device"
        24 weight_num Int ? "compute share of a whole GPU: numerator; of a mig_orphan piece what its instances leave over"
        25 weight_den Int ? "and denominator"
        26 unit_num Int ? "one id for a millisecond is unit_num / unit_den whole GPU milliseconds"
        27 unit_den Int ? "common denominator of a GPU and its instances in the hour, or of a node where device is null; null where 64 bits do not hold it"
        28 split_lcm Int ? "common multiple of the numbers of pods that the hour's samples of the device are split between; null where 64 bits do not hold it"
        29 pods Int ? "kind held: pods that hold the device then"
        30 orphan Bool ? "true: what MIG instances leave over"
        31 pre_start_ids Int ? "of ids: containers not started"
        32 terminating_ids Int ? "of ids: deletion asked for"
        33 on_unready_ids Int ? "of ids: on a device or node that was not ready"
        34 telemetry Text ? "none: the product has no DCGM telemetry"
        35 horizon_ms Int ! "how long a sample speaks at most (rule A4)"
        36 tensor_ceiling_num Int ? "tensor pipe activity that counts as all: numerator; null: 1"
        37 tensor_ceiling_den Int ? "and denominator"
        38 dram_ceiling_num Int ? "DRAM activity that counts as all: numerator; null: 4/5"
        39 dram_ceiling_den Int ? "and denominator"
        40 free_num Int ? "device null: taken from free time, in 1/unit_den of a GPU"
        41 calm_num Int ? "device null: taken from cordoned or maintenance time"
        42 unready_num Int ? "device null: taken from other unavailable time"
        43 unlisted_num Int ? "device null: held on a node without inventory"
        44 over_num Int ? "device null: what the node does not have (overcommitted)"
        45 allocation_source Text ? "api, podres or import"
        46 flags Text ? "of the holdings; sorted, comma-joined"
        47 reservation Text ? "reservation that the device is part of"
    };
    table(
        "settled_holdings",
        "Who held what, clamped and cut to presence, in pieces of time; with gpu_samples and scrapes, all that gpu_hours is computed from.",
        &["cluster", "node", "device", "kind", "from_at", "pod_uid", "reason"],
        "hour_start",
        columns,
    )
}

fn costs() -> Table {
    table(
        "costs",
        "Priced hours; money in micro-units of the currency.",
        &["pool", "bucket", "team", "hour_start"],
        "hour_start",
        columns! {
            1 hour_start Time ! "start of the UTC hour"
            2 pool Text ! "pool of the rate card, or unpriced"
            3 purchase_option Text ? "purchase option"
            4 bucket Text ! "team, unattributed, unready, reserved_idle, ..."
            5 team Text ? "who pays; null for unattributed, and for what is nobody's in particular"
            6 gpu_ms Int ! "GPU time; of unpriced time too"
            7 micro Int ? "amount; null where there is no price. SUM(micro) of a pool is its cost"
            8 currency Text ! "currency"
            9 idle_rule Text ? "which rule made an idle row: central, by_use, owner"
            10 provider Text ? "provider: of an unpriced row its label, else what the pool's match says"
            11 region Text ? "region, likewise"
            12 product Text ? "product, likewise"
            13 reason Text ? "unpriced: held, free, unavailable or no_inventory"
            14 basis Text ? "bucket source: inventory, imported or terms; restart waste: billed or productive"
            15 memo_gpu_ms Int ? "bucket restart_waste_memo: time lost, beside the sum"
            16 memo_micro Int ? "and its price, beside the sum"
            17 source_gpu_ms Int ? "bucket source: GPU time paid for; the pool's rows sum to it, not_billed left out"
            18 source_micro Int ? "bucket source: the pool's amount; the pool's rows sum to it"
            19 cash_micro Int ? "bucket source: what falls due in the hour, beside the sum"
        },
    )
}

fn billed_runs() -> Table {
    table(
        "billed_runs",
        "What providers billed by use, as imported: one row per run, in the hour of its beginning.",
        &["run"],
        "from_at",
        columns! {
            1 run Text ! "its id, unique in the table"
            2 pool Text ? "pool of the rate card; null where the labels find it"
            3 provider Text ? "provider"
            4 region Text ? "region"
            5 product Text ? "product"
            6 purchase_option Text ? "purchase option"
            7 reservation Text ? "reservation"
            8 gpus Int ! "how many GPUs"
            9 from_at Time ! "first instant billed"
            10 to_at Time ? "first instant after; null while it goes on"
            11 source Text ! "file that it came from"
        },
    )
}

fn restarts() -> Table {
    table(
        "restarts",
        "Work that restarts lost, as imported: one row per restart.",
        &["namespace", "pod", "pod_uid", "at"],
        "at",
        columns! {
            1 pod_uid Text ? "pod; null where only the name is known"
            2 namespace Text ? "its namespace"
            3 pod Text ? "its name"
            4 at Time ! "when it ended and its work since the checkpoint was lost"
            5 last_checkpoint Time ? "what it can go on from; null: everything since its bind"
            6 source Text ! "file that it came from"
        },
    )
}

static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
    vec![
        gpu_samples(),
        extra_samples(),
        scrapes(),
        allocations(),
        carried_allocations(),
        demand(),
        nodes(),
        reservations(),
        table(
            "gpu_hours",
            "The ledger: one row per UTC hour, device and owner, or free or unavailable reason.",
            &["cluster", "node", "device", "kind", "reason", "pod_uid"],
            "hour_start",
            gpu_hours_columns(),
        ),
        device_hours(),
        settled_holdings(),
        costs(),
        billed_runs(),
        restarts(),
        rejects(),
        table(
            "truth_gpu_hours",
            "What a simulation knows to be true, in the columns of gpu_hours; beside a simulated lake only.",
            &["cluster", "node", "device", "kind", "reason", "pod_uid"],
            "hour_start",
            gpu_hours_columns(),
        ),
    ]
});

/// Every table.
pub fn all() -> &'static [Table] {
    &TABLES
}

/// The table called `name`.
pub fn by_name(name: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| table.name == name)
}

/// A table of ours by its name, which is a literal in our own code.
///
/// # Panics
/// Where no table is called so: a mistake in our code, never in input.
pub fn get(name: &'static str) -> &'static Table {
    by_name(name).unwrap_or_else(|| panic!("no table is called {name}"))
}

/// `tables.md`: every table and column, for people.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Tables\n\nGenerated from `schemas/src/tables.rs`; `UPDATE=1 cargo test --profile ci -p schemas` writes it anew. All times are UTC, \
         INT64 microseconds holding whole milliseconds; null means absent, never 0.\nClosed hours lie at \
         `<table>/date=YYYY-MM-DD/hour=HH/*.parquet` below the lake's root.\n",
    );
    for table in all() {
        let _ = write!(
            text,
            "\n## {}\n\n{} Sorted by {}.\n\n| column | type | null | field id | meaning |\n|---|---|---|---|---|\n",
            table.name,
            table.doc,
            table.sort.join(", ")
        );
        for c in &table.columns {
            let null = if c.nullable { "yes" } else { "no" };
            let _ = writeln!(text, "| {} | {} | {null} | {} | {} |", c.name, c.kind.sql(), c.id, c.doc.replace('|', "\\|"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_keep_their_promises() {
        for table in all() {
            let mut names: Vec<_> = table.columns.iter().map(|c| c.name.as_str()).collect();
            let mut ids: Vec<_> = table.columns.iter().map(|c| c.id).collect();
            names.sort_unstable();
            ids.sort_unstable();
            assert!(names.windows(2).all(|w| w[0] != w[1]), "{}: a name stands twice", table.name);
            assert!(ids.windows(2).all(|w| w[0] != w[1]), "{}: a field id stands twice", table.name);
            assert!(!names.contains(&"date") && !names.contains(&"hour"), "{}: folders are called so", table.name);
            for &column in table.sort.iter().chain([&table.time]) {
                assert!(table.index(column).is_some(), "{}: {column}", table.name);
            }
        }
    }

    #[test]
    fn hour_rows_have_every_tier_and_cause() {
        let table = get("gpu_hours");
        for tier in Tier::ALL {
            for cause in Cause::ALL {
                assert!(table.index(&format!("{tier}_unobserved_{cause}_ms")).is_some());
            }
        }
        assert_eq!(get("truth_gpu_hours").schema(), table.schema(), "ledger and truth are one join apart");
    }
}
