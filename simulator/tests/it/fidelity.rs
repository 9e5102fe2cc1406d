//! Calibrated fleets are near what they are calibrated by.

use simulator::{
    fidelity::{LIMIT, fidelity},
    presets::Preset,
};

/// Quantities of a preset that are not near, and are said to be not.
fn far(preset: Preset) -> Vec<&'static str> {
    let compared = fidelity(preset, None).unwrap();
    for row in &compared {
        println!("{:<14} {:<13} {:>7} {:.3} at {}", row.preset, row.quantity, row.simulated, row.distance, row.at);
        assert!(row.simulated > 1000, "{row:?}");
        assert_eq!(row.close, row.distance <= LIMIT);
        assert!(row.close || !row.note.is_empty(), "the table says why: {row:?}");
    }
    compared.iter().filter(|row| !row.close).map(|row| row.quantity).collect()
}

#[test]
fn an_llm_cluster_reads_as_it_was_measured() {
    assert_eq!(far(Preset::AcmeSeren), Vec::<&str>::new());
}

#[test]
fn jobs_of_a_shared_cluster_come_and_last_as_they_did() {
    assert_eq!(far(Preset::Philly), Vec::<&str>::new());
}

#[test]
fn pods_of_a_kubernetes_cluster_come_and_last_as_they_did_and_hold_their_parts_of_gpus() {
    assert_eq!(far(Preset::Openb), Vec::<&str>::new());
}

#[test]
fn serving_pods_are_as_idle_as_they_were() {
    assert_eq!(far(Preset::GenaiServing), Vec::<&str>::new());
}

#[test]
fn another_seed_is_as_near() {
    let compared = fidelity(Preset::GenaiServing, Some(simulator::Seed(99))).unwrap();
    assert!(compared.iter().all(|row| row.close), "{compared:?}");
}
