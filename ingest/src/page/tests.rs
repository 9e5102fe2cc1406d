#![allow(clippy::unwrap_used)]

use super::*;

const LABELS: &str = r#"gpu="0",UUID="GPU-7d1f6a02-1111-4222-8333-0123456789ab",pci_bus_id="00000000:18:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="dune-7",DCGM_FI_DRIVER_VERSION="550.90.07""#;

fn page(text: &str) -> Page {
    read(text.as_bytes(), None, &Options::default()).unwrap()
}

fn int(page: &Page, device: usize, id: u16) -> Option<i64> {
    match page.devices[device].sample.readings.as_ref().unwrap().get(id) {
        Some(Value::Int(v)) => Some(v),
        Some(Value::Float(v)) => panic!("{v} is a float"),
        None => None,
    }
}

fn float(page: &Page, device: usize, id: u16) -> Option<f32> {
    match page.devices[device].sample.readings.as_ref().unwrap().get(id) {
        Some(Value::Float(v)) => Some(v),
        Some(Value::Int(v)) => panic!("{v} is an integer"),
        None => None,
    }
}

fn fault(page: &Page, device: usize, id: u16) -> Option<&str> {
    page.devices[device].sample.faults.get(&u32::from(id)).map(String::as_str)
}

/// A page in the form of dcgm-exporter 3.x to 4.x: label order, MIG lines, an XID text with a comma, pod labels.
fn dcgm() -> String {
    format!(
        "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n\
         # TYPE DCGM_FI_DEV_SM_CLOCK gauge\n\
         DCGM_FI_DEV_SM_CLOCK{{{LABELS},container=\"main\",namespace=\"surf\",pod=\"train-0\",pod_uid=\"u-1\"}} 1980\n\
         DCGM_FI_DEV_XID_ERRORS{{{LABELS},container=\"main\",err_code=\"45\",err_msg=\"Preemptive cleanup, due to previous errors\",namespace=\"surf\",pod=\"train-0\"}} 45\n\
         DCGM_FI_DEV_POWER_USAGE{{{LABELS},container=\"main\",namespace=\"surf\",pod=\"train-0\"}} 612.345000\n\
         DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{LABELS},container=\"main\",namespace=\"surf\",pod=\"train-0\"}} 90071992547409931\n\
         DCGM_FI_PROF_SM_ACTIVE{{{LABELS},container=\"main\",namespace=\"surf\",pod=\"train-0\"}} 0.503000\n\
         DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu=\"1\",UUID=\"GPU-b\",pci_bus_id=\"00000000:2A:00.0\",device=\"nvidia1\",modelName=\"NVIDIA H100 80GB HBM3\",GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"7\",Hostname=\"dune-7\",DCGM_FI_DRIVER_VERSION=\"550.90.07\"}} 1.294000\n"
    )
}

#[test]
fn a_real_page_field_by_field() {
    let page = page(&dcgm());
    assert_eq!(page.devices.len(), 2);
    let whole = &page.devices[0].sample;
    assert_eq!(whole.device, "GPU-7d1f6a02-1111-4222-8333-0123456789ab");
    assert_eq!((whole.gpu_index, whole.parent.as_str(), whole.profile.as_str()), (Some(0), "", ""));
    assert_eq!((whole.product.as_str(), whole.hostname.as_str()), ("NVIDIA H100 80GB HBM3", "dune-7"));
    assert_eq!((whole.pci_bus_id.as_str(), whole.driver_version.as_str()), ("00000000:18:00.0", "550.90.07"));
    assert_eq!(whole.xid_message, "Preemptive cleanup, due to previous errors");
    assert_eq!((int(&page, 0, 100), int(&page, 0, 230)), (Some(1980), Some(45)));
    assert_eq!((float(&page, 0, 155), float(&page, 0, 1002)), (Some(612.345), Some(0.503)));
    assert_eq!(int(&page, 0, 156), Some(90_071_992_547_409_931), "integers are read from the text, not through a float");
    let pod = PagePod { namespace: "surf".into(), pod: "train-0".into(), container: "main".into(), pod_uid: "u-1".into() };
    assert_eq!(page.devices[0].pods, [pod]);
    assert_eq!(page.devices[0].device_name, "nvidia0");
    let mig = &page.devices[1].sample;
    assert_eq!((mig.device.as_str(), mig.parent.as_str(), mig.instance_id), ("GPU-b/7", "GPU-b", Some(7)));
    assert_eq!(mig.profile, "1g.10gb");
    assert_eq!((float(&page, 1, 1001), fault(&page, 1, 1001)), (Some(1.294), Some("mig_overrange")));
    assert!(page.devices[1].pods.is_empty());
    assert_eq!((page.counts.series, page.counts.bad_lines, page.extra.len()), (6, 0, 0));
}

