//! The text, byte for byte, and the page over HTTP.
#![allow(clippy::unwrap_used)]

mod api_server;
mod docs;
mod owners;

use std::sync::Arc;

use exporter::{
    Attributes, Collectors, Extra, Format, HostnameLabel, Identity, Instance, Lines, Page, Pages, ReadError, Renderer, Size,
    Source, Style, Value, pod_labels::PodLabels,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Read = (Arc<Identity>, Option<Arc<Attributes>>, Vec<(u16, Value)>);

struct Node {
    devices: Vec<Read>,
}

impl Source for Node {
    fn read(&self, page: &mut Page) -> Result<(), ReadError> {
        page.begin(Some("node-1".into()));
        for (identity, attributes, values) in &self.devices {
            let readings = page.device(identity, attributes.as_ref());
            for &(field, value) in values {
                readings.set(field, value);
            }
        }
        Ok(())
    }
}

fn h100(gpu: u32) -> Identity {
    Identity {
        gpu,
        uuid: format!("GPU-0000000{gpu}-aaaa-4bbb-8ccc-dddddddddddd"),
        pci_bus_id: format!("00000000:1{gpu}:00.0"),
        model: "NVIDIA H100 80GB HBM3".into(),
        instance: None,
        texts: vec![(1, "580.65.06".into())],
    }
}

fn node() -> Node {
    let held = Arc::new(Attributes::of_pod("team-a", "train-0", "main"));
    let instance = Identity { instance: Some(Instance { profile: "1g.10gb".into(), id: 7 }), ..h100(1) };
    let odd = Identity { uuid: "GPU-odd".into(), model: "say \"hi\"\\\n".into(), texts: vec![], ..h100(2) };
    Node {
        devices: vec![
            (
                Arc::new(h100(0)),
                Some(held),
                vec![
                    (155, Value::Float(577.123)),
                    (156, Value::Int(2_147_483_640)),
                    (203, Value::Int(98)),
                    (230, Value::Int(45)),
                    (1002, Value::Float(0.813_004)),
                ],
            ),
            (Arc::new(instance), None, vec![(155, Value::Float(70.0)), (1002, Value::Float(0.0))]),
            (Arc::new(odd), None, vec![(203, Value::Int(0)), (230, Value::Int(79)), (4711, Value::Int(1))]),
        ],
    }
}

fn text(style: Style) -> String {
    let mut page = Page::new();
    node().read(&mut page).unwrap();
    let mut out = Vec::new();
    Renderer::new(Arc::new(Collectors::built_in()), style).render(&page, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn the_text_is_dcgm_exporters() {
    let held = r#"gpu="0",UUID="GPU-00000000-aaaa-4bbb-8ccc-dddddddddddd",pci_bus_id="00000000:10:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",hostname="node-1",DCGM_FI_DRIVER_VERSION="580.65.06""#;
    let pod = r#"container="main",namespace="team-a",pod="train-0""#;
    let part = r#"gpu="1",UUID="GPU-00000001-aaaa-4bbb-8ccc-dddddddddddd",pci_bus_id="00000000:11:00.0",device="nvidia1",modelName="NVIDIA H100 80GB HBM3",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",hostname="node-1",DCGM_FI_DRIVER_VERSION="580.65.06""#;
    let odd =
        r#"gpu="2",UUID="GPU-odd",pci_bus_id="00000000:12:00.0",device="nvidia2",modelName="say \"hi\"\\\n",hostname="node-1""#;
    let expected = format!(
        "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{{{held},{pod}}} 577.123000
DCGM_FI_DEV_POWER_USAGE{{{part}}} 70.000000
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{held},{pod}}} 2147483640
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{{held},{pod}}} 98
DCGM_FI_DEV_GPU_UTIL{{{odd}}} 0
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{{held},container=\"main\",err_code=\"45\",err_msg=\"Preemptive cleanup, due to previous errors -- Most likely to see when running multiple cuda\",namespace=\"team-a\",pod=\"train-0\"}} 45
DCGM_FI_DEV_XID_ERRORS{{{odd},err_code=\"79\",err_msg=\"GPU has fallen off the bus\"}} 79
# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{{{held},{pod}}} 0.813004
DCGM_FI_PROF_SM_ACTIVE{{{part}}} 0.000000
"
    );
    assert_eq!(text(Style::default()), expected);
}

#[test]
fn the_host_name_has_the_spelling_of_its_age() {
    let lower = text(Style::default());
    assert_eq!(text(Style { hostname: HostnameLabel::Classic, ..Style::default() }), lower.replace(",hostname=", ",Hostname="));
    assert_eq!(text(Style { hostname: HostnameLabel::Absent, ..Style::default() }), lower.replace(",hostname=\"node-1\"", ""));
}

#[tokio::test]
async fn a_scrape_gets_the_page() {
    let pages = Arc::new(Pages::new(Arc::new(Collectors::built_in()), Style::default()));
    let listener = web::listen("0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(web::serve(listener, exporter::router(Arc::new(node()), pages), std::future::pending()));
    for _ in 0..2 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
        assert_eq!(body, text(Style::default()));
    }
}

#[test]
fn a_page_is_as_large_as_its_lines_while_numbers_labels_and_lines_change() {
    let identity = |gpu: u32| Arc::new(Identity { gpu, uuid: format!("GPU-{gpu}\"x"), model: "M".into(), ..Identity::default() });
    let (identities, pod) = ([identity(0), identity(11)], Arc::new(Attributes::of_pod("n", "p", "z")));
    let collectors = Arc::new(Collectors::built_in());
    let family = |field: u16| collectors.families().iter().position(|family| family.field == field);
    let mut renderer = Renderer::new(collectors.clone(), Style::default());
    let mut lines = [(); 2].map(|()| Lines::new(collectors.clone(), Style::default()));
    let (mut page, mut text, mut size) = (Page::new(), Vec::new(), Size::default());
    for (at, round) in [1_i64, 10, 1_000_000_007, 3].into_iter().enumerate() {
        let values = |gpu: usize| {
            let (odd, huge) = (9.9999995 * round as f64, 1e300 / round as f64);
            // One device reads what the other has not.
            let own = if gpu == 0 { (203, Value::Int(round)) } else { (1004, Value::Float(huge)) };
            let xid = [79, 45, 4_711, 0][at];
            let mut values = vec![(150, Value::Int(-round)), (155, Value::Float(odd)), (1002, Value::Float(0.5e-6)), own];
            // Lines come, and the last time some are gone.
            values.extend((at > 0).then_some((230, Value::Int(xid))));
            values.retain(|(field, _)| at < 3 || *field != 155);
            values.sort_by_key(|(field, _)| *field);
            values
        };
        for held in [false, true] {
            page.begin(Some("node".into()));
            size.clear();
            for (gpu, lines) in lines.iter_mut().enumerate() {
                let attributes = held.then_some(&pod);
                let readings = page.device(&identities[gpu], attributes);
                if at == 3 {
                    lines.clear();
                }
                for (field, value) in values(gpu) {
                    readings.set(field, value);
                    lines.set(family(field).unwrap(), value);
                }
                lines.label(Some("node"), &identities[gpu], attributes.map(|pod| &**pod));
                size.add(lines);
            }
            text.clear();
            renderer.render(&page, &mut text);
            let text = String::from_utf8(text.clone()).unwrap();
            let series = text.lines().filter(|line| !line.starts_with('#')).count();
            assert_eq!((size.bytes, size.series), (text.len() as u64, series as u64), "{text}");
        }
    }
}

/// Labels in dcgm-exporter's order: those of the file, of the pod and of the line together, then attributes.
#[test]
fn labels_of_pods_and_of_counted_lines_stand_in_order() {
    let collectors = Collectors::parse(
        "DCGM_FI_DRIVER_VERSION, label, v\nDCGM_FI_DEV_XID_ERRORS, gauge, x\nDCGM_EXP_XID_ERRORS_COUNT, gauge, n\nDCGM_FI_DEV_GPU_TEMP, gauge, t",
    );
    let collectors = Arc::new(collectors.unwrap());
    let refused = web::Metrics::new().counter("refused_total", "x", &[]);
    let labels = PodLabels::new(Vec::new(), ["DCGM_FI_DRIVER_VERSION".to_owned()], refused.clone());
    let hostile =
        [("team", "a\"b\\c\nd"), ("gpu", "7"), ("x".repeat(60_000).as_str(), "y"), ("long", "z".repeat(60_000).as_str())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
    let pod = labels.of(&hostile.into());
    let attributes = Arc::new(Attributes::of_pod("ns", "p", "c").with_pod_labels(pod));
    let mut page = Page::new();
    page.begin(Some("node".into()));
    let readings = page.device(&Arc::new(h100(0)), Some(&attributes));
    readings.set(150, Value::Int(40));
    readings.set(230, Value::Int(31));
    let window = ("window_size_in_ms", "300000".to_owned());
    page.last().unwrap().extras.push(Extra::new(9001, [window, ("xid", "31".to_owned())], 2));
    let text = |style, format| {
        let mut out = Vec::new();
        Renderer::new(collectors.clone(), style).render_as(&page, format, &mut out);
        String::from_utf8(out).unwrap()
    };
    let whole = text(Style::default(), Format::Text);
    let device = r#"gpu="0",UUID="GPU-00000000-aaaa-4bbb-8ccc-dddddddddddd",pci_bus_id="00000000:10:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",hostname="node",DCGM_FI_DRIVER_VERSION="580.65.06",label_gpu="7""#;
    let long = format!(",long=\"{}\",team=\"a\\\"b\\\\c\\nd\"", "z".repeat(1024));
    assert!(
        whole.contains(&format!("DCGM_FI_DEV_GPU_TEMP{{{device}{long},container=\"c\",namespace=\"ns\",pod=\"p\"}} 40\n")),
        "{whole}"
    );
    let xid = format!(
        "DCGM_FI_DEV_XID_ERRORS{{{device}{long},container=\"c\",err_code=\"31\",err_msg=\"GPU memory page fault\",namespace=\"ns\",pod=\"p\"}} 31\n"
    );
    assert!(whole.contains(&xid), "{whole}");
    let counted = format!(
        "DCGM_EXP_XID_ERRORS_COUNT{{{device}{long},window_size_in_ms=\"300000\",xid=\"31\",container=\"c\",namespace=\"ns\",pod=\"p\"}} 2\n"
    );
    assert!(whole.contains(&counted), "{whole}");
    assert_eq!(refused.get(), 2, "a key that is too long, and a value that is cut");
    let old = text(Style { old_namespace: true, dashes_in_model: true, ..Style::default() }, Format::Text);
    assert!(old.contains("{gpu=\"0\",uuid=\"GPU-"), "{old}");
    assert!(
        old.contains(",container_name=\"c\",pod_namespace=\"ns\",pod_name=\"p\"} 40")
            && old.contains("modelName=\"NVIDIA-H100-80GB-HBM3\"")
    );
    let open = text(Style::default(), Format::OpenMetrics);
    assert_eq!(
        open.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>(),
        whole.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>()
    );
}
