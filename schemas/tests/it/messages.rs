//! Messages keep what is put into them, absence included.

use proptest::prelude::*;
use prost::Message;
use schemas::{
    catalogue::{self, ValueType},
    proto::{DeviceSample, Readings, ScrapeRound, Value},
};

#[test]
fn absent_readings_stay_absent() {
    let mut readings = Readings::default();
    assert!(readings.set(203, Value::Int(0)));
    assert!(readings.set(1002, Value::Float(0.503)));
    assert!(!readings.set(203, Value::Float(1.0)), "GPU_UTIL is whole");
    assert!(!readings.set(9001, Value::Int(1)), "a family of several series has no column");
    let round =
        ScrapeRound { devices: vec![DeviceSample { readings: Some(readings), ..Default::default() }], ..Default::default() };
    let back = ScrapeRound::decode(round.encode_to_vec().as_slice()).unwrap();
    let mut seen = Vec::new();
    back.devices[0].readings.as_ref().unwrap().each(|id, value| seen.push((id, value)));
    assert_eq!(seen, [(203, Value::Int(0)), (1002, Value::Float(0.503))]);
}

#[test]
fn every_column_can_be_set_and_read_by_id() {
    for (field, _) in catalogue::columns() {
        let value = if field.value_type == ValueType::Double { Value::Float(0.25) } else { Value::Int(7) };
        let mut readings = Readings::default();
        assert!(readings.set(field.id.unwrap(), value), "{}", field.name);
        assert_eq!(readings.get(field.id.unwrap()), Some(value));
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = ScrapeRound::decode(bytes.as_slice());
    }
}
