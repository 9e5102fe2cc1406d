//! Pages with a collectors file of the spec's: every reading that the state has, by its name and type, and nothing that it has not.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Command, Stdio},
    sync::Arc,
};

use exporter::{Collectors, Page, Readings, Renderer, Style, Value};
use schemas::{
    catalogue,
    proto::{Frame, Message as _, frame},
    tables,
};
use simulator::{
    DeviceRef, FleetSpec, Plan,
    backfill::{
        Agents, frames,
        lake::{Options, backfill},
    },
    explain,
    nvml::{self, Place},
    state,
};

fn folder() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kwok-fleet/fleets")
}

/// A fleet of the tree with the collectors file that names every field. Misprints are the pages' alone, so there are none.
fn plan(name: &str, hours: u32) -> Arc<Plan> {
    let text = std::fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
    let mut spec = FleetSpec::parse(&(text + "\nexposition: { collectors: ../collectors-all.csv }\n")).unwrap();
    (spec.hours, spec.faults.blanks, spec.faults.out_of_range) = (hours, Default::default(), Default::default());
    spec.load(&folder()).unwrap();
    let seed = spec.seed;
    Arc::new(Plan::new(spec, seed).unwrap())
}

fn page(plan: &Plan, node: usize, at: schemas::Timestamp) -> String {
    let (mut page, mut out) = (Page::new(), Vec::new());
    state::read_node(plan, node, at, &mut page);
    Renderer::new(plan.collectors().clone(), Style::default()).render(&page, &mut out);
    String::from_utf8(out).unwrap()
}

/// Readings as a page prints them, by name.
fn printed(readings: &Readings) -> BTreeMap<String, String> {
    let one = |(field, value): &(u16, Value)| {
        let value = match value {
            Value::Int(value) => value.to_string(),
            Value::Float(value) => format!("{value:.6}"),
        };
        (catalogue::by_id(*field).unwrap().name.to_owned(), value)
    };
    readings.as_slice().iter().map(one).collect()
}

#[test]
fn pages_print_every_reading_of_the_state_and_the_driver_says_the_same() {
    let plan = plan("mixed", 12);
    let mut names: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for at in [0, 3, 9].map(|hour| plan.window().from().plus_ms(hour * schemas::HOUR_MS + 1_234_567)) {
        for (index, node) in plan.nodes().iter().enumerate() {
            let text = page(&plan, index, at);
            // Lines of each device, and the type of each name.
            let mut lines: BTreeMap<(&str, Option<&str>), BTreeMap<String, String>> = BTreeMap::new();
            for line in text.lines() {
                if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                    assert_eq!(kind, catalogue::by_name(name).unwrap().prom_type.as_str(), "{name}");
                }
                let Some((name, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) else { continue };
                let label = |name: &str| rest.split_once(&format!("{name}=\"")).map(|(_, rest)| rest.split_once('"').unwrap().0);
                let of_device = lines.entry((label("UUID").unwrap(), label("GPU_I_ID"))).or_default();
                of_device.insert(name.to_owned(), rest.rsplit_once(' ').unwrap().1.to_owned());
                assert_eq!(label("DCGM_FI_DEV_UUID"), label("UUID"));
            }
            let mut shown = 0;
            for (gpu, device) in node.devices.iter().enumerate() {
                let reference = DeviceRef { node: index, gpu };
                let id = device.instance.as_ref().map(|instance| instance.placed.id.to_string());
                let of_device = lines.get(&(&*device.identity.uuid, id.as_deref()));
                let Some(now) = state(&plan, reference, at) else {
                    assert_eq!(of_device, None, "{}: nobody reads it", device.id);
                    continue;
                };
                let mut readings = Readings::default();
                now.readings(&mut readings);
                assert_eq!(of_device, Some(&printed(&readings)), "{} at {at}", device.id);
                let place = Place { node: index, board: device.board, device: Some(gpu) };
                assert_eq!(of_device, Some(&printed(&nvml::readings(&plan, place, at, None))), "{} at {at}", device.id);
                names.entry(&node.accelerator.arch).or_default().extend(of_device.unwrap().keys().cloned());
                shown += 1;
            }
            assert_eq!(lines.len(), shown, "{}: no device that the plan has not", node.name);
        }
    }
    // What a board cannot give is absent: Turing retires pages and has no NVLink, what came after remaps rows.
    let has = |arch: &str, name: &str| names[arch].contains(name);
    for (name, turing, blackwell) in [
        ("DCGM_FI_DEV_RETIRED_DBE", true, false),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", false, true),
        ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", false, true),
        ("DCGM_FI_DEV_MEMORY_TEMP", false, true),
        ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", true, true),
    ] {
        assert_eq!((has("Turing", name), has("Blackwell", name)), (turing, blackwell), "{name}");
    }
    let every: BTreeSet<&String> = names.values().flatten().collect();
    let missing: Vec<_> = plan.collectors().families().iter().filter(|family| !every.contains(&family.name)).collect();
    assert!(missing.is_empty(), "named in the file, and given by no board: {missing:?}");
}

#[test]
fn series_are_counted_as_pages_with_the_file_have_them() {
    let plan = plan("small", 2);
    let told = explain::explain(&plan);
    let mut by_metric: BTreeMap<String, u64> = BTreeMap::new();
    for node in 0..plan.nodes().len() {
        let text = page(&plan, node, plan.window().from());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            *by_metric.entry(line.split_once('{').unwrap().0.to_owned()).or_default() += 1;
        }
    }
    assert_eq!(told.series_by_metric, by_metric);
    assert!(by_metric.contains_key("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"));
    assert_eq!(told.label_values["DCGM_FI_DEV_SERIAL"], 6, "a label a board");
}