#[test]
fn spellings_of_every_age_are_alike() {
    let old = page(
        "dcgm_gpu_utilization{gpu=\"0\",uuid=\"GPU-a\",hostname=\"h\",container_name=\"c\",pod_namespace=\"n\",pod_name=\"p\"} 42\n",
    );
    let new = page(
        "DCGM_FI_DEV_GPU_UTIL_RATIO{gpu=\"0\",UUID=\"GPU-a\",Hostname=\"h\",container=\"c\",namespace=\"n\",pod=\"p\",x=\"\"} 42\n",
    );
    let federated = page(
        "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-a\",Hostname=\"h\",exported_container=\"c\",exported_namespace=\"n\",exported_pod=\"p\",namespace=\"monitoring\",pod=\"dcgm-exporter-x\",container=\"exporter\"} 42\n",
    );
    for page in [&old, &new, &federated] {
        assert_eq!(page.devices[0].sample, old.devices[0].sample);
        assert_eq!(page.devices[0].pods, old.devices[0].pods);
        assert_eq!(int(page, 0, 203), Some(42));
    }
}

#[test]
fn empty_labels_are_absent_ones() {
    let page = page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",GPU_I_ID=\"\",container=\"\",namespace=\"\",pod=\"\"} 1\n");
    assert_eq!(page.devices[0].id.to_string(), "GPU-a");
    assert!(page.devices[0].pods.is_empty());
}

#[test]
fn values_that_are_none_are_named() {
    let page = page(
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 808334905\nDCGM_FI_DEV_FB_USED{UUID=\"GPU-a\"} 9223372036854775794\n\
         DCGM_FI_DEV_POWER_USAGE{UUID=\"GPU-a\"} NaN\nDCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-a\"} +Inf\n\
         DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"GPU-a\"} 2147483634\n",
    );
    assert_eq!((int(&page, 0, 203), fault(&page, 0, 203)), (None, Some("out_of_range")));
    assert_eq!((int(&page, 0, 252), fault(&page, 0, 252)), (None, Some("sentinel")));
    assert_eq!((float(&page, 0, 155), fault(&page, 0, 155)), (None, Some("sentinel")));
    assert_eq!((float(&page, 0, 1002), fault(&page, 0, 1002)), (None, Some("out_of_range")));
    assert_eq!((int(&page, 0, 156), fault(&page, 0, 156)), (Some(2_147_483_634), None), "no blank of a 64-bit counter");
    assert_eq!(page.counts.faults, [("out_of_range", 2), ("sentinel", 2)].into());
}

#[test]
fn a_series_that_stands_twice_counts_once() {
    let text = "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",gpu=\"0\"} 10\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-a\",pod=\"\"} 90\n\
                DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",gpu=\"0\"} 10\nup 1\nup 1\nup 2\n";
    let page = page(text);
    assert_eq!(int(&page, 0, 203), Some(10), "the first is kept");
    assert_eq!((page.counts.duplicate_series, page.counts.conflicting_duplicates), (4, 2));
    assert_eq!((fault(&page, 0, 203), page.extra.len()), (None, 1));
    assert_eq!(page.extra[0].value, 1.0);
}

#[test]
fn copies_and_stale_label_sets_are_one_reading() {
    let copies = page(
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",vgpu=\"0\",pod=\"p0\",namespace=\"n\"} 70\n\
         DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",vgpu=\"1\",pod=\"p1\",namespace=\"n\"} 70\n",
    );
    assert_eq!((int(&copies, 0, 203), fault(&copies, 0, 203)), (Some(70), None), "equal copies are no conflict");
    assert_eq!(copies.devices[0].pods.iter().map(|p| p.pod.as_str()).collect::<Vec<_>>(), ["p0", "p1"]);
    assert!(!copies.devices[0].sample.labels.contains_key("vgpu"));

    let stale = page(
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"old\"} 70\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"new\"} 90\n\
         DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"blank\"} 2147483632\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"low\"} 80\n",
    );
    assert_eq!((int(&stale, 0, 203), fault(&stale, 0, 203)), (Some(90), Some("conflict")));
    assert_eq!(stale.counts.faults, [("conflict", 1), ("sentinel", 1)].into());

    // Differing as printed is a conflict even where the stored values are one; a blank beside a value is not.
    let printed =
        page("DCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-a\",pod=\"x\"} 0.5\nDCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-a\",pod=\"y\"} 0.500000\n");
    assert_eq!(fault(&printed, 0, 1002), Some("conflict"));
    let blank =
        page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"x\"} 2147483632\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"y\"} 5\n");
    assert_eq!((int(&blank, 0, 203), fault(&blank, 0, 203)), (Some(5), None));
    let lost =
        page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"x\"} 2147483632\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"y\"} 500\n");
    assert_eq!((int(&lost, 0, 203), fault(&lost, 0, 203)), (None, Some("out_of_range")));
}

