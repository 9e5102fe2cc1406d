//! Questions to a lake in SQL that travels: each a file of `query/sql`, the same for DataFusion, DuckDB and Spark.

/// Name of the question and its SQL, which opens with a comment that says what is asked and what the columns are.
pub type Question = (&'static str, &'static str);

macro_rules! questions {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../sql/", $name, ".sql"))),)+]
    };
}

/// Every question, by name.
pub const ALL: &[Question] = questions! {
    "busy-devices"
    "energy"
    "fragmentation"
    "gang-unused"
    "hbm-hours"
    "hours-by"
    "hours-by-team-product"
    "kv-seat-hours"
    "never-worked"
    "profile-hours"
    "reconciliation"
    "reserved-idle"
    "stranding"
    "unattributed"
    "unobserved"
    "unserved"
    "waterfall"
};

/// The gauge that `kv-seat-hours` integrates where no other is named.
pub const KV_GAUGE: &str = "vllm:num_requests_running";

/// The SQL of a question.
pub fn sql(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, sql)| *sql)
}

/// What a question asks, in one line.
pub fn asks(sql: &str) -> &str {
    let text = sql.trim_start_matches(['/', '*', '-', ' ']);
    text.lines().next().unwrap_or_default().trim()
}

/// The SQL of `kv-seat-hours` for another gauge; none where the name is no metric name of Prometheus.
pub fn kv_seat_hours(gauge: &str) -> Option<String> {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    let is_name = gauge.starts_with(letter) && gauge.chars().all(|c| letter(c) || c.is_ascii_digit());
    let text = sql("kv-seat-hours").filter(|_| is_name)?;
    Some(text.replace(&format!("'{KV_GAUGE}'"), &format!("'{gauge}'")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_file_is_a_question_and_says_what_it_asks() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.strip_suffix(".sql")?.to_owned()))
            .collect();
        files.sort();
        assert_eq!(files, ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        for (name, sql) in ALL {
            assert!(asks(sql).ends_with('?'), "{name}: {}", asks(sql));
        }
    }

    #[test]
    fn the_gauge_stands_in_one_place_and_is_a_name() {
        assert_eq!(sql("kv-seat-hours").unwrap().matches(KV_GAUGE).count(), 1);
        assert!(kv_seat_hours("sglang:num_running_reqs").unwrap().contains("'sglang:num_running_reqs'"));
        for bad in ["", "a'b", "9a", "a b", "ä"] {
            assert_eq!(kv_seat_hours(bad), None, "{bad}");
        }
    }
}
