//! Settled holdings of random worlds: pieces that come to the capacity of the hour rows, and holders for each of them.

use std::collections::BTreeMap;

use ledger::{hours, hours_and_settled, settled::Settled};
use proptest::prelude::*;
use schemas::HOUR_MS;

use crate::worlds::{whole, worlds};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_come_to_the_rows_of_each_gpu(world in worlds(true, true)) {
        let (rows, settled) = hours_and_settled(&world.0, whole()).unwrap();
        prop_assert_eq!(&rows, &hours(&world.0, whole()).unwrap(), "to ask for more changes no row");
        let gpu = |place: &ledger::row::Place| place.parent.clone().or(place.device.clone());
        let mut exact: BTreeMap<_, (i128, i128)> = BTreeMap::new();
        for row in &settled {
            let (Some(gpu), Some(den)) = (gpu(&row.place), row.measure.unit_den) else { continue };
            let ids = match row.what {
                Settled::Owner { ids, .. } | Settled::Free { ids, .. } | Settled::Unavailable { ids, .. } => i128::from(ids),
                Settled::Device | Settled::Held { .. } | Settled::Number { .. } => continue,
            };
            prop_assert!(row.from < row.to && row.hour_start <= row.from && row.to <= row.hour_start.plus_ms(HOUR_MS));
            let parts = ids * i128::from(row.to.ms() - row.from.ms()) * i128::from(row.measure.unit_num.unwrap());
            let sum = exact.entry((row.hour_start, gpu)).or_insert((0, i128::from(den)));
            prop_assert_eq!(sum.1, i128::from(den), "a GPU and its instances have one denominator");
            sum.0 += parts;
        }
        let mut rounded: BTreeMap<_, i128> = exact.keys().map(|key| (key.clone(), 0)).collect();
        for row in &rows {
            if let Some(gpu) = gpu(&row.place) {
                *rounded.entry((row.hour_start, gpu)).or_insert(0) += i128::from(row.ms);
            }
        }
        for (key, ms) in rounded {
            let (parts, den) = exact.get(&key).copied().unwrap_or((0, 1));
            prop_assert!(2 * (parts - ms * den).abs() <= den, "{key:?}: {parts}/{den} are rounded to {ms}");
        }
    }

    #[test]
    fn who_has_a_piece_is_among_the_holders_of_all_of_it(world in worlds(true, true)) {
        let (_, settled) = hours_and_settled(&world.0, whole()).unwrap();
        for row in &settled {
            let Settled::Owner { pod, held_from, .. } = &row.what else { continue };
            prop_assert!(*held_from <= row.from);
            let mut held = 0;
            for other in settled.iter().filter(|o| (o.hour_start, &o.place) == (row.hour_start, &row.place)) {
                if let Settled::Held { pod_uid, pods } = &other.what && *pod_uid == pod.uid {
                    prop_assert!(*pods > 0);
                    held += (other.to.ms().min(row.to.ms()) - other.from.ms().max(row.from.ms())).max(0);
                }
            }
            prop_assert_eq!(held, row.to.ms() - row.from.ms());
        }
    }
}