#[test]
fn old_and_new_names_of_one_field_are_one_reading() {
    let page = page("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 7\nDCGM_FI_DEV_GPU_UTIL_RATIO{UUID=\"GPU-a\"} 7\n");
    assert_eq!((int(&page, 0, 203), fault(&page, 0, 203)), (Some(7), None));
    assert_eq!(page.counts.duplicate_series, 0);
}

#[test]
fn what_the_catalogue_does_not_know_is_kept_with_its_labels() {
    let page = page(
        "go_goroutines 12\nDCGM_EXP_XID_ERRORS_COUNT{UUID=\"GPU-a\",window_size_in_ms=\"300000\",xid=\"79\"} 1\n\
         DCGM_EXP_XID_ERRORS_COUNT{UUID=\"GPU-a\",window_size_in_ms=\"300000\",xid=\"45\"} 2\n\
         DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{nvlink=\"3\",gpu=\"0\",gpu_uuid=\"GPU-a\",model_name=\"H100\"} 5\n\
         DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 40\n",
    );
    assert!(page.devices.is_empty(), "a link is no device, and an index is no identity");
    let shown: Vec<_> = page.extra.iter().map(|e| (e.name.as_str(), e.device.as_str(), e.labels.len(), e.value)).collect();
    assert_eq!(
        shown,
        [
            ("go_goroutines", "", 0, 12.0),
            ("DCGM_EXP_XID_ERRORS_COUNT", "GPU-a", 3, 1.0),
            ("DCGM_EXP_XID_ERRORS_COUNT", "GPU-a", 3, 2.0),
            ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "GPU-a", 4, 5.0),
            ("DCGM_FI_DEV_GPU_TEMP", "", 1, 40.0),
        ]
    );
}

#[test]
fn refused_labels_do_not_enter_anywhere() {
    let options = Options { contract: Contract::new(["*secret*".to_owned()]), ..Options::default() };
    let text = "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",prompt=\"tell me\",my_secret_2=\"s\",app=\"x\",team=\"t\"} 7\n\
                other{user_email=\"a@b\",app=\"x\"} 7\nbad{prompt=\"tell me\",x} 1\nthird{prompt=\"\"} 1\n";
    let page = read(text.as_bytes(), None, &options).unwrap();
    assert_eq!(page.counts.refused_labels, 3, "an empty label is an absent one");
    let whole = format!("{page:?}");
    for secret in ["tell me", "a@b", "\"s\""] {
        assert!(!whole.contains(secret), "{secret} is in {whole}");
    }
    assert_eq!(page.devices[0].sample.labels, [("app".into(), "x".into()), ("team".into(), "t".into())].into());
    assert_eq!(page.rejects[0].text, "bad");
}

