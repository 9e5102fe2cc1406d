//! `readings.proto`, the Rust of all messages, the readings by id, and `tables.md`: generated here, compared with the tree.

use std::{fmt::Write, fs, path::PathBuf};

use prost::Message;
use schemas::catalogue::{self, ValueType};

fn tree(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares `text` with the file at `path`, or writes it under `UPDATE=1`.
fn is_checked_in(path: &str, text: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::write(tree(path), text).unwrap();
    }
    let found = fs::read_to_string(tree(path)).unwrap_or_default();
    assert!(
        found == text,
        "schemas/{path} is stale; run `UPDATE=1 cargo test --profile ci -p schemas` twice and read the difference"
    );
}

/// Field number of a catalogue column in `Readings`.
fn number(field: &catalogue::Field) -> u16 {
    field.id.expect("a metric with a column has a field id")
}

#[test]
fn readings_proto_follows_the_catalogue() {
    let mut text = String::from(
        "// Generated from the metric catalogue; field numbers are DCGM field ids, names are DCGM names in lower case.\n\
         syntax = \"proto3\";\n\npackage strandline.v1;\n\n\
         // Readings of one device at one instant. An absent field was not read; it is not 0.\nmessage Readings {\n",
    );
    for (field, column) in catalogue::columns() {
        let kind = match field.value_type {
            ValueType::Int64 => "int64",
            ValueType::Double => "float",
            ValueType::Text => panic!("{} is text and has no column", field.name),
        };
        writeln!(
            text,
            "  // {}: {} ({}).\n  optional {kind} {column} = {};",
            field.name,
            field.meaning,
            field.unit,
            number(field)
        )
        .unwrap();
    }
    text.push_str("}\n");
    is_checked_in("proto/strandline/v1/readings.proto", &text);
}

#[test]
fn rust_follows_the_proto_files() {
    let files = protox::compile(["strandline/v1/strandline.proto", "strandline/v1/readings.proto"], [tree("proto")]).unwrap();
    let modules = prost_build::Config::new()
        .btree_map(["."])
        .generate(files.file.iter().map(|f| (prost_build::Module::from_protobuf_package_name(f.package()), f.clone())).collect())
        .unwrap();
    let (_, code) = modules.into_iter().find(|(module, _)| module.to_file_name_or("x") == "strandline.v1.rs").unwrap();
    is_checked_in("src/proto/strandline.v1.rs", &code);
}

#[test]
fn readings_by_id_follow_the_catalogue() {
    let mut text = String::from("// Generated from the metric catalogue.\nuse super::{Readings, Value};\n\nimpl Readings {\n");
    text.push_str("    /// Every reading that is there, by DCGM field id, in order of id.\n    pub fn each(&self, mut f: impl FnMut(u16, Value)) {\n");
    for (field, column) in catalogue::columns() {
        let kind = if field.value_type == ValueType::Double { "Float" } else { "Int" };
        writeln!(text, "        if let Some(v) = self.{column} {{ f({}, Value::{kind}(v)); }}", number(field)).unwrap();
    }
    text.push_str("    }\n\n    /// The reading of field `id`, if there.\n    pub fn get(&self, id: u16) -> Option<Value> {\n        match id {\n");
    for (field, column) in catalogue::columns() {
        let kind = if field.value_type == ValueType::Double { "Float" } else { "Int" };
        writeln!(text, "            {} => self.{column}.map(Value::{kind}),", number(field)).unwrap();
    }
    text.push_str("            _ => None,\n        }\n    }\n\n    /// Sets the reading of field `id`; false where no such field has a column, or the value is of the other type.\n    pub fn set(&mut self, id: u16, value: Value) -> bool {\n        match (id, value) {\n");
    for (field, column) in catalogue::columns() {
        let kind = if field.value_type == ValueType::Double { "Float" } else { "Int" };
        writeln!(text, "            ({}, Value::{kind}(v)) => self.{column} = Some(v),", number(field)).unwrap();
    }
    text.push_str("            _ => return false,\n        }\n        true\n    }\n}\n");
    is_checked_in("src/proto/readings_by_id.rs", &text);
}

#[test]
fn tables_md_follows_the_tables() {
    is_checked_in("tables.md", &schemas::tables::markdown());
}

/// Additive change only: everything that the last release's descriptor has is still there, same number, type and label.
#[test]
fn messages_only_grow() {
    let files = protox::compile(["strandline/v1/strandline.proto", "strandline/v1/readings.proto"], [tree("proto")]).unwrap();
    let path = tree("proto/released.binpb");
    if std::env::var_os("RELEASE").is_some() {
        fs::write(&path, files.encode_to_vec()).unwrap();
    }
    let released = prost_types::FileDescriptorSet::decode(fs::read(&path).unwrap().as_slice()).unwrap();
    let fields = |set: &prost_types::FileDescriptorSet| -> Vec<_> {
        set.file
            .iter()
            .flat_map(|file| &file.message_type)
            .flat_map(|message| {
                message.field.iter().map(|field| {
                    (
                        message.name().to_owned(),
                        field.number(),
                        field.name().to_owned(),
                        field.r#type(),
                        field.label(),
                        field.type_name().to_owned(),
                        field.proto3_optional(),
                    )
                })
            })
            .collect()
    };
    let now = fields(&files);
    assert!(!now.is_empty());
    for field in fields(&released) {
        assert!(now.contains(&field), "{field:?} was released and is gone or changed");
    }
}