#[test]
fn a_backfill_has_the_fields_and_labels_of_the_file_and_no_others() {
    let plan = plan("small", 2);
    let mut bytes = Vec::new();
    frames::write(&plan, plan.window(), &Agents::default(), &mut bytes, |_| {}).unwrap();
    let (mut rest, mut samples) = (bytes.as_slice(), 0);
    while !rest.is_empty() {
        let Some(frame::Content::Round(round)) = Frame::decode_length_delimited(&mut rest).unwrap().content else { continue };
        for sample in &round.devices {
            let readings = sample.readings.as_ref().unwrap();
            assert!([112, 240, 254, 310, 396].iter().all(|field| readings.get(*field).is_some()), "{sample:?}");
            assert_eq!((sample.labels["DCGM_FI_DEV_NAME"].as_str(), sample.labels.len()), (sample.product.as_str(), 4));
            samples += 1;
        }
    }
    assert!(samples > 1000, "{samples}");
    // Fewer fields: what the page does not print, nobody has read.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("two.csv"), "DCGM_FI_DEV_GPU_TEMP, gauge, warmth\nDCGM_FI_DEV_FB_USED, gauge, memory")
        .unwrap();
    let mut spec = crate::spec("small");
    spec.exposition.collectors = Some("two.csv".into());
    let unread = Plan::new(spec.clone(), spec.seed).unwrap_err().to_string();
    assert!(unread.starts_with("exposition.collectors: its file is not read yet"), "{unread}");
    spec.load(folder.path()).unwrap();
    let plan = Plan::new(spec.clone(), spec.seed).unwrap();
    let lake = lake::Lake::create(&folder.path().join("lake")).unwrap();
    backfill(&plan, &lake, &Options { window: plan.window(), threads: 1, agents: Agents::default() }, &|_| {}).unwrap();
    let table = tables::get("gpu_samples");
    let file = &lake.closed_files(table, None).unwrap()[0];
    let rows = lake::read::rows(table, &file.path, None).unwrap().remove(0);
    let nulls = |name: &str| rows.column(table.index(name).unwrap()).null_count();
    assert_eq!((nulls("dev_gpu_temp"), nulls("dev_fb_used")), (0, 0));
    for absent in ["dev_power_usage", "prof_sm_active", "driver_version", "xid_message"] {
        assert_eq!(nulls(absent), rows.num_rows(), "{absent}");
    }
    assert!(
        simulator::faults(&plan, plan.window()).iter().all(|fault| fault.kind != "blank"),
        "nothing that could be misprinted"
    );
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_its_line_and_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read_to_string(folder_of("small")).unwrap();
    let check = |name: &str, content: Option<&str>| {
        if let Some(content) = content {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let spec = folder.path().join("fleet.yaml");
        std::fs::write(&spec, format!("{good}\nexposition: {{ collectors: {name} }}\n")).unwrap();
        let said = Command::new(env!("CARGO_BIN_EXE_strandline-sim")).arg("check").arg(&spec).output().unwrap();
        (said.status.code(), String::from_utf8(said.stderr).unwrap())
    };
    let at = |name: &str| {
        format!("{}: exposition.collectors: {}", folder.path().join("fleet.yaml").display(), folder.path().join(name).display())
    };
    for (name, content, says) in [
        ("a.csv", "# a comment\nDCGM_FI_DEV_GPU_TEMPO, gauge, x", ": line 2: no DCGM field is called `DCGM_FI_DEV_GPU_TEMPO`"),
        ("b.csv", "DCGM_FI_DEV_GPU_TEMP, gauge", ": line 1: `DCGM_FI_DEV_GPU_TEMP, gauge` is not `field, type, help`"),
        ("c.csv", "DCGM_FI_DEV_GPU_TEMP, gage, x", ": line 1: `gage` is no type of DCGM_FI_DEV_GPU_TEMP"),
        ("d.csv", "# nothing", " names no field that is printed"),
    ] {
        let (exit, said) = check(name, Some(content));
        assert_eq!(exit, Some(2), "{said}");
        assert!(said.contains(&format!("{}{says}", at(name))), "{said}");
    }
    let (exit, said) = check("none.csv", None);
    assert!(exit == Some(2) && said.contains("exposition.collectors: cannot read ") && said.contains("none.csv"), "{said}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_strandline-sim"));
    let mut child = child.args(["check", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let spec = format!("{good}\nexposition: {{ collectors: a.csv }}\n");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), spec.as_bytes()).unwrap();
    let said = child.wait_with_output().unwrap();
    let said = (said.status.code(), String::from_utf8(said.stderr).unwrap());
    assert!(
        said.0 == Some(2) && said.1.contains("-: exposition.collectors: a spec from standard input lies in no folder"),
        "{said:?}"
    );
}

fn folder_of(name: &str) -> std::path::PathBuf {
    folder().join(format!("{name}.yaml"))
}

#[test]
fn the_file_of_all_fields_has_the_built_in_ones_as_they_are() {
    let text = std::fs::read_to_string(folder().join("../collectors-all.csv")).unwrap();
    let all = Collectors::parse(&text).unwrap();
    for family in Collectors::built_in().families() {
        assert!(all.families().contains(family), "{}", family.name);
    }
}