#[test]
fn ids_that_are_none_are_rejects() {
    let text = "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU a\"} 7\nDCGM_FI_DEV_FB_USED{UUID=\"GPU a\"} 7\n\
                DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",GPU_I_ID=\"seven\"} 7\nbad line here\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 7\n";
    let page = page(text);
    let rejects: Vec<_> = page.rejects.iter().map(|r| (r.line, r.reason.as_str())).collect();
    assert_eq!(rejects, [(1, "bad_device_id"), (2, "bad_device_id"), (3, "bad_device_id"), (4, "bad_value")]);
    assert_eq!((page.counts.bad_lines, page.devices.len()), (4, 1));
}

#[test]
fn bodies_that_are_no_pages_say_what_they_are() {
    #[track_caller]
    fn check(body: &str, content_type: Option<&str>, status: ScrapeStatus, words: &str) {
        let fault = read(body.as_bytes(), content_type, &Options::default()).unwrap_err();
        assert_eq!(fault.status(), status, "{fault}");
        assert!(fault.to_string().contains(words), "{fault}");
    }
    check("<!doctype html><html>login</html>", None, ScrapeStatus::ParseError, "HTML");
    check("  \n<html>", Some("text/plain"), ScrapeStatus::ParseError, "HTML");
    check("up 1\n", Some("text/html; charset=utf-8"), ScrapeStatus::ParseError, "HTML");
    check("{\"a\": 1}", Some("application/json"), ScrapeStatus::ParseError, "`application/json` is neither Prometheus text");
    check("{\"a\": 1}", None, ScrapeStatus::ParseError, "1 bad lines, the first at line 1, column 5");
    check("", None, ScrapeStatus::Empty, "no samples");
    check("# HELP a b\n\n", Some("text/plain; version=0.0.4"), ScrapeStatus::Empty, "no samples");
    let openmetrics = Some("application/openmetrics-text; version=1.0.0; charset=utf-8");
    check("", openmetrics, ScrapeStatus::Empty, "no samples");
    check("# EOF\n", openmetrics, ScrapeStatus::Empty, "no samples");
    check("up 1\nup 2\n", openmetrics, ScrapeStatus::ParseError, "the page ends after line 2 without `# EOF`");
    let options = Options { limits: parse::Limits { page_bytes: 4, ..Default::default() }, ..Default::default() };
    let fault = read(b"up 1\n\n", None, &options).unwrap_err();
    assert_eq!(fault.status(), ScrapeStatus::TooLarge);
}

#[test]
fn openmetrics_is_the_same_page() {
    let text = page(
        "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 7\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"GPU-a\"} 15\n",
    );
    let body = "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 7.0 1751328000.5\n\
                # TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n\
                DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total{UUID=\"GPU-a\"} 1.5e+01 # {trace_id=\"t\"} 1.0\n# EOF\n";
    for content_type in [Some("application/openmetrics-text; version=1.0.0"), None] {
        let read = read(body.as_bytes(), content_type, &Options::default()).unwrap();
        assert_eq!(read.devices, text.devices, "{content_type:?}");
    }
    // In text `_total` belongs to the name, and the time is no whole number of milliseconds.
    let body = format!("up 1\n{body}");
    let as_text = read(body.as_bytes(), Some("text/plain"), &Options::default()).unwrap();
    assert_eq!(as_text.bad_lines.by_reason, [("bad_timestamp", 2)].into());
}

#[test]
fn caps_hold_and_are_counted() {
    let caps = Caps { extra_samples: 2, devices: 1, labels: 1, label_bytes: 4, pods: 1, memory_bytes: 100 };
    let options = Options { caps, ..Options::default() };
    let text = "a 1\nb 1\nc 1\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\",pod=\"p1\",x=\"äöüß\",y=\"1\"} 1\n\
                DCGM_FI_DEV_FB_USED{UUID=\"GPU-a\",pod=\"p2\"} 1\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-b\"} 1\n";
    let page = read(text.as_bytes(), None, &options).unwrap();
    assert_eq!((page.extra.len(), page.devices.len(), page.devices[0].pods.len()), (2, 1, 1));
    assert_eq!(page.devices[0].sample.labels, [("x".into(), "äö".into())].into());
    let counts = &page.counts;
    assert_eq!((counts.extra_dropped, counts.devices_dropped, counts.labels_dropped), (1, 1, 2));
}

#[test]
fn what_people_are_shown() {
    let mut text = dcgm();
    text.push_str("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-b\"} 2147483632\nbroken{ 1\nother{a=\"b\"} 2.5");
    let shown = describe(&page(&text));
    let json = serde_json::to_value(&shown).unwrap();
    let reading = &json["devices"][0]["readings"][3];
    assert_eq!(
        *reading,
        serde_json::json!({"field_id": 230, "name": "DCGM_FI_DEV_XID_ERRORS", "value": 45, "unit": "xid_code", "fault": null})
    );
    assert_eq!(json["devices"][0]["readings"][1]["value"].to_string(), "612.345");
    assert_eq!(json["devices"][1]["readings"][0]["fault"], "sentinel");
    assert_eq!(json["rejected"]["first"][0]["line"], 10);
    assert_eq!(json["rejected"]["first"][0]["message"], "brace is not closed on its line");
    assert_eq!(json["extra"][0]["labels"]["a"], "b");
    assert_eq!(json["notes"][0], "the page does not end in a line feed: it may have been cut");
    assert_eq!(shown.devices.len(), 3);
}

proptest::proptest! {
    /// Whatever pages a target gives, one after the other: with what is remembered of it they read as without.
    #[test]
    fn a_memory_changes_no_row(
        pages in proptest::collection::vec(
            "((DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_FB_USED|DCGM_FI_PROF_SM_ACTIVE|up)\\{(UUID=\"GPU-[ab]\",)?(GPU_I_ID=\"[1x]\",)?(pod=\"[pq]?\",)?(pod_uid=\"u\",)?(x=\"[12]\",)?(y=\"\",)?(prompt=\"p\")?(,nvlink=\"1\")?\\} (1|2|0\\.5|NaN|2147483632|z)\n){0,14}",
            0..6,
        ),
        memory_bytes in proptest::prop_oneof![proptest::strategy::Just(0_usize), 20..200_usize, proptest::strategy::Just(100_000)],
        devices in 1..4_usize,
        labels in 1..4_usize,
        pods in 1..3_usize,
    ) {
        let caps = Caps { extra_samples: 5, devices, labels, label_bytes: 8, pods, memory_bytes };
        let options = Options { caps, ..Options::default() };
        let without = Options { caps: Caps { memory_bytes: 0, ..caps }, ..Options::default() };
        let mut memory = Memory::new(&options);
        for text in pages {
            let read = read_remembering(text.as_bytes(), None, &options, &mut memory);
            let fresh = super::read(text.as_bytes(), None, &without);
            // As text, for NaN is not equal to itself.
            proptest::prop_assert_eq!(format!("{read:?}"), format!("{fresh:?}"));
        }
    }

    #[test]
    fn any_page_is_read_without_panic_and_every_sample_goes_somewhere(text in "((DCGM_FI_DEV_GPU_UTIL|up|DCGM_FI_PROF_SM_ACTIVE)(\\{(UUID|GPU_I_ID|pod|prompt|x)=\"[a-c ]{0,2}\"(,uuid=\"[ab]\")?\\})? (1|0\\.5|NaN|2147483632|x)\n){0,20}") {
        if let Ok(page) = read(text.as_bytes(), None, &Options::default()) {
            let lines = text.lines().count() as u64;
            proptest::prop_assert_eq!(page.counts.series + page.bad_lines.count, lines);
            let _ = describe(&page);
        }
    }
}
